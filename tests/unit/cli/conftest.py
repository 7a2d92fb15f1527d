"""Fixtures of the commands' tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi
from tests.unit.cli.desk import RUN, SPEC, Desk
from tests.unit.cli.pods import Pods


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the local time be UTC, wherever the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def orch(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.paths.ensure()
    return desk


@pytest.fixture
def api(orch: Desk) -> Iterator[FakeApi]:
    with FakeApi(Path(orch.paths.socket)) as fake:
        yield fake


@pytest.fixture
def pods(orch: Desk, tmp_path: Path) -> Pods:
    return Pods(tmp_path, orch)


@pytest.fixture
def logs(orch: Desk) -> RunLogs:
    found = RunLogs(orch.paths.state_dir)
    found.append(RUN, "worker:0", 1, 0, b"990.000000 o loading\n995.000000 e oops\n")
    found.append(RUN, "worker:1", 1, 0, b"992.000000 o also\n")
    return found


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return str(tmp_path / "cluster.yaml")

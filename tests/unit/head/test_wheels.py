"""Collections of wheels on the head node: made once by whoever comes first, and not removed while they are in use."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.head.hosts import wheels
from orchestrator.head.hosts.wheels import KEPT_MAX, Wheels
from orchestrator.protocol.orders.preparation import EnvironmentState
from orchestrator.spec.setup import Environment

PIP = """import pathlib, sys
with open(pathlib.Path(__file__).with_name("asked"), "a") as asked:
    asked.write("once ")
pathlib.Path(sys.argv[sys.argv.index("--dest") + 1], "six-1.0-py3-none-any.whl").write_bytes(b"six")
"""


@pytest.fixture(autouse=True)
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a pip in the place that downloads one wheel. Return the file that has a word for each download."""
    (tmp_path / "pip.py").write_text(PIP)
    monkeypatch.setattr(wheels, "_pip", lambda: [sys.executable, "-S", str(tmp_path / "pip.py")])
    return tmp_path / "asked"


def host(minor: int) -> EnvironmentState:
    return {
        "state": "absent",
        "python": "3.11.2",
        "by": "pip",
        "machine": "x86_64",
        "libc": f"glibc-2.{minor}",
        "line": "",
        "missing": [],
    }


def test_two_setups_at_once_collect_once(tmp_path: Path, pip: Path) -> None:
    environment = Environment("requirements.txt", "six", "", None, offline=True)
    found, said, heard = [], [], threading.Event()

    def told(sentence: str) -> None:
        said.append(sentence)
        heard.set()

    other = Wheels(environment, str(tmp_path / "wheels"), told)
    second = threading.Thread(target=lambda: found.append(other.fitting(host(36))))

    def begins(_sentence: str) -> None:
        if second.ident is None:  # while the first one collects
            second.start()
            assert heard.wait(30)

    found.append(Wheels(environment, str(tmp_path / "wheels"), begins).fitting(host(36)))
    second.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert pip.read_text() == "once "
    assert said == ["waits for another `orch setup` that collects wheels …"]


def test_a_collection_is_removed_only_when_nobody_has_asked_for_it_within_a_day(tmp_path: Path) -> None:
    place = tmp_path / "wheels"
    collected = Wheels(Environment("requirements.txt", "six", "", None, offline=True), str(place), print)
    paths = [next(iter(collected.fitting(host(minor)).values()))[0] for minor in range(20, 22 + KEPT_MAX)]
    assert all(map(os.path.exists, paths)), "any of them may be pushed just now"
    for age, path in enumerate(paths):
        os.utime(os.path.dirname(path), (time.time() - 10 * 86400 + age,) * 2)
    (place / ".interrupted").mkdir()
    (place / "a file").touch()
    newest = next(iter(collected.fitting(host(17)).values()))[0]
    left = {newest, *paths[1 - KEPT_MAX :]}
    assert {path for path in (*paths, newest) if os.path.exists(path)} == left
    assert not (place / ".interrupted").exists()

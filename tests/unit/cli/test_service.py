"""`orch service`: what is done in which order, with stand-ins for systemd's programs."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from orchestrator.cli.commands import service
from orchestrator.cli.handover import restart_unit
from orchestrator.cli.main import run
from orchestrator.cli.session import Session
from orchestrator.core.errors import JournalError, OrchestratorError, Refused
from orchestrator.head.node.systemd import UNIT, Systemd
from tests.contract.fake_api import FakeApi


@pytest.fixture
def session(tmp_path: Path) -> Session:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        fails = f"test ! -e {tmp_path}/{name}-fails || {{ echo no bus >&2; exit 1; }}"
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/asked\n{fails}\n')
        (tools / name).chmod(0o755)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    environ = {"ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "sock")}
    return Session(
        StringIO(), StringIO(), {**environ, "PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}
    )


@pytest.fixture
def systemd(session: Session, tmp_path: Path) -> Systemd:
    return Systemd(session.environ, system=False, root=str(tmp_path))


def asked(tmp_path: Path) -> list[str]:
    path = tmp_path / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_it_is_written_enabled_started_and_lingers(
    session: Session, systemd: Systemd, tmp_path: Path
) -> None:
    document = service.install(session, systemd, user="ml")
    assert document == {"schema": 1, "unit": systemd.path, "linger": True}
    assert Path(systemd.path).read_text() == service.unit_of(session, system=False, user="ml").text
    assert f'"ORCH_STATE_DIR={tmp_path}/state"' in Path(systemd.path).read_text()
    assert asked(tmp_path) == [
        "systemctl --user daemon-reload",
        f"systemctl --user enable {UNIT}",
        f"systemctl --user restart {UNIT}",
        "loginctl enable-linger ml",
    ]


def test_a_coordinator_that_runs_ends_before_the_unit_begins(session: Session, systemd: Systemd) -> None:
    session.paths.ensure()
    with FakeApi(Path(session.paths.socket)) as api:
        service.install(session, systemd, user="ml")
        assert [path for path, _ in api.posted] == ["/v1/stop"]


def test_without_linger_it_is_said_what_that_means(
    session: Session, systemd: Systemd, tmp_path: Path
) -> None:
    (tmp_path / "loginctl-fails").touch()
    assert service.install(session, systemd, user="ml")["linger"] is False
    assert isinstance(session.err, StringIO)
    assert "the coordinator ends when you log out" in session.err.getvalue()


def test_a_journal_that_it_could_not_read_is_told_before_anything_changes(
    session: Session, systemd: Systemd, tmp_path: Path
) -> None:
    session.paths.ensure()
    Path(session.paths.journal).write_text("no journal\n")
    with pytest.raises(Refused, match="is damaged"):
        service.install(session, systemd, user="ml")
    assert asked(tmp_path) == []
    assert not Path(systemd.path).exists()
    assert JournalError.exit_code != Refused.exit_code


def test_it_is_removed_once(session: Session, systemd: Systemd, tmp_path: Path) -> None:
    service.install(session, systemd, user="ml")
    assert service.describe(systemd, user="ml")["installed"] is True
    assert service.uninstall(systemd)
    assert not service.uninstall(systemd)
    assert asked(tmp_path)[-2:] == [
        f"systemctl --user disable --now {UNIT}",
        "systemctl --user daemon-reload",
    ]
    assert service.describe(systemd, user="ml") == {
        "schema": 1,
        "unit": systemd.path,
        "installed": False,
        "enabled": "no",
        "active": "no",
        "linger": False,
    }


def test_what_systemctl_says_is_passed_on(session: Session, systemd: Systemd, tmp_path: Path) -> None:
    (tmp_path / "systemctl-fails").touch()
    with pytest.raises(OrchestratorError, match="`systemctl --user daemon-reload` failed: no bus"):
        service.install(session, systemd, user="ml")


def test_a_restart_goes_to_the_manager_that_the_coordinator_names(session: Session, tmp_path: Path) -> None:
    assert restart_unit(session, f"user/{UNIT}") == UNIT
    restart_unit(session, f"system/{UNIT}")
    assert asked(tmp_path) == [f"systemctl --user restart {UNIT}", f"systemctl restart {UNIT}"]


def test_printing_needs_no_systemd_and_changes_nothing(session: Session, tmp_path: Path) -> None:
    assert run(["service", "install", "--print"], session) == 0
    assert isinstance(session.out, StringIO)
    assert session.out.getvalue().startswith("[Unit]\n")
    assert "KillMode=process" in session.out.getvalue()
    assert asked(tmp_path) == []
    assert not (tmp_path / "state").exists()

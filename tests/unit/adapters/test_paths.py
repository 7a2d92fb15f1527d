"""Where things lie, and what makes a directory unfit for the socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.adapters.head.paths import Paths
from orchestrator.core.errors import OrchestratorError


def test_our_own_variables_come_first() -> None:
    paths = Paths.from_environment(
        {"ORCH_STATE_DIR": "/s", "ORCH_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": "/y"}
    )
    assert (paths.state_dir, paths.socket, paths.journal) == ("/s", "/r/coordinator.sock", "/s/journal.db")


def test_then_those_of_the_desktop(tmp_path: Path) -> None:
    paths = Paths.from_environment({"XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": str(tmp_path)})
    assert (paths.state_dir, paths.runtime_dir) == ("/x/orch", f"{tmp_path}/orch")


@pytest.mark.parametrize("unusable", ["relative", "/nowhere/at/all"])
def test_then_a_directory_of_the_users(tmp_path: Path, unusable: str) -> None:
    paths = Paths.from_environment(
        {"XDG_STATE_HOME": "relative", "XDG_RUNTIME_DIR": unusable, "TMPDIR": str(tmp_path)}
    )
    assert paths.state_dir == os.path.expanduser("~/.local/state/orch")
    assert paths.runtime_dir == f"{tmp_path}/orch-{os.getuid()}"


def test_what_is_made_is_private(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "s"), str(tmp_path / "r"))
    paths.ensure()
    assert [os.stat(p).st_mode & 0o777 for p in (paths.state_dir, paths.runtime_dir)] == [0o700, 0o700]
    paths.ensure()


def test_a_runtime_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r").chmod(0o750)
    with pytest.raises(OrchestratorError, match=r"has mode 0750; others can enter it"):
        Paths(str(tmp_path / "s"), str(tmp_path / "r")).ensure()


def test_a_link_is_no_runtime_directory(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "r").symlink_to(tmp_path / "real")
    with pytest.raises(OrchestratorError, match="is not a directory"):
        Paths(str(tmp_path / "s"), str(tmp_path / "r")).ensure()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_runtime_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    os.chown(tmp_path / "r", 12345, 12345)
    with pytest.raises(OrchestratorError, match="belongs to user 12345, not to you"):
        Paths(str(tmp_path / "s"), str(tmp_path / "r")).ensure()


def test_a_path_that_no_socket_can_have_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OrchestratorError, match="a Unix socket takes 107") as caught:
        Paths(str(tmp_path), str(tmp_path / ("x" * 100))).ensure()
    assert "$ORCH_RUNTIME_DIR" in str(caught.value.hint)


def test_a_state_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OrchestratorError, match="cannot make the directory"):
        Paths(str(tmp_path / "file" / "s"), str(tmp_path / "r")).ensure()


@pytest.mark.parametrize("run_id", ["", "..", "a/b"])
def test_a_run_id_leads_nowhere_else(run_id: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        Paths("/s", "/r").run_dir(run_id)

"""Where things lie, and what makes a directory unfit for the socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.core.errors import OrchestratorError
from orchestrator.head.node.paths import Paths


def test_our_own_variables_come_first() -> None:
    paths = Paths.from_environment(
        {"ORCH_STATE_DIR": "/s", "ORCH_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": "/y"}
    )
    assert (paths.state_dir, paths.socket, paths.journal) == ("/s", "/r/coordinator.sock", "/s/journal.db")


def test_then_those_of_the_desktop(tmp_path: Path) -> None:
    paths = Paths.from_environment({"XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": str(tmp_path)})
    assert (paths.state_dir, paths.runtime_dir) == ("/x/orch", f"{tmp_path}/orch")


@pytest.mark.parametrize("unusable", ["relative", "{}/that/is/not/there"])
def test_then_a_directory_of_the_users(tmp_path: Path, unusable: str) -> None:
    given = {"XDG_RUNTIME_DIR": unusable.format(tmp_path), "TMPDIR": str(tmp_path)}
    paths = Paths.from_environment({"XDG_STATE_HOME": "relative", **given})
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


@pytest.mark.fault(51)
class TestStateDirectory:
    """It says which host keys are known, and holds the secrets of runs: nobody else may have a hand in it."""

    @pytest.fixture
    def paths(self, tmp_path: Path) -> Paths:
        made = Paths(str(tmp_path / "s"), str(tmp_path / "r"))
        made.ensure()
        return made

    @pytest.mark.parametrize("within", ["", "runs", "secrets"])
    def test_one_that_others_can_enter_is_refused(self, paths: Paths, within: str) -> None:
        path = os.path.join(paths.state_dir, within).rstrip("/")
        os.chmod(path, 0o711)
        for look in (paths.check, paths.ensure):
            with pytest.raises(
                OrchestratorError, match=f"{path} has mode 0711; others can enter it"
            ) as refused:
                look()
            assert f"chmod 700 {path}" in (refused.value.hint or "")

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
    @pytest.mark.parametrize("within", ["", "runs"])
    def test_somebody_elses_is_refused(self, paths: Paths, within: str) -> None:
        os.chown(os.path.join(paths.state_dir, within), 12345, 12345)
        with pytest.raises(OrchestratorError, match="belongs to user 12345, not to you") as refused:
            paths.check()
        assert "$ORCH_STATE_DIR" in (refused.value.hint or "")

    def test_a_link_of_ones_own_is_fine(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to("disk")
        paths = Paths(str(tmp_path / "link" / "s"), str(tmp_path / "r"))
        paths.ensure()
        assert (tmp_path / "disk/s/runs").is_dir()

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
    @pytest.mark.parametrize("path", ["link", "link/s", "mine/s"])
    def test_a_link_of_somebody_elses_is_not(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "disk").mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        (tmp_path / "mine").symlink_to("link")
        os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
        with pytest.raises(OrchestratorError, match=f"leads through {tmp_path}/link, a link of user 12345"):
            Paths(str(tmp_path / path), str(tmp_path / "r")).ensure()

    def test_where_anybody_may_put_another_in_its_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "all").mkdir()
        (tmp_path / "all").chmod(0o777)
        paths = Paths(str(tmp_path / "all/s"), str(tmp_path / "r"))
        with pytest.raises(OrchestratorError, match="where anybody may replace it") as refused:
            paths.ensure()
        assert f"chmod o-w {tmp_path}/all" in (refused.value.hint or "")
        (tmp_path / "all").chmod(0o1777)
        paths.ensure()

    def test_nothing_is_made_in_one_that_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir()
        (tmp_path / "s").chmod(0o755)
        with pytest.raises(OrchestratorError):
            Paths(str(tmp_path / "s"), str(tmp_path / "r")).ensure()
        assert list((tmp_path / "s").iterdir()) == []

    def test_what_is_not_there_yet_is_no_fault(self, tmp_path: Path) -> None:
        Paths(str(tmp_path / "s"), str(tmp_path / "r")).check()
        assert list(tmp_path.iterdir()) == []

    def test_a_link_to_nowhere_or_to_itself_is_a_sentence(self, tmp_path: Path) -> None:
        for target in ("nowhere", "s"):
            (tmp_path / "s").unlink(missing_ok=True)
            (tmp_path / "s").symlink_to(target)
            with pytest.raises(OrchestratorError, match=f"{tmp_path}/s cannot be checked"):
                Paths(str(tmp_path / "s"), str(tmp_path / "r")).check()

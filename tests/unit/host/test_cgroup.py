"""Control groups, on a directory that stands for the hierarchy: what is written there, and what is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.host.system import cgroup, user_scope

NAME = "0123456789abcdef01234567"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hierarchy in which the kernel has made the files of our group."""
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "orch" / NAME).mkdir(parents=True)
    (tmp_path / "orch" / NAME / "cgroup.procs").write_text("7\n8\n")
    monkeypatch.setattr(cgroup, "_ROOTS", (str(tmp_path),))
    return tmp_path


def test_the_memory_of_a_task_is_counted_in_its_group_and_nothing_is_written_above_ours(root: Path) -> None:
    group = cgroup.create(NAME)
    assert group is not None
    assert group.path == str(root / "orch" / NAME)
    assert (root / "orch" / "cgroup.subtree_control").read_text() == "+memory"
    assert not (root / "cgroup.subtree_control").exists()
    assert (group.peak_bytes(), group.oom_kills()) == (None, None), "the controller may be off"
    (root / "orch" / NAME / "memory.peak").write_text("4096\n")
    (root / "orch" / NAME / "memory.events").write_text("oom 3\noom_kill 2\noom_group_kill 1\n")
    assert (group.peak_bytes(), group.oom_kills()) == (4096, 2)
    assert group.pids() == [7, 8]


def test_a_group_is_found_where_its_shim_made_it_and_under_no_other_name(root: Path) -> None:
    found = cgroup.find(NAME)
    assert found is not None
    assert found.path == str(root / "orch" / NAME)
    assert cgroup.find("f" * 24) is None
    elsewhere = root / "user.slice" / NAME
    elsewhere.mkdir(parents=True)
    scope = cgroup.find(NAME, str(elsewhere))
    assert scope is not None
    assert scope.path == str(elsewhere)
    other = cgroup.find(NAME, str(root / "user.slice"))
    assert other is not None
    assert other.path == found.path, "a record that names another group is not believed"


def test_a_group_that_cannot_be_joined_is_none(root: Path) -> None:
    (root / "orch" / NAME / "cgroup.procs").unlink()
    assert cgroup.create(NAME) is None
    assert not os.path.exists(root / "orch" / NAME)


def test_a_shim_can_leave_its_login_where_the_users_own_systemd_can_be_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busctl, bus = root / "bin/busctl", root / "run" / str(os.getuid()) / "bus"
    for file in (busctl, bus):
        file.parent.mkdir(parents=True)
        file.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(busctl.parent))
    monkeypatch.setattr(user_scope, "_RUNTIME", str(root / "run"))
    assert not cgroup.can_leave_login(), "a shim that may write the hierarchy stays in the login"
    monkeypatch.setattr(cgroup, "_base", lambda: None)
    assert cgroup.can_leave_login()
    for file in (busctl, bus, root / "cgroup.procs"):
        file.rename(f"{file}.away")
        assert not cgroup.can_leave_login(), f"without {file.name}"
        Path(f"{file}.away").rename(file)

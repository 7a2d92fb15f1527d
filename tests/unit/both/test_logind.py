"""Whether a logout would end the tasks: logind's files, as systemd reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.both.logind import ends_tasks, kills_at_logout

LOGIN = "0::/user.slice/user-1000.slice/session-3.scope\n"


def asked(root: Path, user: str = "ml", cgroup: str = LOGIN) -> str | None:
    return kills_at_logout(user, root=str(root), cgroup=cgroup)


def warned(root: Path, *, can_leave: bool) -> str | None:
    return ends_tasks("ml", can_leave=can_leave, root=str(root), cgroup=LOGIN)


def conf(root: Path, text: str, place: str = "etc/systemd/logind.conf") -> None:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_nothing_is_said_where_logind_kills_nobody(tmp_path: Path) -> None:
    assert asked(tmp_path) is None
    conf(tmp_path, "[Login]\n#KillUserProcesses=yes\nKillUserProcesses=no\n")
    assert asked(tmp_path) is None
    assert warned(tmp_path, can_leave=False) is None


def test_the_setting_is_named_with_the_way_out(tmp_path: Path) -> None:
    conf(tmp_path, "[Login]\nKillUserProcesses=yes\n")
    assert asked(tmp_path) == "logind kills the processes of ml at logout (KillUserProcesses=yes)"
    said = warned(tmp_path, can_leave=True)
    assert said is not None
    assert said.startswith(f"{asked(tmp_path)}: ")
    assert "`loginctl enable-linger ml` keeps them" in said


@pytest.mark.parametrize("extra", ["KillExcludeUsers=root ml", "KillOnlyUsers=somebody"])
def test_users_may_be_spared(tmp_path: Path, extra: str) -> None:
    conf(tmp_path, f"[Login]\nKillUserProcesses=yes\n{extra}\n")
    assert asked(tmp_path) is None


def test_root_is_spared_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    conf(tmp_path, "[Login]\nKillUserProcesses=1\n")
    assert asked(tmp_path, "root") is None
    conf(tmp_path, "[Login]\nKillExcludeUsers=\n", "etc/systemd/logind.conf.d/10.conf")
    assert asked(tmp_path, "root") is not None


@pytest.mark.parametrize("of_all", ["", "KillUserProcesses=no\n", "KillUserProcesses=yes\n"])
def test_who_is_named_is_killed_whatever_is_said_of_all(tmp_path: Path, of_all: str) -> None:
    conf(tmp_path, f"[Login]\n{of_all}KillOnlyUsers=ana ml\n")
    assert asked(tmp_path) == "logind kills the processes of ml at logout (KillOnlyUsers)"
    assert asked(tmp_path, "ben") is None
    conf(tmp_path, "[Login]\nKillExcludeUsers=ml\n", "etc/systemd/logind.conf.d/10.conf")
    assert asked(tmp_path) is None


def test_tasks_of_who_lingers_stay_only_where_they_can_leave_the_login(tmp_path: Path) -> None:
    conf(tmp_path, "[Login]\nKillUserProcesses=yes\n")
    before = warned(tmp_path, can_leave=False)
    conf(tmp_path, "", "var/lib/systemd/linger/ml")
    assert asked(tmp_path) is not None, "the login's processes are killed all the same"
    assert warned(tmp_path, can_leave=True) is None
    said = warned(tmp_path, can_leave=False)
    assert said is not None
    assert "have root set `KillExcludeUsers=root ml`" in said
    assert "enable-linger" not in said
    assert before == said, "lingering is not advised to who does not linger yet"


def test_what_is_no_login_is_not_ended_by_a_logout(tmp_path: Path) -> None:
    conf(tmp_path, "[Login]\nKillUserProcesses=yes\n")
    assert (
        asked(tmp_path, cgroup="0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service\n")
        is None
    )
    assert asked(tmp_path, cgroup="0::/\n") is None


def test_the_last_drop_in_by_name_has_the_last_word_and_etc_hides_the_same_name_elsewhere(
    tmp_path: Path,
) -> None:
    conf(tmp_path, "[Login]\nKillUserProcesses=no\n")
    conf(tmp_path, "[Login]\nKillUserProcesses=yes\n", "usr/lib/systemd/logind.conf.d/50-site.conf")
    assert asked(tmp_path) is not None
    conf(tmp_path, "", "etc/systemd/logind.conf.d/50-site.conf")
    assert asked(tmp_path) is None
    conf(tmp_path, "[Other]\nKillUserProcesses=yes\n", "etc/systemd/logind.conf.d/60.conf")
    assert asked(tmp_path) is None, "another section's"

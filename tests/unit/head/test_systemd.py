"""The unit file, and systemd's programs, which stand-ins on PATH play here: the test machine has none."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import OrchestratorError, Refused
from orchestrator.head.node.systemd import UNIT, CoordinatorUnit, Systemd, quoted

STATE = "/home/ml/.local/state/orch"


def unit(*, system: bool = False, **environment: str) -> CoordinatorUnit:
    return CoordinatorUnit(
        command=["/opt/o rch/bin/python3", "-P", "-m", "orchestrator.cli.main", "coordinator", "run"],
        environment={"ORCH_STATE_DIR": STATE, "ORCH_RUNTIME_DIR": "/run/user/1000/orch", **environment},
        user="ml",
        system=system,
        state_dir=STATE,
        uid=1000,
    )


def settings(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, eq, value = line.partition("=")
        if eq and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_a_restart_of_the_service_touches_no_task_on_this_machine() -> None:
    found = settings(unit().text)
    assert found["KillMode"] == ["process"]
    assert found["OOMPolicy"] == ["continue"], "a task that the kernel kills would take the coordinator along"
    assert found["TasksMax"] == ["infinity"]
    assert found["Restart"] == ["on-failure"]
    assert "6" in found["RestartPreventExitStatus"][0].split(), "another coordinator has the journal"


def test_it_is_waited_for_until_it_answers_and_begun_anew_when_it_hangs() -> None:
    found = settings(unit().text)
    assert found["Type"] == ["notify"]
    assert float(found["WatchdogSec"][0]) >= 60, "a slow disk is no hang"
    assert found["NotifyAccess"] == ["main"], "no task speaks for it"


@pytest.mark.parametrize("system", [False, True])
def test_it_is_restricted_to_what_it_and_tasks_on_this_machine_need(system: bool) -> None:
    found = settings(unit(system=system, ORCH_HOST_DIR="/opt/100% ours").text)
    assert found["NoNewPrivileges"] == ["yes"]
    assert "PrivateTmp" not in found, "the socket may lie in /tmp"
    assert not {"PrivateDevices", "ProtectClock", "DevicePolicy"} & set(found), "GPUs are devices"
    if not system:
        assert "ProtectSystem" not in found, "it would need a user namespace, in which root is nobody"
        return
    assert found["ProtectSystem"] == ["full"], "checkpoints lie anywhere, but not in /usr"
    assert found["ReadWritePaths"] == [
        f'"-{STATE}"',
        '"-/opt/100%% ours"',
        '"-/run/user/1000/orch"',
    ], "whatever directories were chosen for it"


def test_the_unit_names_the_same_places_as_the_command_that_wrote_it() -> None:
    found = settings(unit(ORCH_HOST_DIR="/data/100% ours").text)
    assert found["Environment"] == [
        '"ORCH_HOST_DIR=/data/100%% ours"',
        '"ORCH_RUNTIME_DIR=/run/user/1000/orch"',
        f'"ORCH_SERVICE=user/{UNIT}"',
        f'"ORCH_STATE_DIR={STATE}"',
    ]
    words = '"/opt/o rch/bin/python3" "-P" "-m" "orchestrator.cli.main" "coordinator" "run"'
    assert found["ExecStart"] == [words]
    assert found["WantedBy"] == ["default.target"]


def test_a_unit_of_the_machine_runs_as_the_user_whose_runtime_directory_it_waits_for() -> None:
    found = settings(unit(system=True).text)
    assert found["User"] == ["ml"]
    assert found["After"] == found["Wants"] == ["network-online.target user-runtime-dir@1000.service"]
    assert found["WantedBy"] == ["multi-user.target"]
    assert f'"ORCH_SERVICE=system/{UNIT}"' in found["Environment"]


@pytest.mark.parametrize(
    ("text", "written"),
    [("a b", '"a b"'), ('a"b\\', '"a\\"b\\\\"'), ("50%", '"50%%"'), ("$HOME", '"$$HOME"'), ("é", '"é"')],
)
def test_words_of_a_command_line_mean_themselves(text: str, written: str) -> None:
    assert quoted(text, command=True) == written


def test_what_no_unit_file_can_hold_is_refused() -> None:
    with pytest.raises(Refused, match="line break"):
        quoted("a\n[Service]\nUser=root")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("system", [False, True])
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path, system: bool) -> None:
    path = tmp_path / UNIT
    plain = replace(unit(system=system), command=["/bin/true", "run"], user="root", state_dir="/", uid=0)
    path.write_text(plain.text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *([] if system else ["--user"]), str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert UNIT not in done.stderr, done.stderr
    assert done.returncode == 0


@pytest.fixture
def desk(tmp_path: Path) -> dict[str, str]:
    """An environment in which systemctl and loginctl write down what they are asked."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        (tools / name).write_text(
            f'#!/bin/sh\necho "{name} $@" >> {tmp_path}/asked\ncat {tmp_path}/says\nexit $(cat {tmp_path}/code)\n'
        )
        (tools / name).chmod(0o755)
    (tmp_path / "says").write_text("enabled\n")
    (tmp_path / "code").write_text("0")
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)}


def test_where_systemd_did_not_boot_it_says_so_and_what_else_there_is(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="was not booted by systemd") as caught:
        Systemd({}, system=False, root=str(tmp_path)).check()
    assert "orch coordinator start" in str(caught.value.hint)


def test_it_speaks_to_the_users_manager_or_the_machines(tmp_path: Path, desk: dict[str, str]) -> None:
    for system in (False, True):
        systemd = Systemd(desk, system=system, root=str(tmp_path))
        systemd.ctl("enable", UNIT)
        assert systemd.ask("is-enabled") == "enabled"
        systemd.write("text\n")
        assert Path(systemd.path).read_text() == "text\n"
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [
        f"systemctl --user enable {UNIT}",
        f"systemctl --user is-enabled {UNIT}",
        f"systemctl enable {UNIT}",
        f"systemctl is-enabled {UNIT}",
    ]
    assert (tmp_path / ".config/systemd/user" / UNIT).exists()


def test_what_systemd_refuses_is_said_in_its_words(tmp_path: Path, desk: dict[str, str]) -> None:
    (tmp_path / "says").write_text("Failed to connect to bus\n")
    (tmp_path / "code").write_text("1")
    with pytest.raises(
        OrchestratorError, match=r"`systemctl --user enable x` failed: Failed to connect to bus"
    ):
        Systemd(desk, system=False, root=str(tmp_path)).ctl("enable", "x")

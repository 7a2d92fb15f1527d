"""A real agent and checkpoint directories: what people ask, hosts that share none, and a directory that hangs."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.host.agent import probe
from orchestrator.host.system.patience import within
from tests.contract.agent_harness import RUN, Client, client_in, interpreter
from tests.contract.hanging_disk import hanging
from tests.contract.small_disk import mounted
from tests.patience import patient
from tests.unit.checkpoints import saved

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checkpoints"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Client]:
    with client_in(tmp_path) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "c" / "gen-000001" / "manager"
    shutil.copytree(FIXTURES / "manager", directory)
    for place, path in enumerate(sorted(directory.iterdir())):  # a checkout writes all of them at once
        os.utime(path, (0, 1_700_000_000 + place))
    return tmp_path / "c"


def about(agent: Client, root: Path, do: str, what: str | None = None, python: str = sys.executable) -> Any:
    return agent.order("checkpoints", do=do, dir=str(root), what=what, python=python)


def test_a_person_lists_pins_and_goes_back_on_the_oldest_python_too(agent: Client, root: Path) -> None:
    python = interpreter("3.10") or sys.executable
    listed = about(agent, root, "list", python=python)["ok"]
    assert [found["global_step"] for found in listed["checkpoints"]] == [32, 24]
    assert about(agent, root, "pin", "24", python)["ok"]["already"] is False
    assert about(agent, root, "rollback", "24", python)["ok"]["set_aside"] == []
    seeded = agent.ok(
        "seed", generation=2, dir=str(root), python=python, keep=3, from_scratch=False, by={"host": "h"}
    )
    assert seeded["global_step"] == 24
    assert about(agent, root, "unpin", "24", python)["ok"]["checkpoint"]["pinned"] is False
    assert about(agent, root, "pin", "77")["error"]["code"] == "no-such-checkpoint"
    assert about(agent, root, "burn")["error"]["code"] == "bad-order"


@pytest.mark.fault(45)
def test_row_45_two_hosts_tell_of_one_directory_the_same_and_of_two_another(
    agent: Client, tmp_path: Path
) -> None:
    def share(directory: str) -> str:
        ask: dict[str, Any] = {"python": sys.executable, "script": "train.py", "ports": [1, 2]}
        return str(agent.ok("probe", checkpoint_dir=str(tmp_path / directory), **ask)["checkpoint_share"])

    assert share("one") == share("one") != share("two")


def test_a_directory_that_init_or_up_make_is_its_users_or_the_groups_alone(
    agent: Client, tmp_path: Path
) -> None:
    for name, group, mode in (("alone", None, 0o700), ("lab", str(os.getegid()), 0o2770)):
        asked: dict[str, Any] = {"python": sys.executable, "checkpoint_dir": str(tmp_path / name)}
        answer = agent.ok("probe", **asked, group=group)
        assert (answer["checkpoint_share"], answer["checkpoint_others"]) != (None, None)
        assert answer["checkpoint_others"] is None
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize(
    ("kind", "who"),
    [
        ("his", "its owner 4711"),
        ("open", "everybody"),
        ("link", "the user 4711 (by renaming what is in "),
        ("dangling", None),
        ("below", "everybody (by renaming what is in "),
    ],
)
def test_a_directory_that_another_user_has_made_or_may_swap_is_not_taken(
    agent: Client, tmp_path: Path, kind: str, who: str | None
) -> None:
    """He expects that `orch init` will call it so."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777 if kind == "below" else 0o1777)
    directory, real = scratch / "first", tmp_path / "real"
    if kind in ("link", "dangling"):
        directory.symlink_to(real)
        os.lchown(directory, 4711, 4711)
    if kind != "dangling":
        real.mkdir()
    if kind in ("his", "open"):
        directory.mkdir()
        directory.chmod(0o755 if kind == "his" else 0o777)
        os.chown(directory, *((4711, 4711) if kind == "his" else (0, 0)))
    answer = agent.ok("probe", python=sys.executable, checkpoint_dir=str(directory))
    assert answer["checkpoint_share"] is None
    assert (answer["checkpoint_others"] or "").startswith(who or "")
    assert answer["checkpoint_writable"] is (kind != "dangling")
    assert not real.exists() or os.listdir(real) == [], "nothing is made where his link leads"
    assert not (directory / ".orch").exists()


@pytest.mark.fault(44)
def test_row_44_a_directory_that_hangs_stops_no_heartbeat_and_is_told_of(agent: Client, root: Path) -> None:
    agent.ok("watch", heartbeat_s=0.1)
    with hanging(root):
        number = agent.send("verify", generation=1, dir=str(root), python=sys.executable)
        began_at, heard = time.monotonic(), len(agent.reports)
        while agent.reports[-1]["host"]["checkpoint_dirs"].get(RUN, {}).get("silent_s", 0.0) < 1.0:
            assert agent.hear()
        assert time.monotonic() - began_at < patient(10)
        assert len(agent.reports) > heard + 5
        assert number not in agent.replies
        assert within(0.2, lambda: probe.why_not_writable(str(root)) or "", "it hangs") == "it hangs"
    reply, _ = agent.answer(number)
    assert "Traceback" not in str(reply)
    again = agent.ok("verify", generation=1, dir=str(root), python=sys.executable)
    assert again["checkpoint"]["global_step"] == 32


SAVES = """
import os, shutil, sys, time
whole, directory = sys.argv[1], os.environ["ORCH_CHECKPOINT_DIR"]
first, second = sorted(os.listdir(whole))
shutil.copyfile(os.path.join(whole, first), os.path.join(directory, first))
with open(os.path.join(whole, second), "rb") as source, open(os.path.join(directory, second), "wb") as target:
    target.write(source.read(os.path.getsize(source.name) // 2))
open(os.path.join(directory, "half.tmp"), "w").close()
time.sleep(600)
"""
"""Saves one checkpoint, and is killed in the middle of the next."""


@pytest.mark.fault(42)
def test_row_42_who_is_killed_while_it_saves_goes_on_from_the_save_before(
    agent: Client, tmp_path: Path
) -> None:
    root, directory = tmp_path / "c", tmp_path / "c" / "gen-000001"
    for step in (100, 200):
        saved.npz(tmp_path / "whole" / f"model-{step}.npz", step)
    directory.mkdir(parents=True)
    agent.ok("watch", heartbeat_s=0.1)
    code = agent.push(train=SAVES)
    agent.start(code, args=[str(tmp_path / "whole")], env={"ORCH_CHECKPOINT_DIR": str(directory)})
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    agent.until(lambda _: (directory / "half.tmp").exists())
    agent.ok("stop", generation=1, task="worker:0", grace_s=0)
    agent.until_phase("exited")
    python = interpreter("3.10") or sys.executable
    looked = agent.ok("verify", generation=1, dir=str(root), python=python)
    assert (looked["checkpoint"]["global_step"], looked["checkpoint"]["verified"]) == (100, True)
    ask: dict[str, Any] = {"dir": str(root), "python": python, "keep": 3, "from_scratch": False}
    given = agent.ok("seed", generation=2, **ask)
    assert (given["global_step"], given["verified"]) == (100, True)
    assert given["source"] == str(directory / "model-100.npz")
    assert {Path(torn["path"]).name for torn in given["rejected"]} == {"model-200.npz", "half.tmp"}
    assert [path.name for path in Path(given["path"]).glob("m*")] == ["model-100.npz"]


def test_a_format_that_is_not_known_is_handed_on_and_said(agent: Client, tmp_path: Path) -> None:
    directory = tmp_path / "c" / "gen-000001"
    directory.mkdir(parents=True)
    (directory / "state_120.bin").write_bytes(b"a format of their own")
    ask: dict[str, Any] = {"dir": str(tmp_path / "c"), "python": sys.executable}
    looked = agent.ok("verify", generation=1, **ask)["checkpoint"]
    assert (looked["path"], looked["global_step"], looked["verified"]) == (str(directory), 120, False)
    given = agent.ok("seed", generation=2, keep=3, from_scratch=False, **ask)
    assert (given["source"], given["verified"]) == (str(directory), False)
    listed = about(agent, tmp_path / "c", "list")["ok"]["checkpoints"]
    assert [(found["name"], found["proof"], found["whole"]) for found in listed] == [
        ("gen-000002", "names", None),
        ("gen-000001", "names", None),
    ]


@pytest.mark.fault(36)
def test_row_36_a_full_disk_is_told_with_what_is_free_and_needed(agent: Client, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        saved.npz(disk.path / "c" / "gen-000001" / "model-100.npz", 100)
        disk.fill()
        ask: dict[str, Any] = {"dir": str(disk.path / "c"), "python": sys.executable, "keep": 3}
        error = agent.order("seed", generation=2, from_scratch=False, **ask)["error"]
        assert error["code"] == "no-space"
        assert "bytes are free, 16" in error["message"]
        disk.empty()
        assert agent.ok("seed", generation=2, from_scratch=False, **ask)["global_step"] == 100

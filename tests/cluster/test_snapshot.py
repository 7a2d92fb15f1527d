"""What was submitted is what runs: an edit after `orch up`, and files that change while it reads them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import WORKDIR, Cluster, wait_until
from tests.cluster.lab import LabHost
from tests.cluster.processes import agents, is_alive

pytestmark = pytest.mark.lab

QUICK = {"heartbeat": "0.3s", "unreachable_after": "1.5s", "lost_after": "3s", "kill_grace": "3s"}

WRITER = """\
import os, sys
with open("run.log", "ab", buffering=0) as log:
    print("writing", flush=True)
    number = 0
    while True:
        number += 1
        log.write(b"a line of a log\\n" * 100)
        with open(f".train.py.{number}.swp", "w") as swap:
            swap.write("1")
        os.unlink(f".train.py.{number}.swp")
"""


@contextmanager
def writing_in(directory: Path) -> Iterator[None]:
    """Let another process append to a log there, and make and remove swap files."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER], cwd=directory, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"writing\n"
        yield
    finally:
        writer.kill()
        writer.communicate()


def code(directory: Path, **scripts: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (directory / f"{name}.py").write_text(text)
    return directory


def trainer(directory: Path) -> Path:
    """Return a directory with a copy of the fake trainer, which a test may edit."""
    return Path(shutil.copytree(WORKDIR, directory, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.mark.fault(113)
def test_a_log_that_grows_and_files_that_come_and_go_hold_up_no_start(
    local_cluster: Cluster, tmp_path: Path
) -> None:
    orch, workdir = local_cluster, code(tmp_path / "code", train="print('trained')\n")
    (workdir / "run.log").write_bytes(b"0" * 3_000_000)
    with writing_in(workdir):
        for number in range(3):
            spec = orch.spec(
                name=f"n{number}",
                tasks=1,
                checkpoint=False,
                workdir=str(workdir),
                script="train.py",
                runtime="off",
            )
            done = orch.orch("up", spec, "--wait")
            assert done.returncode == 0, done.stderr
            assert "trained" in orch.ok("logs", f"n{number}")
            assert "run.log" not in done.stderr or "is taken as it was then: run.log" in done.stderr


@pytest.mark.fault(112)
def test_a_run_of_the_queue_has_the_code_that_was_submitted(local_cluster: Cluster, tmp_path: Path) -> None:
    orch, workdir = local_cluster, code(tmp_path / "code", train="import helper\n", helper="print('first')\n")
    orch.ok("up", orch.spec(tasks=1), "--detach")
    waiting = orch.spec(name="u", tasks=1, workdir=str(workdir), script="train.py", runtime="off")
    run_id = orch.ok("up", waiting, "--queue", "--detach").strip()
    (workdir / "train.py").write_text("print('edited')\n")
    (workdir / "helper.py").unlink()
    assert [each["path"] for each in json.loads(orch.ok("diff", "u", "--json"))["code"]] == [
        "helper.py",
        "train.py",
    ]
    again = orch.orch("up", waiting, "--queue", "--detach")
    assert again.stdout.strip() == run_id
    assert "waits in the queue with this plan, but with other code" in again.stderr
    orch.kill_coordinator()
    orch.ok("coordinator", "start")
    orch.ok("kill", "t")
    wait_until(lambda: (orch.shown("u") or {}).get("phase") == "SUCCEEDED", "its turn has come")
    assert "first" in orch.ok("logs", "u")
    assert "edited" not in orch.ok("logs", "u")


@pytest.mark.fault(112)
def test_a_spare_that_joins_after_an_edit_trains_what_was_submitted(
    cluster: Cluster, victim: Callable[[int], LabHost], tmp_path: Path
) -> None:
    workdir = trainer(tmp_path / "code")
    *hosts, last = cluster.hosts(3)
    spare, lost = victim(2), victim(1)
    spare.stop_sshd()
    spec = cluster.spec(
        "--lockstep", hosts=[*hosts, {**last, "spare": True}], timing=QUICK, workdir=str(workdir)
    )
    cluster.ok("up", spec)
    cluster.wait(lambda run: run["checkpoint"] is not None)
    (workdir / "fake_trainer.py").write_text("raise SystemExit('this was edited after `orch up`')\n")
    spare.start_sshd()
    cluster.wait(lambda run: states(run)["host-2"] == "spare")
    lost.cut()
    after = cluster.wait(lambda run: run["generation"] > 1 and run["phase"] == "RUNNING")
    assert {task["host"] for task in after["tasks"]} == {"host-0", "host-2"}
    assert cluster.wait(lambda run: (run["global_step"] or 0) > (after["global_step"] or 0) + 5)


@pytest.mark.fault(112)
def test_a_host_that_was_built_anew_gets_what_was_submitted(
    cluster: Cluster, victim: Callable[[int], LabHost], tmp_path: Path
) -> None:
    workdir = trainer(tmp_path / "code")
    host = victim(1)
    cluster.ok("up", cluster.spec("--lockstep", timing=QUICK, workdir=str(workdir)))
    before = cluster.wait(lambda run: run["checkpoint"] is not None)
    (workdir / "fake_trainer.py").write_text("raise SystemExit('this was edited after `orch up`')\n")
    host.stop_sshd()
    own = f"ORCH_HOST_DIR={host.host_dir}\0".encode()
    there = [pid for pid in cluster.marked() if own in Path(f"/proc/{pid}/environ").read_bytes()]
    for pid in [*there, *agents(host.host_dir)]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, there)), "all that ran there is gone")
    os.rename(host.host_dir, tmp_path / "the disk before")  # at once: what ends there may still remove files
    host.start_sshd()
    after = cluster.wait(lambda run: run["generation"] > before["generation"] and run["phase"] == "RUNNING")
    assert cluster.wait(lambda run: (run["global_step"] or 0) > (after["global_step"] or 0) + 5)


def states(run: dict[str, Any]) -> dict[str, str]:
    return {host["host"]: host["state"] for host in run["hosts"]}

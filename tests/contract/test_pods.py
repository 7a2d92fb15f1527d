"""The entry of a pod with real processes, in the place of a container: generations, peers, TERM and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.head.code import bundle
from orchestrator.protocol import pod
from tests.patience import comes

SCRIPT = """
import os, sys, time
from orchestrator import runtime
me, number = os.environ["ORCH_TASK"], os.environ["ORCH_GENERATION"]
print(me, "generation", number, "wired", os.environ["PEERS"], flush=True)
for step in range(int(open("steps").read())):
    runtime.report(step + 1)
    time.sleep(0.02)
    if os.path.exists(f"../fail-{me}-{number}") or os.path.exists(f"{sys.argv[1]}/fail-{me}-{number}"):
        raise ValueError("told to fail")
"""

Pods = Callable[..., "Pod"]


def free() -> int:
    """Return the first of twenty ports that nobody has: other tests make pods at the same time."""
    while True:
        first = random.randrange(23000, 31000, 20)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + 20):
                held.enter_context(socket.socket()).bind(("", port))
            return first


class Pod:
    """One pod: a process of the entry."""

    def __init__(self, directory: Path, document: dict[str, Any], index: int, attempt: str) -> None:
        home = directory / f"pod-{index}-{time.monotonic_ns()}"
        home.mkdir()
        file = home / "pod.json"
        file.write_text(json.dumps({**document, "host_dir": str(home / "host")}))
        env = {**os.environ, pod.TYPE: "worker", pod.INDEX: str(index)}
        env |= {pod.SET: "set-uid-1", pod.ATTEMPT: attempt}
        self.log = home / "log"
        with self.log.open("wb") as log:
            words = [sys.executable, "-I", str(directory / "orch.pyz"), "pod", str(file)]
            self.process = subprocess.Popen(words, env=env, stdout=log, stderr=subprocess.STDOUT)

    def wait_for(self, text: str) -> None:
        assert comes(lambda: text in self.log.read_text(), 30, 0.05), self.log.read_text()

    def end(self) -> int:
        return self.process.wait(30)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    (tmp_path / "orch.pyz").write_bytes(bundle.load().code.data)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    first = free()
    own = {"env": {}, "wiring": {"PEERS": "a:@PORT@"}, "trains": False}
    document = {
        "name": "small",
        "chief": "worker:0",
        "tasks": {
            "worker:0": {**own, "env": {"ORCH_TASK": "worker:0"}, "saves": True, "scratch": False},
            "worker:1": {**own, "env": {"ORCH_TASK": "worker:1"}, "saves": False, "scratch": True},
        },
        "python": sys.executable,
        "script": "train.py",
        "args": [str(tmp_path)],
        "runtime": True,
        "code_dir": str(tmp_path / "code"),
        "checkpoint": {"dir": str(tmp_path / "ckpt"), "keep": 3},
        "timing": {
            "stall_after_s": None,
            "stall_floor_s": 60,
            "stall_factor": 10,
            "on_stall": "restart",
            "kill_grace_s": 5,
            "save_wait_s": 0.5,
            "without_progress_max": 3,
        },
    }
    started: list[Pod] = []

    def start(index: int, *, steps: int = 5, attempt: str = "", **changes: Any) -> Pod:
        (tmp_path / "code" / "steps").write_text(str(steps))
        ports = {"ports": [first + 10 * index, first + 10 * index + 9]}
        started.append(Pod(tmp_path, {**document, **ports, **changes}, index, attempt))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_pods_agree_on_a_generation_and_the_next_attempt_takes_a_higher_one(
    pods: Pods, tmp_path: Path
) -> None:
    second, first = pods(1, attempt="0"), pods(0, attempt="0")
    assert (first.end(), second.end()) == (0, 0)
    assert re.search(r"worker:1 generation 1 wired a:\d+1\n", second.log.read_text())
    again = pods(0, attempt="1", script="-m", args=["train", str(tmp_path)])
    assert again.end() == 0
    assert re.search(r"worker:0 generation 2 wired a:\d+2\n", again.log.read_text())
    assert {"gen-000001", "gen-000002"} <= {path.name for path in (tmp_path / "ckpt").iterdir()}


def test_a_pod_of_an_earlier_generation_ends_and_all_meet_in_the_next(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "fail-worker:1-1").touch()
    first = pods(0, steps=2000, attempt="0", ports=[23010, 23019])
    failing = pods(1, steps=2000, attempt="0", ports=[23000, 23009])
    assert failing.end() == 1
    assert "ValueError: told to fail" in failing.log.read_text()
    back = pods(1, steps=5, attempt="1", ports=[23000, 23009])
    chief = pods(0, steps=5, attempt="1", ports=[23010, 23019])
    assert first.end() == pod.SUPERSEDED
    assert (chief.end(), back.end()) == (0, 0)
    assert "generation 1 ended: worker:1 failed with exit code 1" in chief.log.read_text()
    assert "worker:1 generation 2" in back.log.read_text()


def test_term_ends_the_task_within_the_grace_and_counts_as_no_failure(pods: Pods, tmp_path: Path) -> None:
    script = tmp_path / "code" / "train.py"
    hook = "from orchestrator import runtime\nruntime.on_stop(lambda: time.sleep(0.5))\n"
    script.write_text(
        hook + SCRIPT
    )  # a handler of SIGTERM would be cut short: the runtime then ends the script
    running = pods(0, steps=5000)
    running.wait_for("generation 1 wired")
    running.process.send_signal(signal.SIGTERM)
    assert running.end() == pod.STOPPED
    assert "worker:0 was asked to end" in running.log.read_text()
    exited_at = time.time()
    end = json.loads((tmp_path / "ckpt/.orch/pods/gen-000001/worker-0.end.json").read_text())
    assert (end["kind"], end["counts"]) == ("stopped", False)
    assert end["ended_at"] < exited_at - 0.5, "by when it was stopped: peers fail before it has ended"


def test_what_a_restart_cannot_mend_says_so_by_its_exit_code(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text("def broken(:\n")
    assert pods(0).end() == pod.HOPELESS
    missing = pods(0, python="/no/such/python")
    assert missing.end() == pod.HOPELESS
    assert "Python was not found" in missing.log.read_text()
    assert pods(0, code_dir="/no/such/directory").end() == pod.HOPELESS


def test_the_same_failure_twice_without_a_checkpoint_is_given_up(pods: Pods, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"fail-worker:0-{number}").touch()
    assert (pods(0).end(), pods(0).end()) == (1, 1)
    third = pods(0)
    assert third.end() == pod.HOPELESS
    assert "the same failure twice, and no newer checkpoint" in third.log.read_text()


def test_a_task_that_stands_still_is_ended_with_its_stacks(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "code" / "train.py").write_text(
        "import time\nfrom orchestrator import runtime\nruntime.report(1)\n\ndef stuck_here():\n    time.sleep(60)\n\n"
        "stuck_here()\n"
    )
    timing = {
        "stall_after_s": 1.0,
        "stall_floor_s": 60,
        "stall_factor": 10,
        "on_stall": "restart",
        "kill_grace_s": 5,
        "save_wait_s": 0,
        "without_progress_max": 3,
    }
    stuck = pods(0, timing=timing)
    assert stuck.end() == pod.STALLED
    assert "stuck_here" in stuck.log.read_text()

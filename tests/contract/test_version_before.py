"""Shims of the version before still speak with a new head: it adopts their tasks, and reads how they ended.

Who updates the head has trainings that go on. Their shims and runtimes are those of the older archive, which is on the
host, and the new agent connects to them. So here the archive, the agent that starts the shim, the shim and the runtime
are made of an earlier commit; the link, the agent behind it and what reads the reports are of this tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from orchestrator.both import process
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import TaskReport
from orchestrator.core.plan import HostPlan, TaskId
from orchestrator.core.saving import Holds, Rescued, Restored, Saving
from orchestrator.core.state.run import Problem
from orchestrator.head.code import bundle
from orchestrator.head.links import wire
from orchestrator.head.links.conversation import OrderRefused
from orchestrator.head.links.link import HostLink, Watch
from orchestrator.head.reach.local import LocalTransport
from orchestrator.host.system import gpu_lease
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.base import Nothing, Order, Verb
from orchestrator.protocol.orders.driving import LEASE
from orchestrator.protocol.orders.tasks import LOG, RELEASE, STACKS, STOP, SWEEP, AskStacks
from orchestrator.protocol.reports import Report, Task, TaskExit
from tests.contract.agent_harness import RUN, Client, clean
from tests.contract.shim_harness import as_the_head_takes_it, until
from tests.contract.strategy_harness import free_ports
from tests.faults.freshness import NoHistoryError, git
from tests.faults.rows import ROOT

VERSION_BEFORE = "bdc67d0ebec88973f72db55df7313b36b81cd8d0"
"""The last commit of the version that landed before this one, whose shims may still run when a head is updated to it.

It moves with each version that lands, so that the shims which are in use are tried, and not only the first ones.
"""

WORKER = TaskId("worker", 0)
EPOCH = 2
"""The new coordinator's; the one before it had 1."""

A = TypeVar("A")

BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from orchestrator.head.code import bundle
sys.stdout.buffer.write(bundle.build().data)
"""

TRAINS = """
import os, time
from orchestrator import runtime
print(os.environ["TF_CONFIG"], flush=True)
runtime.on_stop(lambda: print("stopping", flush=True))
step = 0
while True:
    step += 1
    runtime.report(step, total=10**6, loss=1 / step, lost=float("nan"))
    time.sleep(0.02)
"""

TELLS_ALL = """
import time
from orchestrator import runtime
from orchestrator.task import this_task
say = lambda **message: this_task.link.send(message, wait_s=5.0)
say(restored={"file": "w.keras", "saved_at": 1700000000.0, "bytes": 7, "step": 3, "why": ""})
say(step=3, metrics={}, began={"step": 3, "stride": 0})
say(step=5, epoch=1, epochs=9, total=90, rescues=True,
    metrics={"loss": 0.5, "val": 2.0}, metric_steps={"val": 4}, nonfinite={"odd": "inf"},
    saving={"every_steps": 240, "failure_s": 9.0, "why": "least", "cost_s": 0.5})
say(say={"kind": "keras", "message": "patched"})
say(holds={"step": 5, "checksum": 9})
say(rescued={"step": 5, "took_s": 0.25})
time.sleep(600)
"""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    """Return what the head of the version before pushes to hosts, as its own code builds it."""
    tree = tmp_path_factory.mktemp("version-before")
    try:
        git("archive", f"--output={tree / 'tree.tar'}", VERSION_BEFORE, "orchestrator", root=ROOT)
    except NoHistoryError as e:
        pytest.skip(f"the version before is not here, so its shims were not tried: {e}")
    with tarfile.open(tree / "tree.tar") as archive:
        archive.extractall(tree, filter="data")
    built = subprocess.run([sys.executable, "-c", BUILD, tree], stdout=subprocess.PIPE, check=True)
    return bundle.Bundle(
        bundle.Archive(hashlib.sha256(built.stdout).hexdigest(), built.stdout),
        psutil=None,
        platform=bundle.load().platform,
    )


class NewHead:
    """A head of this tree that takes the host over: a link, and what the core is told of the run's task."""

    def __init__(self, host_dir: Path, gpus: tuple[int, ...]) -> None:
        self.said: list[str] = []
        self.told: list[TaskReport] = []
        self._host_dir = str(host_dir)
        self.link = HostLink(HostPlan("gpu-a", transport="local"), LocalTransport(), bundle.load, self)
        self.link.attach(RUN, Watch(EPOCH, heartbeat_s=0.1, silence_max_s=60.0, gpus=gpus))
        until(lambda: self.said, "nothing came of the connection")
        assert self.said == ["up"]

    def up(self, run_id: str, host: str, hello: Greeting) -> None:  # noqa: ARG002 (a Listener's signature)
        assert hello["host_dir"] == self._host_dir
        self.said.append("up")

    def down(self, run_id: str, host: str, problem: str) -> None:  # noqa: ARG002
        self.said.append(problem)

    def refused(self, run_id: str, host: str, problem: Problem) -> None:  # noqa: ARG002
        self.said.append(problem.message)

    def flooded(self, run_id: str, host: str, problem: str) -> None:  # noqa: ARG002
        self.said.append(problem)

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:  # noqa: ARG002
        event = wire.host_reported(
            host, run_id, report, at=time.monotonic(), unix_time=time.time(), known=[WORKER]
        )
        self.told += event.tasks

    def until(self, what: Callable[[TaskReport], object]) -> TaskReport:
        """Return the newest report of the task once that is true of one."""
        until(lambda: any(what(told) for told in list(self.told)), f"it was told {self.told[-1:]}")
        assert self.said == ["up"], "what the version before says must not end the connection"
        return self.told[-1]

    def until_exit(self) -> tuple[TaskReport, Exit]:
        """Return the last report of the task once it has ended, and its exit."""
        told = self.until(lambda told: told.exit is not None)
        assert told.exit is not None
        assert (told.task, told.generation, told.phase) == (WORKER, 1, "exited")
        return told, told.exit


@pytest.fixture
def host_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = (tmp_path / "host").resolve()
    monkeypatch.setenv("ORCH_HOST_DIR", str(path))
    yield path
    clean(path)


@pytest.fixture
def started(host_dir: Path, before: bundle.Bundle) -> Callable[..., int]:
    """Return a function that starts a script's task as the version before does, and returns its shim's pid."""

    def start(
        script: str, *, released: bool = True, gpus: Sequence[int] = (), ports: Sequence[int] = ()
    ) -> int:
        agent = Client(host_dir, pushed=before)
        agent.ok("watch", heartbeat_s=0.1, gpus=list(gpus))
        shim = agent.start(agent.push(train=script), hold=True, ports=list(ports))["ok"]["pid"]
        agent.until_phase("ready")
        if released:
            agent.ok("release", generation=1, task="worker:0", env={"TF_CONFIG": "{}"}, seed=None)
            agent.until_phase("running")
        agent.close()
        assert before.code.digest in Path(f"/proc/{shim}/cmdline").read_text(), "its code is the older one"
        return int(shim)

    return start


@pytest.fixture
def head(host_dir: Path) -> Iterator[Callable[..., NewHead]]:
    """Return a function that takes the host over with a head of this tree."""
    heads: list[NewHead] = []

    def take_over(*gpus: int) -> NewHead:
        heads.append(NewHead(host_dir, gpus))
        return heads[-1]

    yield take_over
    for made in heads:
        made.link.close()


Started = Callable[..., int]
TakeOver = Callable[..., NewHead]


def of_worker(verb: Verb[Any, A], **fields: Any) -> Order[A]:
    """Return an order of the new coordinator for the task."""
    return verb({"run": RUN, "epoch": EPOCH, "generation": 1, "task": "worker:0", **fields})


def exit_of(task: Task) -> TaskExit:
    """Return the exit of a task that has ended."""
    ended = task.get("exit")
    assert ended is not None
    return ended


def recorded(host_dir: Path) -> Task:
    """Return the exit record that a shim of the version before has written: a TASK that this tree knows whole."""
    (path,) = host_dir.glob("runs/*/tasks/worker-0/gen-000001/exit.json")
    return cast("Task", as_the_head_takes_it(json.loads(path.read_text())["task"]))


def test_a_task_that_waits_at_its_gate_is_released_watched_and_stopped(
    started: Started, head: TakeOver, host_dir: Path
) -> None:
    port, other = free_ports(2)
    started(TRAINS, released=False, ports=[port])
    new = head()
    ready = new.until(lambda told: told.phase == "ready")
    assert (ready.task, ready.generation, ready.port, ready.exit) == (WORKER, 1, port, None)
    new.link.ask(of_worker(RELEASE, env={"TF_CONFIG": '{"a": 1}'}, seed=None, port=other))
    trains = new.until(lambda told: told.phase == "running" and (told.progress.global_step or 0) > 20)
    assert (trains.port, trains.pid is not None) == (other, True)
    assert process.identity(trains.pid or 0) is not None
    progress = trains.progress
    assert progress.has_stepped
    assert 0 < progress.metrics["loss"] < 0.5
    assert {name: value for name, (_, value) in progress.nonfinite.items()} == {"lost": "nan"}
    assert progress.steps_total == 10**6
    assert progress.measured["steps_per_s"] is not None
    stacks = new.link.ask(of_worker(STACKS)).ok
    assert (stacks["by"], "train.py" in stacks["stacks"]) == ("runtime", True)
    new.link.ask(of_worker(STOP, grace_s=60.0))
    last, ended = new.until_exit()
    assert (ended.cause, ended.ordered, ended.left) == (Cause.ORDERED, True, ())
    assert (last.progress.global_step or 0) >= (progress.global_step or 0)
    log = new.link.ask(of_worker(LOG, offset=0, bytes_max=1 << 16)).blob.decode()
    assert [line.split(" o ")[1] for line in log.splitlines() if " o " in line] == ['{"a": 1}', "stopping"]
    assert exit_of(recorded(host_dir))["ordered"] is True


def test_all_that_a_runtime_of_the_version_before_tells_arrives_in_the_core(
    started: Started, head: TakeOver, host_dir: Path
) -> None:
    started(TELLS_ALL)
    new = head()
    told = new.until(lambda told: told.progress.rescued is not None)
    progress = told.progress
    assert (progress.global_step, progress.epoch, progress.epochs, progress.steps_total) == (5, 1, 9, 90)
    assert (progress.began_step, progress.began_stride, progress.rescues) == (3, 0, True)
    assert (progress.metrics, progress.metric_steps) == ({"loss": 0.5, "val": 2.0}, {"val": 4})
    assert progress.nonfinite == {"odd": (5, "inf")}
    assert progress.saving == Saving(240, 9.0, "least", cost_s=0.5)
    assert progress.restored == Restored("w.keras", 1700000000.0, 7, 3)
    assert (progress.holds, progress.rescued) == (Holds(5, 9), Rescued(5, 0.25))
    assert told.said == (("keras", "patched"),)
    measured = new.until(lambda told: "rss_bytes" in told.progress.measured).progress.measured
    assert (measured["rss_bytes"] or 0) > 1 << 20
    new.link.ask(of_worker(STOP, grace_s=0.0, rescue=True, compare=False))
    last, _ = new.until_exit()
    written = wire.task_report(recorded(host_dir), at=0.0, unix_time=0.0)
    assert (written.progress, written.said) == (last.progress, last.said)


@pytest.mark.parametrize(
    ("ends", "code", "cause", "error"),
    [
        ("raise SystemExit(7)", 7, Cause.SCRIPT, None),
        ("raise ValueError('no such layer')", 1, Cause.SCRIPT, "ValueError: no such layer"),
        ("os.kill(os.getpid(), 9)", None, Cause.SIGNAL, None),
    ],
)
def test_an_exit_that_nobody_heard_of_is_read_from_the_record_of_the_version_before(
    started: Started,
    head: TakeOver,
    host_dir: Path,
    ends: str,
    code: int | None,
    cause: Cause,
    error: str | None,
) -> None:
    go = host_dir.parent / "go"
    waits = f"while not os.path.exists({str(go)!r}): time.sleep(0.02)"
    script = f"import os, time\nfrom orchestrator import runtime\nruntime.report(9, loss=0.5)\n{waits}\n"
    shim = process.identity(started(f"{script}print('bye', flush=True)\n{ends}\n"))
    go.touch()
    until(lambda: shim is None or not process.alive(shim), "the shim ends with its task")
    written = exit_of(recorded(host_dir))
    last, ended = head().until_exit()
    assert (ended.code, ended.cause, ended.error, ended.ordered) == (code, cause, error, False)
    assert ended.signal == (None if code is not None else 9)
    assert "bye" in ended.last_lines
    assert ended.peak_rss_bytes == written["peak_rss_bytes"]
    assert ended.ended_time == pytest.approx(written["ended_at"], abs=5.0)
    assert (last.progress.global_step, last.progress.metrics) == (9, {"loss": 0.5})


def test_a_shim_of_the_version_before_that_was_killed_is_found_by_its_records(
    started: Started, head: TakeOver
) -> None:
    shim = process.identity(started(TRAINS))
    assert shim is not None
    process.signal(shim, 9)
    _, ended = head().until_exit()
    assert (ended.cause, ended.ordered, ended.left) == (Cause.SHIM, False, ())


def test_a_sweep_ends_what_the_version_before_has_started(
    started: Started, head: TakeOver, host_dir: Path
) -> None:
    started(TRAINS)
    new = head()
    new.until(lambda told: told.phase == "running")
    swept = new.link.ask(SWEEP({"run": RUN, "epoch": EPOCH, "generation_max": 1})).ok
    assert (swept["left"], swept["ports_busy"]) == ([], [])
    assert process.marked(RUN, {1}, host_dir=str(host_dir)) == []
    _, ended = new.until_exit()
    assert (ended.ordered, ended.left) == (True, ())


def test_an_order_that_the_version_before_did_not_know_is_refused_and_the_task_goes_on(
    started: Started, head: TakeOver
) -> None:
    started(TRAINS)
    new = head()
    trains = new.until(lambda told: told.progress.has_stepped)
    with pytest.raises(OrderRefused) as caught:
        new.link.ask(of_worker(Verb("order-of-later", AskStacks, Nothing)))
    assert caught.value.problem.code == "unknown-order"
    steps = trains.progress.global_step or 0
    later = new.until(lambda told: (told.progress.global_step or 0) > steps + 20)
    assert (later.phase, later.pid) == ("running", trains.pid)


def test_the_lease_of_a_gpu_that_a_shim_of_the_version_before_holds_is_the_runs_own(
    started: Started, head: TakeOver
) -> None:
    gpu = 900_000 + os.getpid()
    started(TRAINS, gpus=[gpu])
    assert gpu_lease.acquire(gpu) is None, "the shim holds it"
    new = head(gpu)
    assert new.link.ask(LEASE({"run": RUN, "epoch": EPOCH})).ok == {"others": []}

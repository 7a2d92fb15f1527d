"""Actions become orders, answers become events, and links are shared and let go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core.actions import (
    Action,
    CloseHost,
    CollectStacks,
    Note,
    PrepareHost,
    ReleaseTask,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
    VerifyCheckpoint,
)
from orchestrator.core.errors import AuthRefused
from orchestrator.core.events import (
    CheckpointSeeded,
    CheckpointVerified,
    Event,
    HostDown,
    HostPrepared,
    HostRefused,
    HostReported,
    HostSwept,
    HostUp,
    OrderFailed,
)
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts, HostState, Link
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import Phase, Swept
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.head.coordinator.executor import Executor
from orchestrator.head.hosts import preparation
from orchestrator.head.journal.states import packed_run, read_run, unpacked
from orchestrator.head.links import link as link_module
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import Asks, LinkDown, OrderRefused
from orchestrator.head.links.link import HostLink, Pace
from orchestrator.head.node.secrets import Secrets
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.head.transfer.logcopy import LogCopier
from orchestrator.protocol.orders.checkpoints import HIGHEST
from orchestrator.protocol.reports import Report, Task
from tests.contract.fake_agent import BUNDLE, FACTS, TREE, FakeAgent, FakeHosts, Refusal, always, until
from tests.protocol_values import valid
from tests.unit.core.phases import state_of
from tests.unit.core.transcript import make_plan

W0 = TaskId("worker", 0)
FAST = Pace(retry_s=(0.02,), refused_retry_s=0.05, silence_check_s=0.02)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.hosts = FakeHosts("a", "b")
        self.agent: FakeAgent = self.hosts.agents["a"]
        self.events: list[tuple[str, Event]] = []
        self.secrets = Secrets(str(directory))
        self.logs = RunLogs(str(directory))
        self.workdir = directory / "work"
        self.workdir.mkdir()
        (self.workdir / "train.py").write_text("print(1)\n")
        self.executor = Executor(
            {"fake": self.hosts.transport},
            lambda: BUNDLE,
            LogCopier(self.logs, lambda *_: None),
            self.secrets,
            lambda run_id, event: self.events.append((run_id, event)),
            FAST,
            is_known=lambda _: True,
            state_dir=str(directory / "state"),
        )
        self.run = self.make_run("r")

    def make_run(self, run_id: str, **changes: Any) -> Run:
        plan = make_plan(["a", "b"], checkpoint=True)
        plan = replace(
            plan, hosts=tuple(self.hosts.plans.values()), workdir=str(self.workdir), secrets=("TOKEN",)
        )
        run = new_run(run_id, plan, epoch=4, at=0.0)
        run = replace(run, tasks=tuple(replace(task, generation=2) for task in run.tasks))
        return replace(
            run.with_host(replace(run.hosts[0], facts=Facts(code="c0de"))), generation=2, **changes
        )

    def wait(self, kind: type[Event], run_id: str = "r") -> Any:
        def found() -> list[Event]:
            return [event for of, event in self.events if of == run_id and isinstance(event, kind)]

        until(found, f"no {kind.__name__}: {self.events}")
        return found()[-1]

    def open(self, run: Run | None = None) -> None:
        run = run or self.run
        self.executor.open(run, ["a"])
        self.wait(HostUp, run.run_id)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.executor.close()
    until(lambda: not any(made.executor.hosts.values()))


def test_what_links_say_becomes_events(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SLOW_CONNECT_S", 0.0)
    rig.open()
    up = rig.wait(HostUp)
    assert up.boot_id == "boot-1"
    assert "a connection took" in (up.slow or "")
    rig.agent.report({"r": [{"task": "worker:0", "generation": 2, "phase": "ready"}]}, cpu_percent=5.0)
    reported = rig.wait(HostReported)
    assert (reported.host, reported.measured["cpu_percent"], reported.tasks[0].task) == ("a", 5.0, W0)
    rig.agent.die()
    assert rig.wait(HostDown).problem == "the connection broke"
    assert rig.executor.hosts.keys() == {"a"}


def test_a_host_that_refuses_becomes_an_event_with_its_way_out(rig: Rig) -> None:
    rig.hosts.transport.refuse(rig.hosts.plans["a"], AuthRefused("a", "none of our keys", hint="ssh-copy-id"))
    rig.executor.open(rig.run, ["a"])
    problem = rig.wait(HostRefused).problem
    assert (problem.code, problem.message, problem.exit_code) == ("auth", "a: none of our keys", 5)


def test_preparation_ends_as_prepared_and_is_not_begun_twice(rig: Rig) -> None:
    gate = threading.Event()

    def probe(_order: dict[str, Any], _blob: bytes) -> dict[str, Any]:
        gate.wait(15)
        return {**FACTS}

    rig.agent.answers = {
        "probe": probe,
        "code": always({"digest": TREE, "missing": []}),
        "highest": always({"generation": 5}),
    }
    rig.open()
    for _ in range(3):
        rig.executor.execute(rig.run, PrepareHost("a"))
    rig.agent.wait_order("probe")
    gate.set()
    assert rig.wait(HostPrepared).facts == Facts("3.11.2", FACTS["versions"], TREE, 5)
    assert rig.agent.verbs().count("probe") == 1


def test_preparation_that_the_host_refuses_says_why(rig: Rig) -> None:
    rig.agent.answers["probe"] = always(Refusal("no-python", "there is no Python"))
    rig.open()
    rig.executor.execute(rig.run, PrepareHost("a"))
    assert rig.wait(HostRefused).problem.message == "a: there is no Python"


def test_a_workdir_that_is_gone_says_so_and_a_fault_of_ours_too(rig: Rig) -> None:
    rig.agent.answers["probe"] = always(FACTS)
    rig.open()
    gone = replace(rig.run, plan=replace(rig.run.plan, workdir="/no/such/dir"))
    rig.executor.execute(gone, PrepareHost("a"))
    assert "/no/such/dir is no directory" in rig.wait(HostRefused).problem.message
    rig.events.clear()
    unwelcome = replace(rig.run, plan=replace(rig.run.plan, strategy="of another version"))
    rig.executor.execute(unwelcome, PrepareHost("a"))
    assert rig.wait(HostRefused).problem.code == "internal"


@pytest.mark.parametrize("ends", ["it dies", "it answers nothing"])
def test_a_preparation_that_breaks_off_is_begun_again_when_the_host_is_back(
    rig: Rig, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.agent.answers = {"probe": always(None)}
    rig.open()
    if ends == "it answers nothing":
        monkeypatch.setattr(preparation, "PROBE_TIMEOUT_S", 0.05)
        rig.events.clear()
        rig.executor.execute(rig.run, PrepareHost("a"))
        assert "a did not answer" in rig.wait(HostDown).problem, "it is connected to anew"
        monkeypatch.undo()
    else:
        rig.executor.execute(rig.run, PrepareHost("a"))
        rig.agent.wait_order("probe")
        rig.events.clear()
        rig.agent.die()
    rig.agent.answers = {
        "probe": always(FACTS),
        "code": always({"digest": TREE, "missing": []}),
        "highest": always({"generation": 0}),
    }
    rig.wait(HostUp)
    rig.executor.execute(rig.run, PrepareHost("a"))
    assert rig.wait(HostPrepared).facts.code == TREE


class WhenSaid(logging.Handler):
    """Does something at the moment at which a line with these words is logged, in the thread that logs it."""

    def __init__(self, words: str, do: Callable[[], None]) -> None:
        super().__init__()
        self._words, self._do = words, do

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self._do()


def test_a_preparation_that_has_not_ended_when_the_host_is_back_is_begun_again_by_itself(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the new request, which is dropped beside the old one, would be the last."""
    rig.agent.answers = {"probe": always(None)}
    rig.open()

    def comes_back() -> None:
        rig.agent.answers = {
            "probe": always(FACTS),
            "code": always({"digest": TREE, "missing": []}),
            "highest": always({"generation": 0}),
        }
        rig.wait(HostUp)
        rig.executor.execute(rig.run, PrepareHost("a"))
        assert rig.agent.verbs().count("probe") == 1, "one is under way still"

    caplog.set_level(logging.INFO, "orchestrator.head.coordinator.executor")
    handler = WhenSaid("preparation broke off", comes_back)
    logging.getLogger("orchestrator.head.coordinator.executor").addHandler(handler)
    try:
        rig.executor.execute(rig.run, PrepareHost("a"))
        rig.agent.wait_order("probe")
        rig.events.clear()
        rig.agent.die()
        assert rig.wait(HostPrepared).facts.code == TREE
    finally:
        logging.getLogger("orchestrator.head.coordinator.executor").removeHandler(handler)


def test_orders_of_a_tasks_life(rig: Rig) -> None:
    rig.secrets.save("r", {"TOKEN": "hunter2", "OTHER": "x"})
    rig.open()
    rig.executor.execute(rig.run, StartTask("a", W0, 2))
    start = rig.agent.wait_order("start")
    assert (start["run"], start["epoch"], start["task"], start["generation"]) == ("r", 4, "worker:0", 2)
    assert start["secrets"] == {"TOKEN": "hunter2"}
    addresses = {task.id: "10.0.0.1:20000" for task in rig.run.tasks}
    rig.executor.execute(rig.run, ReleaseTask("a", W0, 2, addresses))
    assert "TF_CONFIG" in rig.agent.wait_order("release")["env"]
    rig.executor.execute(rig.run, StopTask("a", W0, 2, 7.5))
    assert rig.agent.wait_order("stop")["grace_s"] == 7.5
    rig.executor.execute(rig.run, Note(NoteKind.WARNING, "the journal has it"))


def test_a_refused_order_becomes_order_failed(rig: Rig) -> None:
    rig.agent.answers["start"] = always(Refusal("no-code", "the run's code is not on this host"))
    rig.open()
    rig.executor.execute(rig.run, StartTask("a", W0, 2))
    failed = rig.wait(OrderFailed)
    assert (failed.host, failed.order, failed.generation, failed.task) == ("a", "start", 2, W0)
    assert failed.problem.code == "no-code"


def test_secrets_that_cannot_be_read_fail_the_start_and_not_the_coordinator(rig: Rig, tmp_path: Path) -> None:
    rig.secrets.save("r", {"TOKEN": "hunter2"})
    (tmp_path / "secrets" / "r.json").write_text("torn")
    rig.open()
    rig.executor.execute(rig.run, StartTask("a", W0, 2))
    failed = rig.wait(OrderFailed)
    assert (failed.order, failed.task, failed.generation) == ("start", W0, 2)
    assert "hunter2" not in failed.problem.message


def test_an_order_that_no_frame_holds_fails_and_does_not_end_the_coordinator(rig: Rig) -> None:
    rig.open()
    huge = replace(rig.run, plan=replace(rig.run.plan, args=("x" * (5 << 20),)))
    rig.executor.execute(huge, StartTask("a", W0, 2))
    assert "fit in a frame" in rig.wait(OrderFailed).problem.message


def test_checkpoints_are_seeded_and_verified(rig: Rig) -> None:
    seed = {
        "global_step": 90,
        "source": "/shared/t/gen-000001/ckpt-90",
        "path": "/shared/t/gen-000002",
        "rejected": [],
    }
    rig.agent.answers = {
        "seed": always(seed),
        "verify": always(
            {"checkpoint": None, "rejected": [{"path": "/shared/t/gen-000002/p", "why": "torn"}]}
        ),
    }
    rig.open()
    rig.executor.execute(replace(rig.run, from_scratch=True), SeedCheckpoint("a", 2))
    assert rig.wait(CheckpointSeeded).seed == Seed(
        2, 90, "/shared/t/gen-000001/ckpt-90", "/shared/t/gen-000002"
    )
    order = rig.agent.wait_order("seed")
    assert (order["dir"], order["keep"], order["from_scratch"]) == ("/shared/t", 3, True)
    rig.executor.execute(rig.run, VerifyCheckpoint("a", 2))
    nothing = rig.wait(CheckpointVerified)
    assert (nothing.generation, nothing.path, nothing.global_step) == (2, "", None)
    assert nothing.rejected == (("/shared/t/gen-000002/p", "torn"),)
    found = {
        "global_step": 95,
        "path": "/shared/t/gen-000002/ckpt-95",
        "saved_at": 1.7e9,
        "kind": "npz",
        "bytes": 7,
        "verified": True,
    }
    rig.agent.answers["verify"] = always({"checkpoint": found, "rejected": []})
    rig.executor.execute(rig.run, VerifyCheckpoint("a", 2))
    until(lambda: rig.wait(CheckpointVerified).global_step == 95)
    assert rig.wait(CheckpointVerified).took_s >= 0.0


def test_without_a_checkpoint_nothing_is_asked_of_it(rig: Rig) -> None:
    rig.open()
    bare = replace(rig.run, plan=replace(rig.run.plan, checkpoint=None))
    rig.executor.execute(bare, SeedCheckpoint("a", 2))
    rig.executor.execute(bare, VerifyCheckpoint("a", 2))
    rig.executor.execute(bare, StopTask("a", W0, 2, 0.0))
    rig.agent.wait_order("stop")
    assert rig.agent.verbs() == ["watch", "stop"]


def test_the_proof_of_a_host(rig: Rig) -> None:
    left = {"left": [{"pid": 5, "why": "D state"}], "ports_busy": [20000], "by": "cgroup"}
    rig.agent.answers["sweep"] = always(left)
    rig.open()
    rig.executor.execute(rig.run, SweepHost("a", 2))
    assert rig.wait(HostSwept).swept == Swept(("pid 5: D state",), (20000,), "cgroup")
    assert rig.agent.wait_order("sweep")["generation_max"] == 2


def test_what_is_asked_of_a_host_without_a_link_is_dropped(rig: Rig) -> None:
    for action in (PrepareHost("b"), StopTask("b", W0, 2, 0.0), SweepHost("b", 2), CloseHost("b")):
        rig.executor.execute(rig.run, action)
    assert rig.events == []


def test_runs_share_a_link_and_the_last_to_leave_closes_it(rig: Rig) -> None:
    other = rig.make_run("s")
    rig.open()
    rig.open(other)
    assert len(rig.agent.connected_at) == 1
    rig.executor.execute(rig.run, CloseHost("a"))
    rig.agent.wait_order("unwatch")
    assert rig.executor.hosts == {"a": True}
    rig.executor.execute(other, CloseHost("a"))
    until(lambda: rig.executor.hosts == {})
    rig.executor.execute(other, CloseHost("a"))
    again = rig.make_run("u")
    rig.open(again)
    assert len(rig.agent.connected_at) == 2


def test_a_link_stays_for_who_asks_a_host_while_its_last_run_leaves_it(rig: Rig) -> None:
    rig.open()

    def use(link: Asks) -> str:
        rig.executor.execute(rig.run, CloseHost("a"))
        rig.agent.wait_order("unwatch")
        with pytest.raises(OrderRefused, match="two at once"):  # whoever else asks ends the link no sooner
            rig.executor.lease(rig.run, "a", refuse)
        try:
            link.ask(HIGHEST({"run": "r", "epoch": 4, "dir": "/shared/t"}))
        except LinkDown as e:
            return str(e)
        return "answered"

    def refuse(link: Asks) -> None:
        raise OrderRefused(Problem("limit", "two at once"))

    assert rig.executor.lease(rig.run, "a", use) == "answered"
    until(lambda: rig.executor.hosts == {})
    assert len(rig.agent.connected_at) == 1


def test_a_host_where_something_ran_remembers_how_the_run_ended(rig: Rig) -> None:
    spare = replace(rig.run.hosts[0], untouched=True)
    for run in (rig.run.with_host(spare), rig.make_run("s", phase_state=state_of(Phase.KILLED))):
        rig.open(run)
        rig.executor.execute(run, CloseHost("a"))
        until(lambda: rig.executor.hosts == {})
    (kept,) = [order["record"] for order in rig.agent.orders if order["order"] == "keep"]
    assert read_run(unpacked(kept["state"])).phase is Phase.KILLED


def test_a_drain_and_its_end_are_in_the_record_of_every_host(rig: Rig) -> None:
    run = rig.make_run("r", phase_state=state_of(Phase.RUNNING))
    rig.open(run)
    drained = run.with_host(replace(run.hosts[1], state=HostState.DRAINED))
    rig.executor.changed(run, drained)
    rig.executor.changed(drained, run)
    rig.agent.wait_order("keep", count=2)
    kept = [order["record"] for order in rig.agent.orders if order["order"] == "keep"]
    states = [[host.state for host in read_run(unpacked(record["state"])).hosts] for record in kept]
    assert states == [[HostState.OPEN, HostState.DRAINED], [HostState.OPEN, HostState.OPEN]]
    assert kept[0]["revision"] < kept[1]["revision"]
    heard = run.with_host(replace(run.hosts[0], link=Link.CONNECTED))
    rig.executor.changed(run, heard)
    assert rig.agent.verbs().count("keep") == 2, "it has the newest"
    for over in (replace(drained, generation=0), replace(drained, phase_state=state_of(Phase.FAILED))):
        rig.executor.changed(replace(over, hosts=run.hosts), over)
    rig.executor.changed(run, replace(run, generation=run.generation + 1))
    rig.executor.changed(run, drained)
    rig.agent.wait_order("keep", count=3)
    rig.executor.changed(drained, run)
    rig.agent.wait_order("keep", count=4)
    assert rig.agent.verbs().count("keep") == 4, "nothing was sent of a run that has not begun, or is over"
    away = rig.hosts.plans["a"]
    rig.hosts.transport.refuse(away, AuthRefused("a", "for a while"))
    rig.agent.die()
    rig.wait(HostRefused)
    rig.executor.changed(run, drained)
    rig.events.clear()
    rig.hosts.transport.refuse(away, None)
    rig.wait(HostUp)
    rig.executor.changed(drained, drained.with_host(replace(drained.hosts[0], link=Link.CONNECTED)))
    missed = read_run(unpacked(rig.agent.wait_order("keep", count=5)["record"]["state"]))
    assert missed.hosts[1].state is HostState.DRAINED, "it was away in the drain"
    rig.executor.execute(drained, CloseHost("a"))
    assert rig.executor._records._given == {}, "a coordinator lives for months"


def test_a_host_is_left_only_after_the_rest_of_its_logs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log, is_waited_for, is_behind = b"1.000000 o the last words\n", threading.Event(), LogCopier.is_behind

    def chunk(order: dict[str, Any], _blob: bytes) -> tuple[dict[str, Any], bytes]:
        is_waited_for.wait(2)
        return {"offset": order["offset"], "end": len(log), "time": 1.7e9}, log[order["offset"] :]

    def asked(copier: LogCopier, run_id: str, tasks: Collection[str]) -> bool:
        is_waited_for.set()
        return is_behind(copier, run_id, tasks)

    monkeypatch.setattr(LogCopier, "is_behind", asked)
    rig.agent.answers["log"] = chunk
    rig.open()
    task: Task = {"task": "worker:0", "generation": 2, "phase": "exited", "log_bytes": len(log)}
    rig.agent.report({"r": [task]})
    rig.agent.wait_order("log")
    unasked = replace(
        rig.run.hosts[0], untouched=True
    )  # no record goes to it, whose answer would come after the log
    rig.executor.execute(rig.run.with_host(unasked), CloseHost("a"))
    until(lambda: rig.executor.hosts == {})
    assert [line.text for line in rig.logs.read("r")] == ["the last words"]


def test_a_run_that_comes_as_the_last_one_leaves_is_served(rig: Rig) -> None:
    rig.open()
    last = rig.run
    for number in range(30):
        following = rig.make_run(f"r{number}")
        leaving = threading.Thread(target=rig.executor._drain_and_detach, args=(last, "a"))
        leaving.start()
        rig.executor.open(following, ["a"])
        leaving.join(15)
        assert rig.wait(HostUp, following.run_id).host == "a"
        last = following


@pytest.mark.fault(72)
def test_hosts_that_answer_nothing_hold_up_no_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    names = [f"mute{number}" for number in range(12)]
    hosts = FakeHosts(*names, "good")
    for name in names:
        hosts.agents[name].answers = {verb: always(None) for verb in ("probe", "stacks", "log", "keep")}
    hosts.agents["good"].answers = {"probe": always(FACTS), "code": always({"digest": TREE, "missing": []})}
    plan = replace(make_plan([*names, "good"], checkpoint=False), hosts=tuple(hosts.plans.values()))
    run = new_run("r", replace(plan, workdir=str(rig.workdir)), epoch=4, at=0.0)
    rig.executor._pool._transports = {"fake": hosts.transport}
    try:
        rig.executor.open(run, [*names, "good"])
        until(lambda: sum(rig.executor.hosts.values()) == len(names) + 1)
        actions: list[Action] = [CollectStacks(1), *map(CloseHost, names[:6])]
        actions += map(PrepareHost, [*names, "good"])
        for action in actions:
            rig.executor.execute(run, action)
        assert rig.wait(HostPrepared).host == "good"
    finally:
        rig.executor.close()


def test_who_drives_a_run_is_told_with_it_and_not_by_who_asks_one_question(rig: Rig) -> None:
    rig.run = replace(rig.run, owner=Owner("1" * 32, "head-1", "ml"))
    rig.open()
    assert rig.agent.wait_order("watch")["claim"] == {
        "id": "1" * 32,
        "head": "head-1",
        "user": "ml",
        "run": "r",
        "name": "t",
        "checkpoint_dir": "/shared/t",
    }
    asked = rig.hosts.agents["b"]
    rig.executor.lease(rig.run, "b", lambda link: link.ask(orders.drivers(None), timeout_s=15.0))
    assert "claim" not in asked.wait_order("watch"), "or an ended run would look as if it went on"


def test_what_is_kept_of_a_run_goes_with_its_last_host(rig: Rig) -> None:
    """A coordinator lives for months, and begins runs all the time."""
    rig.executor.open(rig.make_run("ended"), [])
    for name in ("b", "a"):
        rig.executor.open(rig.run, [name])
    rig.wait(HostUp)
    rig.executor._drain_and_detach(rig.run, "a")
    assert [opened.hosts for opened in rig.executor._opened.values()] == [{"b"}]
    rig.executor._drain_and_detach(rig.run, "b")
    assert rig.executor._opened == {}
    rig.executor.reported("r", "a", valid(Report), cast("HostLink", None))
    assert not [event for _, event in rig.events if isinstance(event, HostReported)], "it has come too late"


def test_a_state_that_hosts_keep_is_read_whole_or_not_at_all() -> None:
    run = new_run("t-1", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    text = packed_run(run)
    assert read_run(unpacked(text)) == read_run(unpacked(unpacked(text))) == run
    for broken in (text[: len(text) // 2 // 4 * 4], "AAAA", "no base 64", ""):
        with pytest.raises(ValueError, match=r"unpacked|cut off|base64|padding"):
            unpacked(broken)

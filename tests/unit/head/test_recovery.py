"""What hosts remember of runs: which live, which have ended, and where else is to be asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from orchestrator.cli.commands.recover import choose
from orchestrator.core import rebuild
from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.core.state.checkpoint import Checkpoint, Seed
from orchestrator.core.state.host import HostState
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.head.hosts.recovery import (
    EPOCH_BELIEVED_MAX,
    EPOCHS_UNHEARD,
    Remembered,
    Search,
    Trusted,
    search,
    write,
)
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.states import dump_run
from orchestrator.head.links import edge
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.query import Answer, Asker
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.records import KnownRun, KnownTask
from orchestrator.protocol.replies import Error
from orchestrator.protocol.reports import TaskPhase as TaskPhaseName
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"
PLAN = make_plan(["a", "b"], checkpoint=True)
A, B = PLAN.hosts


R = TypeVar("R")


class Hosts(Asker):
    """By address: what the host remembers. Who is not there does not answer."""

    def __init__(self, **remembered: Sequence[KnownRun]) -> None:
        self.remembered = remembered
        self.asked: list[str] = []
        self.refuses: set[str] = set()

    def ask(
        self, asked: Sequence[tuple[HostPlan, Sequence[Order[R]]]], *, timeout_s: float
    ) -> list[Answer[R]]:
        assert timeout_s > 0
        self.asked += [host.address for host, _ in asked]
        return [self._answer(host, order) for host, (order,) in asked]

    def _answer(self, host: HostPlan, order: Order[R]) -> Answer[R]:
        if host.address not in self.remembered:
            return Answer(host, problem=ConnectFailed(host.name, "no route"))
        if host.address in self.refuses:
            error: Error = {"code": "too-large", "message": "the reply has 5 MiB", "hint": None}
            return Answer(host, (Reply(None, error, b""),))
        runs = json.loads(json.dumps(self.remembered[host.address]))
        return Answer(host, (Reply(edge.answer(host.name, order, {"runs": runs}, b""), None, b""),))


def record(phase: Phase = Phase.RUNNING, generation: int = 1) -> Run:
    run = new_run(RUN, PLAN, epoch=4, at=0.0)
    tasks = tuple(
        replace(t, generation=generation, phase=TaskPhase.RUNNING, pid=70 + t.id.index) for t in run.tasks
    )
    run = replace(run, tasks=tasks, generation=generation, generation_last=generation, reason="by the user")
    return in_phase(run, phase)


def remembered(task: str, phase: TaskPhaseName = "running", *, of: Run | None = None) -> KnownRun:
    told: KnownTask = {
        "task": task,
        "generation": 1,
        "phase": phase,
        "pid": 70 + int(task[-1]),
        "port": 20000,
        "alive": phase != "exited",
    }
    if phase == "exited":
        told["exit"] = {
            "code": 1,
            "signal": None,
            "ago_s": 180.0,
            "cause": "script",
            "last_lines": ["ValueError: x"],
        }
    kept = {"epoch": 4, "written_at": 5.0, "state": dump_run(of)} if of is not None else None
    return {
        "run": RUN,
        "directory": True,
        "epoch": 4,
        "claim": None,
        "watched": False,
        "watched_ago_s": 30.0,
        "driven": True,
        "alive": phase != "exited",
        "processes": [],
        "bytes": 4096,
        "age_s": 60.0,
        "tasks": [told],
        "record": kept,
    }


SPEC = Trusted((PLAN,))


def found(hosts: Hosts, trusted: Trusted = SPEC) -> Remembered:
    return search(hosts, trusted, timeout_s=1.0, at=1000.0).runs[RUN]


def test_one_living_task_is_enough_and_the_others_ends_are_known() -> None:
    hosts = Hosts(a=[remembered("worker:0", "exited", of=record())], b=[remembered("worker:1", of=record())])
    one = found(hosts)
    assert (one.why, one.phase, one.lives_on) == (None, "RUNNING", {"b"})
    assert one.run is not None
    assert [task.pid for task in one.run.tasks] == [70, 71]


@pytest.mark.fault(64)
def test_row_64_a_host_that_answers_with_an_error_counts_as_unheard() -> None:
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[])
    hosts.refuses = {"b"}
    unknown = replace(record(), tasks=tuple(replace(t, pid=None) for t in record().tasks))
    hosts.remembered["a"][0]["record"] = remembered("worker:0", of=unknown)["record"]
    searched = search(hosts, SPEC, timeout_s=1.0, at=1000.0)
    assert searched.epoch == 4 + EPOCHS_UNHEARD
    assert [str(answer.unheard) for answer in searched.answers] == [
        "None",
        "b: it answered with an error: the reply has 5 MiB",
    ]
    one = searched.runs[RUN]
    assert (one.run, one.why) == (None, "b did not answer, and it is not known what runs there")


def test_a_drain_that_was_undone_does_not_come_back() -> None:
    """The host that missed the end of the drain has an older record of the same generation."""
    was = record()
    drained = replace(was, hosts=tuple(replace(h, state=HostState.DRAINED) for h in was.hosts))
    old, new = remembered("worker:0", of=drained), remembered("worker:1", of=was)
    old["record"], new["record"] = {**old["record"], "revision": 7}, {**new["record"], "revision": 8}
    for hosts in (Hosts(a=[old], b=[new]), Hosts(a=[new], b=[old])):
        one = found(hosts)
        assert one.run is not None
        assert [host.state for host in one.run.hosts] == [HostState.OPEN] * 2


def test_a_run_of_which_nothing_lives_is_told_with_its_ends() -> None:
    of = record()
    hosts = Hosts(a=[remembered("worker:0", "exited", of=of)], b=[remembered("worker:1", "exited", of=of)])
    one = found(hosts)
    assert one.run is None
    assert one.why == (
        "nothing of it lives: 3 min ago worker:0 on a failed with exit code 1: ValueError: x; "
        "3 min ago worker:1 on b failed with exit code 1: ValueError: x. "
        "`orch up` with its spec begins it again, from its last checkpoint where it has one"
    )
    away = found(Hosts(a=[remembered("worker:0", "exited", of=of)]))
    assert away.why is not None
    assert away.why.startswith(
        "nothing of it lives on the hosts that answered (b did not): 3 min ago worker:0 on a failed"
    )


def test_a_run_without_tasks_or_record_is_told_too() -> None:
    one = found(Hosts(a=[{**remembered("worker:0", "exited"), "tasks": []}], b=[]))
    assert one.why is not None
    assert one.why.startswith("nothing of it lives: it has no task there")


def test_the_rest_of_a_run_that_has_ended_does_not_bring_it_back() -> None:
    hosts = Hosts(
        a=[remembered("worker:0", "exited", of=record(Phase.KILLED))], b=[remembered("worker:1", of=record())]
    )
    one = found(hosts)
    assert one.phase == "KILLED"
    assert one.why == (
        "it has ended: KILLED: by the user; what is left of it lives on b, and `orch gc` removes it; "
        f"a says that it has ended and b does not: `--take-over {RUN}` adopts it"
    )
    looked = Search([], {RUN: one}, epoch=4)
    assert choose(looked, (), {})[0] == []
    (adopted,) = choose(looked, (RUN,), {})[0]
    assert (adopted.phase, adopted.why) == ("RUNNING", None)


@pytest.mark.fault(80)
@pytest.mark.parametrize("told", [(1 << 63) - 1, EPOCH_BELIEVED_MAX + 1])
def test_an_epoch_that_no_coordinator_reaches_counts_for_the_host_that_tells_it_alone(
    tmp_path: Path, told: int
) -> None:
    lies, honest = remembered("worker:0", of=record()), remembered("worker:1", of=record())
    lies["epoch"], lies["record"] = told, {**lies["record"], "epoch": told}
    looked = search(Hosts(a=[lies], b=[honest]), SPEC, timeout_s=1.0, at=1000.0)
    journal = Journal(str(tmp_path / "journal.db"))
    write(journal, list(looked.runs.values()), epoch=looked.epoch, at=looked.at)
    (kept,) = journal.runs()
    assert {host.name: host.fence for host in kept.run.hosts} == {"a": told, "b": 0}
    assert kept.run.epoch < journal.take_epoch() <= EPOCH_BELIEVED_MAX + 1
    journal.close()


@pytest.mark.fault(80)
def test_a_host_speaks_of_its_own_tasks_and_of_its_own_runs() -> None:
    """A spare claims worker:1 in a newer generation; a host outside says that it watches the run, and has it alive."""
    spared = replace(PLAN, hosts=(A, B, replace(B, name="s", address="s", spare=True)))
    run = replace(
        new_run(RUN, spared, epoch=4, at=0.0), tasks=record().tasks, generation=1, generation_last=1
    )
    of = in_phase(run, Phase.RUNNING)
    claim = remembered("worker:1", of=of)
    claim["tasks"][0]["generation"] = 9
    claim["tasks"].append({**claim["tasks"][0], "task": "worker:0", "generation": 10**9})
    outside = remembered("worker:1")
    outside["watched"] = True
    other = replace(make_plan(["c"], checkpoint=True), name="u")
    hosts = Hosts(
        a=[remembered("worker:0", of=of)], b=[remembered("worker:1", of=of)], s=[claim], c=[outside]
    )
    one = found(hosts, Trusted((spared, other)))
    assert (one.watched_on, one.lives_on, one.why) == (set(), {"a", "b", "s"}, None)
    assert one.run is not None
    assert one.run.generation == 1
    assert [(task.host, task.pid) for task in one.run.tasks] == [("a", 70), ("b", 71)]


HOSTILE = {
    "a transport": lambda plan: replace(plan, hosts=tuple(replace(h, transport="local") for h in plan.hosts)),
    "a route": lambda plan: replace(plan, hosts=tuple(replace(h, address="evil") for h in plan.hosts)),
    "known hosts": lambda plan: replace(plan, hosts=tuple(replace(h, known_hosts="/x") for h in plan.hosts)),
    "a python": lambda plan: replace(plan, hosts=tuple(replace(h, python="/tmp/evil") for h in plan.hosts)),
    "a working directory": lambda plan: replace(plan, workdir="/root/.ssh"),
    "a script": lambda plan: replace(plan, script="/tmp/evil.py", args=("--steal",)),
    "an environment": lambda plan: replace(plan, env={"PYTHONPATH": "/tmp/evil"}),
}


@pytest.mark.fault(80)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_record_says_of_the_plan_is_not_taken(what: str) -> None:
    told = replace(record(), plan=HOSTILE[what](PLAN))
    hosts = Hosts(a=[remembered("worker:0", of=told)], b=[remembered("worker:1", of=told)])
    one = found(hosts)
    assert hosts.asked == ["a", "b"], "nobody else is contacted"
    assert one.run is not None
    assert one.run.plan == PLAN


@pytest.mark.fault(80)
def test_hosts_and_tasks_that_only_a_record_names_are_not_contacted_and_not_adopted() -> None:
    third = make_plan(["a", "b", "c"], checkpoint=True)
    here = replace(third.hosts[2], transport="local")
    told = replace(
        new_run(RUN, replace(third, hosts=(*third.hosts[:2], here)), epoch=4, at=0.0), generation=1
    )
    told = in_phase(replace(told, generation_last=1), Phase.RUNNING)
    hosts = Hosts(a=[remembered("worker:0", of=told)], b=[remembered("worker:1", of=told)], c=[])
    one = found(hosts)
    assert hosts.asked == ["a", "b"]
    assert one.run is None
    assert one.why == (
        "the record on its host does not fit the spec of t: they differ in worker:2; nothing that only the record says "
        "is started or contacted; the spec that it was started from adopts it, "
        f"`orch gc --even-alive {RUN}` ends its processes on a, b"
    )
    spare = replace(record(), hosts=(*record().hosts, replace(record().hosts[0], name="c")))
    with pytest.raises(rebuild.NotVouched, match="it has no host c"):
        rebuild.vouched_for(spare, PLAN)


@pytest.mark.fault(80)
def test_without_a_spec_of_its_name_a_run_is_shown_and_not_adopted() -> None:
    other = Trusted((replace(PLAN, name="u"),))
    one = found(Hosts(a=[remembered("worker:0", of=record())], b=[]), other)
    assert (one.run, one.lives_on) == (None, {"a"})
    assert one.why == (
        "no spec of t was named, and a host's record decides nothing here; `--hosts FILE` with the spec that it was "
        f"started from adopts it, `orch gc --even-alive {RUN}` ends its processes on a"
    )


@pytest.mark.fault(80)
def test_a_record_under_another_runs_name_or_with_paths_that_lead_elsewhere_says_nothing() -> None:
    foreign = replace(record(), run_id="u-20260101-000000")
    one = found(Hosts(a=[remembered("worker:0", of=foreign)], b=[]))
    assert (one.run, one.why) == (None, "no host keeps a record of it that this orch understands")
    assert PLAN.checkpoint is not None
    inside = f"{PLAN.checkpoint.dir}/gen-000001"
    outside = [
        "/home/me/.ssh",
        f"{inside}/../../x",
        f"{PLAN.checkpoint.dir}x/y",
        "gen-000001/x",
        PLAN.checkpoint.dir,
        "/",
    ]
    whole = Seed(1, 5, f"{inside}/x", inside, copy=f"{PLAN.checkpoint.dir}/.orch/safe/{'0' * 64}")
    lies = [
        changed
        for path in outside
        for changed in (replace(whole, path=path), replace(whole, source=path), replace(whole, copy=path))
    ]
    taken = [rebuild.vouched_for(replace(record(), seed=seed), PLAN).seed for seed in (*lies, whole)]
    assert taken == [*[None] * len(lies), whole]
    of_record = [replace(record(), checkpoint=Checkpoint(5, path, 1, 0.0)) for path in (*outside, inside)]
    assert [rebuild.vouched_for(one, PLAN).checkpoint is not None for one in of_record] == [False] * 6 + [
        True
    ]


@pytest.mark.fault(80)
@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.RUNNING])
def test_the_record_of_a_host_that_the_runs_spec_does_not_have_is_not_read(phase: Phase) -> None:
    """It would end a run that lives elsewhere, or put it into another generation."""
    told = remembered("worker:0", "exited", of=record(phase, generation=500))
    told["tasks"], told["record"] = [], {**told["record"], "epoch": 10**9}
    living = {"a": [remembered("worker:0", of=record())], "b": [remembered("worker:1", of=record())]}
    other = replace(make_plan(["c", "d"], checkpoint=True), name="u")
    one = found(Hosts(**living, c=[told], d=[]), Trusted((PLAN, other)))
    assert (one.why, one.phase) == (None, "RUNNING")
    assert one.run is not None
    assert (one.run.generation, [task.pid for task in one.run.tasks]) == (1, [70, 71])


def test_the_heads_own_copy_of_a_plan_is_the_runs() -> None:
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[remembered("worker:1", of=record())])
    changed = replace(PLAN, args=("--changed",))
    one = found(hosts, Trusted((changed,), {RUN: PLAN}))
    assert one.run is not None
    assert one.run.plan.args == PLAN.args


def test_a_host_is_known_by_its_address_whatever_another_spec_calls_it() -> None:
    elsewhere = replace(
        PLAN, name="u", hosts=(A, replace(B, name="a"))
    )  # the name of another host of the run
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[remembered("worker:1", of=record())])
    one = found(hosts, Trusted((PLAN, elsewhere)))
    assert one.run is not None
    assert [(task.id.index, task.host, task.pid) for task in one.run.tasks] == [(0, "a", 70), (1, "b", 71)]


def test_a_host_that_may_hold_a_task_of_the_newest_generation_is_named() -> None:
    newer = remembered("worker:0", of=record())
    newer["tasks"][0]["generation"] = 2
    one = found(Hosts(a=[newer]))
    assert (one.run, one.why) == (None, "b did not answer, and it is not known what runs there")


def test_a_host_that_is_silent_may_have_obeyed_a_later_coordinator(tmp_path: Path) -> None:
    looked = search(Hosts(a=[remembered("worker:0", of=record())]), SPEC, timeout_s=1.0, at=1000.0)
    assert looked.runs[RUN].run is not None
    journal = Journal(str(tmp_path / "journal.db"))
    write(journal, list(looked.runs.values()), epoch=looked.epoch, at=looked.at)
    assert journal.take_epoch() == 4 + EPOCHS_UNHEARD + 1
    (kept,) = journal.runs()
    assert kept.run.epoch == 4
    journal.close()


def test_the_time_that_a_person_took_to_agree_is_nobodys(tmp_path: Path) -> None:
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[remembered("worker:1", of=record())])
    looked = search(hosts, SPEC, timeout_s=1.0, at=1000.0)
    journal = Journal(str(tmp_path / "journal.db"))
    write(journal, list(looked.runs.values()), epoch=looked.epoch, at=looked.at)
    (kept,) = journal.runs()
    assert (kept.written_at, kept.run.since_at) == (1000.0, 1000.0)
    assert journal.take_epoch() == 5
    journal.close()

"""What hosts remember of runs: which live, which have ended, and where else is to be asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.core.state.host import HostState
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.head.hosts.recovery import EPOCHS_UNHEARD, Found, search, write
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.states import dump_run
from orchestrator.head.links import edge
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.query import Answer, Asker
from orchestrator.protocol.orders import KnownRun, KnownTask
from orchestrator.protocol.replies import Error
from orchestrator.protocol.reports import TaskPhase as TaskPhaseName
from orchestrator.protocol.table import Order
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


def found(hosts: Hosts, *asked: HostPlan) -> Found:
    return search(hosts, asked, timeout_s=1.0, at=1000.0).found[RUN]


def test_one_living_task_is_enough_and_the_others_ends_are_known() -> None:
    hosts = Hosts(a=[remembered("worker:0", "exited", of=record())], b=[remembered("worker:1", of=record())])
    one = found(hosts, A, B)
    assert (one.why, one.phase, one.lives_on) == (None, "RUNNING", {"b"})
    assert one.run is not None
    assert [task.pid for task in one.run.tasks] == [70, 71]


@pytest.mark.fault(64)
def test_row_64_a_host_that_answers_with_an_error_counts_as_unheard() -> None:
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[])
    hosts.refuses = {"b"}
    unknown = replace(record(), tasks=tuple(replace(t, pid=None) for t in record().tasks))
    hosts.remembered["a"][0]["record"] = remembered("worker:0", of=unknown)["record"]
    searched = search(hosts, [A, B], timeout_s=1.0, at=1000.0)
    assert searched.epoch == 4 + EPOCHS_UNHEARD
    assert [str(answer.unheard) for answer in searched.answers] == [
        "None",
        "b: it answered with an error: the reply has 5 MiB",
    ]
    one = searched.found[RUN]
    assert (one.run, one.why) == (None, "b did not answer, and it is not known what runs there")


def test_a_drain_that_was_undone_does_not_come_back() -> None:
    """The host that missed the end of the drain has an older record of the same generation."""
    was = record()
    drained = replace(was, hosts=tuple(replace(h, state=HostState.DRAINED) for h in was.hosts))
    old, new = remembered("worker:0", of=drained), remembered("worker:1", of=was)
    old["record"], new["record"] = {**old["record"], "revision": 7}, {**new["record"], "revision": 8}
    for hosts in (Hosts(a=[old], b=[new]), Hosts(a=[new], b=[old])):
        one = found(hosts, A, B)
        assert one.run is not None
        assert [host.state for host in one.run.hosts] == [HostState.OPEN] * 2


def test_a_run_of_which_nothing_lives_is_told_with_its_ends() -> None:
    of = record()
    hosts = Hosts(a=[remembered("worker:0", "exited", of=of)], b=[remembered("worker:1", "exited", of=of)])
    one = found(hosts, A, B)
    assert one.run is None
    assert one.why == (
        "nothing of it lives: 3 min ago worker:0 on a failed with exit code 1: ValueError: x; "
        "3 min ago worker:1 on b failed with exit code 1: ValueError: x. "
        "`orch up` with its spec begins it again, from its last checkpoint where it has one"
    )
    away = found(Hosts(a=[remembered("worker:0", "exited", of=of)]), A)
    assert away.why is not None
    assert away.why.startswith(
        "nothing of it lives on the hosts that answered (b did not): 3 min ago worker:0 on a failed"
    )


def test_a_run_without_tasks_or_record_is_told_too() -> None:
    one = found(Hosts(a=[{**remembered("worker:0", "exited"), "tasks": []}]), A)
    assert one.why is not None
    assert one.why.startswith("nothing of it lives: it has no task there")


def test_the_rest_of_a_run_that_has_ended_does_not_bring_it_back() -> None:
    hosts = Hosts(
        a=[remembered("worker:0", "exited", of=record(Phase.KILLED))], b=[remembered("worker:1", of=record())]
    )
    one = found(hosts, A, B)
    assert (one.run, one.phase) == (None, "KILLED")
    assert (
        one.why
        == "it has ended: KILLED: by the user; what is left of it lives on b, and `orch gc` removes it"
    )


def test_hosts_that_the_newest_record_names_are_asked_too_unless_the_run_has_ended() -> None:
    living = Hosts(a=[remembered("worker:0", of=record())], b=[remembered("worker:1", of=record())])
    assert found(living, A).run is not None
    assert living.asked == ["a", "b"]
    ended = Hosts(a=[remembered("worker:0", "exited", of=record(Phase.SUCCEEDED))])
    assert found(ended, A).phase == "SUCCEEDED"
    assert ended.asked == ["a"]


def test_a_host_is_known_by_its_address_whatever_another_spec_calls_it() -> None:
    elsewhere = replace(B, name="a")  # the name of another host of the run
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[remembered("worker:1", of=record())])
    one = found(hosts, A, elsewhere)
    assert one.run is not None
    assert [(task.id.index, task.host, task.pid) for task in one.run.tasks] == [(0, "a", 70), (1, "b", 71)]


def test_a_host_that_may_hold_a_task_of_the_newest_generation_is_named() -> None:
    newer = remembered("worker:0", of=record())
    newer["tasks"][0]["generation"] = 2
    one = found(Hosts(a=[newer]), A)
    assert (one.run, one.why) == (None, "b did not answer, and it is not known what runs there")


def test_a_host_that_is_silent_may_have_obeyed_a_later_coordinator(tmp_path: Path) -> None:
    looked = search(Hosts(a=[remembered("worker:0", of=record())]), [A], timeout_s=1.0, at=1000.0)
    assert looked.found[RUN].run is not None
    journal = Journal(str(tmp_path / "journal.db"))
    write(journal, list(looked.found.values()), epoch=looked.epoch, at=looked.at)
    assert journal.take_epoch() == 4 + EPOCHS_UNHEARD + 1
    (kept,) = journal.runs()
    assert kept.run.epoch == 4
    journal.close()


def test_the_time_that_a_person_took_to_agree_is_nobodys(tmp_path: Path) -> None:
    hosts = Hosts(a=[remembered("worker:0", of=record())], b=[remembered("worker:1", of=record())])
    looked = search(hosts, [A], timeout_s=1.0, at=1000.0)
    journal = Journal(str(tmp_path / "journal.db"))
    write(journal, list(looked.found.values()), epoch=looked.epoch, at=looked.at)
    (kept,) = journal.runs()
    assert (kept.written_at, kept.run.since_at) == (1000.0, 1000.0)
    assert journal.take_epoch() == 5
    journal.close()

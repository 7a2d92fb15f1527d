"""What a coordinator does about hosts that are lent: drained while they leave, and given back after the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.errors import JournalError, OrchestratorError, Refused
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.state.host import Facts, HostState, Link
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Ended, Phase, Rendezvous, Running
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.hosts.lent_hosts import PATIENCE_S, LentHosts

PLAN = Plan(
    "t",
    "single",
    (HostPlan("t-0", allocation="ab"), HostPlan("t-1", allocation="ab", spare=True)),
    (TaskPlan(TaskId("worker", 0), "t-0"),),
    "t.py",
)
TRAINS = Running(progress_at=Instant(0.0))
LEAVES = "it is being deleted from node n"
RUN = new_run("t-1", PLAN, epoch=1, at=Instant(0.0))
ENDED = replace(RUN, phase_state=Ended(phase=Phase.SUCCEEDED))


class Bench:
    """An engine that lends two hosts, and a coordinator that obeys."""

    def __init__(self, *runs: Run) -> None:
        self.runs = {run.run_id: run for run in runs}
        self.there = {"t-0": ("uid-1", ""), "t-1": ("uid-2", "")}
        self.done: list[str] = []
        self.owing = False
        self.fetching = False
        self.forbidden = False
        self.problem: Exception | None = None
        """What the coordinator says to a drain."""
        self.at = 0.0
        self.restart()

    def held(self) -> list[str]:
        return ["ab"]

    def hosts(self, allocation: str) -> dict[str, tuple[str, str]]:
        assert allocation == "ab"
        return self.there

    def give_back(self, allocation: str) -> None:
        if self.forbidden:
            raise OrchestratorError("forbidden")
        self.done.append(f"give back {allocation}")

    def drain(self, name: str, host: str, *, now: bool, why: str = "") -> Run:
        self.done.append(f"drain {host} of {name}{' now' if now else ''}")
        if self.problem is not None:
            raise self.problem
        self.set_state(name, HostState.DRAINED, why)
        return self.runs[name]

    def undrain(self, name: str, host: str) -> Run:
        self.done.append(f"undrain {host} of {name}")
        self.set_state(name, HostState.OPEN)
        return self.runs[name]

    def let_go(self, run: Run, host: str) -> None:
        self.done.append(f"let {host} of {run.run_id} go")

    def set_state(self, name: str, state: HostState, why: str = "") -> None:
        run = self.runs[name]
        hosts = tuple(replace(host, state=state, state_why=why) for host in run.hosts[:1])
        self.runs[name] = replace(run, hosts=hosts + run.hosts[1:])

    def restart(self) -> None:
        """Be the next coordinator, which knows what is in the journal and no more."""
        self.lent = LentHosts(
            self, lambda: self.runs, self, lambda _: self.owing, lambda _: self.fetching, lambda: self.at
        )

    def look(self) -> list[str]:
        """Look, and return what was done since the last look."""
        self.done = []
        self.lent.check()
        return self.done


def test_a_host_that_leaves_is_drained_once_and_another_in_its_place_is_let_in() -> None:
    bench = Bench(RUN)
    assert bench.look() == []
    bench.there["t-0"] = ("uid-1", LEAVES)
    assert bench.look() == ["drain t-0 of t-1"]
    assert bench.look() == []
    del bench.there["t-0"]
    assert bench.look() == []
    bench.there["t-0"] = ("uid-3", "")
    assert bench.look() == ["undrain t-0 of t-1"]
    assert bench.look() == []


@pytest.mark.parametrize("problem", [JournalError("the disk is full"), TimeoutError()])
def test_a_drain_that_could_not_be_decided_is_ordered_again(problem: Exception) -> None:
    bench = Bench(RUN)
    bench.there["t-0"] = ("uid-1", LEAVES)
    bench.problem = problem
    assert bench.look() == bench.look() == ["drain t-0 of t-1"]
    bench.problem = None
    assert bench.look() == ["drain t-0 of t-1"]
    assert bench.look() == []


def test_a_drain_that_was_refused_is_not_ordered_again() -> None:
    bench = Bench(RUN)
    bench.there["t-0"] = ("uid-1", LEAVES)
    bench.problem = Refused("decisions on it have stopped")
    assert bench.look() == ["drain t-0 of t-1"]
    assert bench.look() == []


def test_a_host_that_leaves_may_end_once_the_run_trains_without_it() -> None:
    bench = Bench(RUN)
    bench.there["t-0"] = ("uid-1", LEAVES)
    bench.look()
    bench.runs["t-1"] = replace(bench.runs["t-1"], phase_state=TRAINS)
    assert bench.look() == [], "its task is there"
    moved = tuple(replace(task, host="t-1") for task in RUN.tasks)
    bench.runs["t-1"] = replace(
        bench.runs["t-1"], phase_state=Rendezvous(deadline_at=Deadline(9.0)), tasks=moved
    )
    assert bench.look() == [], "its checkpoint may be needed"
    bench.runs["t-1"] = replace(bench.runs["t-1"], phase_state=TRAINS)
    assert bench.look() == bench.look() == ["let t-0 of t-1 go"]


def test_the_next_coordinator_lets_in_again_what_this_one_has_drained() -> None:
    bench = Bench(RUN)
    bench.there["t-0"] = ("uid-1", LEAVES)
    assert bench.look() == ["drain t-0 of t-1"]
    bench.restart()
    bench.there["t-0"] = ("uid-3", "")
    assert bench.look() == ["undrain t-0 of t-1"]


def test_tasks_that_had_nowhere_to_go_move_when_a_spare_is_ready() -> None:
    bench = Bench(RUN)
    bench.there["t-0"] = ("uid-1", LEAVES)
    bench.look()
    bench.set_state("t-1", HostState.OPEN, f"its engine takes it away: {LEAVES}; its id is uid-1")
    assert bench.look() == [], "no spare is ready"
    ready = replace(RUN.hosts[1], link=Link.CONNECTED, facts=Facts())
    bench.runs["t-1"] = bench.runs["t-1"].with_host(ready)
    assert bench.look() == ["drain t-0 of t-1"]


def test_what_a_person_has_drained_stays_drained() -> None:
    bench = Bench(RUN)
    bench.set_state("t-1", HostState.DRAINED, "by the user")
    bench.there["t-0"] = ("uid-1", LEAVES)
    bench.look()
    bench.set_state("t-1", HostState.DRAINED, "by the user")  # the core asks nobody twice
    bench.there["t-0"] = ("uid-3", "")
    assert bench.look() == []


def test_what_a_person_let_in_again_is_not_touched() -> None:
    bench = Bench(RUN)
    bench.there["t-0"] = ("uid-1", LEAVES)
    bench.look()
    bench.set_state("t-1", HostState.OPEN)
    bench.there["t-0"] = ("uid-3", "")
    assert bench.look() == []


def test_nothing_is_given_back_while_a_run_goes_on_or_before_there_is_one() -> None:
    assert Bench().look() == []
    other = replace(ENDED, run_id="t-0")
    assert Bench(other, RUN).look() == []


def test_hosts_of_ended_runs_are_given_back_once_nothing_is_owed_or_patience_ends() -> None:
    assert Bench(ENDED).look() == ["give back ab"]
    bench = Bench(ENDED)
    bench.owing = True
    assert bench.look() == []
    bench.at = PATIENCE_S + 1
    assert bench.look() == ["give back ab"]


def test_a_fetch_that_is_under_way_is_waited_for_however_long_it_takes() -> None:
    bench = Bench(ENDED)
    bench.owing = bench.fetching = True
    for _ in range(20):
        bench.at += PATIENCE_S
        assert bench.look() == []
    bench.fetching = False  # of one host, and that of another has not begun
    bench.at += PATIENCE_S / 2
    assert bench.look() == []
    bench.owing = False
    assert bench.look() == ["give back ab"]


def test_a_refusal_is_tried_again() -> None:
    bench = Bench(ENDED)
    bench.forbidden = True
    assert bench.look() == []
    bench.forbidden = False
    assert bench.look() == ["give back ab"]

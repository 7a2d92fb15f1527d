"""Every instant of a state is known as one: it moves with the clock, and for a deadline the loop wakes."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.ends import Exit, FirstCause
from orchestrator.core.events import Event
from orchestrator.core.plan import Plan, TaskId, TaskPlan
from orchestrator.core.state.checkpoint import Checkpoint
from orchestrator.core.state.host import Facts, Host, Link
from orchestrator.core.state.instants import Instant, Kind, instants_of, rebased, stood_still
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import PlannedEnd, Run, new_run
from orchestrator.core.state.task import Standby, Task, TaskPhase
from tests.unit.core.phases import state_of
from tests.unit.core.transcript import make_plan

UNITS = ("_s", "_bytes", "_percent", "_time", "_c", "_w", "share")
NOT_OURS = {"metrics", "measured"}
"""Numbers by name: of the user's script, and those of `protocol/measures.py`."""


def dataclasses_in(hint: Any) -> Iterator[type[Any]]:
    """Those that a value of that type may hold, itself included."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from dataclasses_in(part)


def all_dataclasses(*roots: Any) -> set[type[Any]]:
    found: set[type[Any]] = set()
    wanted = [kind for root in roots for kind in dataclasses_in(root)]
    while wanted:
        kind = wanted.pop()
        if kind not in found:
            found.add(kind)
            wanted += [k for hint in get_type_hints(kind).values() for k in dataclasses_in(hint)]
    return found


def is_float(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType, tuple, Annotated) or get_origin(hint) is not None:
        return any(is_float(part) for part in get_args(hint))
    return hint is float


STATE = sorted(all_dataclasses(Run), key=lambda kind: kind.__name__)
EVENTS = sorted(all_dataclasses(Event), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", [*STATE, *EVENTS], ids=lambda kind: kind.__name__)
def test_every_float_is_an_instant_or_names_its_unit(kind: type[Any]) -> None:
    known = instants_of(kind)
    for name, hint in get_type_hints(kind).items():
        if name in known:
            assert name == "at" or name.endswith("_at"), f"{kind.__name__}.{name} is an instant"
        elif is_float(hint) and name not in NOT_OURS:
            assert name.endswith(UNITS), f"{kind.__name__}.{name}: an instant, or seconds of what?"


def test_no_instant_hides_in_a_mapping() -> None:
    """What moves them looks into values and tuples."""
    assert {name: instants for kind in STATE for name, instants in in_mappings(kind).items()} == {}


@dataclass(frozen=True)
class Hiding:
    at: Instant
    in_values: Mapping[str, Instant]
    in_dataclasses: Mapping[str, tuple[Exit, ...]]
    in_a_choice: dict[str, Exit] | None
    numbers: Mapping[str, float]


def test_an_instant_in_a_mapping_would_be_found() -> None:
    assert in_mappings(Hiding).keys() == {"in_values", "in_dataclasses", "in_a_choice"}


def in_mappings(kind: type[Any]) -> dict[str, str]:
    """Return those fields of a dataclass that are, or may be, mappings with an instant in them."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: f"{kind.__name__}: {hint}" for name, hint in hints.items() if hides(hint)}


def hides(hint: Any) -> bool:
    if issubclass_safe(get_origin(hint), Mapping):
        parts = list(every_part(hint))
        marked = any(isinstance(mark, Kind) for part in parts for mark in getattr(part, "__metadata__", ()))
        return marked or any(instants_of(one) for one in all_dataclasses(hint))
    return any(hides(part) for part in get_args(hint))


def every_part(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from every_part(part)


def issubclass_safe(kind: Any, base: type[Any]) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


# --- a state with everything in it ---------------------------------------------------------------------------


def plan_of_parameter_servers() -> Plan:
    ids = [TaskId("chief", 0), TaskId("ps", 0), TaskId("worker", 0)]
    placed = tuple(TaskPlan(task, host) for task, host in zip(ids, "abc", strict=True))
    return replace(make_plan(["a", "b", "c"], checkpoint=True), strategy="parameter_server", tasks=placed)


def full_run(phase: Phase) -> Run:
    """With a value for every instant that it could hold."""
    run = new_run("t-20260101-000000", plan_of_parameter_servers(), epoch=1, at=0.0)
    ended = Exit(cause=Cause.SIGNAL, at=5.0)
    tasks = tuple(filled(replace(t, phase=TaskPhase.RUNNING, exit=ended), 50.0) for t in run.tasks)
    run = replace(
        run, tasks=tasks, hosts=tuple(filled(h, 50.0) for h in run.hosts), phase_state=state_of(phase)
    )
    checkpoint = Checkpoint(global_step=5, path="ckpt-5", generation=1, verified_at=50.0)
    first_cause = FirstCause(None, 1, Cause.SIGNAL, "because")
    standby = filled(Standby(generation=2), 50.0)
    run = replace(run, since_at=50.0, checkpoint=checkpoint, first_cause=first_cause, standby=standby)
    return replace(run, phase_state=filled(run.phase_state, 50.0))


def filled(value: Any, at: float) -> Any:
    return replace(value, **dict.fromkeys(instants_of(type(value)), at))


def instants(value: Any, path: str = "") -> dict[str, float]:
    """All that a state holds, by their places."""
    if isinstance(value, tuple):
        parts = {str(i): item for i, item in enumerate(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        return {}
    kinds = instants_of(type(value)) if is_dataclass(value) and not isinstance(value, type) else {}
    found: dict[str, float] = {}
    for name, part in parts.items():
        if name in kinds and part is not None:
            found[f"{path}.{name}"] = part
        else:
            found |= instants(part, f"{path}.{name}")
    return found


@pytest.mark.parametrize("phase", Phase)
def test_rebased_moves_all_of_them_alike(phase: Phase) -> None:
    before = instants(full_run(phase))
    assert len(before) > 25
    after = instants(rebased(full_run(phase), -1000.0))
    assert after == {name: at - 1000.0 for name, at in before.items()}


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_terminal])
def test_the_loop_wakes_for_each_deadline_of_the_phase(phase: Phase) -> None:
    """No host is heard of, and none counts as silent: whatever else is due is due later."""
    run = full_run(phase)
    unheard = {"link": Link.UNREACHABLE, "retry_at": None, "heard_at": 1e5, "since_at": 1e5}
    run = replace(run, hosts=tuple(replace(host, **unheard) for host in run.hosts))  # type: ignore[arg-type]
    run = replace(run, tasks=tuple(replace(t, phase=TaskPhase.WAITING, start_at=None) for t in run.tasks))
    run = replace(run, standby=Standby())
    kinds = instants_of(type(run.phase_state))
    deadlines = [name for name, kind in kinds.items() if kind is Kind.DUE]
    assert deadlines
    own = dict.fromkeys(deadlines, 900.0)
    for name in deadlines:
        state = state_of(phase, **{**own, name: 7.0})
        assert next_deadline(replace(run, phase_state=state)) == 7.0, name


def test_the_loop_wakes_for_each_deadline_of_a_host_or_a_task() -> None:
    run = replace(full_run(Phase.RUNNING), phase_state=state_of(Phase.RUNNING))
    there = {"link": Link.CONNECTED, "heard_at": 1e5, "since_at": 1e5, "back_at": None, "facts": Facts()}
    hosts = tuple(replace(host, retry_at=None, **there) for host in run.hosts)  # type: ignore[arg-type]
    run = replace(run, hosts=hosts)
    worker = run.task(TaskId("worker", 0))
    places: list[tuple[Run, type[Any], str]] = [
        (run.with_host(replace(run.hosts[0], retry_at=7.0)), Host, "retry_at"),
        (run.with_host(replace(run.hosts[0], leave_at=7.0)), Host, "leave_at"),
        (run.with_task(replace(worker, phase=TaskPhase.WAITING, start_at=7.0)), Task, "start_at"),
        (run.with_task(replace(worker, phase=TaskPhase.STARTING, deadline_at=7.0)), Task, "deadline_at"),
        (replace(run, planned_end=PlannedEnd("", 7.0, None)), PlannedEnd, "at"),
        (replace(run, planned_end=PlannedEnd("", 9.0, 7.0)), PlannedEnd, "wanted_at"),
        (replace(run, standby=Standby(start_at=7.0)), Standby, "start_at"),
        (replace(run, standby=Standby(tasks=(worker,), join_at=7.0)), Standby, "join_at"),
    ]
    for with_it, _, name in places:
        assert next_deadline(with_it) == 7.0, name
    known = {(kind, name) for kind in STATE for name, what in instants_of(kind).items() if what is Kind.DUE}
    of_phases = {type(state_of(phase)) for phase in Phase}
    assert {one for one in known if one[0] not in of_phases} == {(kind, name) for _, kind, name in places}


@pytest.mark.parametrize("phase", Phase)
def test_while_nothing_could_be_decided_no_deadline_came_and_no_silence_counted(phase: Phase) -> None:
    run = full_run(phase)
    before, after = instants(run), instants(stood_still(run, 600.0, at=640.0))
    for name, at in before.items():
        field = name.rpartition(".")[2]
        if name.endswith(".exit.at"):
            assert after[name] == at, "the order of the ends is the hosts'"
        elif field in (
            *(
                "deadline_at",
                "force_at",
                "start_at",
                "verify_at",
                "evidence_at",
                "retry_at",
                "join_at",
                "leave_at",
                "give_up_at",
                "rescue_ends_at",
                "compare_ends_at",
            ),
        ):
            assert after[name] == at + 600.0, name
        else:
            assert after[name] == 640.0, f"{name}: it was heard meanwhile, and not later than now"


# --- a reboot of the head node (FAULTS, row 67) ---------------------------------------------------------------

OLD_UPTIME, NEW_UPTIME = 1e6, 100.0


def trains_after_a_cut(at: float) -> Run:
    """Four workers that train, and whose coordinator was cut off from three of them a moment ago."""
    plan = make_plan(["a", "b", "c", "d"], checkpoint=False)
    run = new_run("t-20260101-000000", plan, epoch=1, at=at - 100.0)
    ready = {"a": "boot", "b": "boot", "c": "boot", "d": "boot"}
    events: list[Event] = [ev.Submitted(at - 100.0)]
    events += [ev.HostUp(at - 99.0, host, boot) for host, boot in ready.items()]
    events += [ev.HostPrepared(at - 98.0, host, Facts("3.11.2", {}, "c0de")) for host in ready]
    events += [report(at - 97.0, host, "ready") for host in ready]
    events += [report(at - 90.0, host, "running") for host in ready]
    events += [ev.Ticked(at - 80.0)]  # nobody has been heard since: most are silent
    events += [report(at - 70.0, host, "running") for host in ready]
    for event in events:
        run, _, _ = decide.step(run, event)
    assert run.connected_again_at == at - 70.0
    return run


def report(at: float, host: str, phase: str) -> ev.HostReported:
    told = ev.TaskReport(TaskId("worker", "abcd".index(host)), 1, phase, pid=7, port=20000)
    return ev.HostReported(at, host, (told,))


@pytest.mark.fault(67)
def test_after_a_reboot_of_the_head_node_silent_hosts_are_judged_by_the_new_clock() -> None:
    """The new uptime does not have to reach the old one first, also where the run was once cut off."""
    written = trains_after_a_cut(OLD_UPTIME)
    assert max(instants(written).values()) > 9e5
    run = rebased(written, NEW_UPTIME - OLD_UPTIME)
    run, _, _ = decide.step(run, ev.EpochBegan(NEW_UPTIME, epoch=2))
    assert max(instants(run).values()) <= NEW_UPTIME, "no instant of the old clock is left"
    lost_at: float | None = None
    at = NEW_UPTIME
    while lost_at is None and at < NEW_UPTIME + 300.0:
        at += 2.0
        heard: list[Event] = [report(at, host, "running") for host in "abc"]
        for event in [*heard, ev.Ticked(at)]:
            run, _, _ = decide.step(run, event)
        if run.task(TaskId("worker", 3)).phase is TaskPhase.LOST:
            lost_at = at
    timing = run.plan.timing
    assert lost_at is not None, "the host that never came back is waited for, for ever"
    assert lost_at - NEW_UPTIME == pytest.approx(timing.lost_after_s, abs=timing.unreachable_after_s)

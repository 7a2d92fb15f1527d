"""Each invariant can fail; errors carry what people need; what is not there is a KeyError."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.errors import HostError, InvariantViolated, OrchestratorError
from orchestrator.core.hosts.compatibility import differences
from orchestrator.core.invariants import check
from orchestrator.core.plan import TaskId
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.host import Facts, Host
from orchestrator.core.state.phase_states import Intent, Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan


def fresh() -> Run:
    run, _, _ = decide.step(
        new_run("t", make_plan(["a"], checkpoint=False), epoch=1, at=0.0), ev.Submitted(0.0)
    )
    check(run)
    return run


def with_task(run: Run, **changes: object) -> Run:
    return run.with_task(replace(run.tasks[0], **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (
            in_phase(fresh(), Phase.STOPPING, final_verification_asked_at=1.0),
            "the last look is beside the proof",
        ),
        (in_phase(fresh(), Phase.PENDING, deadline_at=None), "PENDING ends within a bound"),
        (in_phase(fresh(), Phase.FAILED), "a failed run says why"),
        (with_task(fresh(), phase=TaskPhase.STARTING, generation=3), "all tasks are of the run's generation"),
        (with_task(fresh(), phase=TaskPhase.EXITED), "an end has its record"),
        (
            in_phase(with_task(fresh(), phase=TaskPhase.RUNNING), Phase.KILLED),
            "a run ends after its tasks",
        ),
        (
            in_phase(with_task(fresh(), phase=TaskPhase.STARTING), Phase.RUNNING),
            "none runs before all have joined",
        ),
        (
            in_phase(fresh(), Phase.STOPPING, intent=Intent.SUCCEED),
            "only the chief's exit 0 is success",
        ),
        (replace(fresh(), budget=Budget(without_progress=5)), "restarts stay within the budget"),
        (replace(fresh(), budget=Budget(in_a_row=20)), "so do those without fault"),
    ],
)
def test_an_invariant_that_does_not_hold_is_named(broken: Run, sentence: str) -> None:
    with pytest.raises(InvariantViolated, match=sentence):
        check(broken)


def test_what_is_not_there_is_a_key_error() -> None:
    run, nobody = fresh(), TaskId("worker", 9)
    for ask in (run.task, run.plan.task):
        with pytest.raises(KeyError, match="worker:9"):
            ask(nobody)
    for look in (run.host, run.plan.host):
        with pytest.raises(KeyError, match="z"):
            look("z")
    with pytest.raises(ValueError, match="a task reads like worker:3"):
        TaskId.parse("wroker:3")
    assert TaskId.parse("worker:3") == TaskId("worker", 3)


def test_errors_carry_message_hint_and_code() -> None:
    error = OrchestratorError("it is so", hint="do that")
    assert (str(error), error.hint, error.exit_code) == ("it is so", "do that", 1)
    at_host = HostError("a", "is full", code="no-space")
    assert (str(at_host), at_host.host, at_host.detail, at_host.code) == (
        "a: is full",
        "a",
        "is full",
        "no-space",
    )
    assert HostError("a", "x").code == "host"


@pytest.mark.parametrize(
    ("facts", "message", "table", "hint"),
    [
        ((Facts("3.11.2", {"keras": "3.15.1"}, "c"), Facts("3.11.9", {"keras": "3.15.1"}, "c")), "", (), ""),
        (
            (Facts("3.11.2", {"keras": "3.15.1"}, "c"), Facts("3.12.1", {}, "c")),
            "the hosts differ in python (3.11 on a, 3.12 on bb); keras (3.15.1 on a, - on bb)",
            (("host", "python", "keras"), ("a", "3.11", "3.15.1"), ("bb", "3.12", "-")),
            "install the same versions on all hosts, or name another Python per host with `python:`",
        ),
        (
            (Facts("3.11.2", activated={"LOADED": "tf/2"}), Facts("3.11.2", activated={"LOADED": "tf/1"})),
            "the hosts differ in LOADED after `activate` (tf/2 on a, tf/1 on bb)",
            (("host", "LOADED after `activate`"), ("a", "tf/2"), ("bb", "tf/1")),
            "let `activate` do the same on all hosts: the same modules or environment must be installed",
        ),
        (
            (Facts("3.11.2", {}, "c0de1"), Facts("3.11.2", {}, "c0de2")),
            "the hosts differ in code (c0de1 on a, c0de2 on bb)",
            (("host", "code"), ("a", "c0de1"), ("bb", "c0de2")),
            "the working directory changed while it was pushed: `orch up` again",
        ),
        (
            (Facts("3.11.2", {"jax": "0.7", "numpy": "1"}), Facts("3.11.2", {"jax": "0.8", "numpy": "2"})),
            "the hosts differ in jax (0.7 on a, 0.8 on bb)",
            (("host", "jax"), ("a", "0.7"), ("bb", "0.8")),
            "install the same versions on all hosts, or name another Python per host with `python:`",
        ),
    ],
)
@pytest.mark.fault(22)
def test_hosts_that_differ_are_told_in_a_sentence_and_in_a_table(
    facts: tuple[Facts, Facts], message: str, table: tuple[tuple[str, ...], ...], hint: str
) -> None:
    problem = differences([Host("a", facts=facts[0]), Host("bb", facts=facts[1])])
    if problem is None:
        assert message == ""
    else:
        assert (problem.message, problem.table, problem.hint) == (message, table, hint)


def test_of_many_hosts_that_differ_the_first_are_named() -> None:
    old, new = Facts("3.11.2", {"keras": "3.14.0"}), Facts("3.11.2", {"keras": "3.15.1"})
    hosts = [Host(f"h{n}", facts=new if n else old) for n in range(20)]
    problem = differences(hosts)
    assert problem is not None
    assert problem.message == (
        "the hosts differ in keras (3.14.0 on h0, 3.15.1 on h1, h2, h3, h4, h5, h6, and 13 more)"
    )
    assert len(problem.table) == 21

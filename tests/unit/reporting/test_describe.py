"""The sentence of each phase, word for word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit, FirstCause
from orchestrator.core.phases.stopping import NOTHING_SEEN
from orchestrator.core.plan import TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts, Host, HostState, Link
from orchestrator.core.state.phase_states import Intent, Phase, Swept
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress, Standby, Task, TaskPhase
from orchestrator.reporting import describe
from orchestrator.reporting.describe import reason
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

NOW = 1000.0
FACTS = Facts(python="3.11.2")
UP = {"link": Link.CONNECTED, "since_at": 100.0, "heard_at": 999.0, "facts": FACTS}
DOWN = {"link": Link.UNREACHABLE, "since_at": 975.0, "heard_at": 960.0, "facts": FACTS}


def run_in(
    phase: Phase,
    *,
    hosts: tuple[dict[str, Any], dict[str, Any]] = (UP, UP),
    tasks: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    checkpoint: bool = False,
    own: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    run = new_run("t", make_plan(["a", "b"], checkpoint=checkpoint), epoch=1, at=0.0)
    made: tuple[Host, ...] = tuple(replace(h, **hosts[i]) for i, h in enumerate(run.hosts))
    told: tuple[Task, ...] = tuple(replace(t, **tasks[i]) for i, t in enumerate(run.tasks))
    return replace(in_phase(run, phase, **(own or {})), hosts=made, tasks=told, since_at=990.0, **changes)


def task(
    phase: TaskPhase, step: int | None = None, pid: int | None = 7, *, passing: tuple[int, int] | None = None
) -> dict[str, Any]:
    return {"phase": phase, "pid": pid, "progress": Progress(global_step=step, passing=passing)}


def without_b(run: Run) -> Run:
    """Return the run as one that may go on without the tasks of b."""
    return replace(run, plan=replace(run.plan, replicas_min={"worker": 1}))


UNMOUNTED = {**UP, "dir_missing": True}
LEFT = Swept(("pid 9: cannot be killed",))

STARTING, READY, RUNNING = TaskPhase.STARTING, TaskPhase.READY, TaskPhase.RUNNING


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (
            run_in(Phase.PENDING, hosts=(UP, {"since_at": 0.0}), own={"deadline_at": 1180.0}),
            "1/2 hosts are ready; waiting for b (connecting); gives up in 3 min",
        ),
        (
            run_in(
                Phase.PENDING,
                hosts=({**UP, "facts": None, "since_at": 996.0}, {"problem": "b: connection refused"}),
            ),
            "0/2 hosts are ready; waiting for a (being checked and given the code, for 4 s), "
            "b (b: connection refused, for 16 min 40 s)",
        ),
        (
            run_in(
                Phase.RENDEZVOUS,
                tasks=(task(READY), task(STARTING)),
                hosts=(UP, DOWN),
                own={"deadline_at": 1060.0},
            ),
            "1/2 tasks have joined, 1 min left; waiting for worker:1 on b (host unreachable, last heard 40 s ago)",
        ),
        (
            run_in(
                Phase.RENDEZVOUS,
                tasks=(task(STARTING), task(STARTING, pid=None)),
                hosts=(UP, UP),
                own={"deadline_at": 1060.0},
            ),
            "0/2 tasks have joined, 1 min left; waiting for worker:0 on a (pid 7 is importing), "
            "worker:1 on b (no process yet)",
        ),
        (
            run_in(
                Phase.RENDEZVOUS,
                tasks=(task(READY), task(STARTING)),
                hosts=(UP, {**DOWN, "link": Link.CONNECTING, "heard_at": None}),
                own={"deadline_at": 1060.0},
            ),
            "1/2 tasks have joined, 1 min left; waiting for worker:1 on b (host unreachable, last heard never)",
        ),
        (
            run_in(
                Phase.RENDEZVOUS,
                tasks=(task(READY), task(READY)),
                checkpoint=True,
                own={"deadline_at": 1060.0},
            ),
            "2/2 tasks have joined; verifying and copying the newest checkpoint, 1 min left",
        ),
        (
            run_in(Phase.RENDEZVOUS, tasks=(task(READY), task(READY)), checkpoint=True, seed=Seed(0)),
            "2/2 tasks have joined",
        ),
        (
            run_in(Phase.RUNNING, tasks=(task(RUNNING, 120), task(RUNNING, 120))),
            "step 120",
        ),
        (
            run_in(Phase.RUNNING, tasks=(task(RUNNING), task(RUNNING))),
            "no step yet, 10 s after the release",
        ),
        (
            run_in(Phase.RUNNING, tasks=(task(RUNNING, passing=(4000, 90000)), task(RUNNING))),
            "no step yet, 10 s after the release: passing over batch 4,000 of 90,000",
        ),
        (
            run_in(Phase.RUNNING, tasks=(task(RUNNING, passing=(4000, 0)), task(RUNNING))),
            "no step yet, 10 s after the release: passing over batch 4,000",
        ),
        (
            run_in(
                Phase.RUNNING,
                hosts=(UP, DOWN),
                tasks=(task(RUNNING, 120), task(RUNNING)),
                own={"progress_at": 998.0},
            ),
            "step 120; b unreachable for 40 s; the other tasks make progress",
        ),
        (
            run_in(
                Phase.RUNNING,
                hosts=(UP, DOWN),
                tasks=(task(RUNNING), task(RUNNING)),
                own={"progress_at": 900.0},
            ),
            "no step yet, 10 s after the release; b unreachable for 40 s",
        ),
        (
            run_in(
                Phase.RUNNING,
                hosts=(UP, DOWN),
                tasks=(task(RUNNING, 120), task(RUNNING)),
                own={"progress_at": 985.0},
            ),
            "step 120; b unreachable for 40 s; no step for 15 s",
        ),
        (
            run_in(
                Phase.RUNNING,
                hosts=(UP, {"link": Link.CONNECTING}),
                tasks=(task(RUNNING, 120), task(RUNNING, 120)),
            ),
            "step 120; adopting the tasks on b",
        ),
        (
            run_in(
                Phase.RUNNING,
                tasks=(
                    task(RUNNING, 120),
                    {"phase": TaskPhase.EXITED, "exit": Exit(cause=Cause.FINISHED, code=0)},
                ),
            ),
            "step 120; worker:1 on b finished; the other tasks continue",
        ),
        (
            run_in(Phase.RUNNING, tasks=(task(RUNNING, 120), task(RUNNING, 120)), replacements={"b": None}),
            "step 120; 1 of 2 workers: the global batch is 1/2 of what it was; grows back at a checkpoint once b or a "
            "spare is ready",
        ),
        (
            run_in(
                Phase.RUNNING,
                hosts=(UP, {**UP, "state": HostState.DRAINED, "state_why": "by the user"}),
                tasks=(task(RUNNING, 120), task(RUNNING, 120)),
                checkpoint=True,
            ),
            "step 120; moves off b (drained) at the next checkpoint",
        ),
        (
            run_in(
                Phase.BACKOFF,
                hosts=(UP, {**UP, "state": HostState.DRAINED, "state_why": "by the user"}),
                reason="it ended",
            ),
            "it ended; waiting for b (drained: by the user); starts again when it is back",
        ),
        (
            run_in(
                Phase.BACKOFF,
                hosts=(UP, {**UP, "state": HostState.STUCK, "state_why": "pid 7 of old-1 cannot be killed"}),
                reason="it ended",
            ),
            "it ended; waiting for b (stuck: pid 7 of old-1 cannot be killed; it ends when what it waits for "
            "answers (a disk, a network file system, a GPU), or when its owner ends it; else reboot the host); "
            "starts again when it is back",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED), task(RUNNING)),
                own={"intent": Intent.RESTART},
                reason="worker:0 on a was killed by SIGKILL",
            ),
            "worker:0 on a was killed by SIGKILL; waiting for worker:1 on b to end, then restart",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED), task(TaskPhase.LOST)),
                own={"intent": Intent.KILL, "proof": {"a": Swept()}},
                reason="killed by the user",
            ),
            "killed by the user; checking b for leftover processes (1 of 2 hosts are checked), then KILLED",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED),) * 2,
                own={"intent": Intent.SUCCEED},
                reason="done",
            ),
            "done; checking a, b for leftover processes, then done",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED),) * 2,
                own={"intent": Intent.SUCCEED, "proof": {"a": Swept(), "b": Swept()}},
                reason="done",
            ),
            "done; no leftover processes; reading the newest checkpoint, then done",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED),) * 2,
                own={"intent": Intent.SUCCEED, "proof": {"a": LEFT, "b": Swept()}},
                reason="done",
            ),
            "done; left behind: a: pid 9: cannot be killed; reading the newest checkpoint, then done",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED),) * 2,
                own={"intent": Intent.SUCCEED, "proof": {"a": LEFT}},
                reason="done",
            ),
            "done; left behind: a: pid 9: cannot be killed; checking b for leftover processes (1 of 2 hosts are "
            "checked), then done",
        ),
        (
            run_in(
                Phase.STOPPING, tasks=(task(TaskPhase.EXITED),) * 2, own={"intent": Intent.FAIL}, reason="bad"
            ),
            "bad; checking a, b for leftover processes, then FAILED",
        ),
        (
            run_in(
                Phase.BACKOFF, reason="it failed", generation=2, generation_last=2, own={"start_at": 1004.0}
            ),
            "it failed; the next generation starts in 4 s",
        ),
        (
            run_in(
                Phase.BACKOFF,
                reason="it failed",
                hosts=({**DOWN, "problem": "a: no route to host"}, {**UP, "facts": None}),
            ),
            "it failed; waiting for a (a: no route to host, for 25 s), "
            "b (being checked and given the code, for 15 min); starts again when it is back",
        ),
        (
            run_in(Phase.BACKOFF, reason="it failed", hosts=(UP, DOWN)),
            "it failed; waiting for b (unreachable, for 25 s); starts again when it is back",
        ),
        (  # A person must mount it: it is neither checked nor silent, and does not count as lost
            without_b(run_in(Phase.BACKOFF, reason="it failed", checkpoint=True, hosts=(UP, UNMOUNTED))),
            "it failed; waiting for b (/shared/t on b is not the directory in which the run saves: its share is not "
            "mounted); starts again when it is back",
        ),
        (
            without_b(run_in(Phase.BACKOFF, reason="it failed", checkpoint=True, hosts=(UP, DOWN))),
            "it failed; waiting for b (unreachable, for 25 s); starts again when it is back, or without it when it "
            "has been silent for 1 min",
        ),
        (
            run_in(Phase.BACKOFF, reason="it failed", hosts=(UP, {**UNMOUNTED, "facts": None})),
            "it failed; waiting for b (being checked and given the code, for 15 min); starts again when it is back",
        ),
        (
            run_in(Phase.BACKOFF, reason="it failed", tasks=(task(RUNNING), task(TaskPhase.EXITED))),
            "it failed; waiting for the old tasks to end",
        ),
        (
            run_in(
                Phase.BACKOFF,
                reason="worker:0 failed",
                hosts=({**UP, "dir_free_bytes": 12 << 20, "dir_low_at": 960.0}, UP),
                own={"start_at": 1290.0, "full_host": "a", "needed_bytes": 64 << 20},
            ),
            "no space in the checkpoint directory on a for 40 s; 12 MiB free, 64 MiB needed; "
            "resumes by itself when there is room",
        ),
        (
            run_in(Phase.BACKOFF, reason="worker:0 failed", own={"start_at": 1290.0, "full_host": "b"}),
            "no space in the checkpoint directory on b for 10 s; what is free is not known, more is needed; "
            "resumes by itself when there is room, tries again in 4 min 50 s",
        ),
        (
            run_in(
                Phase.STOPPING,
                tasks=(task(TaskPhase.EXITED),) * 2,
                checkpoint=True,
                own={"intent": Intent.RESTART},
                reason="worker:0 failed",
                first_cause=FirstCause(TaskId("worker", 0), 0, Cause.DISK, "worker:0 failed"),
            ),
            "worker:0 failed; waiting to see whether the checkpoint directory has room, then restart",
        ),
        (run_in(Phase.FAILED, reason="worker:0 failed"), "worker:0 failed"),
    ],
)
def test_sentence(run: Run, expected: str) -> None:
    assert reason(run, now=NOW).sentence == expected


def test_the_number_of_a_generation_is_not_said_before_it_is_given_out() -> None:
    """A standby may have it, or be of no use when the wait is over."""
    run = run_in(Phase.BACKOFF, reason="it failed", generation=2, generation_last=3, own={"start_at": 1005.0})
    waiting = tuple(replace(task, generation=3, phase=READY) for task in run.tasks)
    for standby in (Standby(generation=3, tasks=waiting), Standby()):
        told = reason(replace(run, standby=standby), now=NOW).sentence
        assert told == "it failed; the next generation starts in 5 s"


def test_who_ended_on_a_drained_host_is_said_to_wait_for_it_or_the_move() -> None:
    drained = {**UP, "state": HostState.DRAINED}
    told = (
        task(RUNNING, 120),
        {**task(TaskPhase.WAITING, pid=None), "id": TaskId("worker", 0), "start_at": 5.0},
    )
    run = run_in(Phase.RUNNING, hosts=(UP, drained), tasks=({**told[0], "id": TaskId("chief", 0)}, told[1]))
    run = replace(run, plan=replace(run.plan, strategy="parameter_server"))
    assert reason(run, now=NOW).sentence == (
        "step 120; moves off b (drained) at the next restart; worker:0 on b has ended and waits for its host or a move"
    )


FOUND = FirstCause(TaskId("worker", 0), 1, Cause.OOM, "it died")


@pytest.mark.parametrize(
    ("run", "begins_with", "rest"),
    [
        (run_in(Phase.RUNNING, tasks=(task(RUNNING, 120), task(RUNNING, 119))), "global_step", ""),
        (
            run_in(
                Phase.RUNNING,
                tasks=(task(RUNNING, 120), task(RUNNING, 119)),
                hosts=(UP, {**UP, "link": Link.CONNECTING}),
            ),
            "global_step",
            "adopting the tasks on b",
        ),
        (
            run_in(
                Phase.BACKOFF, reason="it died", reason_rest="", first_cause=FOUND, own={"start_at": 1003.0}
            ),
            "first_cause",
            "the next generation starts in 3 s",
        ),
        (
            run_in(Phase.FAILED, reason="it died; given up", reason_rest="given up", first_cause=FOUND),
            "first_cause",
            "given up",
        ),
        (run_in(Phase.FAILED, reason="no Python", first_cause=FOUND), None, "no Python"),
        (run_in(Phase.FAILED, reason="it died; given up", reason_rest="given up"), None, "it died; given up"),
    ],
)
def test_what_the_reason_begins_with_is_told_apart_from_the_rest(
    run: Run, begins_with: str | None, rest: str
) -> None:
    told = reason(run, now=NOW)
    assert (told.begins_with, told.rest) == (begins_with, rest)
    assert told.sentence.endswith(rest)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (None, "exit code 0, but no step or checkpoint was seen"),
        ({"pending": True, "problems": [], "tasks": []}, "exit code 0, but no step or checkpoint was seen"),
        (
            {"pending": False, "problems": ["b: away"], "tasks": []},
            "exit code 0, but no step or checkpoint was seen",
        ),
        (
            {"pending": False, "problems": [], "tasks": []},
            "exit code 0, but no step, checkpoint or output was seen: see in its log whether it trained at all",
        ),
        ({"pending": False, "problems": [], "tasks": [{"files": 1}]}, "exit code 0"),
    ],
)
def test_a_success_that_nothing_shows_is_said_to_be_one(
    outputs: dict[str, Any] | None, expected: str
) -> None:
    sentence = f"worker:0 ended with exit code 0{NOTHING_SEEN}"
    shown = {"reason": sentence, "reason_rest": sentence}
    describe.add_outputs(shown, outputs)
    assert shown == {
        "reason": f"worker:0 ended with {expected}",
        "reason_rest": f"worker:0 ended with {expected}",
    }

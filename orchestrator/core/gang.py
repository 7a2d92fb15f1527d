"""What one asks of the gang of a run: who is restarted together, how far it has come, and what its tasks can hand over.

Pure functions of the state, for all concerns. The answers to what only one of them asks stand with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from orchestrator.core.actions import ReleaseTask, StartTask
from orchestrator.core.causes import Blame
from orchestrator.core.hosts.slots import NO_TASKS, turns_away
from orchestrator.core.launching.environment import GENERATION_REPORTED_MAX, endpoint, have_ports_apart
from orchestrator.core.launching.wiring import Addresses
from orchestrator.core.plan import TaskId, TaskPlan
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Phase, Stopping
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES

UNHEARD_S = 600.0
"""For how long it may have trained on since it was heard, at its pace: reports and disks may be slow."""

UNHEARD_STEPS = 1000


def is_individual(run: Run, task: Task) -> bool:
    """Return whether the others train on when this task ends."""
    return task.id.type in STRATEGIES[run.plan.strategy].alone


def is_served(run: Run, task: Task) -> bool:
    """Return whether the task runs a server, which never ends by itself."""
    return task.id.type in STRATEGIES[run.plan.strategy].served


def gang(run: Run) -> list[Task]:
    """Return the tasks that are restarted together."""
    alone = _alone(run)
    return [task for task in run.tasks if task.id.type not in alone] if alone else list(run.tasks)


def individuals(run: Run) -> list[Task]:
    """Return the tasks that are restarted by themselves."""
    alone = _alone(run)
    return [task for task in run.tasks if task.id.type in alone] if alone else []


def _alone(run: Run) -> frozenset[str]:
    """Return the types of the run's tasks that are restarted by themselves."""
    types = cast("Roster[TaskId, TaskPlan]", run.plan.tasks).once(_types)
    return STRATEGIES[run.plan.strategy].alone & types


def _types(tasks: Iterable[TaskPlan]) -> frozenset[str]:
    return frozenset([task.id.type for task in tasks])


def highest_reported(run: Run) -> int:
    """Return the highest credible generation whose directory a host reports; 0 if there is none."""
    generations = (host.facts.highest_generation for host in run.hosts if host.facts)
    return max((generation for generation in generations if generation <= GENERATION_REPORTED_MAX), default=0)


def next_generation(run: Run) -> int:
    """Return a number above all that were given out, and all of which any host has a directory.

    Spares count too, and so do hosts that were prepared late: if nothing is shared, the next chief may find old
    directories of another run on such a host. Numbers whose ports are those of the present generation are skipped, so
    that a stale process cannot join the new gang; the number between the two may have gone to a standby that was never
    released.
    """
    generation = max(run.generation_last, highest_reported(run)) + 1
    while run.generation and not have_ports_apart(run.plan, run.generation, generation):
        generation += 1
    return generation


def step_max(run: Run) -> int | None:
    """Return the highest step that can have been reached by now; None where nobody has told how far it came.

    A checkpoint of ours that claims more is not believed.
    """
    told = [
        task
        for task in gang(run)
        if task.phase in (TaskPhase.RUNNING, TaskPhase.EXITED)
        # With its host, or without its shim, it may have trained for hours since it was heard
        and not (task.exit is not None and task.exit.cause.row.blame is Blame.HOST)
    ]
    saves = [task.progress.saving for task in told if task.progress.saving is not None]
    saved = [(each.saved_step or 0) + 2 * each.every_steps for each in saves]
    if not told or run.best_step is None:
        return None
    pace = max((task.progress.measured.get("steps_per_s") or 0.0 for task in told), default=0.0)
    known = max(run.best_step, run.verified_step or 0, *saved)
    return known + max(UNHEARD_STEPS, round(UNHEARD_S * pace))


_BEFORE_ITS_RELEASE = (TaskPhase.WAITING, TaskPhase.STARTING, TaskPhase.READY)
_SERVES = (TaskPhase.RELEASED, TaskPhase.RUNNING)


def is_recovering(run: Run) -> bool:
    """Return whether a serving task is being restarted. Until it is back the chief may stand still, within a bound."""
    return any(
        is_served(run, task)
        and (task.ending is not None or task.phase in _BEFORE_ITS_RELEASE)
        and run.host(task.host).link is Link.CONNECTED
        and not waits_to_leave(run, task)
        for task in individuals(run)
    )


def waits_to_leave(run: Run, task: Task) -> bool:
    """Return whether a task waits until the gang moves, or until its host may have tasks again."""
    waits = run.phase is Phase.RUNNING and task.phase is TaskPhase.WAITING and is_individual(run, task)
    return waits and (run.host(task.host).state in NO_TASKS or turns_away(run.host(task.host)))


def missed(run: Run) -> list[Task]:
    """Return the serving tasks that wait to leave, if no other serves: nothing trains without them."""
    serving = [task for task in individuals(run) if is_served(run, task)]
    if any(task.phase in _SERVES for task in serving):
        return []
    return [task for task in serving if waits_to_leave(run, task)]


def addresses(run: Run) -> Addresses:
    """Return `host:port` of every task, which each is told with its release."""
    return Addresses({t.id: endpoint(run.plan.host(t.host).peer_address, t.port or 0) for t in run.tasks})


def release(run: Run, task: Task, all_addresses: Addresses) -> ReleaseTask:
    """Return the order that opens one task's gate."""
    port = task.port if task.generation != run.generation else None
    return ReleaseTask(task.host, task.id, task.generation, addresses=all_addresses, port=port)


def may_stop_at_next_step(run: Run) -> bool:
    """Return whether a run can be stopped at its next step and hand over its state, as all its tasks say."""
    may = run.phase is Phase.RUNNING and run.plan.restart.rescue_s > 0 and run.plan.checkpoint is not None
    return may and all(can_hand_over(run, task) and task.progress.rescues for task in gang(run))


def next_save(run: Run) -> str:
    """Return at what a run that is to lose nothing can stop next."""
    return "step" if may_stop_at_next_step(run) else "verified checkpoint"


def can_hand_over(run: Run, task: Task) -> bool:
    """Return whether a task has trained, and can be asked to hand over its state."""
    return (
        task.phase is TaskPhase.RUNNING
        and task.first_step is not None
        and run.host(task.host).link is Link.CONNECTED
    )


def handover_s(run: Run, task: Task, at: Instant) -> float | None:
    """Return how long a task has to hand over its state; None for a task that is not asked."""
    stopping = run.phase_state
    if not isinstance(stopping, Stopping) or stopping.rescue_ends_at is None:
        return None
    if task.id != stopping.rescuer and (stopping.rescuer is not None or task.id not in stopping.survivors):
        return None
    return min(max(0.0, stopping.rescue_ends_at - at), run.plan.restart.rescue_s)


def handed_over(run: Run) -> int | None:
    """Return the step that was handed over in this stop; None if none was."""
    state = run.phase_state
    if not isinstance(state, Stopping) or state.rescuer is None:
        return None
    rescued = run.task(state.rescuer).progress.rescued
    return rescued.step if rescued is not None else None


def kept_step(run: Run) -> int | None:
    """Return the step that the next generation has: of the last verified checkpoint, or that was handed over since."""
    step = handed_over(run)
    return run.verified_step if step is None else max(run.verified_step or 0, step)


def unstarted(run: Run, name: str) -> list[StartTask]:
    """Return the orders to start tasks on a host that were given, and of which nothing was heard."""
    if run.phase not in (Phase.RENDEZVOUS, Phase.RUNNING) or run.host(name).facts is None:
        return []  # without facts it is not known which code to run
    return [
        StartTask(host=name, task=task.id, generation=task.generation, port=task.port)
        for task in run.tasks_on(name)
        if task.phase is TaskPhase.STARTING and task.pid is None and task.ending is None
    ]


def measured(run: Run, claimed: int | None) -> int | None:
    """Return which step counts as progress: no more of what a host claims to have saved than tasks told to have made.

    Where all make the same steps, no host alone tells how far that is. Where nobody tells steps, the claim counts.
    """
    told = run.best_step
    by_host: dict[str, int] = {}
    for task in gang(run):
        if task.progress.has_stepped and task.progress.global_step is not None:
            by_host[task.host] = max(task.progress.global_step, by_host.get(task.host, 0))
    if STRATEGIES[run.plan.strategy].rescues and len(by_host) > 1:
        told = sorted(by_host.values())[-2]
    return claimed if claimed is None or told is None else min(claimed, told)

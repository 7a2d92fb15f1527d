"""A run rebuilt from what its hosts know, when the journal is lost.

A record is the run as its coordinator saw it when the generation was started, or released, or the run had ended:
plan, budget, checkpoint, what the hosts are. What has changed since, the tasks' reports tell: who lives, where, on
which port, in which generation. The rebuilt run is adopted as any run of a journal is; what its tasks have become
meanwhile is learned then.

A record comes from a host, which may speak of itself and of what runs there, and of nothing else. So hosts, routes,
working directory, script, environment and whatever else a plan says come from a person's spec, or from the head's own
copy of the plan: `vouched_for` puts that plan in the place of the record's, or says what does not fit.

The newest record may be of an older generation than the shims: its coordinator died before it had given the next one.
The newest generation that any shim of the gang proves is the run's. What is older is a remainder, which is stopped when
its host reports it; a task of which that generation shows nothing is taken for lost, and the gang begins again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import TaskReport
from orchestrator.core.hosts import slots
from orchestrator.core.launching.placement import has_room
from orchestrator.core.phases.running import next_verification
from orchestrator.core.phases.starting import is_seeded
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.restart_scope import is_individual
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.instants import Instant, rebased
from orchestrator.core.state.phase_states import Phase, Rendezvous, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Standby, Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES

Told = Mapping[str, Sequence[TaskReport]]
"""By host that answered: what it reports."""


def newest(records: Iterable[tuple[tuple[int, int], Run]]) -> Run | None:
    """Of the records that hosts hold of one run, the one that knows most. Each with its epoch and its number in it.

    Those of an older orch have no numbers.
    """
    ranked = [
        (version, run.generation_last, run.phase.is_terminal, run.phase is Phase.RUNNING, number, run)
        for number, (version, run) in enumerate(records)
    ]
    return max(ranked, key=lambda entry: entry[:5])[5] if ranked else None


class NotVouched(ValueError):
    """A record does not fit the plan that a person gave: in a sentence, what."""


def vouched_for(record: Run, plan: Plan) -> Run:
    """Return the record's run under a plan that does not come from a host.

    Of the record remain the run's id, generations, budgets and positions, and which task is on which host. What its
    hosts were found to have is asked of them again, and so is the code, which is that of the plan's working directory.

    Raises:
        NotVouched: the record has tasks or hosts that the plan does not have.
    """
    ids = {task.id for task in plan.tasks}
    names = {host.name for host in plan.hosts}
    if (record.plan.name, record.plan.strategy) != (plan.name, plan.strategy):
        raise NotVouched(f"it is {record.plan.name} under {record.plan.strategy}")
    if strange := sorted({task.id for task in record.plan.tasks} ^ ids):
        raise NotVouched(f"they differ in {', '.join(map(str, strange[:_NAMED_MAX]))}")
    placed = {task.host for task in record.tasks} | {host.name for host in record.hosts}
    if strangers := sorted(
        (placed | set(record.replacements) | set(filter(None, record.replacements.values()))) - names
    ):
        raise NotVouched(f"it has no host {', '.join(strangers[:_NAMED_MAX])}")
    homes = {task.id: task.host for task in plan.tasks}
    if moved := [task for task in record.plan.tasks if homes[task.id] != task.host]:
        raise NotVouched(f"it has {moved[0].id} on {homes[moved[0].id]}, and the record on {moved[0].host}")
    if not record.replacements and (
        away := [task for task in record.tasks if homes.get(task.id) != task.host]
    ):
        raise NotVouched(f"the record has {away[0].id} on {away[0].host}, and no host left out or replaced")
    return replace(
        record,
        plan=plan,
        hosts=tuple(replace(host, facts=None) for host in record.hosts),
        checkpoint=record.checkpoint if record.checkpoint and _is_inside(record.checkpoint.path) else None,
        seed=record.seed if record.seed and _is_inside(record.seed.path) else None,
        code="",
        owner=None,
    )


_NAMED_MAX = 3
"""How many tasks or hosts a sentence names."""


def _is_inside(path: str) -> bool:
    """Return whether a path of a checkpoint stays below the directory of the checkpoints."""
    return not path.startswith("/") and ".." not in path.split("/")


def of_their_own(record: Run, told: Told) -> dict[str, list[TaskReport]]:
    """Return what hosts report of tasks that are theirs.

    Of a task that has moved since the record, its new host knows it alone. So another than the record's host is heard,
    but not where that one has the task alive and no host shows the generation among its own tasks.
    """
    homes = {task.id: task.host for task in record.tasks}
    own = [report for host in told for report in told[host] if homes.get(report.task) == host]
    living = {report.task for report in own if report.phase != "exited"}
    shown = {report.generation for report in own}
    return {
        host: [
            report
            for report in reports
            if homes.get(report.task) == host or report.task not in living or report.generation in shown
        ]
        for host, reports in told.items()
    }


def proven(record: Run, told: Told) -> int:
    """Return the gang's generation: the newest that the record or any shim knows of, but for a standby."""
    alone = STRATEGIES[record.plan.strategy].alone
    shown = [
        report.generation
        for reports in _without_standby(record, told).values()
        for report in reports
        if report.task.type not in alone
    ]
    return max([record.generation, *shown])


_AT_THE_GATE = ("starting", "ready", "unknown")
_NOT_RELEASED = (*_AT_THE_GATE, "exited")


def _without_standby(record: Run, told: Told) -> Told:
    """Return the reports without those of a standby: of tasks at their gates, beside an older generation that trains.

    A generation begins only after the older one has ended. Where a host that was given up has some of that left, it
    costs one start to take it for what trains.
    """
    alone = STRATEGIES[record.plan.strategy].alone
    running = [report for reports in told.values() for report in reports if report.phase not in _NOT_RELEASED]
    gang = max((report.generation for report in running if report.task.type not in alone), default=None)

    def waits(report: TaskReport) -> bool:
        if report.phase not in _AT_THE_GATE:
            return False
        known = record.standby.generation if record.standby.tasks else None
        of_gang = gang is not None and report.task.type not in alone and report.generation > gang
        beside = any(other.task == report.task and other.generation < report.generation for other in running)
        return report.generation == known or of_gang or beside

    return {host: [report for report in reports if not waits(report)] for host, reports in told.items()}


def unaccounted(record: Run, told: Told) -> list[str]:
    """Hosts that said nothing and may have tasks of the run of which the record does not even know the process."""
    silent = sorted(host.name for host in record.hosts if host.name not in told)
    gang = proven(record, told)
    if gang == record.generation:
        unknown = {task.host for task in record.tasks if task.pid is None}
        return [name for name in silent if name in unknown]
    shown = _places(record, gang, told)
    complete = all(task.id in shown for task in record.tasks) and None not in record.replacements.values()
    return [] if complete else silent


def rebuilt(record: Run, told: Told, *, at: Instant, written_at: Instant) -> Run:
    """Return the run in the phase that its tasks show. `told`: what each host that answered reports.

    Args:
        at: now; `written_at`: when the record was written, by the clock of its writer. Waits go on from there.
    """
    run = replace(rebased(record, at - written_at), standby=Standby())
    generations = [report.generation for reports in told.values() for report in reports]
    told = _without_standby(record, told)
    gang = proven(run, told)
    is_behind = gang > run.generation
    if is_behind:
        run = _caught_up(run, gang, told)
    released = (record.phase is Phase.RUNNING and not is_behind) or _is_released(run, told)
    tasks = tuple(
        _task(run, task, told.get(task.host, ()), at, is_behind=is_behind, released=released)
        for task in run.tasks
    )
    return replace(
        run,
        tasks=tasks,
        hosts=tuple(_forgotten(host, at, told.get(host.name, ())) for host in run.hosts),
        generation=gang,
        generation_last=max([run.generation_last, gang, *generations]),
        # The position is learned again, since nobody knows how long it stood still while no coordinator ran.
        phase_state=(
            Running(progress_at=at, verify_at=next_verification(run, at, 0.0))
            if released
            else Rendezvous(deadline_at=at + run.plan.timing.start_after_s)
        ),
        since_at=at,
        reason="rebuilt from what its hosts know",
    )


def _places(run: Run, gang: int, told: Told) -> dict[TaskId, str]:
    """Where the shims show each task in that generation or, restarted individually, a later one."""
    homes = {task.id: task.host for task in run.tasks}
    shown: dict[TaskId, str] = {}
    for host, reports in told.items():
        for report in reports:
            # Two names of one machine tell the same; the name that is in the record is used.
            if report.generation >= gang and (report.task not in shown or homes.get(report.task) == host):
                shown[report.task] = host
    return shown


def _caught_up(run: Run, gang: int, told: Told) -> Run:
    """Return the run as it would be at the start of a generation that has no record.

    What that generation was seeded from is not known; its tasks are where the shims show them, as far as that fits
    the plan, else where they were.
    """
    shown = _places(run, gang, told)
    has_grown = not shown.keys() <= {task.id for task in run.tasks}
    replacements = {
        slot: name for slot, name in run.replacements.items() if name is not None or not has_grown
    }
    for slot in run.plan.hosts_used:
        there = {shown.get(task.id) for task in run.tasks if task.host == slots.assignee(run, slot)}
        name = there.pop() if len(there) == 1 else None
        if name is not None and has_room(run.plan, slot, name):
            replacements[slot] = name
    assignees = [replacements.get(slot, slot) for slot in run.plan.hosts_used]
    taken = [name for name in assignees if name is not None]
    if len(set(taken)) < len(taken):  # tasks were renumbered, so it cannot be told which host had which slot
        replacements = dict(run.replacements)
    run = replace(
        run, replacements={slot: name for slot, name in replacements.items() if name != slot}, seed=None
    )
    budgets = {task.id: task.budget for task in run.tasks}
    fresh = [
        Task(planned.id, planned.host, gang)
        for planned in sorted(run.placed.tasks, key=lambda planned: planned.id)
    ]
    tasks = tuple(replace(task, budget=budgets.get(task.id, task.budget)) for task in fresh)
    return replace(run, generation=gang, tasks=tasks)


_PHASES = {"starting": TaskPhase.STARTING, "ready": TaskPhase.READY, "running": TaskPhase.RUNNING}


def _task(
    run: Run, task: Task, reports: Iterable[TaskReport], at: Instant, *, is_behind: bool, released: bool
) -> Task:
    """One task, as its host tells of it, and what follows for it from its gang's release."""
    own = [report for report in reports if report.task == task.id and report.generation >= task.generation]
    report = max(own, key=lambda report: report.generation, default=None)
    task = _told(run, task, report, at)
    not_found = report is None and task.pid is None
    if is_behind and not_found:
        return _lost(task, at, "nothing of it was found on any host")
    if not released:
        return task
    if task.phase is TaskPhase.STARTING and not is_individual(run, task):
        if not_found:
            return _lost(task, at, "nothing of it was found although its peers were released")
        return replace(task, phase=TaskPhase.RUNNING)  # the task has ended, or does not report
    if _at_its_gate(run, task):
        if not is_seeded(run):
            # Without the checkpoint this task would begin at step 0, and its peers would not.
            return _lost(task, at, "the checkpoint that it was to begin with is not known any more")
        return replace(task, phase=TaskPhase.RELEASED)
    return task


def _told(run: Run, task: Task, report: TaskReport | None, at: Instant) -> Task:
    """As its host tells of it; as it was known where it does not."""
    if report is None:
        return replace(task, heard_at=None)
    fresh = task
    if report.generation > task.generation:
        # A task that is restarted alone gets a new deadline for joining.
        deadline_at = at + run.plan.timing.start_after_s if is_individual(run, task) else None
        fresh = Task(task.id, task.host, report.generation, deadline_at=deadline_at)
    return replace(
        fresh,
        phase=_phase(fresh.phase, report),
        pid=report.pid if report.pid is not None else fresh.pid,
        port=report.port or fresh.port,
        progress=report.progress,
        budget=task.budget,
        exit=None,
        heard_at=None,
    )


def _phase(known: TaskPhase, report: TaskReport) -> TaskPhase:
    """One that has ended is told as living: that, and how, it ended is then learned as of any other."""
    if report.phase in _PHASES:
        return _PHASES[report.phase]
    if known in (TaskPhase.RELEASED, TaskPhase.RUNNING):
        return TaskPhase.RUNNING
    return TaskPhase.STARTING


def _is_released(run: Run, told: Told) -> bool:
    """Return whether the gang has passed its gates, as its tasks show: one runs, or all that is left have ended."""
    gang = {task.id for task in run.tasks if not is_individual(run, task)}
    phases = {
        report.phase
        for reports in told.values()
        for report in reports
        if report.task in gang and report.generation == run.generation
    }
    ended = bool(phases) and phases.isdisjoint(("starting", "ready"))
    return "running" in phases or ended


def _lost(task: Task, at: Instant, why: str) -> Task:
    return replace(task, phase=TaskPhase.LOST, heard_at=None, exit=Exit(cause=Cause.START, at=at, error=why))


def _at_its_gate(run: Run, task: Task) -> bool:
    """One that had joined when the gang was released: its release may be lost, and is repeated."""
    return task.phase is TaskPhase.READY and task.generation == run.generation


def _forgotten(host: Host, at: Instant, reports: Sequence[TaskReport]) -> Host:
    untouched = host.untouched and not reports
    return replace(host, link=Link.CONNECTING, since_at=at, heard_at=None, retry_at=None, untouched=untouched)

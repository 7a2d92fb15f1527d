"""A run rebuilt from what its hosts know, when the journal is lost.

A record is the run as its coordinator saw it when the generation was started or released, or when the run had ended:
plan, budget, checkpoint, facts about the hosts. The tasks' reports show what has changed since: which tasks live, on
which host and port, in which generation. The rebuilt run is then adopted like any run of a journal.

A record comes from a host, and a host is believed only about itself and what runs on it. So hosts, routes, working
directory, script, environment and the rest of the plan come from a person's spec, or from the head's own copy of the
plan: `vouched_for` replaces the record's plan with that one, or says what does not fit.

The newest record may be older than the generation that the shims show: its coordinator died before it wrote the next
record. The run's generation is the newest that any shim of the gang proves. Older tasks are leftovers, and are stopped
when their host reports them. A task that no host shows in that generation counts as lost, and the gang begins again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import TaskReport
from orchestrator.core.gang import is_individual
from orchestrator.core.hosts import slots
from orchestrator.core.hosts.checkpoint_dir import next_verification
from orchestrator.core.launching.placement import has_room
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.instants import Instant, rebased
from orchestrator.core.state.phase_states import Phase, Rendezvous, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Standby, Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES

ReportsByHost = Mapping[str, Sequence[TaskReport]]
"""By host that answered: what it reports."""


def newest(records: Iterable[tuple[tuple[int, int], Run]]) -> Run | None:
    """Return the newest of the records that hosts hold of one run, each given with its epoch and its number there.

    Records of an older version of orch have no numbers.
    """
    ranked = [
        (version, run.generation_last, run.phase.is_terminal, run.phase is Phase.RUNNING, number, run)
        for number, (version, run) in enumerate(records)
    ]
    return max(ranked, key=lambda entry: entry[:5])[5] if ranked else None


class NotVouched(ValueError):
    """A record does not fit the plan that a person gave, as the message says."""


def vouched_for(record: Run, plan: Plan) -> Run:
    """Return the record's run with a plan that does not come from a host.

    The run's id, generations, budgets, positions and places of tasks are kept from the record. The facts about hosts
    are probed again, and the code is taken again from the plan's working directory.

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
    seed, saved = record.seed, record.checkpoint
    return replace(
        record,
        plan=plan,
        hosts=tuple(replace(host, facts=None) for host in record.hosts),
        checkpoint=saved if saved and _lie_inside(plan, saved.path) else None,
        seed=seed
        if seed and _lie_inside(plan, seed.path, seed.source or seed.path, seed.copy or seed.path)
        else None,
        code="",
        owner=None,
    )


_NAMED_MAX = 3
"""How many tasks or hosts a sentence names."""


def _lie_inside(plan: Plan, *paths: str) -> bool:
    """Return whether all paths of a checkpoint lie below the directory of the plan's checkpoints."""
    top = plan.checkpoint.dir.rstrip("/") if plan.checkpoint is not None else ""
    return plan.checkpoint is not None and all(
        path.startswith(f"{top}/") and not {"", ".", ".."} & {*path[len(top) + 1 :].split("/")}
        for path in paths
    )


def own_reports(record: Run, by_host: ReportsByHost) -> dict[str, list[TaskReport]]:
    """Return the reports of each host on its own tasks.

    Only its new host knows a task that has moved since the record. So a host other than the record's is believed,
    unless the record's host has the task alive and no host shows the other generation among its own tasks.
    """
    homes = {task.id: task.host for task in record.tasks}
    own = [report for host in by_host for report in by_host[host] if homes.get(report.task) == host]
    living = {report.task for report in own if report.phase != "exited"}
    shown = {report.generation for report in own}
    return {
        host: [
            report
            for report in reports
            if homes.get(report.task) == host or report.task not in living or report.generation in shown
        ]
        for host, reports in by_host.items()
    }


def proven(record: Run, by_host: ReportsByHost) -> int:
    """Return the gang's generation: the newest that the record or any shim shows, leaving out a standby's."""
    alone = STRATEGIES[record.plan.strategy].alone
    shown = [
        report.generation
        for reports in _without_standby(record, by_host).values()
        for report in reports
        if report.task.type not in alone
    ]
    return max([record.generation, *shown])


_AT_THE_GATE = ("starting", "ready", "unknown")
_NOT_RELEASED = (*_AT_THE_GATE, "exited")


def _without_standby(record: Run, by_host: ReportsByHost) -> ReportsByHost:
    """Return the reports without those of a standby: tasks at their gates while an older generation trains.

    A generation begins only after the older one has ended. A host that was given up may still run tasks of the older
    one; to mistake those for the gang costs one more start.
    """
    alone = STRATEGIES[record.plan.strategy].alone
    running = [
        report for reports in by_host.values() for report in reports if report.phase not in _NOT_RELEASED
    ]
    gang = max((report.generation for report in running if report.task.type not in alone), default=None)

    def waits(report: TaskReport) -> bool:
        if report.phase not in _AT_THE_GATE:
            return False
        known = record.standby.generation if record.standby.tasks else None
        of_gang = gang is not None and report.task.type not in alone and report.generation > gang
        beside = any(other.task == report.task and other.generation < report.generation for other in running)
        return report.generation == known or of_gang or beside

    return {host: [report for report in reports if not waits(report)] for host, reports in by_host.items()}


def unaccounted(record: Run, by_host: ReportsByHost) -> list[str]:
    """Return the hosts that did not answer and may have tasks of the run whose process the record does not know."""
    silent = sorted(host.name for host in record.hosts if host.name not in by_host)
    gang = proven(record, by_host)
    if gang == record.generation:
        unknown = {task.host for task in record.tasks if task.pid is None}
        return [name for name in silent if name in unknown]
    shown = _places(record, gang, by_host)
    complete = all(task.id in shown for task in record.tasks) and None not in record.replacements.values()
    return [] if complete else silent


def rebuilt(record: Run, by_host: ReportsByHost, *, at: Instant, written_at: Instant) -> Run:
    """Return the run in the phase that its tasks show.

    Args:
        by_host: the reports of each host that answered.
        at: now.
        written_at: when the record was written, by the clock of its writer. Waits go on from there.
    """
    run = replace(rebased(record, at - written_at), standby=Standby())
    generations = [report.generation for reports in by_host.values() for report in reports]
    by_host = _without_standby(record, by_host)
    gang = proven(run, by_host)
    is_behind = gang > run.generation
    if is_behind:
        run = _caught_up(run, gang, by_host)
    released = (record.phase is Phase.RUNNING and not is_behind) or _is_released(run, by_host)
    tasks = tuple(
        _task(run, task, by_host.get(task.host, ()), at, is_behind=is_behind, released=released)
        for task in run.tasks
    )
    return replace(
        run,
        tasks=tasks,
        hosts=tuple(_forgotten(host, at, by_host.get(host.name, ())) for host in run.hosts),
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


def _places(run: Run, gang: int, by_host: ReportsByHost) -> dict[TaskId, str]:
    """Return the host on which the shims show each task, in that generation or, restarted individually, a later one."""
    homes = {task.id: task.host for task in run.tasks}
    shown: dict[TaskId, str] = {}
    for host, reports in by_host.items():
        for report in reports:
            # Two names of one machine report the same tasks; the name in the record is used.
            if report.generation >= gang and (report.task not in shown or homes.get(report.task) == host):
                shown[report.task] = host
    return shown


def _caught_up(run: Run, gang: int, by_host: ReportsByHost) -> Run:
    """Return the run as it is at the start of a generation that has no record.

    The checkpoint that this generation was seeded from is not known. Its tasks are where the shims show them, as far as
    that fits the plan, otherwise where they were.
    """
    shown = _places(run, gang, by_host)
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
    if len(set(taken)) < len(taken):  # tasks were renumbered, so it is not known which host had which slot
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
    """Return a task as its host reports it, and as its gang's release implies."""
    own = [report for report in reports if report.task == task.id and report.generation >= task.generation]
    report = max(own, key=lambda report: report.generation, default=None)
    task = _as_reported(run, task, report, at)
    not_found = report is None and task.pid is None
    if is_behind and not_found:
        return _lost(task, at, "no trace of it was found on any host")
    if not released:
        return task
    if task.phase is TaskPhase.STARTING and not is_individual(run, task):
        if not_found:
            return _lost(task, at, "no trace of it was found, although its peers were released")
        return replace(task, phase=TaskPhase.RUNNING)  # the task has ended, or does not report
    if _at_its_gate(run, task):
        if not run.is_seeded:
            # Without the checkpoint this task would begin at step 0, and its peers would not.
            return _lost(task, at, "the checkpoint that it was to start from is not known any more")
        return replace(task, phase=TaskPhase.RELEASED)
    return task


def _as_reported(run: Run, task: Task, report: TaskReport | None, at: Instant) -> Task:
    """Return a task as its host reports it; as the record has it where the host does not report it."""
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
    """Return the phase of a reported task. One that has ended counts as living: its end is learned like any other."""
    if report.phase in _PHASES:
        return _PHASES[report.phase]
    if known in (TaskPhase.RELEASED, TaskPhase.RUNNING):
        return TaskPhase.RUNNING
    return TaskPhase.STARTING


def _is_released(run: Run, by_host: ReportsByHost) -> bool:
    """Return whether the gang has passed its gates, as its tasks show: one runs, or all that is left have ended."""
    gang = {task.id for task in run.tasks if not is_individual(run, task)}
    phases = {
        report.phase
        for reports in by_host.values()
        for report in reports
        if report.task in gang and report.generation == run.generation
    }
    ended = bool(phases) and phases.isdisjoint(("starting", "ready"))
    return "running" in phases or ended


def _lost(task: Task, at: Instant, why: str) -> Task:
    return replace(task, phase=TaskPhase.LOST, heard_at=None, exit=Exit(cause=Cause.START, at=at, error=why))


def _at_its_gate(run: Run, task: Task) -> bool:
    """Return whether a task had joined when the gang was released: its release may be lost, and is repeated."""
    return task.phase is TaskPhase.READY and task.generation == run.generation


def _forgotten(host: Host, at: Instant, reports: Sequence[TaskReport]) -> Host:
    untouched = host.untouched and not reports
    return replace(host, link=Link.CONNECTING, since_at=at, heard_at=None, retry_at=None, untouched=untouched)

"""Why a run has no standby now, or why the one that it has cannot become its next generation."""

from __future__ import annotations

from orchestrator.core.hosts import slots, standby_places
from orchestrator.core.hosts.standby_places import is_covered, is_home, unfit
from orchestrator.core.plan import Plan
from orchestrator.core.restart_scope import is_individual
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Backoff, Intent, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import counted

FAILURES_MAX = 3
"""How many times a standby may be lost in one generation; then no other is started."""

_GOES_ON = (Intent.RESTART, Intent.RESCHEDULE)
"""What a run stops for that has another generation. Of one that is moved, a spare may hold the tasks."""


def is_wanted(plan: Plan) -> bool:
    """Return whether a run with this plan has a standby at all."""
    return plan.restart.standby != "off" and plan.runtime and STRATEGIES[plan.strategy].standby


def why_none(run: Run) -> str:
    """Return why a run that trains has no standby now."""
    if run.standby.failures >= FAILURES_MAX:
        return f"{counted(FAILURES_MAX, 'standby')} were lost in this generation"
    return why_not(run) or "it is started once the run has trained for a while"


def why_not(run: Run) -> str | None:
    """Return why no standby can be started now; None where one can."""
    away = [host.name for host in run.assignees if host.link is not Link.CONNECTED or host.facts is None]
    if away:
        return f"{', '.join(away)} is not connected"
    coming = [task for task in run.tasks if task.phase is not TaskPhase.RUNNING and not task.phase.is_gone]
    if coming or any(task.phase.is_gone and not is_individual(run, task) for task in run.tasks):
        return "not all tasks are running"
    assignment = slots.next_assignment(run)
    if dict(assignment.replacements) != dict(run.replacements) or assignment.waits_for:
        return "the next generation will have other hosts"
    return standby_places.why_no_memory(run) if run.plan.restart.standby == "auto" else None


def why_useless(run: Run) -> str | None:
    """Return why the standby cannot become the next generation; None where it may."""
    if not isinstance(run.phase_state, Running | Backoff) and run.intent not in _GOES_ON:
        return "the run ends"
    if run.standby.generation != run.generation_last:
        return "a higher generation has begun"
    for task in run.standby.tasks:
        why = unfit(run.host(task.host)) if is_home(run, task) else None
        if why is not None and not is_covered(run, task):
            return why
    return None

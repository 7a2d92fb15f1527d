"""Describes a phase in a sentence: what the run waits for, on which host, for how long, and what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.concerns import CONCERNS
from orchestrator.core.gang import waits_to_leave
from orchestrator.core.hosts import checkpoint_dir, slots
from orchestrator.core.hosts.host_state import STUCK_HINT, is_cut_off
from orchestrator.core.phases.stopping import NOTHING_SEEN, left_behind, to_prove
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import (
    Backoff,
    Ended,
    Intent,
    Pending,
    Queued,
    Rendezvous,
    Running,
    Stopping,
)
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.words import duration, listed

NOTHING_LEFT = ", but no step, checkpoint or output was seen: see in its log whether it trained at all"


@dataclass(frozen=True, slots=True)
class Reason:
    """A sentence about what the run does or waits for."""

    sentence: str
    rest: str
    """The sentence without its beginning, if that is shown elsewhere too."""
    begins_with: str | None = None
    """The status key that shows the same as the beginning: `first_cause`, `global_step`; else None."""


def reason(run: Run, *, now: Instant) -> Reason:
    """Return a sentence about what the run does or waits for, from its state alone."""
    match run.phase_state:
        case Queued():
            return _plain(run.reason)  # its place in the queue depends on all runs: see `queue`
        case Pending() as pending:
            return _plain(_pending(run, pending, now))
        case Rendezvous() as rendezvous:
            return _plain(_rendezvous(run, rendezvous, now) + checkpoint_dir.diagnostic(run))
        case Running() as running:
            return _running(run, running, now)
        case Stopping() as stopping:
            return _after_the_reason(run, _stopping(run, stopping, now))
        case Backoff() as backoff if backoff.full_host:
            return _plain(_waits(run, now))
        case Backoff() as backoff:
            return _after_the_reason(run, _backoff(run, backoff, now))
        case Ended():
            return _after_the_reason(run, _gone(run))


def add_outputs(shown: dict[str, Any], outputs: Mapping[str, Any] | None) -> None:
    """If an ended run made no step, add to its reason whether it left files, once that is known."""
    if outputs is None or outputs["pending"] or (outputs["problems"] and not outputs["tasks"]):
        return
    sentence = "" if outputs["tasks"] else NOTHING_LEFT
    for key in ("reason", "reason_rest"):
        shown[key] = shown[key].replace(NOTHING_SEEN, sentence)


def _waits(run: Run, now: Instant) -> str:
    """Return what the run waits for, where that is a concern's to say; else nothing."""
    return next(filter(None, (concern.waits(run, now) for concern in CONCERNS)), "")


def _plain(text: str) -> Reason:
    return Reason(sentence=text, rest=text)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _after_the_reason(run: Run, following: str) -> Reason:
    sentence = _joined(run.reason, following)
    if run.reason_rest is None or run.first_cause is None or not run.first_cause.is_failure:
        return _plain(sentence)
    return Reason(sentence, _joined(run.reason_rest, following), "first_cause")


def _pending(run: Run, pending: Pending, now: Instant) -> str:
    missing = [run.host(name) for name in slots.next_assignment(run).waits_for]
    hosts = ", ".join(f"{h.name} ({_state(run, h, now)})" for h in missing)
    left = f"; gives up in {duration(pending.deadline_at - now)}" if pending.deadline_at is not None else ""
    needed = len(run.assignees)
    return f"{needed - len(missing)}/{needed} hosts are ready; waiting for {hosts}{left}"


def _state(run: Run, host: Host, now: Instant) -> str:
    waited = duration(now - host.since_at)
    if host.state is HostState.STUCK:
        return f"{host.state.value}: {host.state_why}; {STUCK_HINT}"
    if host.state in (HostState.DRAINED, HostState.LEAVING):
        return f"{host.state.value}: {host.state_why}"
    if host.problem:
        return f"{host.problem}, for {waited}"
    if (unmounted := checkpoint_dir.unmounted(run, host)) is not None:
        return unmounted
    if host.link is Link.CONNECTED:
        return f"being checked and given the code, for {waited}"
    return f"unreachable, for {waited}" if host.link is Link.UNREACHABLE else "connecting"


def _rendezvous(run: Run, rendezvous: Rendezvous, now: Instant) -> str:
    waiting = [t for t in run.tasks if t.phase in (TaskPhase.WAITING, TaskPhase.STARTING)]
    left = duration(rendezvous.deadline_at - now)
    joined = f"{len(run.tasks) - len(waiting)}/{len(run.tasks)} tasks have joined"
    if waiting:
        return f"{joined}, {left} left; waiting for {', '.join(_arriving(run, t, now) for t in waiting)}"
    if not run.is_seeded and rendezvous.seeding:
        return f"{joined}; {rendezvous.seeding}"
    if not run.is_seeded:
        return f"{joined}; verifying and copying the newest checkpoint, {left} left"
    return joined


def _arriving(run: Run, task: Task, now: Instant) -> str:
    host = run.host(task.host)
    if host.link is not Link.CONNECTED:
        heard = f"{duration(now - host.heard_at)} ago" if host.heard_at is not None else "never"
        return f"{task.id} on {task.host} (host unreachable, last heard {heard})"
    doing = f"pid {task.pid} is importing" if task.pid else "no process yet"
    return f"{task.id} on {task.host} ({doing})"


def _for(since_at: Instant | None, now: Instant) -> str:
    return f" for {duration(now - since_at)}" if since_at is not None else ""


def _running(run: Run, running: Running, now: Instant) -> Reason:
    said = "".join(concern.says(run, now) for concern in CONCERNS)
    also = said + _in_other_places(run) + checkpoint_dir.diagnostic(run)
    beside = _beside_the_step(run, running, now)
    if run.task(run.chief).progress.has_stepped:
        rest = f"{beside}{also}".removeprefix("; ")
        return Reason(_joined(f"step {run.global_step}", rest), rest, "global_step")
    released = f"no step yet, {duration(now - run.since_at)} after the release"
    waits = _waits(run, now) or f"{released}{_stages(run)}"
    return _plain(f"{_joined(waits, beside)}{also}")


def _stages(run: Run) -> str:
    """Return what the tasks do before their first step, as far as known."""
    doing: dict[str, list[str]] = {}
    for task in run.tasks:
        if task.progress.stage is not None and task.phase is TaskPhase.RUNNING:
            doing.setdefault(task.progress.stage, []).append(str(task.id))
    named = "; ".join(f"{listed(tasks)} {stage}" for stage, tasks in doing.items())
    if passing := run.task(run.chief).progress.passing:
        done, total = passing
        named = f"passing over batch {done:,}" + (f" of {total:,}" if total >= done else "")
    return f": {named}" if named else ""


_STOOD_S = 5.0
"""So old may the newest step be while tasks are said to make progress."""


def _beside_the_step(run: Run, running: Running, now: Instant) -> str:
    """Return the problems of a training run; empty if there are none."""
    silent = [host for host in run.assignees if host.link is Link.UNREACHABLE]
    if silent:
        named = ", ".join(f"{host.name} unreachable{_for(host.heard_at, now)}" for host in silent)
        if not run.task(run.chief).progress.has_stepped:
            return named
        stood_s = now - running.progress_at
        means = "the other tasks make progress" if stood_s < _STOOD_S else f"no step for {duration(stood_s)}"
        return f"{named}; {means}"
    connecting = [host.name for host in run.assignees if host.link is Link.CONNECTING]
    if connecting:
        return f"adopting the tasks on {', '.join(connecting)}"
    ended = [task for task in run.tasks if task.phase.is_gone]
    if ended:
        return f"{', '.join(f'{t.id} on {t.host}' for t in ended)} finished; the other tasks continue"
    return ""


def _in_other_places(run: Run) -> str:
    """Return how the placement differs from the spec, and until when."""
    drained = [host.name for host in run.assignees if host.state is HostState.DRAINED]
    occasion = "checkpoint" if run.plan.checkpoint is not None else "restart"
    parts = [f"moves off {', '.join(drained)} (drained) at the next {occasion}"] if drained else []
    waiting = [f"{task.id} on {task.host}" for task in run.tasks if waits_to_leave(run, task)]
    parts += [f"{', '.join(waiting)} has ended and waits for its host or a move"] if waiting else []
    if slots.fewer(run):
        gone = [slot for slot in run.plan.hosts_used if slots.assignee(run, slot) is None]
        parts.append(
            f"{slots.fewer(run)}; grows back at a checkpoint once {', '.join(gone)} or a spare is ready"
        )
    return "".join(f"; {part}" for part in parts)


_AFTERWARDS = {
    Intent.RESTART: "then restart",
    Intent.RESCHEDULE: "then it goes on",
    Intent.REQUEUE: "then it returns to the queue",
    Intent.SUCCEED: "then done",
    Intent.FAIL: "then FAILED",
    Intent.KILL: "then KILLED",
}


def _stopping(run: Run, stopping: Stopping, now: Instant) -> str:
    """Return why the run stops, and what it waits for."""
    alive = [t for t in run.tasks if t.phase.may_live]
    following = _AFTERWARDS[stopping.intent]
    if alive:
        if stopping.compare_ends_at is not None:
            return f"{listed([str(t) for t in stopping.survivors])} say what they hold, {following}"
        if stopping.rescue_ends_at is not None and stopping.rescuer in [t.id for t in alive]:
            return f"{stopping.rescuer} hands over its state, {following}"
        named = listed([f"{t.id} on {t.host}" for t in alive])
        return f"waiting for {named} to end, {following}"
    waits = _waits(run, now)
    if waits:
        return f"{waits}, {following}"
    left = _joined(left_behind(run.proof), _gone(run))
    if not to_prove(run):
        return f"{left or 'no leftover processes'}; reading the newest checkpoint, {following}"
    checked = (
        f" ({len(run.proof)} of {len(run.proof) + len(to_prove(run))} hosts are checked)" if run.proof else ""
    )
    what = f"checking {listed(to_prove(run))} for leftover processes{checked}, {following}"
    return _joined(left, what)


def _gone(run: Run) -> str:
    """Return which hosts are not checked, since the user declared them gone."""
    return "; ".join(f"{host.name} is {host.state_why}, and not checked" for host in run.hosts if host.gone)


def _backoff(run: Run, backoff: Backoff, now: Instant) -> str:
    if backoff.start_at is not None:
        return f"the next generation starts in {duration(backoff.start_at - now)}"
    missing = [run.host(name) for name in slots.next_assignment(run).waits_for]
    if missing:
        named = ", ".join(f"{h.name} ({_state(run, h, now)})" for h in missing)
        return f"waiting for {named}; {_meanwhile(run, missing)}"
    return "waiting for the old tasks to end"


def _meanwhile(run: Run, missing: list[Host]) -> str:
    """Return what ends the wait: the host comes back, or it counts as lost and its tasks move."""
    back = "starts again when it is back"
    silent = [h for h in missing if h.state is HostState.OPEN and h.link is not Link.CONNECTED]
    if not silent or is_cut_off(run):
        return back
    without = run
    for host in silent:
        without = without.with_host(replace(host, state=HostState.LOST))
    if slots.next_assignment(without).waits_for:
        return back
    return f"{back}, or without it when it has been silent for {duration(run.plan.timing.lost_after_s)}"

"""A person's requests about a host of a run. Each function returns the event that follows, or raises the refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.errors import Refused, UsageError
from orchestrator.core.events import DrainRequested, UndrainRequested
from orchestrator.core.hosts import slots
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.state.host import HostState, Link
from orchestrator.core.state.run import Run


def drain(
    run: Run, host: str, *, at: float, now: bool, why: str, may_be_replaced: Callable[[Run], bool]
) -> DrainRequested:
    """Give the host no more tasks. Refused if the run cannot do without it, unless an engine takes the host away.

    `may_be_replaced` returns whether hosts of the pool are free for all the tasks that have no host then.
    """
    _check_active(run, host)
    why_not = slots.why_not_drained(run, host)
    drained = run.with_host(replace(run.host(host), state=HostState.DRAINED))
    if why_not is not None and not why and not may_be_replaced(drained):
        raise Refused(
            why_not,
            hint="`orch hosts` shows who has the others; add a host, or `replicas_min`, to the spec of the next "
            "run; "
            f"`orch kill {run.plan.name}` ends this one",
        )
    return DrainRequested(at=at, host=host, now=now, why=why)


def give_up(run: Run, host: str, *, at: float, gone: str) -> DrainRequested:
    """Give the host up as gone. `gone`: the time of that request, in words. Refused if the host answers."""
    if host not in unproven(run):
        _check_active(run, host)
    if run.host(host).link is Link.CONNECTED:
        raise Refused(
            f"{host} answers: it is not gone",
            hint=f"`orch drain {host} --now` moves its tasks away at once",
        )
    return DrainRequested(at=at, host=host, gone=gone)


def undrain(run: Run, host: str, *, at: float) -> UndrainRequested:
    """Let the host have tasks again. For an ended run, only a host that was given up can be let in."""
    if not (run.phase.is_terminal and any(known.name == host and known.gone for known in run.hosts)):
        _check_active(run, host)
    return UndrainRequested(at=at, host=host)


def _check_active(run: Run, host: str) -> None:
    """Raise Refused if the run has ended, and UsageError if it has no such host."""
    if run.phase.is_terminal:
        raise Refused(f"{run.run_id} has ended: {run.phase.value}", hint="`orch status` shows what is active")
    known = [other.name for other in run.hosts]
    if host not in known:
        raise UsageError(f"{run.run_id} has no host {host!r}", hint=f"its hosts: {', '.join(known)}")

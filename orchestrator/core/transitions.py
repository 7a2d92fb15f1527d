"""Which phase may follow which, and what must have happened.

Rules. A run changes its phase in `Turn.enter` and nowhere else, and `check` is asked there: what this table does not
name cannot happen. Nothing in this file knows how a phase is spent; that is in the modules of `phases`. What belongs to
a phase comes with it and is gone with it (`phase_states`), so a transition clears nothing by name.

Theory of operation. A run is prepared once (PENDING). From then on it lives in generations: RENDEZVOUS starts all
tasks up to their gates, RUNNING begins when all are released, STOPPING ends them. STOPPING is the only way out of a
generation, and its intent says where to: to another generation by way of BACKOFF, or to an end. What is learned while
the tasks end may change the intent; the user's kill enters STOPPING anew. The three ends have no way out.

Outside of the table a run begins: new in PENDING or QUEUED, or as it was found (`rebuild`, and `Loop.take_up` from the
journal). And it may be ended without this machine where that has failed (`abandon`).

What is always so, in every state:

1. Two live generations never write one checkpoint name space: each has its own directory, and numbers only grow.
2. A new generation starts only after the old one's tasks are gone, known lost, or fenced off by directory and ports.
3. A process whose identity (boot id, pid, start time) does not match is never signalled.
4. Restarts without a newer checkpoint stay within the budget.
5. A run resumes at or after its last verified checkpoint that its tasks can restore, unless a person goes back; never
   silently at step 0.
6. A command that was acknowledged is durable, and done once.
7. After `orch kill` with exit 0 there is no marked process on any reachable host.
8. No secret in any output, log, journal or command line.
9. Every phase ends within a bound or says what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.core.errors import TransitionNotAllowed
from orchestrator.core.state.phase_states import EndPhase, Intent, Phase

_QUEUED: Mapping[Phase, str] = {
    Phase.PENDING: "its turn has come: nobody holds what it needs, and nobody before it waits for that",
    Phase.FAILED: "it has waited for longer than `max_wait`; or a host turned it away, and no other place is free",
    Phase.KILLED: "the user killed the run",
}
_PENDING: Mapping[Phase, str] = {
    Phase.QUEUED: "it came from the queue, and somebody else holds its GPUs, or is to have them, or it has trained and "
    "a host is not ready in time: it lets its hosts go; or a host turned it away, and another place is chosen",
    Phase.RENDEZVOUS: "every host that is to hold a task is ready, and they fit together",
    Phase.FAILED: "a host refused or was not ready in time, and no process was ever started; or the hosts do not fit "
    "together",
    Phase.KILLED: "the user killed the run, its time is over, or its hosts leave, while no process of it is anywhere",
}
_RENDEZVOUS: Mapping[Phase, str] = {
    Phase.RUNNING: "every task is at its gate and the checkpoint is ready: all are released together",
    Phase.STOPPING: "a task ended or did not join in time, the checkpoint could not be prepared, a host leaves, or the "
    "user wants it",
}
_RUNNING: Mapping[Phase, str] = {
    Phase.STOPPING: "a task ended, was lost or stalled, the gang is to change places, a host leaves, or the user wants "
    "it"
}
_STOPPING: Mapping[Phase, str] = {
    Phase.STOPPING: "the user killed the run while its tasks were being ended for another reason",
    Phase.BACKOFF: "no task of the generation may live any more, and the run goes on",
    Phase.QUEUED: "it makes way for a run of a higher priority, and every host has given the proof",
    Phase.SUCCEEDED: "the chief exited with 0, and every host was asked for the proof that nothing is left",
    Phase.FAILED: "the run was given up, and every host was asked for the proof",
    Phase.KILLED: "the user killed the run, or its hosts leave, and every host was asked for the proof",
}
_BACKOFF: Mapping[Phase, str] = {
    Phase.RENDEZVOUS: "the wait is over, every slot has a host that is ready, and no old task may live",
    Phase.STOPPING: "the user killed the run, or the hosts leave or do not fit together any more",
}

TRANSITIONS: Mapping[Phase, Mapping[Phase, str]] = MappingProxyType(
    {
        Phase.QUEUED: _QUEUED,
        Phase.PENDING: _PENDING,
        Phase.RENDEZVOUS: _RENDEZVOUS,
        Phase.RUNNING: _RUNNING,
        Phase.STOPPING: _STOPPING,
        Phase.BACKOFF: _BACKOFF,
        Phase.SUCCEEDED: {},
        Phase.FAILED: {},
        Phase.KILLED: {},
    }
)
"""By phase, those that may follow it, each with what must have happened."""

ENDS: Mapping[Intent, EndPhase] = MappingProxyType(
    {Intent.SUCCEED: Phase.SUCCEEDED, Intent.FAIL: Phase.FAILED, Intent.KILL: Phase.KILLED}
)
"""How a run ends, by the intent with which its last generation was ended."""

LEADS_TO: Mapping[Intent, Phase] = MappingProxyType(
    {Intent.RESTART: Phase.BACKOFF, Intent.RESCHEDULE: Phase.BACKOFF, Intent.REQUEUE: Phase.QUEUED, **ENDS}
)
"""Where each intent of STOPPING leads, if it is not changed on the way."""


def check(old: Phase, intent: Intent | None, new: Phase) -> None:
    """Raise TransitionNotAllowed unless `new` may follow `old`; `intent` is that of STOPPING."""
    allowed = TRANSITIONS[old]
    if new not in allowed:
        ways = ", ".join(phase.value for phase in allowed) or "nothing: it is for ever"
        raise TransitionNotAllowed(f"{old.value} -> {new.value} cannot happen; {old.value} leads to {ways}")
    if intent is not None and new not in (Phase.STOPPING, LEADS_TO[intent]):
        raise TransitionNotAllowed(
            f"{old.value} with the intent {intent.value} leads to {LEADS_TO[intent].value}, not to {new.value}"
        )

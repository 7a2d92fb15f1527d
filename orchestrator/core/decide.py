"""Decides: `step(run, event) -> (run, actions, weight)`.

Rules. Whatever changes a run is called from here: `concerns` has all that a run does, in its order. Nothing here knows
a clock: every event says when it happened, and every wait is a field of the state (`deadlines`).

Theory of operation. A generation is prepared, started, released, watched and ended as one: the tasks of a mirrored
strategy share one fate. PENDING prepares the hosts. RENDEZVOUS starts the tasks, each up to its own gate, while the
checkpoint is verified and copied beside them; when all are at the gate, all are released together (RUNNING). The
first task that ends badly sends all to STOPPING; when none is left, `restart` says whether BACKOFF or the end comes
next. Hosts report levels, so nothing here counts messages: a report that is lost or doubled changes nothing. When a
host is up again, `concerns.outstanding` repeats what it has been asked and not done.

Unreachable is not dead: a silent host is displayed, and its tasks count as lost only when nothing else can be known
(`silence.lost_at`).
"""

from __future__ import annotations

from orchestrator.core import invariants
from orchestrator.core.concerns import CONCERNS, HEARS, IS_STALE
from orchestrator.core.decision import Decision, Weight, is_quiet, weigh
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.events import Event
from orchestrator.core.hosts import moderation
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Turn

_TURNS_MAX = 20
"""If one step changes the state more often than this, our rules form a loop."""


def step(run: Run, event: Event) -> Decision:
    """Return the next state, the actions to carry out, in order, and what must be written before they are carried out.

    An event of an older generation changes nothing: this is the whole fencing rule.

    Raises InvariantViolated where that state would break an invariant. Any exception is a bug in orch, and changes
    nothing: the loop leaves the run as it was.
    """
    is_stale = IS_STALE.get(type(event))
    if is_stale is not None and is_stale(run, event):
        return Decision(run, [], Weight.NOTHING)
    turn = Turn(run, event.at, HEARS)
    turn.tell(event)
    if not turn.actions and is_quiet(run, turn.run, event):
        return Decision(turn.run, [], Weight.NUMBERS)
    for _ in range(_TURNS_MAX):
        before = turn.run
        _advance(turn)
        if turn.run == before:
            if (host := getattr(event, "host", None)) is not None:
                moderation.moderate(turn, host)
            invariants.check(turn.run, run)
            return Decision(turn.run, turn.actions, weigh(run, turn.run, event, turn.actions))
    raise InvariantViolated(f"{run.run_id} does not settle after {event}")


def _advance(turn: Turn) -> None:
    """Move the run on as far as its state allows."""
    if turn.run.phase is not Phase.QUEUED and not turn.run.phase.is_terminal:
        for concern in CONCERNS:
            if concern.watch is not None:
                concern.watch(turn)
    phase = turn.run.phase
    for concern in CONCERNS:
        if turn.run.phase is not phase:
            return
        if phase in concern.advance:
            concern.advance[phase](turn)

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

from orchestrator.core import events as ev
from orchestrator.core import invariants
from orchestrator.core.concerns import CONCERNS, HEARS
from orchestrator.core.decision import Decision, Weight, is_quiet, weigh
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.events import Event
from orchestrator.core.hosts import moderation
from orchestrator.core.phases.stopping import is_disowned, unproven
from orchestrator.core.plan import TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.phase_states import Pending, Phase, Queued, Running
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Turn

_TURNS_MAX = 20
"""If one step changes the state more often than this, our rules form a loop."""


def step(run: Run, event: Event) -> Decision:
    """Return the next state, the actions to carry out, in order, and what must be written before they are carried out.

    Raises InvariantViolated where that state would break an invariant. Any exception is a bug in orch, and changes
    nothing: the loop leaves the run as it was.
    """
    if _is_stale(run, event):
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


def _is_stale(run: Run, event: Event) -> bool:
    """Return whether an event is of an older generation, and so changes nothing. This is the whole fencing rule."""
    match event:
        case ev.Submitted():
            return run.phase is not Phase.QUEUED and (
                not isinstance(run.phase_state, Pending) or run.phase_state.deadline_at is not None
            )
        case ev.Admitted():
            return run.phase is not Phase.QUEUED
        case ev.NoPlaceFound():
            return not isinstance(run.phase_state, Queued) or run.phase_state.is_patient
        case ev.PreemptionRequested() | ev.HostLent():
            return run.phase is Phase.QUEUED or run.phase.is_terminal
        case ev.HostUp() | ev.HostDown() | ev.HostRefused() | ev.HostPrepared() | ev.HostReported():
            return run.phase is Phase.QUEUED  # it was let go a moment ago
        case ev.CheckpointSeeded(seed=Seed(generation=generation)) | ev.SeedProgressed(generation=generation):
            return run.phase is not Phase.RENDEZVOUS or generation != run.generation or run.is_seeded
        case ev.StacksCollected(generation=generation) | ev.NotGoneBack(generation=generation):
            return generation != run.generation or run.phase is not Phase.RUNNING
        case ev.CheckpointVerified(generation=generation):
            return generation != run.generation or run.phase.is_terminal or is_disowned(run)
        case ev.OrderFailed(generation=generation, task=None):
            return generation != run.generation or run.phase.is_terminal
        case ev.OrderFailed(generation=generation, task=TaskId() as task, host=host):
            # The standby's too; none where the gang trains without the task
            known = (run.find_task(task), run.standby.find(task, host))
            generations = [each.generation for each in known if each is not None and each.host == host]
            return run.phase.is_terminal or generation not in generations
        case ev.RolledBack(why=why):
            # An order that was repeated is answered twice.
            running = run.phase_state
            is_done = bool(why) and isinstance(running, Running) and not running.going_back
            return run.phase.is_terminal or is_done
        case ev.EpochBegan(epoch=epoch):
            return epoch <= run.epoch or (run.phase.is_terminal and not unproven(run))
        case ev.DrainRequested(host=host, gone=gone):
            return run.phase.is_terminal and not (gone and host in unproven(run))
        case ev.UndrainRequested(host=host):
            return run.phase.is_terminal and not run.host(host).gone
        case ev.HostSwept(host=host) if run.phase.is_terminal:
            return host not in unproven(run)
        case ev.HostSwept():
            return run.phase is not Phase.STOPPING or run.proof is None
        case _:
            return False


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

"""Metrics that are NaN or infinite: noted once in each generation, and handled as `on_nonfinite` says.

A restart alone does not help: the last checkpoints may hold the same weights, and the same data comes again. So
`rollback` takes a checkpoint from before that step, and where it happens again by that step, an older one. Chance and
a broken GPU are passed that way; a fault in the data or the model is not, and ends the run.

A chief that ends with 0 meanwhile has not succeeded: the run waits for the order to go back, or fails as non-finite.
"""

from __future__ import annotations

from orchestrator.core.actions import GoBack
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.events import NotGoneBack
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import stop_for
from orchestrator.core.state.checkpoint import GoneBack
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import GoingBack, Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import counted

TIMES_MAX = 3
"""How often a run goes back without getting beyond the step."""


def _advance(turn: Turn) -> None:
    """Note which metric of the chief is no longer a number, and since which step."""
    run = turn.run
    odd = run.task(run.chief).progress.nonfinite
    if not odd or run.within(Running).nonfinite_said:
        return
    turn.set_phase(nonfinite_said=True)
    sentence = cause.nonfinite(run)
    turn.note(NoteKind.NONFINITE, sentence, run.chief)
    match run.plan.restart.on_nonfinite:
        case "stop":
            _stop(turn, sentence)
        case "rollback":
            _go_back(turn, min(step for step, _ in odd.values()), sentence)


def _go_back(turn: Turn, step: int, sentence: str) -> None:
    run, before_step, times = turn.run, step, 1
    if run.gone_back is not None and step <= run.gone_back.step:
        # What the run went back to may have held it already: the loss of a step shows the weights of the one before.
        before_step = min(step, (run.seed.global_step if run.seed is not None else None) or 0)
        step, times = run.gone_back.step, run.gone_back.times + 1
    if times > TIMES_MAX:
        _stop(turn, f"{sentence}, after the run has gone back {counted(TIMES_MAX, 'time')}")
        return
    turn.set(gone_back=GoneBack(step, times))
    turn.set_phase(going_back=GoingBack(before_step, sentence))
    turn.do(*_orders(turn.run))


def _orders(run: Run) -> list[GoBack]:
    """Return the order to roll back, unless it is known to be carried out. It may be repeated without harm."""
    running = run.phase_state
    if not isinstance(running, Running) or running.going_back is None:
        return []
    wanted = running.going_back
    return [GoBack(run.task(run.chief).host, run.generation, wanted.before_step, wanted.why)]


def _not_gone_back(turn: Turn, event: NotGoneBack) -> None:
    """End the run: training on with such weights is useless."""
    wanted = turn.run.within(Running).going_back
    if wanted is not None:
        _stop(turn, f"{wanted.why}, and the run could not go back: {event.problem}")


def _stop(turn: Turn, sentence: str) -> None:
    stop_for(turn, FirstCause(turn.run.chief, turn.run.generation, Cause.NONFINITE, sentence))


def _repeats(run: Run, name: str, _at: Instant) -> list[GoBack]:
    return _orders(run) if run.task(run.chief).host == name else []


CONCERN = Concern(
    "metrics that are no numbers",
    on={NotGoneBack: _not_gone_back},
    advance={Phase.RUNNING: _advance},
    repeats=_repeats,
)

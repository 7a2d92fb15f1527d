"""What a shim decides, and nothing of how it is done: no clock, no process, no socket.

`decide(state, event)` gives the next state and the things to do, in order. The loop in `shim.py` executes
them, and so may a simulator. Every event carries `at`, an instant of one monotonic clock.

A task's life: STARTING (its process imports) → READY (it waits for its release) → RUNNING → STOPPING (asked
to end, a deadline runs) → KILLING (everything of it is killed until nothing is left) → ENDED. With the
runtime off there is no process before the release: READY is the first phase.
"""

from __future__ import annotations

from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.adapters.host.process import Identity

KILL_AGAIN_S = 0.02
"""Between two looks at what is left. A process with much memory takes some time to go."""

KILL_BOUND_S = 5.0
"""Then the rest is named and given up: SIGKILL cannot end a process in an uninterruptible wait."""

SIGNALLED_GRACE_S = 5.0
"""The task's when the shim itself is told to end, as at a host's shutdown."""


class Phase(Enum):
    """Where a task is in its life."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    ENDED = "exited"


class StopBy(Enum):
    """Whose wish it was that the task ends."""

    NOBODY = "nobody"
    ORDER = "order"
    SIGNAL = "signal"


class Do(Enum):
    """What the loop must do. The value beside it, where it has one, is named here."""

    SPAWN = "start the process; an event says when that failed"
    GO = "tell the runtime to go"
    ASK_TO_STOP = "tell the runtime to stop; grace in seconds"
    TERMINATE = "SIGTERM to the task's main process"
    KILL = "SIGKILL to everything of the task, then look: a Looked event"
    RECORD = "write the exit record, tell the agents, end"
    REPORT = "tell the agents at once"
    ACCEPT = "answer the order: obeyed, now or before"
    REFUSE = "answer the order: (code, message, hint)"


class Ended:
    """How the main process ended. Neither code nor signal where there was none, or it would not die."""

    __slots__ = ("at", "code", "signal", "why")

    def __init__(
        self, at: float, code: int | None = None, signal: int | None = None, why: str | None = None
    ) -> None:
        self.at = at
        self.code = code
        self.signal = signal
        self.why = why
        """A sentence where the process could not be started."""


class Ordered:
    """An order for this task came: `release` or `stop`."""

    __slots__ = ("at", "epoch", "generation", "grace_s", "verb")

    def __init__(self, at: float, verb: str, epoch: int, generation: int, grace_s: float = 0.0) -> None:
        self.at = at
        self.verb = verb
        self.epoch = epoch
        self.generation = generation
        self.grace_s = grace_s


class RuntimeReady:
    """The runtime has imported what it was to import, and waits."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at


class Exited:
    """The main process ended, or could not be started."""

    __slots__ = ("at", "ended")

    def __init__(self, ended: Ended) -> None:
        self.at = ended.at
        self.ended = ended


class Looked:
    """After a KILL: what still lives, as the exit record names it."""

    __slots__ = ("at", "left")

    def __init__(self, at: float, left: list[dict[str, Any]]) -> None:
        self.at = at
        self.left = left


class Signalled:
    """The shim itself was told to end (SIGTERM)."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at


class Ticked:
    """Time went by."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at


class State:
    """All that the decisions rest on. Changed only by `replace`."""

    __slots__ = (
        "deadline_at",
        "ended",
        "epoch",
        "generation",
        "give_up_at",
        "hold",
        "left",
        "phase",
        "reached",
        "stop_by",
    )

    def __init__(
        self,
        generation: int,
        epoch: int,
        hold: bool,
        phase: Phase,
        reached: Phase,
        stop_by: StopBy = StopBy.NOBODY,
        deadline_at: float | None = None,
        give_up_at: float | None = None,
        ended: Ended | None = None,
        left: tuple[dict[str, Any], ...] = (),
    ) -> None:
        self.generation = generation
        self.epoch = epoch
        """The highest that has spoken to this shim."""
        self.hold = hold
        """The runtime is on: the process is started at once and waits for its release."""
        self.phase = phase
        self.reached = reached
        """How far it came before it was to end: what a report shows until it has ended."""
        self.stop_by = stop_by
        self.deadline_at = deadline_at
        """When a Ticked will change something."""
        self.give_up_at = give_up_at
        self.ended = ended
        self.left = left

    def replace(self, **changes: Any) -> State:
        """The same state but for the changes."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return State(**{**values, **changes})

    @property
    def shown(self) -> str:
        """The phase as a report names it."""
        return (Phase.ENDED if self.phase is Phase.ENDED else self.reached).value


if TYPE_CHECKING:
    Event = Ordered | RuntimeReady | Exited | Looked | Signalled | Ticked
    Actions = list[tuple[Do, Any]]


def begin(generation: int, epoch: int, hold: bool) -> tuple[State, Actions]:
    """The first state and what to do first."""
    phase = Phase.STARTING if hold else Phase.READY
    return State(generation, epoch, hold, phase, phase), [(Do.SPAWN, None)] if hold else []


def decide(state: State, event: Event) -> tuple[State, Actions]:
    """Decide. The next state, and what the world must do, in order."""
    if state.phase is Phase.ENDED and not isinstance(event, Ordered):
        return state, []
    if isinstance(event, Ordered):
        return _handle(state, event)
    if isinstance(event, RuntimeReady):
        return _ready(state)
    if isinstance(event, Exited):
        return _exited(state, event)
    if isinstance(event, Looked):
        return _looked(state, event)
    if isinstance(event, Signalled):
        return _stop(state, event.at, SIGNALLED_GRACE_S, StopBy.SIGNAL)
    return _expire(state, event.at)


def refusal(state: State, epoch: int, generation: int) -> tuple[str, str, str] | None:
    """The whole fencing rule: why an order is not obeyed, as (code, message, hint); None where it is."""
    if epoch < state.epoch:
        return (
            "superseded",
            f"the order is of epoch {epoch}, and a coordinator of epoch {state.epoch} has spoken already",
            "only the newest coordinator is obeyed; stop the older one",
        )
    if generation != state.generation:
        return (
            "superseded",
            f"the order is for generation {generation}, and this is generation {state.generation}",
            "ask for the tasks again: the group has been started anew meanwhile",
        )
    return None


def _handle(state: State, order: Ordered) -> tuple[State, Actions]:
    refused = refusal(state, order.epoch, order.generation)
    if refused is not None:
        return state, [(Do.REFUSE, refused)]
    state = state.replace(epoch=order.epoch)
    if order.verb == "stop":
        after, actions = _stop(state, order.at, order.grace_s, StopBy.ORDER)
        return after, [(Do.ACCEPT, None), *actions]
    if order.verb != "release":
        return state, [(Do.REFUSE, ("unknown-order", f"a shim does not know the order {order.verb!r}", ""))]
    return _release(state)


def _release(state: State) -> tuple[State, Actions]:
    if state.phase is Phase.READY:
        after = state.replace(phase=Phase.RUNNING, reached=Phase.RUNNING)
        return after, [(Do.ACCEPT, None), (Do.GO if state.hold else Do.SPAWN, None), (Do.REPORT, None)]
    if state.reached is Phase.RUNNING:
        return state, [(Do.ACCEPT, None)]  # asked twice, done once
    if state.phase is Phase.STARTING:
        why = ("not-ready", "the task is still starting", "release it when its report says ready")
    else:
        why = ("stopped", "the task was stopped before its release", "start a new generation")
    return state, [(Do.REFUSE, why)]


def _ready(state: State) -> tuple[State, Actions]:
    if state.phase is not Phase.STARTING:
        return state, []
    return state.replace(phase=Phase.READY, reached=Phase.READY), [(Do.REPORT, None)]


def _stop(state: State, at: float, grace_s: float, by: StopBy) -> tuple[State, Actions]:
    if state.phase in (Phase.KILLING, Phase.ENDED):
        return state, []
    if state.stop_by is StopBy.NOBODY:
        state = state.replace(stop_by=by)
    if state.phase is Phase.READY and not state.hold:
        return _kill(state.replace(ended=Ended(at)), at)  # no process yet
    if grace_s <= 0:
        return _kill(state, at)
    deadline_at = at + grace_s
    if state.phase is Phase.STOPPING:
        # A second order may shorten the grace, never prolong it.
        sooner = deadline_at if state.deadline_at is None else min(deadline_at, state.deadline_at)
        return state.replace(deadline_at=sooner), []
    after = state.replace(phase=Phase.STOPPING, deadline_at=deadline_at)
    return after, [(Do.ASK_TO_STOP, grace_s), (Do.TERMINATE, None), (Do.REPORT, None)]


def _exited(state: State, event: Exited) -> tuple[State, Actions]:
    if state.ended is not None:
        return state, []
    state = state.replace(ended=event.ended)
    if state.phase is Phase.KILLING:
        return state, [(Do.KILL, None)]
    return _kill(state, event.at)


def _kill(state: State, at: float) -> tuple[State, Actions]:
    after = state.replace(phase=Phase.KILLING, deadline_at=at + KILL_AGAIN_S, give_up_at=at + KILL_BOUND_S)
    return after, [(Do.KILL, None)]


def _looked(state: State, event: Looked) -> tuple[State, Actions]:
    if state.phase is not Phase.KILLING or state.give_up_at is None:
        return state, []
    done = state.ended is not None and not event.left
    if not done and event.at < state.give_up_at:
        return state.replace(deadline_at=event.at + KILL_AGAIN_S), []
    ended = state.ended or Ended(event.at)
    after = state.replace(phase=Phase.ENDED, deadline_at=None, ended=ended, left=tuple(event.left))
    return after, [(Do.RECORD, None)]


def _expire(state: State, at: float) -> tuple[State, Actions]:
    if state.deadline_at is None or at < state.deadline_at:
        return state, []
    if state.phase is Phase.STOPPING:
        return _kill(state, at)
    # Never left in the past: a deadline that stays would make the loop spin.
    return state.replace(deadline_at=at + KILL_AGAIN_S), [(Do.KILL, None)]


def cause_of(ended: Ended, stop_by: StopBy, group_oom_kills: int | None, host_oom_kills: int) -> str:
    """Why it ended: script, signal, oom, start-failed.

    `group_oom_kills` counts those of the task's own group (None where it has none), `host_oom_kills` those
    of the whole host since the last heartbeat: good enough for a process that somebody else killed just
    then, and for nothing else.
    """
    if ended.why is not None:
        return "start-failed"
    killed = ended.signal == 9 and stop_by is StopBy.NOBODY
    if group_oom_kills is not None:
        # A data loader's worker that was killed takes its parent with it, by an exception.
        if group_oom_kills > 0 and ended.code != 0 and stop_by is StopBy.NOBODY:
            return "oom"
    elif killed and host_oom_kills > 0:
        return "oom"
    return "script" if ended.code is not None else "signal"


def cause_of_silence(shim: Identity | None, boot_id: str) -> str:
    """Why a shim is gone that left no exit record: `rebooted` where it was of another boot, else `shim-died`."""
    return "rebooted" if shim is not None and shim.boot_id != boot_id else "shim-died"

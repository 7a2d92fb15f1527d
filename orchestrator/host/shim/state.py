"""The decisions of a shim, without any clock, process or socket.

`decide(state, event)` returns the next state and the actions, in order. The loop in `shim/loop.py` executes them, and
so does the simulator. Every event carries `at`, a time of one monotonic clock.

The phases of a task are STARTING (its process imports) → READY (it waits for its release) → RUNNING → STOPPING (it was
asked to stop, and has a deadline) → KILLING (all its processes are killed until none is left) → ENDED. With the runtime
off there is no process before the release, and READY is the first phase.
"""

from __future__ import annotations

from enum import Enum

from orchestrator.both.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.both.process import Identity
    from orchestrator.protocol.reports import ExitCause, Left, TaskPhase

KILL_AGAIN_S = 0.02
"""The interval between two kills. A process with much memory takes some time to die."""

KILL_BOUND_S = 5.0
"""After this, remaining processes are named and given up: SIGKILL does not end an uninterruptible wait."""

SIGNALLED_GRACE_S = 5.0
"""The grace of the task when the shim itself gets SIGTERM, as at a shutdown of the host."""


class Phase(Enum):
    """The phase of a task."""

    STARTING = "starting"
    READY = "ready"
    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    ENDED = "exited"


_SHOWN: dict[Phase, TaskPhase] = {
    Phase.STARTING: "starting",
    Phase.READY: "ready",
    Phase.RUNNING: "running",
    Phase.ENDED: "exited",
}


class StopBy(Enum):
    """Who asked for the task to end."""

    NOBODY = "nobody"
    ORDER = "order"
    SIGNAL = "signal"


class Do(Enum):
    """An action of the loop. Its text describes it, and names the value that comes with it, if any."""

    SPAWN = "start the process; an Exited event follows if that fails"
    GO = "tell the runtime to go"
    ASK_TO_STOP = "tell the runtime to stop; grace in seconds"
    ASK_TO_RESCUE = "tell the runtime to hand over its state, and to stop; the content of its line"
    TERMINATE = "SIGTERM to the task's main process"
    KILL = "SIGKILL to all processes of the task, then a KillChecked event with those that are left"
    RECORD = "write the exit record, tell the agents, end"
    REPORT = "tell the agents at once"
    ACCEPT = "answer the order: obeyed, now or before"
    REFUSE = "answer the order: (code, message, hint)"


class Ended(Value):
    """How the main process ended. Without a process, or where it could not be killed, it has no code and no signal."""

    at: float
    code: int | None = None
    signal: int | None = None
    why: str | None = None
    """Why the process could not be started, as a sentence; None if it was."""


class Ordered(Value):
    """An order for this task has arrived: `release` or `stop`."""

    at: float
    verb: str
    epoch: int
    generation: int
    grace_s: float = 0.0
    rescue: bool = False
    compare: bool = False


class RuntimeReady(Value):
    """The runtime has done its imports, and waits for the release."""

    at: float


class Exited(Value):
    """The main process has ended, or could not be started."""

    at: float
    ended: Ended

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.at, ended)


class KillChecked(Value):
    """The processes that still live after a KILL, as the exit record names them."""

    at: float
    left: list[Left]


class Signalled(Value):
    """The shim itself got SIGTERM."""

    at: float


class Ticked(Value):
    """Time has passed."""

    at: float


class State(Value):
    """Everything that the decisions depend on. Only `replace` changes it."""

    generation: int
    epoch: int
    """The highest epoch from which this shim has had an order."""
    hold: bool
    """Whether the runtime is on: then the process is started at once, and waits for its release."""
    phase: Phase
    reached: Phase
    """The phase that it reached before it was stopped. Reports show this until it has ended."""
    stop_by: StopBy = StopBy.NOBODY
    deadline_at: float | None = None
    """When a Ticked will next change something."""
    give_up_at: float | None = None
    ended: Ended | None = None
    left: tuple[Left, ...] = ()

    @property
    def shown(self) -> TaskPhase:
        """The phase as reports name it."""
        return _SHOWN[Phase.ENDED if self.phase is Phase.ENDED else self.reached]


if TYPE_CHECKING:
    Event = Ordered | RuntimeReady | Exited | KillChecked | Signalled | Ticked
    Actions = list[tuple[Do, Any]]


def begin(generation: int, epoch: int, hold: bool) -> tuple[State, Actions]:
    """Return the first state and the first actions."""
    phase = Phase.STARTING if hold else Phase.READY
    return State(generation, epoch, hold, phase, phase), [(Do.SPAWN, None)] if hold else []


def decide(state: State, event: Event) -> tuple[State, Actions]:
    """Return the next state, and the actions in order."""
    if state.phase is Phase.ENDED and not isinstance(event, Ordered):
        return state, []
    if isinstance(event, Ordered):
        return _handle(state, event)
    if isinstance(event, RuntimeReady):
        if state.phase is not Phase.STARTING:
            return state, []
        return state.replace(phase=Phase.READY, reached=Phase.READY), [(Do.REPORT, None)]
    if isinstance(event, Exited):
        if state.ended is not None:
            return state, []
        state = state.replace(ended=event.ended)
        return (state, [(Do.KILL, None)]) if state.phase is Phase.KILLING else _kill(state, event.at)
    if isinstance(event, KillChecked):
        if state.phase is not Phase.KILLING or state.give_up_at is None:
            return state, []
        done = state.ended is not None and not event.left
        if not done and event.at < state.give_up_at:
            return state.replace(deadline_at=event.at + KILL_AGAIN_S), []
        ended = state.ended or Ended(event.at)
        after = state.replace(phase=Phase.ENDED, deadline_at=None, ended=ended, left=tuple(event.left))
        return after, [(Do.RECORD, None)]
    if isinstance(event, Signalled):
        return _stop(state, event.at, SIGNALLED_GRACE_S, StopBy.SIGNAL)
    if state.deadline_at is None or event.at < state.deadline_at:
        return state, []
    if state.phase is Phase.STOPPING:
        return _kill(state, event.at)
    # A deadline must not stay in the past, or the loop would spin.
    return state.replace(deadline_at=event.at + KILL_AGAIN_S), [(Do.KILL, None)]


def refusal(state: State, epoch: int, generation: int) -> tuple[str, str, str] | None:
    """Return why an order is refused, as (code, message, hint); None if it is obeyed. This is the whole fencing."""
    if epoch < state.epoch:
        return (
            "superseded",
            f"the order is of epoch {epoch}, and a coordinator of epoch {state.epoch} has given orders already",
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
        rescue = {"grace_s": order.grace_s, "rescue": True, "compare": order.compare}
        after, actions = _stop(state, order.at, order.grace_s, StopBy.ORDER, rescue if order.rescue else None)
        return after, [(Do.ACCEPT, None), *actions]
    if state.phase is Phase.READY:
        after = state.replace(phase=Phase.RUNNING, reached=Phase.RUNNING)
        return after, [(Do.ACCEPT, None), (Do.GO if state.hold else Do.SPAWN, None), (Do.REPORT, None)]
    if state.reached is Phase.RUNNING:
        return state, [(Do.ACCEPT, None)]  # a repeated release changes nothing
    if state.phase is Phase.STARTING:
        why = ("not-ready", "the task is still starting", "release it when its report says ready")
    else:
        why = ("stopped", "the task was stopped before its release", "start a new generation")
    return state, [(Do.REFUSE, why)]


def _stop(
    state: State, at: float, grace_s: float, by: StopBy, rescue: dict[str, Any] | None = None
) -> tuple[State, Actions]:
    if state.phase in (Phase.KILLING, Phase.ENDED):
        return state, []
    if state.stop_by is StopBy.NOBODY:
        state = state.replace(stop_by=by)
    if state.phase is Phase.READY and not state.hold:
        return _kill(state.replace(ended=Ended(at)), at)  # there is no process yet
    if grace_s <= 0:
        return _kill(state, at)
    deadline_at = at + grace_s
    if state.phase is Phase.STOPPING:
        # A second order may shorten the grace, but not prolong it.
        sooner = deadline_at if state.deadline_at is None else min(deadline_at, state.deadline_at)
        # The task has reported the state that it holds: tell it that it was chosen to write it.
        chosen = rescue is not None and not rescue["compare"]
        return state.replace(deadline_at=sooner), [(Do.ASK_TO_RESCUE, rescue)] if chosen else []
    after = state.replace(phase=Phase.STOPPING, deadline_at=deadline_at)
    if (
        rescue is not None and state.phase is Phase.RUNNING
    ):  # no SIGTERM: the script would end before it is done
        return after, [(Do.ASK_TO_RESCUE, rescue), (Do.REPORT, None)]
    return after, [(Do.ASK_TO_STOP, grace_s), (Do.TERMINATE, None), (Do.REPORT, None)]


def _kill(state: State, at: float) -> tuple[State, Actions]:
    after = state.replace(phase=Phase.KILLING, deadline_at=at + KILL_AGAIN_S, give_up_at=at + KILL_BOUND_S)
    return after, [(Do.KILL, None)]


def cause_of(
    ended: Ended, stop_by: StopBy, group_oom_kills: int | None, shared_oom_kills: int, *, is_one: bool
) -> ExitCause:
    """Return why the task ended: script, signal, oom, perhaps-oom, start-failed.

    `group_oom_kills` counts the OOM kills in the task's own control group shortly before; None if it has none.
    `shared_oom_kills` counts the recent ones among all processes that share its memory. A task that got SIGKILL then
    may be one of them; with `is_one`, it is.
    """
    if ended.why is not None:
        return "start-failed"
    killed = ended.signal == 9 and stop_by is StopBy.NOBODY
    if group_oom_kills is not None:
        # If a data loader's worker is killed, its parent gets an exception and ends as well.
        if group_oom_kills > 0 and ended.code != 0 and stop_by is StopBy.NOBODY:
            return "oom"
    elif killed and shared_oom_kills > 0:
        return "oom" if is_one else "perhaps-oom"
    return "script" if ended.code is not None else "signal"


def cause_of_silence(shim: Identity | None, boot_id: str) -> ExitCause:
    """Return why a shim is gone without an exit record: `rebooted` if it is from another boot, else `shim-died`."""
    return "rebooted" if shim is not None and shim.boot_id != boot_id else "shim-died"

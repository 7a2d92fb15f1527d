"""One turn of `decide.step`: the state as it becomes, the actions that gather on the way, and who takes part in it.

A concern is one behaviour of a run, with all that it does, in one module: `concerns` has them in their order. It knows
the state, the turn, and how a generation and a run are stopped, and no other concern. What happens within a turn and
matters to another is told as a moment (`moments`), and heard as an event is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from orchestrator.core import transitions
from orchestrator.core.actions import Action, Note
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.replacing import replace
from orchestrator.core.state.host import Host
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Phase, PhaseState, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task


class Turn:
    """The state within one call of `step`. Its values are immutable, so a turn that raises changes nothing."""

    def __init__(
        self, run: Run, at: Instant, hears: Mapping[type[Any], Sequence[Hears]] | None = None
    ) -> None:
        self.before = self.run = run
        self.at = at
        self.actions: list[Action] = []
        self._hears = hears or {}

    def tell(self, what: object) -> Any:
        """Tell an event or a moment to all concerns that hear it, in their order; return the first answer."""
        answer = None
        for hears in self._hears.get(type(what), ()):
            said = hears(self, what)
            answer = said if answer is None else answer
        return answer

    def do(self, *actions: Action) -> None:
        """Append actions."""
        self.actions.extend(actions)

    def note(self, kind: NoteKind, message: str, task: TaskId | None = None, **data: object) -> None:
        """Append a note for `orch events`."""
        self.actions.append(Note(kind=kind, message=message, task=task, data=data))

    def set(self, **changes: Any) -> None:
        """Change fields of the run."""
        self.run = replace(self.run, **changes)

    def set_task(self, task: Task, **changes: Any) -> Task:
        """Change fields of one task, and return the changed task."""
        changed = replace(task, **changes)
        self.run = self.run.with_task(changed)
        return changed

    def set_host(self, host: Host, **changes: Any) -> Host:
        """Change fields of one host, and return the changed host."""
        changed = replace(host, **changes)
        self.run = self.run.with_host(changed)
        return changed

    def set_phase(self, **changes: Any) -> None:
        """Change fields that belong to the phase that the run is in."""
        self.run = replace(self.run, phase_state=replace(self.run.phase_state, **changes))

    def enter(self, phase_state: PhaseState, reason: str, *, rest: str | None = None, **changes: Any) -> None:
        """Enter another phase. Raises TransitionNotAllowed where it cannot follow the present one.

        Args:
            rest: the part of `reason` after the first cause's sentence, where `reason` begins with that sentence.
        """
        transitions.check(self.run.phase, self.run.intent, phase_state.phase)
        down = self.run.downtime.entering(phase_state.phase, self.at) if self.run.downtime else None
        changes = {"downtime": down, **changes}
        self.set(phase_state=phase_state, since_at=self.at, reason=reason, reason_rest=rest, **changes)

    def forgive_standstill(self) -> None:
        """Judge the chief's position from now on only: its standstill was not the script's fault."""
        running = self.run.phase_state
        if isinstance(running, Running) and running.position_at is not None:
            self.set_phase(position_at=self.at)


Hears = Callable[[Turn, Any], Any]
"""Of an event or a moment: what a concern does with it. An answer, where the moment asks for one, is not None."""


class Concern(NamedTuple):
    """One behaviour of a run."""

    name: str
    on: Mapping[type[Any], Hears] = {}
    """What it does with an event, or a moment."""
    watch: Callable[[Turn], None] | None = None
    """What it does in every phase of a run that has its turn, before the phases' own."""
    advance: Mapping[Phase, Callable[[Turn], object]] = {}
    """By phase: how it moves the run on as far as the state allows."""
    due: Callable[[Run], Iterable[Deadline | None]] = lambda _: ()
    """When it changes the state by itself."""
    repeats: Callable[[Run, str, Instant], Iterable[Action]] = lambda *_: ()
    """The orders to a host, named by its annotation, that are not known to be carried out. Repeating does no harm."""
    says: Callable[[Run, Instant], str] = lambda *_: ""
    """What the status of a run that trains says of it: the end of a sentence, which begins with a semicolon."""
    waits: Callable[[Run, Instant], str] = lambda *_: ""
    """What the status says that the run waits for; empty where it waits for nothing that is this concern's."""
    shows: Callable[[Run, Instant], Mapping[str, Any]] = lambda *_: {}
    """Its part of the status document, by key."""
    demands: Callable[[Run], Iterable[tuple[bool, str]]] = lambda _: ()
    """What is true in every state of a run that has not ended, each with its sentence."""

"""One turn of `decide.step`: the state as it becomes, and the actions that gather on the way."""

from __future__ import annotations

from typing import Any

from orchestrator.core import transitions
from orchestrator.core.actions import Action, Note
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.replacing import replace
from orchestrator.core.state.host import Host
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import PhaseState, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task


class Turn:
    """The state within one call of `step`. Its values are immutable, so a turn that raises changes nothing."""

    def __init__(self, run: Run, at: Instant) -> None:
        self.run = run
        self.at = at
        self.actions: list[Action] = []

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

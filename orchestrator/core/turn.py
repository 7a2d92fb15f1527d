"""One turn of `group.step`: the state as it becomes, and the actions that gather on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core.actions import Action, Note
from orchestrator.core.model import Host, Phase, Run, Task
from orchestrator.core.plan import TaskId


def is_due(at: float | None, now: float) -> bool:
    """Whether a deadline has come; None is no deadline."""
    return at is not None and at <= now


class Turn:
    """Lives within one call of `step`; the values in it are immutable, so a turn that raises changes nothing."""

    def __init__(self, run: Run, at: float) -> None:
        self.run = run
        self.at = at
        self.actions: list[Action] = []

    def do(self, *actions: Action) -> None:
        """Ask for something, after what was asked for before."""
        self.actions.extend(actions)

    def note(self, kind: str, message: str, task: TaskId | None = None, **data: object) -> None:
        """Say what happened."""
        self.actions.append(Note(kind=kind, message=message, task=task, data=data))

    def set(self, **changes: Any) -> None:
        """Change fields of the run."""
        self.run = replace(self.run, **changes)

    def set_task(self, task: Task, **changes: Any) -> Task:
        """Change fields of one task; the task as it is then."""
        changed = replace(task, **changes)
        self.run = self.run.with_task(changed)
        return changed

    def set_host(self, host: Host, **changes: Any) -> Host:
        """Change fields of one host; the host as it is then."""
        changed = replace(host, **changes)
        self.run = self.run.with_host(changed)
        return changed

    def enter(self, phase: Phase, reason: str, *, deadline_at: float | None = None, **changes: Any) -> None:
        """Go to another phase; what belonged to the old one is cleared unless it is named."""
        cleared = {"intent": None, "force_at": None, "verify_at": None, "evidence_at": None, **changes}
        self.set(phase=phase, since_at=self.at, reason=reason, deadline_at=deadline_at, **cleared)

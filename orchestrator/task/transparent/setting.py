"""The settings of a transparent run."""

from __future__ import annotations

import functools
import os
import sys

from orchestrator.task import this_task
from orchestrator.task.cadence import Cadence, Wish
from orchestrator.task.transparent.backup import positions, variables_of
from orchestrator.task.transparent.identity import (
    CALLER,
    DATA,
    WEIGHTS,
    difference,
    differences,
    is_called_by_script,
    signature,
)
from orchestrator.task.transparent.shrink import Shrink
from orchestrator.task.transparent.strategy import (
    names_of_workers,
    rows_of_workers,
    told_by_chief,
    workers_of,
)
from orchestrator.task.writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.backup import Position
    from orchestrator.task.transparent.noise import Noise
    from orchestrator.task.transparent.replay import Course
    from orchestrator.task.transparent.reporter import Reporter
    from orchestrator.task.transparent.rescue import Rescue


STOP_WAIT_S = 1.5
"""How long a stop waits for a save that is being written."""


class Setting:
    """The settings that all fits of a process share."""

    def __init__(
        self,
        library: str,
        strategy: Any,
        options: dict[str, Any],
        report: Reporter,
        chief: bool,
        noise: Noise | None = None,
        rescue: Rescue | None = None,
        folder: str = "",
    ) -> None:
        self.library = library
        self.strategy = strategy
        self.report = report
        self.chief = chief
        self.shrink = Shrink(options, strategy.num_replicas_in_sync, report)
        # One for all fits, since the cost of a save is known once the first fit has saved.
        self.cadence = Cadence(
            Wish.read(options), functools.partial(told_by_chief, strategy, chief), this_task.tell_saving
        )
        self.writer = Writer()
        this_task.stop_hooks.append(functools.partial(self.writer.wait, STOP_WAIT_S))
        self.checkpoint_dir = os.environ.get("ORCH_CHECKPOINT_DIR") or None
        self.restores_late = library == "keras"
        """Whether variables that are built only when the first step is traced can be restored then."""
        self.is_seeded = True
        """Whether chance is the same in each generation, and so are the starting weights."""
        self.folder = folder
        self.inside = False
        self.noise = noise
        self.rescue = rescue
        self.steps = 0
        """The steps of all fits so far."""
        self.backups = positions(self.checkpoint_dir) if self.checkpoint_dir else {}
        """The backups of the generation before, by the number of their fit, but for those of fits that went on."""
        self._next = max(self.backups, default=-1) + 1
        self.steps_before = max((each.steps for each in self.backups.values()), default=0)
        """The steps of the newest backup: fits that had ended train nothing."""

    def prepare(self, model: Any, course: Course) -> None:
        """Build the variables that are to be restored, as far as possible."""
        if not self.restores_late:
            course.trace(model)

    def proved_before(self) -> set[tuple[float, ...]]:
        """Return of which fits a step was proved before the restart, with as many replicas as there are."""
        replicas = self.strategy.num_replicas_in_sync
        return {signature(each.identity) for each in self.backups.values() if each.proved == replicas}

    def growth(self, position: Position) -> float:
        """Return how many times as many replicas there are as when this was saved, by the script as it is now."""
        now = self.strategy.num_replicas_in_sync
        return now / (position.replicas or now) if position.is_of_this_script() else 1.0

    def count_steps(self) -> int:
        """Return the steps of the script, which never become fewer."""
        return max(self.steps, self.steps_before)

    def compare(self, mine: list[float], without_callbacks: float) -> list[float]:
        """Refuse a fit in which the workers have other data or other models. Return the chief's identity of it.

        All must call this. What a worker hands over is found by the chief, whose callbacks may be others.
        """
        if workers_of(self.strategy) == 1:
            return mine
        names, every = (
            names_of_workers(self.strategy),
            rows_of_workers(self.strategy, [*mine, without_callbacks]),
        )
        if not self.is_seeded:
            return every[0][:-1]
        rows = [[row[0], row[-1], *row[2:-1]] for row in every]
        differing = {
            name: why for name, row in zip(names, rows, strict=True) if (why := difference(rows[0], row))
        }
        if differing:
            raise self.report.unsupported(
                f"the workers do not train the same: {' and '.join(differing)} and {names[0]} differ in "
                f"{next(iter(differing.values()))} of a fit, so a global batch would be put together from parts of "
                "different ones: sort what is listed, seed what draws the data, and give all hosts the same files, or "
                "remove `transparent: true`"
            )
        return every[0][:-1]

    def number_of(self, mine: list[float], epochs: int) -> int:
        """Return the number of a fit: that of its backup, which is then no other fit's, or a new one.

        The chief decides. Workers whose backups differ are found by the position that they begin with.
        """
        found = self._find(mine, epochs) if self.chief else None
        number = round(told_by_chief(self.strategy, self.chief, -1.0 if found is None else found))
        if number < 0:
            number = self._next
            self._next += 1
        return number

    def _find(self, mine: list[float], epochs: int) -> int | None:
        others: list[str] = []
        for fit, position in sorted(self.backups.items()):
            why = self._difference(position, mine, epochs)
            if not why:
                if others:
                    said = f"fit {fit + 1} comes before {' and '.join(others[-3:])}: skipped or reordered by the script"
                    self.report("fits", f"{said}; each goes on from its own backup only")
                return fit
            others.append(f"fit {fit + 1}, which differs in {why}")
        for fit, position in sorted(self.backups.items()):
            if not self._difference(position, mine, epochs, self.growth(position)):
                return fit
        if (changed := self._changed(mine, epochs)) is not None:
            why = difference(self.backups[changed].identity, mine)
            self.report("fits", f"fit {changed + 1} was changed in {why}, and goes on from its checkpoint")
            return changed
        if others:
            said = f"fit {self._next + 1} has no backup, and is not {' or '.join(others[-3:])}"
            self.report("fits", f"{said}: it begins as the script lets it begin")
        return None

    def _difference(self, position: Position, mine: list[float], epochs: int, growth: float = 1.0) -> str:
        """Return in what a fit differs from that of a backup; empty if it is that one."""
        has_ended = position.epoch >= position.epochs
        drawn = set() if self.is_seeded else {WEIGHTS}  # the script draws others in each generation
        if not has_ended and (not self.is_seeded or (growth != 1.0 and len(self.backups) == 1)):
            drawn.add(DATA)  # or the first batch of a generator has followed the number of replicas
        why = next((each for each in differences(position.identity, mine, growth) if each not in drawn), "")
        if not why and epochs != position.epochs and (has_ended or position.epoch > epochs):
            why = "its epochs"
        return why

    def _changed(self, mine: list[float], epochs: int) -> int | None:
        """Return the number of the only fit there was, which had not ended, where this one is that one, changed.

        Where the script is unchanged, a fit without a backup is another one, whose model it drew, say; so it is where
        a tuner calls it, or where it trains other data, which a script draws anew only if its chance is not seeded.
        """
        for number, position in self.backups.items() if len(self.backups) == 1 else ():
            differing = differences(position.identity, mine)
            is_other = CALLER in differing or (self.is_seeded and DATA in differing)
            goes_on = position.epoch < position.epochs and position.epoch <= epochs
            is_changed = not position.is_of_this_script()
            if goes_on and not is_other and is_changed and self._next == number + 1:
                folder = self.folder or os.path.dirname(
                    getattr(sys.modules["__main__"], "__file__", None) or ""
                )
                return number if is_called_by_script(os.path.realpath(folder)) else None
        return None

    def groups_of(self, model: Any) -> dict[str, list[Any]]:
        """Return all variables to save, by group."""
        return {
            **variables_of(model),
            **({"noise": self.noise.variables()} if self.noise is not None else {}),
        }

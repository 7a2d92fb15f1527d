"""The callback that restores the backup when training begins, and saves one at intervals and at the end.

All workers save at the same steps, since reading a variable may need all of them. Only the chief writes, from a copy in
memory and beside the training.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time

from orchestrator.task import this_task
from orchestrator.task.transparent import backup, chance, first_batch
from orchestrator.task.transparent.hooks import (
    EPOCH_END,
    STEP_END,
    Comparison,
    Hooks,
    lines_of,
    marker,
    said_apart,
    trim,
)
from orchestrator.task.transparent.identity import MODEL, differences, identity, signature
from orchestrator.task.transparent.remembered import GROUP, Memory, named
from orchestrator.task.transparent.replay import is_traceable
from orchestrator.task.transparent.shares import GROUP as SHARES
from orchestrator.task.transparent.shares import give_back, of_all
from orchestrator.task.transparent.strategy import (
    mean_over_workers,
    names_of_workers,
    rows_of_workers,
    texts_of_workers,
    workers_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from orchestrator.task.transparent.replay import Course
    from orchestrator.task.transparent.setting import Setting

_FIGURES = "_get_metrics_result_or_logs"
"""Keras 3's method for the figures of an epoch: without a batch it returns none."""
_EVALUATES = "_should_eval"
"""Keras's method that says whether an epoch ends with an evaluation."""


class Apart(RuntimeError):
    """The workers have restored different states of one training."""

    orch_kind = "began-apart"


class Saver:
    """Restores and saves the backups of one fit."""

    def __init__(self, setting: Setting, course: Course, given: dict[str, Any]) -> None:
        """Take the arguments of `fit` by name, as the script gives them."""
        self._setting = setting
        self._directory: str | None = None
        self._course = course
        self._given = given
        self._epochs = int(given.get("epochs") or 1)
        self.fit = 0
        """The number of the fit, once it is known: when training begins."""
        self._identity: list[float] = []
        self.when_known: Callable[[bool], object] = bool
        """Called when the number is known, before the script's callbacks begin: with whether there is a backup."""
        self._epoch = course.first_epoch
        self._restored: tuple[dict[str, Any], backup.Position] | None = None
        self._metrics: dict[str, Any] | None = None
        self._is_due = False
        """Whether a save is due that waits for the end of the epoch."""
        self._counted = 0
        """How many batches of this epoch are counted as steps already."""
        self.others: list[Any] = []
        """The script's own callbacks, with History."""
        self._memory = Memory([], setting.library, setting.report)
        self.hooks = Hooks(self._memory, dict)
        self._comparison = Comparison()
        self._differ = False
        """Whether the workers have different callbacks."""
        self._unfinished: dict[str, Any] | None = None
        """The end of an epoch of which some callbacks were told before the restart."""
        self._is_changed = False
        """Whether the script has changed this fit since its backup was saved."""
        self._set: dict[str, float] = {}
        """The numbers of the optimizers that the script has set."""
        self._tables: dict[str, dict[str, int]] = {}
        """How many lines the tables had when the fit began, by the worker's number and the CSVLogger's name."""

    def callbacks(self, before: list[Any], after: list[Any] | None = None) -> list[Any]:
        """Return the script's callbacks with ours: one that finds the backup goes first, one that saves goes behind."""
        saver = self
        base: Any = sys.modules[f"{self._setting.library}.src.callbacks"].Callback

        class OrchIdentity(base):  # type: ignore[misc]
            _supports_tf_logs = True

            def on_train_begin(self, *_: Any, **_logs: Any) -> None:
                saver._know(self.model)

            def on_epoch_begin(self, *_: Any, **_logs: Any) -> None:
                saver.hooks.may_be_taken_back("on_epoch_begin")

            def on_train_batch_begin(self, *_: Any, **_logs: Any) -> None:
                saver.hooks.may_be_taken_back(of_step=True)

            def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
                saver.hooks.ends(STEP_END, logs)

            def on_test_begin(self, *_: Any, **_logs: Any) -> None:
                saver.hooks.may_be_taken_back("on_test_begin", "on_test_end")

            def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
                unfinished, saver._unfinished = saver._unfinished, None
                if unfinished is not None:
                    saver.hooks.finish_epoch(unfinished, logs)
                    self.model.stop_training |= unfinished["stops"]
                saver.hooks.ends(EPOCH_END, logs)

        class OrchBackup(base):  # type: ignore[misc]
            _supports_tf_logs = True

            def on_train_begin(self, *_: Any, **_logs: Any) -> None:
                saver._begin(self.model, self.params)

            def on_epoch_begin(self, epoch: int, *_: Any, **_logs: Any) -> None:
                saver._begin_epoch(self.model, epoch)

            def on_train_batch_end(self, batch: int, *_: Any, **_logs: Any) -> None:
                saver.hooks.is_done()
                saver._end_batch(self.model, batch)

            def on_epoch_end(self, epoch: int, *_: Any, **_logs: Any) -> None:
                for name in (_FIGURES, _EVALUATES):
                    self.model.__dict__.pop(name, None)
                saver.hooks.show_again()
                saver._end_epoch(self.model, epoch)

            def on_test_begin(self, *_: Any, **_logs: Any) -> None:
                if (rescue := saver._setting.rescue) is not None:
                    rescue.keep_metrics(self.model, saver._setting.groups_of(self.model)["metrics"])

            def on_test_end(self, *_: Any, **_logs: Any) -> None:
                saver.hooks.has_tested()

            def on_train_end(self, *_: Any, **_logs: Any) -> None:
                saver._end(self.model)

        marked = [item for name, each in named(before).items() for item in (each, marker(base, saver, name))]
        return [OrchIdentity(), *marked, OrchBackup(), *(after or ())]

    def _know(self, model: Any) -> None:
        """Find out which fit this is: its model is built, and nothing has been trained."""
        setting = self._setting
        mine, known = identity(model, self._given, self._course.first_batch, setting.folder)
        self._identity = (
            setting.compare(mine, known) if model.distribute_strategy is setting.strategy else mine
        )
        self._course.signature = signature(self._identity)
        if setting.checkpoint_dir is not None:
            self.fit = setting.number_of(self._identity, self._epochs)
            self._directory = backup.folder(setting.checkpoint_dir, self.fit)
        position = setting.backups.pop(self.fit, None)
        self.when_known(position is not None)
        logger = sys.modules[f"{setting.library}.src.callbacks"].CSVLogger
        self._tables[self._number] = {
            name: self._begin_table(name, each, position)
            for name, each in named(self.others).items()
            if isinstance(each, logger)
        }

    def _begin_table(self, name: str, logger: Any, position: backup.Position | None) -> int:
        """Have a CSVLogger go on behind the rows of the epochs that it was told of. Return how many lines are older."""
        if position is None:
            return len(lines_of(logger.filename)) if logger.append else 0
        logger.append = True  # otherwise it would truncate its file
        before = position.tables.get(self._number, {}).get(name, 0)
        unfinished = position.unfinished or {"hook": "", "done": []}
        was_told = unfinished["hook"] == EPOCH_END and name in unfinished["done"]
        if position.epoch >= self._epochs:  # it had ended, and what follows its rows is of later fits
            return before
        return trim(logger.filename, logger.sep, position.epoch + was_told, before)

    def _begin(self, model: Any, params: Any) -> None:
        self._epochs = int((params or {}).get("epochs") or self._epochs)
        self._memory = Memory(self.others, self._setting.library, self._setting.report)
        groups, rescue = functools.partial(self._setting.groups_of, model), self._setting.rescue
        self.hooks = Hooks(self._memory, groups, lambda: rescue.checksum(model) if rescue else None)
        names = sorted(self._memory.callbacks)
        told = self._of_workers([names, self._tables.get(self._number, {})])
        self._differ = any(each != names for each, _ in told.values())
        self._tables = {number: tables for number, (_, tables) in told.items()}
        with self._restoring():
            saved = backup.read(self._directory) if self._directory else None
        position = saved[1] if saved else backup.Position(self._course.first_epoch, 0)
        if saved is not None:
            self._place(position)
        self._set = backup.numbers_of_optimizers(self._setting.groups_of(model))
        self._agree(position)
        self._setting.shrink.begin(position.rate if saved is not None else None)
        if saved is None:
            self._setting.steps = self._setting.count_steps()
            return
        if self._setting.growth(position) != 1.0 and not self._is_changed:
            self._scale_rates(model, saved[0], position)
        with self._restoring():
            self._restore(model, saved[0], position.set)
        backup.tell_restored(self._directory or "", self._setting.checkpoint_dir, position.steps)
        self._setting.steps = max(self._setting.steps, position.steps)
        if position.epoch < self._epochs:  # what is trained from now on is newer than any backup
            self._setting.steps = self._setting.count_steps()
        if position.epoch >= self._epochs and position.chance is not None:
            chance.restore(position.chance)  # what the script draws after this fit is what it drew then
        self._begin_with(model, position.epoch)
        self._restored = saved
        self._course.leap(position.epoch, position.batch)
        this_task.batches_done = position.batch
        self._recall(saved)
        where = (
            "after its last epoch"
            if position.epoch >= self._epochs
            else (f"in epoch {position.epoch + 1} of {self._epochs}, after {position.batch} batches of it")
        )
        self._setting.report("resumed", f"fit {self.fit + 1} goes on from its backup, {where}")

    def _place(self, position: backup.Position) -> None:
        """Find the place in the epoch that had begun, whose batches may be of another size now."""
        growth, length = self._setting.growth(position), self._course.steps
        differing = differences(position.identity, self._identity)
        self._is_changed = MODEL in differences(position.identity, self._identity, growth)
        if differing and growth != 1.0 and not self._is_changed and length and position.length:
            done = position.batch * length // position.length  # the same part of the epoch
            position.batch = max(done, min(position.batch, 1))
        elif MODEL in differing:
            position.epoch, position.batch = max(position.epoch, self._course.first_epoch), 0
            position.begun, position.unfinished = False, None
        else:
            position.in_batches_of(self._setting.shrink.scale)

    def _scale_rates(self, model: Any, values: dict[str, Any], position: backup.Position) -> None:
        """Let the learning rates of a backup follow the number of replicas, as those that the script sets do."""
        factors = {
            name: now / then
            for name, now in self._set.items()
            if name.endswith("/learning_rate") and (then := position.set.get(name)) and then != now
        }
        backup.scale_rates(self._setting.groups_of(model), values, factors)
        for name, factor in factors.items():
            position.set[name] = self._set[name]
            self._setting.report(
                "rate",
                f"there were {position.replicas} replicas, and now {self._setting.strategy.num_replicas_in_sync}: the "
                f"learning rate of the checkpoint is multiplied by {factor:.3g}, as that of the script is",
            )

    @property
    def _number(self) -> str:
        """The number of this worker."""
        return str(getattr(self._setting.strategy.extended, "_id_in_cluster", 0))

    def _of_workers(self, mine: Any) -> dict[str, Any]:
        """Return a value of each worker, for JSON, by the worker's number. All must call it."""
        texts = texts_of_workers(self._setting.strategy, json.dumps(mine))
        return {str(number): json.loads(text) for number, text in enumerate(texts)}

    def _recall(self, saved: tuple[dict[str, Any], backup.Position]) -> None:
        self._memory.recall(saved[1].callbacks, saved[0], saved[1].own.get(self._number))

    def _restore(self, model: Any, values: dict[str, Any], before: dict[str, float]) -> None:
        """Restore the groups that are built. An optimizer of a `train_step`, say, is built only when that is traced."""
        self._setting.prepare(model, self._course)
        if self._setting.noise and not self._setting.restores_late and "noise/00000" in values:
            self._setting.noise.make()  # else the first step would
        groups, late = self._setting.groups_of(model), {}
        for name in _restored_groups(values):
            if backup.fits(groups, values, name) or not self._setting.restores_late:
                self._assign(groups, values, name)
            else:  # what a callback sets when the epoch begins is not restored again
                late[name] = backup.assign_built(groups, values, name)

        def restore_late(model: Any) -> None:
            groups = self._setting.groups_of(model)
            with self._restoring():
                for name, built in late.items():
                    self._assign(groups, values, name, after=built)
            self._check_alike(model)

        self._course.when_traced = restore_late if late else None
        self._tell_replaced(model, before)

    def _assign(
        self, groups: dict[str, list[Any]], values: dict[str, Any], name: str, after: Sequence[Any] = ()
    ) -> None:
        try:
            backup.assign(groups, values, name, after=after)
        except backup.Mismatch:
            if name == "model" or not (self._is_changed or backup.may_be_missing(name)):
                raise
            self._setting.report(
                "replaced", f"the script's {name} is another one than the checkpoint's: it begins anew"
            )

    def _tell_replaced(self, model: Any, before: dict[str, float]) -> None:
        """Say which numbers of its optimizers the script has changed since, of which the checkpoint's were restored."""
        restored = backup.numbers_of_optimizers(self._setting.groups_of(model))
        for name, value in self._set.items() if self._setting.chief else ():
            then, now = before.get(name, value), restored.get(name, value)
            if math.isclose(then, value, rel_tol=1e-6) or math.isclose(now, value, rel_tol=1e-6):
                continue
            what = name.rpartition("/")[2]
            way = "in `on_epoch_begin` of a callback"
            if what == "learning_rate":
                way = f"with `{self._setting.library}.callbacks.LearningRateScheduler(lambda epoch: {value:.6g})`"
            self._setting.report(
                "replaced",
                f"the script sets {what} to {value:.6g} (before: {then:.6g}), and the checkpoint's {now:.6g} has "
                f"replaced it: set it after the restore, {way}",
            )

    def _restoring(self) -> AbstractContextManager[None]:
        return backup.restoring(self._directory or "", self._setting.checkpoint_dir)

    def _agree(self, position: backup.Position) -> None:
        """Check that all workers continue at one position; else they would wait for each other for ever."""
        mine = position.epoch * 1e7 + position.batch
        if abs(mean_over_workers(self._setting.strategy, mine) - mine) > 0.01:
            raise RuntimeError(
                f"the workers' backups differ: this one has epoch {position.epoch} and batch {position.batch}; "
                "all must be seeded from the same checkpoint"
            )

    def _begin_with(self, model: Any, epoch: int | None) -> None:
        """Tell Keras 3 the epoch that training begins with; None: the script's. tf_keras is told by the course."""
        if self._setting.library == "keras":
            model._initial_epoch = epoch

    def _begin_epoch(self, model: Any, epoch: int) -> None:
        self._begin_with(model, None)
        self._epoch = epoch
        self._counted = 0
        restored, self._restored = self._restored, None
        if restored is not None and epoch == restored[1].epoch and restored[1].batch:
            # The epoch's metrics continue from the batches before the kill, but Keras has just reset them. tf_keras
            # creates some metrics in the first batch, so there they are restored after it if there is no graph of it.
            self._counted = restored[1].batch
            self._metrics = restored[0]
            is_keras_3 = self._setting.library == "keras"
            if is_keras_3 or is_traceable(model):
                self._restore_metrics(model)
                self._course.figures = model.get_metrics_result
            if is_keras_3:
                # It may have no batch left, as after a rescue while it was evaluated: its figures are there.
                of_logs = getattr(model, _FIGURES, dict)
                model.__dict__[_FIGURES] = lambda logs: of_logs(logs or model.get_metrics_result())
        if restored is not None and epoch == restored[1].epoch and restored[1].begun:
            self._begin_again(model, restored)
        if restored is not None and self._course.when_traced is None:
            self._check_alike(model)
            if self._counted:
                give_back(self._setting.strategy, model, restored[0], averages=True)
        self._compare(model, epoch)
        self.hooks.is_done()
        self._mark(model, epoch, self._counted, begun=True)

    def _begin_again(self, model: Any, saved: tuple[dict[str, Any], backup.Position]) -> None:
        """Take back what the callbacks have changed: this epoch had begun before the restart, and begins once."""
        if self._memory.implementing("on_epoch_begin"):
            groups = self._setting.groups_of(model)
            for name in _restored_groups(saved[0]):
                backup.assign_built(groups, saved[0], name)
            self._recall(saved)
        unfinished = saved[1].unfinished
        if unfinished is None or unfinished["hook"] == EPOCH_END:
            self._unfinished = unfinished
            if unfinished is not None:  # its evaluation was made, and its figures are kept
                model.__dict__[_EVALUATES] = lambda *_: False
        else:
            logs = {name: float(value) for name, value in model.get_metrics_result().items()}
            self.hooks.finish_step(unfinished, saved[1].batch - 1, logs)
            model.stop_training |= unfinished["stops"]

    def _check_alike(self, model: Any) -> None:
        """Raise Apart, in all workers, unless each would go on from the same state. All must call this."""
        said, _ = self._apart(model)
        if said:
            why = "they would not train the same model, so no step is made"
            raise Apart(f"after restoring step {self._setting.steps} {said}: {why}")

    def _apart(self, model: Any, more: list[float] | None = None) -> tuple[str, list[list[float]]]:
        """Return in what the workers differ, and `more` of each of them; with it, while they train."""
        strategy = self._setting.strategy
        if getattr(model, "distribute_strategy", None) is not strategy or workers_of(strategy) == 1:
            return "", []
        parts = self.hooks.digests(in_training=more is not None)
        rows = rows_of_workers(strategy, [*map(float, parts.values()), *(more or [])])
        return said_apart(names_of_workers(strategy), rows, list(parts)), rows

    def _compare(self, model: Any, epoch: int) -> None:
        """Say where the workers have come apart in training, at some epochs. All must call this."""
        began_at = time.monotonic()
        if self._comparison.is_due(epoch, began_at):
            said, rows = self._apart(model, self._comparison.numbers(epoch, began_at))
            self._comparison.done(epoch, began_at, time.monotonic(), [] if said else rows)
            if said:
                what = f"at step {self._setting.steps} {said}: they do not train the same model any more"
                self._setting.report("apart", what)

    def _end_epoch(self, model: Any, epoch: int) -> None:
        # Where the fit is to stop, no epoch follows, also after a restart.
        done = self._epochs if model.stop_training else epoch + 1
        self._mark(model, done, 0)
        self.hooks.is_done()
        if self._is_due or epoch + 1 >= self._epochs:
            self._save(model, done, 0)

    def _restore_metrics(self, model: Any) -> None:
        values, self._metrics = self._metrics, None
        try:
            groups = self._setting.groups_of(model)
            if values is not None and not give_back(self._setting.strategy, model, values):
                backup.add(groups, values, "metrics")
        except backup.Mismatch:
            self._setting.report("metrics", "figures of the epoch that was interrupted are of its rest only")

    def _end_batch(self, model: Any, batch: int) -> None:
        if getattr(model, "distribute_strategy", None) is self._setting.strategy and self._setting.is_seeded:
            first_batch.compare(self._setting.strategy, self._setting.report, self._course)
        done, in_epoch = self._course.done_after(batch), self._course.steps
        steps, self._counted = done - self._counted, done
        self._setting.steps += steps
        self._setting.shrink.advance(steps)
        if self._directory is None:
            return
        if self._metrics is not None:
            self._restore_metrics(model)
        if not self._setting.cadence.step(steps):
            return
        if in_epoch is not None and done >= in_epoch:
            self._is_due = True
        else:
            self._save(model, self._epoch, done)

    def _save(self, model: Any, epoch: int, batch: int) -> None:
        if self._directory is None:
            return
        self._is_due = False
        setting, began_at = self._setting, time.monotonic()
        setting.writer.wait()
        groups = setting.groups_of(model)
        values, own = backup.collect(groups, setting.steps), self._own()
        if batch:
            values.update(of_all(setting.strategy, model))
        if setting.chief:
            position = self._position(epoch, batch)
            position.callbacks, arrays = self._memory.keep()
            position.own = own
            values.update(arrays)
            setting.writer.write(functools.partial(backup.write, self._directory, values, position))
        setting.cadence.saved(time.monotonic() - began_at, setting.writer.took_s, setting.count_steps())

    def _position(self, epoch: int, batch: int) -> backup.Position:
        position = backup.Position(epoch, batch, self._setting.steps)
        position.fit, position.identity, position.epochs = self.fit, self._identity, self._epochs
        if epoch >= self._epochs and self._setting.is_seeded:
            position.chance = chance.state()
        position.set, position.tables = self._set, self._tables
        position.replicas = self._setting.strategy.num_replicas_in_sync
        position.length = self._course.steps or 0
        position.proved = position.replicas * self._course.is_proved
        position.scale, position.rate = self._setting.shrink.scale, self._setting.shrink.rate
        return position

    def _own(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return what the callbacks of each worker remember, where they have different ones. All must call it."""
        return self._of_workers(self._memory.keep()[0]) if self._differ else {}

    def _mark(self, model: Any, epoch: int, batch: int, *, begun: bool = False) -> None:
        """Remember the position for a rescue."""
        if self._setting.rescue is None:
            return
        position = self._position(epoch, batch)
        position.begun, position.own = begun, self._own()

        def keep(position: backup.Position) -> dict[str, Any]:
            return self.hooks.keep(position, self._counted, bool(model.stop_training))

        self._setting.rescue.mark(model, position, keep)

    def _end(self, model: Any) -> None:
        self._begin_with(model, None)
        # EarlyStopping may end a fit before its last epoch. The backup must say that this fit has finished.
        if self._directory is not None and self._epoch + 1 < self._epochs and self._restored is None:
            self._save(model, self._epochs, 0)
        self._setting.writer.wait()
        if self._setting.rescue is not None and self._setting.rescue.refusal() is None:
            self.hooks.has_ended()


def _restored_groups(values: dict[str, Any]) -> list[str]:
    """Return the groups of a backup that are restored when training begins. The others follow, each in its own way."""
    return [name for name in backup.groups_in(values) if name not in ("metrics", SHARES, GROUP)]

"""A `fit` that continues where it was killed, even within an epoch, and that can take batches per replica.

A fit has an identity (`identity.py`), and goes on from the backup that has the same one. It is restored once the model
is built and before its first step; then the data is skipped up to the next batch. A fit that had finished runs no epoch
and returns its history, so a script with several fits reaches the one that was interrupted.
"""

from __future__ import annotations

import functools
import sys

from orchestrator.task import this_task
from orchestrator.task.keras import fit_arguments
from orchestrator.task.transparent import replay
from orchestrator.task.transparent.data import rebatched, rows_of
from orchestrator.task.transparent.saver import Saver
from orchestrator.task.transparent.step import line_of_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.files import Files
    from orchestrator.task.transparent.setting import Setting
    from orchestrator.task.transparent.shrink import Shrink


def install(setting: Setting, files: Files, folder: str) -> None:
    """Wrap `fit` of this Keras, and its iteration over epochs."""
    library = setting.library
    if setting.checkpoint_dir is None:
        setting.report(
            "backup", "there is no ORCH_CHECKPOINT_DIR: nothing is backed up, a restart begins anew"
        )
    if library == "keras":
        trainer = sys.modules["keras.src.backend.tensorflow.trainer"]
        owner = trainer.TensorFlowTrainer
        replay.build_without_data(owner)
        replay.install_keras3(trainer.TFEpochIterator)
    else:
        import importlib

        owner = sys.modules["tf_keras"].Model
        replay.install_keras2(owner, importlib.import_module("tf_keras.src.engine.data_adapter").DataHandler)
    owner.fit = _wrapped(owner.fit, setting, files, folder)
    owner.train_on_batch = _counted(owner.train_on_batch, setting)
    if this_task.progress is not None:
        this_task.progress.count_steps = setting.count_steps


def _counted(train_on_batch: Callable[..., Any], setting: Setting) -> Callable[..., Any]:
    """Report the steps of a training loop of the script's own, which has no backup."""

    @functools.wraps(train_on_batch)
    def counted(model: Any, *args: Any, **kwargs: Any) -> Any:
        logs = train_on_batch(model, *args, **kwargs)
        setting.report(
            "backup",
            "train_on_batch is a loop of the script's own: it is not backed up, a restart begins it anew",
        )
        setting.steps += 1
        if this_task.progress is not None:
            this_task.progress.report(setting.count_steps(), logs if isinstance(logs, dict) else {})
        return logs

    return counted


def _wrapped(fit: Callable[..., Any], setting: Setting, files: Files, folder: str) -> Callable[..., Any]:
    @functools.wraps(fit)
    def transparent_fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        if setting.inside:  # a fit within a callback of another fit has no backup
            return fit(model, *args, **kwargs)
        if len(args) > len(fit_arguments.NAMES):
            return fit(model, *args, **kwargs)
        kwargs = fit_arguments.named(args, kwargs)
        _refuse_fixed_batch(model, setting, folder)
        given = dict(kwargs)
        setting.inside = True
        try:
            if getattr(model, "distribute_strategy", None) is not setting.strategy:
                setting.report("fit", "a model that was made outside the scope trains without the strategy")
            if setting.shrink.batch_factor != (1, 1):
                _scale(kwargs, setting)
            else:
                setting.report("batch", "a batch of the script is global: it is split among the replicas")
            if setting.library == "tf_keras":
                build(model, kwargs.get("x"), setting, kwargs.get("batch_size"))
            course = replay.Course(int(kwargs.get("initial_epoch") or 0), int(kwargs.get("workers") or 1))
            course.validation = replay.Validation(model, kwargs)
            saver = Saver(setting, course, given)
            kwargs["callbacks"] = _with_saver(kwargs.get("callbacks"), saver, setting)
            saver.when_known = functools.partial(_known, saver, files)
            with course:
                if setting.rescue is None:
                    return fit(model, **kwargs)
                return setting.rescue.during(functools.partial(fit, model, **kwargs), model, setting)
        except Exception as e:
            if has_constant_batch(str(e), setting.strategy.num_replicas_in_sync):
                raise setting.report.unsupported(
                    f"{line_of_script(folder) or 'fit'}: a step computes with a constant number of examples, and each "
                    f"of the {setting.strategy.num_replicas_in_sync} replicas has its own part of the batch: write "
                    "`tf.shape(x)[0]` for the batch's size in the step and in the layers, or remove `transparent: true`"
                ) from e
            raise
        finally:
            setting.inside, files.fit = False, None

    return transparent_fit


def has_constant_batch(error: str, replicas: int) -> bool:
    """Return whether an error is that of shapes of which one has the size of a replica's part of the other."""
    if replicas == 1 or not any(words in error for words in _OF_SHAPES):
        return False
    import re

    sizes = {int(size) for size in re.findall(r"(?:\[|tensor with |shape has )(\d+)", error)}
    return any(
        part in (whole // replicas, -(-whole // replicas)) for part in sizes for whole in sizes - {part}
    )


_OF_SHAPES = (
    "ncompatible shapes",
    "requested shape has",
    "imensions of inputs should match",
    "imension mismatch",
)


def _refuse_fixed_batch(model: Any, setting: Setting, folder: str) -> None:
    """Refuse a model whose batch has a fixed number of examples: a replica's part of it has fewer."""
    try:
        sizes = [each.shape[0] for each in model.inputs or ()]
    except (AttributeError, TypeError, ValueError, IndexError):
        return  # it is built by its first batch
    fixed = next((size for size in sizes if isinstance(size, int)), None)
    if fixed is None or setting.strategy.num_replicas_in_sync == 1:
        return
    raise setting.report.unsupported(
        f"{line_of_script(folder) or 'fit'}: the batch of {model.name} has {fixed} examples (`batch_shape`), which "
        f"cannot be split among {setting.strategy.num_replicas_in_sync} replicas: give its inputs a `shape` without "
        "the batch, or remove `transparent: true`"
    )


def _known(saver: Saver, files: Files, resumes: bool) -> None:
    """Prepare the files of a fit, before its callbacks open them."""
    files.fit = saver.fit
    if resumes:
        files.put_back(saver.others)


def _with_saver(given: Any, saver: Saver, setting: Setting) -> Any:
    callbacks = sys.modules[f"{setting.library}.src.callbacks"]
    if isinstance(given, callbacks.CallbackList):
        saver.others = list(given.callbacks)
        given.callbacks[:] = saver.callbacks(saver.others)
        given.set_model(given.model)
        return given
    every = list(given) if isinstance(given, (list, tuple)) else [given] if given else []
    kept = [each for each in every if not isinstance(each, callbacks.BackupAndRestore)]
    if len(kept) < len(every):
        setting.report("backup", "the script's BackupAndRestore is left out: this run is backed up by orch")
    if not any(isinstance(each, callbacks.History) for each in kept):
        kept.append(callbacks.History())
    saver.others = kept
    # Ours goes last: the script's callbacks reset themselves when training begins, and we save History's state.
    return saver.callbacks(kept)


def _scale(kwargs: dict[str, Any], setting: Setting) -> None:
    """Make the global batch from the script's, which is for each replica, or for more replicas than there are now."""
    import tensorflow as tf

    (up, down), x = setting.shrink.batch_factor, kwargs.get("x")
    if isinstance(x, tf.data.Dataset):
        larger = rebatched(x, up, down)
        if larger is None:
            setting.report(
                "batch", "the batches of this tf.data have no known size, and are split as they are"
            )
            return
        kwargs["x"] = larger
    elif not hasattr(x, "shape") and not isinstance(
        x, (list, tuple, dict)
    ):  # a Sequence makes its own batches
        setting.report(
            "batch", "the batches of a generator or Sequence are its own, and are split as they are"
        )
        return
    else:
        kwargs["batch_size"] = max(1, (kwargs.get("batch_size") or fit_arguments.DEFAULT_BATCH) * up // down)
    if kwargs.get("steps_per_epoch"):
        kwargs["steps_per_epoch"] = -(-int(kwargs["steps_per_epoch"]) * down // up)
    setting.report("batch", _batch_sentence(setting.shrink))


def _batch_sentence(shrink: Shrink) -> str:
    up, down = shrink.batch_factor
    if down > 1:
        return (
            f"{up} of {down} replicas train, each with the batch that it had: the global batch is {up}/{down} of the "
            "script's, and an epoch has that many more steps"
        )
    held = (
        f" (of {shrink.planned} replicas, of which {shrink.replicas} train)" if up != shrink.replicas else ""
    )
    return (
        f"a batch of the script is that of one replica: the global one is {up} times as large{held}, and an epoch has "
        "that many fewer steps; the learning rate is the script's"
    )


def build(model: Any, x: Any, setting: Setting, batch_size: int | None = None) -> None:
    """Build a subclassed model of tf_keras before training, so that its weights exist and can be restored."""
    import numpy as np
    import tensorflow as tf
    from tf_keras import Model

    # A model without a `call` of its own has nothing to build: its step calls models that it has
    if not model.built and type(model).call is not Model.call:
        if isinstance(x, tf.data.Dataset):
            spec = x.element_spec
            inputs = spec[0] if isinstance(spec, tuple) else spec
            rows = max(1, rows_of(x))
            example = tf.nest.map_structure(
                lambda s: tf.zeros(
                    [size or (1 if axis else rows) for axis, size in enumerate(s.shape)], s.dtype
                ),
                inputs,
            )
        else:
            try:
                rows = batch_size or fit_arguments.DEFAULT_BATCH
                example = tf.nest.map_structure(lambda part: np.asarray(part[:rows]), x)
            except (TypeError, KeyError, IndexError):
                setting.report(
                    "backup", "the model is built by its first batch: a restart begins this fit anew"
                )
                return
        model(example, training=False)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and hasattr(optimizer, "build") and not getattr(optimizer, "_built", False):
        optimizer.build(model.trainable_variables)

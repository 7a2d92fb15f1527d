"""Fixes `model.fit` of Keras 3 under MultiWorkerMirroredStrategy (keras-team/keras#20585) and MirroredStrategy.

Two functions of Keras's TensorFlow trainer are wrong. `_maybe_symbolic_build` adds up the replicas' parts of a batch,
only to learn its shape: over several workers that fails, and over three replicas of one process too, if the batch
cannot be split evenly. `reduce_per_replica` averages the metrics over an axis that scalars do not have; it is replaced
for several workers only.

With steps_per_execution, Keras makes the step a tf.function that is called in a TensorFlow loop. A collective in it
never gets its key, because the key is captured when the function is called, and a loop's body cannot pass that on.
There, Keras's code is run with a `tf.function` that leaves the step alone, so that it is traced as part of the loop.
MirroredStrategy reduces by collectives too, and gets the same.

Keras 3 also lets each worker keep its own moving averages in BatchNormalization, so the workers' models differ
although their trained weights are equal. They are averaged after each epoch, in one message for all layers; tf_keras
does that whenever they are read.

On versions of Keras for which this was not tested, nothing is replaced, and `fit` says what to install.
"""

from __future__ import annotations

import functools
import sys
import types

from orchestrator.both import keras_versions
from orchestrator.task.keras import keras3_central

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from orchestrator.task.link import Link


class UnsupportedKeras(RuntimeError):
    """The installed Keras cannot train under this strategy, and our patch was not tested on it."""


def patch(trainer: ModuleType, link: Link) -> None:
    """Patch the module `keras.src.backend.tensorflow.trainer`, or make `fit` refuse where that was not tested."""
    version = str(sys.modules["keras.src.version"].__version__)
    _refuse_parameter_servers(trainer, version, link)
    if keras_versions.patched(version):
        say = _once(lambda: _say(link, version))
        _patch_build(trainer, say)
        _patch_reduce(trainer)
        _patch_several_steps(trainer, _once(lambda: _say_mirrored(link, version)))
        _average_statistics_after_epochs(trainer)
    else:
        _refuse(trainer, version, link)


def multi_worker(strategy: Any) -> bool:
    """Return whether it is a MultiWorkerMirroredStrategy over more than one process."""
    if not type(strategy).__name__.startswith(("CollectiveAllReduceStrategy", "MultiWorkerMirroredStrategy")):
        return False
    return bool(strategy.extended._in_multi_worker_mode())


def _patch_build(trainer: Any, say: Callable[[], None]) -> None:
    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if not (multi_worker(strategy) or _mirrored(strategy)):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        if multi_worker(strategy):
            say()
        if iterator is not None:
            for _, _, batches in iterator:
                data_batch = trainer.tree.map_structure(
                    lambda leaf: strategy.experimental_local_results(leaf)[0], next(batches)
                )
                break
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    trainer.TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _patch_reduce(trainer: Any) -> None:
    original = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        how = "mean" if reduction == "auto" else reduction
        if how not in ("mean", "sum") or not multi_worker(strategy):
            return original(values, strategy, reduction)
        return trainer.tree.map_structure(lambda leaf: strategy.reduce(how.upper(), leaf, axis=None), values)

    trainer.reduce_per_replica = reduce_per_replica


class _StepInline:
    """Replaces the module `tensorflow` in Keras's `_make_function`, so that its step does not become a tf.function."""

    def __init__(self, tf: Any) -> None:
        self._tf = tf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tf, name)

    def function(self, function: Any, **options: Any) -> Any:
        if function.__name__ == "one_step_on_data":
            return function
        return self._tf.function(function, **options)


def _mirrored(strategy: Any) -> bool:
    return type(strategy).__name__ == "MirroredStrategy" and strategy.num_replicas_in_sync > 1


def _patch_several_steps(trainer: Any, say: Callable[[], None]) -> None:
    original = trainer.TensorFlowTrainer._make_function

    def _make_function(self: Any, step_function: Any) -> Any:
        strategy = self._distribute_strategy
        collective = strategy is not None and (multi_worker(strategy) or _mirrored(strategy))
        if not collective or self.steps_per_execution == 1:
            return original(self, step_function)
        if _mirrored(strategy):
            say()
        seen = {**vars(trainer), "tf": _StepInline(trainer.tf)}
        inlined = types.FunctionType(original.__code__, seen, closure=original.__closure__)
        return inlined(self, step_function)

    trainer.TensorFlowTrainer._make_function = _make_function


def _average_statistics_after_epochs(trainer: Any) -> None:
    # Keras calls this on every worker once an epoch's steps are done, before the validation.
    original = trainer.TensorFlowTrainer._get_metrics_result_or_logs

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        strategy = self._distribute_strategy
        if strategy is not None and multi_worker(strategy):
            _average_statistics(trainer.tf, strategy, self)
        return original(self, logs)

    trainer.TensorFlowTrainer._get_metrics_result_or_logs = _get_metrics_result_or_logs


def statistics_of(model: Any) -> list[Any]:
    """Return the moving averages of BatchNormalization that its steps change."""
    normalization = sys.modules["keras.src.layers.normalization.batch_normalization"].BatchNormalization
    return [
        variable
        for layer in model._flatten_layers()
        if isinstance(layer, normalization) and layer.built and layer.trainable
        for variable in (layer.moving_mean, layer.moving_variance)
    ]


def _average_statistics(tf: Any, strategy: Any, model: Any) -> None:
    variables = statistics_of(model)
    if not variables:
        return
    # The function is traced once per model, and again when other layers have become trainable between two `fit`s.
    key, average = getattr(model, "_orch_average", (None, None))
    if average is None or key != [id(variable) for variable in variables]:
        key, average = [id(variable) for variable in variables], _averager(tf, strategy, variables)
        # With a plain assignment, Keras would track it as part of the model.
        object.__setattr__(model, "_orch_average", (key, average))
    average()


def _averager(tf: Any, strategy: Any, variables: list[Any]) -> Any:
    """Return a function that sets the variables to their means over all replicas, with one message for all."""
    sizes = [variable.value.shape.num_elements() for variable in variables]

    def local() -> Any:
        return tf.concat([tf.reshape(variable.value, [-1]) for variable in variables], axis=0)

    def assign(means: Any) -> None:
        for variable, part in zip(variables, tf.split(means, sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))

    def average() -> None:
        strategy.run(assign, args=(strategy.reduce("MEAN", strategy.run(local), axis=None),))

    return tf.function(average, autograph=False)


def _refuse(trainer: Any, version: str, link: Link) -> None:
    original = trainer.TensorFlowTrainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = _needs_patch(getattr(self, "_distribute_strategy", None))
        if name is not None:
            raise _unsupported(trainer, name, version, link)
        return original(self, *args, **kwargs)

    trainer.TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _refuse_parameter_servers(trainer: Any, version: str, link: Link) -> None:
    original = trainer.TensorFlowTrainer.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(getattr(self, "_distribute_strategy", None)).__name__.startswith("ParameterServerStrategy"):
            raise _unsupported(trainer, "ParameterServerStrategy", version, link)
        return original(self, *args, **kwargs)

    trainer.TensorFlowTrainer.fit = fit


def _unsupported(trainer: Any, tf_class: str, version: str, link: Link) -> UnsupportedKeras:
    versions = {"keras": version, "tensorflow": getattr(trainer.tf, "__version__", None)}
    sentence = keras_versions.unsupported(tf_class, versions, legacy_keras=False)
    link.send({"error": {"kind": "unsupported", "message": str(sentence)}}, wait_s=1.0)
    return UnsupportedKeras(sentence)


def _needs_patch(strategy: Any) -> str | None:
    if strategy is not None and multi_worker(strategy):
        return "MultiWorkerMirroredStrategy"
    return "CentralStorageStrategy" if keras3_central.several_replicas(strategy) else None


def _say(link: Link, version: str) -> None:
    message = (
        f"Keras {version} was patched for MultiWorkerMirroredStrategy "
        "(model.fit fails there without it: keras-team/keras#20585)"
    )
    link.say("keras3-patched", message)


def _say_mirrored(link: Link, version: str) -> None:
    message = f"Keras {version} was patched for MirroredStrategy (steps_per_execution fails there without it)"
    link.say("keras3-patched", message)


def _once(action: Callable[[], None]) -> Callable[[], None]:
    done = False

    def run() -> None:
        nonlocal done
        if not done:
            done = True
            action()

    return run

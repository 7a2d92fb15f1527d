"""`orch prove`: train so many steps, record each, and end with exit code 0.

The record goes into two files of the task's working directory, from where `orch prove` fetches them: a JSON document
with the loss, a fingerprint of the examples and some values of each weight for each step, and the weights at the end.
A run of several replicas and one of a single process have the same record; `reporting/comparison.py` compares them.
"""

from __future__ import annotations

import functools
import json
import os
import sys

from orchestrator.both.trial_records import LAST_WEIGHTS, RECORD
from orchestrator.task import this_task
from orchestrator.task.keras import fit_arguments
from orchestrator.task.keras.optimizers import iterations_of, weights_of
from orchestrator.task.progress import as_number
from orchestrator.task.trials.measured import is_left_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.both.script import Script

SAMPLE = 64
"""How many values of each weight are kept of each step."""

LAST_MAX = 1 << 24
"""How many values are kept at the end; of larger models, evenly spread ones."""


class Proving:
    """Records the first steps of a script's fits."""

    def __init__(self, options: Mapping[str, Any], *, batch: str) -> None:
        self._steps = int(options["steps"])
        self._batch = batch
        self._directory = os.getcwd()
        self._model: Any = None
        self._variable: Any = None
        self._begin: list[list[float]] = []
        self._recorded: list[dict[str, Any]] = []

    def seed(self, script: Script) -> None:
        """Give a plain script the seeds that one under `transparent` has."""
        from orchestrator.task.transparent import chance
        from orchestrator.task.transparent import main as transparent

        library = transparent.library_of(script.imports())
        __import__(library)
        sys.modules[library].utils.set_random_seed(chance.SEED)
        chance.equal_generators()

    def fit(self, fit: Callable[..., Any], model: Any, base: type, given: dict[str, Any]) -> Any:
        """Train by this `fit`, and end the script once all steps are recorded.

        Args:
            fit: Keras's own.
            base: its class of callbacks.
        """
        kept = [each for each in fit_arguments.callbacks_of(given) if not is_left_out(each)]
        self._model = model
        self._watch_examples(model)
        history = fit(model, **{**given, "callbacks": [*kept, _recorder(base, self)]})
        self.write()
        if len(self._recorded) >= self._steps:
            raise SystemExit(0)
        return history

    def report(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Ignore a training loop of the script's own: it cannot be compared with one process."""

    # -- what is recorded

    def begin(self) -> None:
        """Keep the weights before the first step, where they are there by then."""
        if not self._recorded and not self._begin:
            self._begin = self._sampled()

    def end_batch(self, logs: Mapping[str, Any] | None) -> bool:
        """Record a step. Return whether it was the last one."""
        prints = [float(value) for value in self._variable.numpy()] if self._variable is not None else []
        self._recorded.append(
            {
                "loss": as_number((logs or {}).get("loss")),
                "examples": round(prints[0]) if prints and prints[0] else None,
                "fingerprint": prints[1:] if prints and prints[0] else [],
                "weights": self._sampled(),
            }
        )
        return len(self._recorded) >= self._steps

    def tell_the_last_step(self) -> None:
        """Report the last step: reports are some time apart, so it may not have been reported."""
        progress = this_task.progress
        if progress is None:
            return
        step = progress.count_steps() if progress.count_steps is not None else iterations_of(self._model)
        if step is not None:
            progress.report(step, {})

    def _sampled(self) -> list[list[float]]:
        samples = []
        for variable in weights_of(self._model):
            values = variable.numpy().reshape(-1)
            stride = -(-values.size // SAMPLE) or 1
            samples.append([float(value) for value in values[::stride]])
        return samples

    def _watch_examples(self, model: Any) -> None:
        """Let each training step leave the fingerprint of its examples in a variable."""
        tf = sys.modules.get("tensorflow")
        if tf is None or not hasattr(model, "_make_function") or self._variable is not None:
            return
        self._variable = tf.Variable(
            tf.zeros([4], tf.float64),
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        variable, owner = self._variable, sys.modules["keras.src.backend.tensorflow.trainer"]
        make = owner.TensorFlowTrainer._make_function

        @functools.wraps(make)
        def _make_function(self: Any, step_function: Any) -> Any:
            watched = getattr(step_function, "__name__", "") == "train_step"
            return make(self, _watching(step_function, variable) if watched else step_function)

        owner.TensorFlowTrainer._make_function = _make_function

    def write(self) -> None:
        """Write what was recorded so far, if this is the chief. All workers must call it."""
        from orchestrator.task.transparent.main import is_chief

        trainable = {id(variable) for variable in self._model.trainable_weights}
        weights = [variable for variable in self._model.weights if id(variable) in trainable]
        total = sum(int(_size(variable)) for variable in weights)
        stride = -(-total // LAST_MAX) or 1
        # Every stride-th value of the weights. Every worker must call it: reading may need all of them.
        import numpy as np

        parts, offset = [], 0
        for variable in weights:
            values = variable.numpy().reshape(-1).astype("<f4")
            parts.append(values[-offset % stride :: stride])
            offset += values.size
        last = np.concatenate(parts).tobytes() if parts else b""
        if not is_chief(os.environ.get("TF_CONFIG")):
            return
        record = {
            "replicas": int(
                getattr(getattr(self._model, "distribute_strategy", None), "num_replicas_in_sync", 1)
            ),
            "weights": [
                {
                    "name": str(getattr(variable, "path", variable.name)),
                    "size": _size(variable),
                    "trainable": id(variable) in trainable,
                }
                for variable in weights_of(self._model)
            ],
            "begin": self._begin,
            "steps": self._recorded,
            "random": _layers(self._model, _is_random),
            "normalizing": _layers(self._model, _has_own_statistics),
            "batch": self._batch,
            "stride": stride,
        }
        with open(os.path.join(self._directory, LAST_WEIGHTS), "wb") as file:
            file.write(last)
        with open(os.path.join(self._directory, RECORD), "w", encoding="utf-8") as text:
            json.dump(record, text)


def _size(variable: Any) -> int:
    size = 1
    for length in variable.shape:
        size *= int(length)
    return size


def _layers(model: Any, wanted: Callable[[Any], bool]) -> list[str]:
    names = [f"{type(layer).__name__} {layer.name!r}" for layer in model._flatten_layers() if wanted(layer)]
    return names[:20]


def _is_random(layer: Any) -> bool:
    """Return whether a layer of Keras draws in training: Dropout, noise, augmentation. A rate of 0 draws in vain."""
    if not hasattr(layer, "seed_generator") or layer.seed_generator is None:
        return False
    rates = [getattr(layer, name) for name in ("rate", "stddev", "factor") if hasattr(layer, name)]
    return not rates or any(rate not in (0, 0.0) for rate in rates)


def _has_own_statistics(layer: Any) -> bool:
    return type(layer).__name__ == "BatchNormalization" and not getattr(layer, "synchronized", False)


def _watching(step_function: Any, variable: Any) -> Any:
    import tensorflow as tf

    @functools.wraps(step_function)
    def watched(data: Any) -> Any:
        context = tf.distribute.get_replica_context()
        prints = fingerprint(data)
        variable.assign(context.all_reduce(tf.distribute.ReduceOp.SUM, prints))
        return step_function(data)

    return tf.autograph.experimental.do_not_convert(watched)


def fingerprint(data: Any) -> Any:
    """Return the number of examples, and sums over them that do not depend on their order or on who has them.

    Each example becomes a number that depends on all of its parts, so that a label with another image is seen. The
    number of examples stands first, the sum of absolute values last.
    """
    import tensorflow as tf

    each: Any = None
    for place, leaf in enumerate(tf.nest.flatten(data)):
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
            continue
        if leaf.dtype == tf.string:
            leaf = tf.strings.to_hash_bucket_fast(leaf, 1 << 30)
        flat = tf.reshape(tf.cast(leaf, tf.float64), [tf.shape(leaf)[0], -1])
        columns = tf.cast(tf.range(tf.shape(flat)[1]), tf.float64)
        number = tf.linalg.matvec(flat, tf.cos(0.7 * columns + 1.0 + place))
        each = number if each is None else each + number
    if each is None:
        return tf.zeros([4], tf.float64)
    count = tf.cast(tf.shape(each)[0], tf.float64)
    sums = [tf.reduce_sum(each), tf.reduce_sum(tf.square(each)), tf.reduce_sum(tf.abs(each))]
    return tf.stack([count, *sums])


def _recorder(base: type, proving: Proving) -> Any:
    class Recorder(base):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 (Keras's signature)
            proving.begin()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            if proving.end_batch(logs):
                proving.write()
                proving.tell_the_last_step()
                raise SystemExit(0)

    return Recorder()

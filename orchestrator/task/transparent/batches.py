"""Make steps that take a replica's share, and divide the batches that are given to `train_on_batch` and the like."""

from __future__ import annotations

import functools
import sys

from orchestrator.task.transparent import step as steps
from orchestrator.task.transparent.proof import Proof, Proofs, of_first_steps
from orchestrator.task.transparent.replay import Course, graph_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.noise import Noise
    from orchestrator.task.transparent.reporter import Reporter
    from orchestrator.task.transparent.rescue import Rescue


def install(
    library: str,
    strategy: Any,
    report: Reporter,
    noise: Noise,
    folder: str,
    rescue: Rescue | None = None,
    proofs: Proofs | None = None,
) -> None:
    """Patch the functions of this Keras that make a step, and those that a script gives a batch."""
    stepping = steps.install(library, strategy, report, folder)
    if library == "keras":
        trainer = sys.modules["keras.src.backend.tensorflow.trainer"]
        prove = None
        if proofs is not None and strategy.num_replicas_in_sync > 1:
            new = functools.partial(Proof, report, folder, proofs.chief)
            prove = functools.partial(of_first_steps, proofs=proofs, proof=new)
        _patch_steps(trainer.TensorFlowTrainer, strategy, stepping, report, noise, rescue, prove)
        _patch_predict_on_batch(trainer.TensorFlowTrainer, strategy)
        _patch_predict_step(trainer.TensorFlowTrainer, strategy)
        _patch_building(trainer.TensorFlowTrainer, report, folder)
    else:
        _patch_keras2(sys.modules["tf_keras"].Model, strategy, stepping, rescue)


def _patch_steps(
    owner: Any,
    strategy: Any,
    stepping: Callable[..., Any],
    report: Reporter,
    noise: Noise,
    rescue: Rescue | None,
    prove: Callable[..., Any] | None,
) -> None:
    make = owner._make_function

    def _make_function(self: Any, step_function: Any) -> Any:
        if self.distribute_strategy is not strategy:
            return make(self, step_function)
        if self.run_eagerly:
            if strategy.num_replicas_in_sync == 1:
                return make(self, step_function)
            raise report.unsupported(
                f"{self.name} is compiled with run_eagerly=True, whose steps cannot be shared among replicas: "
                "remove that from the script, or `transparent: true` from the spec"
            )
        noise.prepare()
        atomic = rescue and rescue.atomic(strategy, self, step_function)

        def made(proof: Proof | None) -> Any:
            return _traced_first(make(self, stepping(step_function, atomic or None, proof)), self)

        is_proved = (
            step_function == self.train_step and not self.jit_compile and self.steps_per_execution == 1
        )
        function = (
            prove(made, lambda: self.trainable_variables) if prove is not None and is_proved else made(None)
        )
        if atomic:
            function = atomic.ending(function)

        def function_of_shares(iterator: Any) -> Any:
            if _is_distributed(iterator):
                return function(iterator)
            logs = function(divided(batch, strategy) for batch in iterator)
            # A metric of the whole batch is not the mean of the replicas' metrics.
            return self._get_metrics_result_or_logs(logs)

        return function_of_shares

    owner._make_function = _make_function


def _is_distributed(iterator: Any) -> bool:
    import tensorflow as tf

    return isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator))


def _traced_first(function: Callable[[Any], Any], model: Any) -> Callable[[Any], Any]:
    """Trace the steps of a fit before the first one runs: then every variable is there, and can be restored."""
    graph = graph_of(function)

    def trace(iterator: Any) -> None:
        nonlocal graph
        if graph is not None and _is_distributed(iterator):
            graph.get_concrete_function(iterator)
            graph = None
        if Course.current is not None:
            Course.current.traced(model)

    @functools.wraps(function)
    def traced_first(iterator: Any) -> Any:
        trace(iterator)
        return function(iterator)

    traced_first.trace = trace  # type: ignore[attr-defined]
    return traced_first


def divided(batch: Any, strategy: Any) -> Any:
    """Return a batch with each replica's part of its rows."""
    import numpy as np
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync

    def parts(leaf: Any) -> Any:
        if leaf is None:
            return None
        if not tf.is_tensor(leaf):
            leaf = np.asarray(leaf)
        if len(leaf.shape) == 0:
            return leaf
        rows = int(leaf.shape[0])

        def part(context: Any) -> Any:
            place = context.replica_id_in_sync_group
            rows_of_it = leaf[rows * place // replicas : rows * (place + 1) // replicas]
            # A copy: TensorFlow may write its results into the memory of an array that it is given.
            return tf.convert_to_tensor(rows_of_it if tf.is_tensor(leaf) else np.array(rows_of_it))

        return strategy.experimental_distribute_values_from_function(part)

    return tf.nest.map_structure(parts, batch)


def _patch_predict_on_batch(owner: Any, strategy: Any) -> None:
    predict_on_batch = owner.predict_on_batch

    @functools.wraps(predict_on_batch)
    def predict_divided(self: Any, x: Any) -> Any:
        if self.distribute_strategy is strategy:
            x = divided(x, strategy)
        return predict_on_batch(self, x)

    owner.predict_on_batch = predict_divided


def _patch_predict_step(owner: Any, strategy: Any) -> None:
    """Hide that a replica has no example: Keras takes a tensor without rows for a bias, so recurrent layers fail."""
    predict_step = owner.predict_step

    @functools.wraps(predict_step)
    def predict_step_of_a_replica(self: Any, data: Any) -> Any:
        import tensorflow as tf

        def hidden(leaf: Any) -> Any:
            if not tf.is_symbolic_tensor(leaf) or not leaf.shape.rank or leaf.shape[0] != 0:
                return leaf
            return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

        if self.distribute_strategy is strategy:
            data = tf.nest.map_structure(hidden, data)
        return predict_step(self, data)

    owner.predict_step = predict_step_of_a_replica


def _patch_building(owner: Any, report: Reporter, folder: str) -> None:
    """Let a model train that Keras cannot build from a batch: its own `train_step` makes its variables (`step.py`)."""
    build = steps.explained(owner._maybe_symbolic_build, report, folder)

    @functools.wraps(build)
    def _maybe_symbolic_build(self: Any, *args: Any, **kwargs: Any) -> None:
        if not _calls(self):
            return
        refused = report.refused
        try:
            build(self, *args, **kwargs)
        except (TypeError, ValueError, AttributeError, RuntimeError):
            # Keras calls the model with the first part of a batch. A step of its own may call it with all parts, and
            # an error of its `call` comes again, with the script's line, when that step is traced.
            if type(self).train_step is owner.train_step or report.refused is not refused:
                raise

    owner._maybe_symbolic_build = _maybe_symbolic_build


def _calls(model: Any) -> bool:
    """Return whether the model has a `call` of its own: the one of Keras's base class only raises."""
    owner = next((base for base in type(model).__mro__ if "call" in vars(base)), None)
    return (
        owner is None or owner.__name__ not in ("Layer", "Model") or not owner.__module__.startswith("keras.")
    )


def _patch_keras2(model: Any, strategy: Any, stepping: Callable[..., Any], rescue: Rescue | None) -> None:
    def stepped(make: Any, step: str) -> Any:
        @functools.wraps(make)
        def make_function(self: Any, force: bool = False) -> Any:
            if self.distribute_strategy is strategy and step not in self.__dict__:
                function = getattr(self, step)
                atomic = rescue and step == "train_step" and rescue.atomic(strategy, self, function)
                self.__dict__[step] = stepping(function, atomic or None)
            function = make(self, force)
            return rescue.ending(self) if rescue and step == "train_step" else function

        return make_function

    model.make_train_function = stepped(model.make_train_function, "train_step")
    model.make_test_function = stepped(model.make_test_function, "test_step")

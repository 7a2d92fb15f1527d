"""Random numbers within a step: different ones on each replica, and the same ones after a restart.

All workers have the same seeds, so without this all replicas would draw the same noise for their different examples.
Keras's generators keep their state in variables, which a backup holds; the replica's number is folded into the seed.
`tf.random` keeps its state in the process, where no backup reaches it. Within a step it draws from a count of steps
in a variable instead.
"""

from __future__ import annotations

import functools
import sys

from orchestrator.task.transparent import step as steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATELESS = {
    "random_normal": "stateless_normal",
    "random_uniform": "stateless_uniform",
    "truncated_normal": "stateless_truncated_normal",
}
"""Functions of TensorFlow's module `random_ops`, and the ones of `tf.random` that take a seed for each call."""

_PUBLIC = {"random_normal": "normal", "random_uniform": "uniform", "truncated_normal": "truncated_normal"}


class Noise:
    """The count of steps that `tf.random` draws from. Its variable is made by the first step that draws."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.variable: Any = None
        self.generator: Any = None
        """Keras's generator for draws without a seed. Keras has one for each thread, and replicas are threads."""

    def variables(self) -> list[Any]:
        """Return the variables that a backup has to hold beside those of the model."""
        return [each for each in (self.variable, getattr(self.generator, "state", None)) if each is not None]

    def prepare(self) -> None:
        """Take Keras's generator of the script's thread, which a step cannot reach."""
        import random

        before = random.getstate()
        self.generator = sys.modules["keras.src.random.seed_generator"].global_seed_generator()
        random.setstate(before)  # the script's next random numbers must not depend on this

    def make(self) -> None:
        """Make the variable, unless there is one: for the first step that draws, or for what a backup has of it."""
        import tensorflow as tf

        if self.variable is None:
            with steps.outside(self._strategy):
                self.variable = tf.Variable(
                    0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
                )

    def seed(self, step: steps.Step) -> Any:
        """Return the seed of the next draw of a step."""
        import tensorflow as tf

        self.make()
        if not step.draws:
            step.at_end.append(lambda: self.variable.assign_add(1))
        step.draws += 1
        return folded(tf.stack([tf.constant(step.draws, tf.int64), tf.cast(self.variable, tf.int64)]), step)


def install(library: str, strategy: Any) -> Noise:
    """Patch the functions that draw random numbers."""
    import tensorflow as tf
    from tensorflow.python.ops import random_ops

    noise = Noise(strategy)
    for name, stateless in _STATELESS.items():
        drawing = _drawing(getattr(random_ops, name), getattr(tf.random, stateless), noise)
        setattr(random_ops, name, drawing)
        setattr(tf.random, _PUBLIC[name], drawing)
    if library == "keras":
        generators: Any = sys.modules["keras.src.random.seed_generator"]
        draw, default = generators.draw_seed, generators.global_seed_generator

        @functools.wraps(default)
        def global_seed_generator() -> Any:
            return default() if steps.current() is None else noise.generator

        generators.global_seed_generator = global_seed_generator

        @functools.wraps(draw)
        def draw_seed(seed: Any) -> Any:
            drawn, step = draw(seed), steps.current()
            # A number as seed means the same random numbers in each step, so also on each replica.
            return drawn if step is None or isinstance(seed, int) else folded(drawn, step)

        for module in list(sys.modules.values()):
            if getattr(module, "draw_seed", None) is draw:
                module.draw_seed = draw_seed  # type: ignore[attr-defined]
    return noise


def folded(seed: Any, step: steps.Step) -> Any:
    """Return a seed into which the replica's number is folded."""
    import tensorflow as tf

    step.left_out.add(steps.NOISE)
    replica = tf.cast(step.context.replica_id_in_sync_group, tf.int64)
    return tf.random.experimental.stateless_fold_in(tf.cast(seed, tf.int64), replica)


def _drawing(draw: Any, stateless: Any, noise: Noise) -> Any:
    @functools.wraps(draw)
    def drawing(shape: Any, *args: Any, **kwargs: Any) -> Any:
        step = steps.current()
        if step is None:
            return draw(shape, *args, **kwargs)
        import inspect

        given = inspect.signature(draw).bind(shape, *args, **kwargs).arguments
        given.pop("seed", None)
        given.pop("name", None)
        return stateless(seed=noise.seed(step), **given)

    return drawing

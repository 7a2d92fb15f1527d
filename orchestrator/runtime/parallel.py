"""A replacement for Keras's `multi_gpu_model`, which TensorFlow has removed."""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def make_parallel(model: Any, replicas: int | None = None) -> Any:
    """Return a copy of `model`, with the same weights, that trains data-parallel on this machine's GPUs.

    Each replica takes its part of every batch, so `batch_size` stays the same. Train, evaluate and save the returned
    model; `model` itself keeps its weights. You may compile before or after; the optimizer starts without state. It
    works with Keras 3 and tf_keras, for Sequential and functional models, and for subclassed models that have a
    `get_config`.

    Args:
        model: a built model.
        replicas: how many GPUs to use; all by default. Without a GPU, logical CPUs are used.

    Raises:
        ValueError: there are too few devices, or the model is not built or cannot be copied.
    """
    import tensorflow as tf

    devices = _devices(tf, replicas)
    if not model.built:
        raise ValueError(
            f"{model.name} is not built, so it has no weights yet: call it on a batch, or build() it"
        )
    strategy = tf.distribute.MirroredStrategy(devices)
    with strategy.scope():
        copy = _copied(model)
        copy.set_weights(model.get_weights())
        if getattr(model, "optimizer", None) is not None:
            copy.compile_from_config(model.get_compile_config())
    copy.compile = _within(strategy, copy.compile)
    return copy


def _devices(tf: Any, replicas: int | None) -> list[str]:
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    found = [device.name for device in tf.config.list_logical_devices(kind)]
    if replicas is None:
        return found
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1; got {replicas}")
    if replicas > len(found):
        way = (
            "ask for fewer"
            if kind == "GPU"
            else "give `replicas_on_cpu` in the spec, or call tf.config.set_logical_device_configuration first"
        )
        raise ValueError(
            f"{replicas} replicas need as many devices; there are {len(found)} {kind}s here: {way}"
        )
    return found[:replicas]


def _copied(model: Any) -> Any:
    try:
        copy = _keras_of(model).models.clone_model(model)
    except (ValueError, NotImplementedError, TypeError) as e:
        why = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise ValueError(
            f"{model.name} ({type(model).__name__}) cannot be copied: give its class a get_config, or build it "
            f"within tf.distribute.MirroredStrategy().scope() instead ({why})"
        ) from e
    if not copy.built:
        shapes = getattr(model, "_build_shapes_dict", None) or {
            "input_shape": getattr(model, "input_shape", None)
        }
        copy.build(*shapes.values())
    return copy


def _keras_of(model: Any) -> Any:
    """Return the library that the model comes from. A class of the script has its base class there."""
    for base in type(model).__mro__:
        top = base.__module__.partition(".")[0]
        if top in ("keras", "tf_keras"):
            return sys.modules[top]
    raise ValueError(f"{type(model).__name__} is no Keras model")


def _within(strategy: Any, compile_model: Any) -> Any:
    """Wrap `compile` to run within the strategy's scope, with an optimizer and metrics that are created there."""

    @functools.wraps(compile_model)
    def compile_within(*args: Any, **kwargs: Any) -> None:
        with strategy.scope():
            args = tuple(_made_anew(argument) for argument in args)
            compile_model(*args, **{name: _made_anew(value) for name, value in kwargs.items()})

    return compile_within


def _made_anew(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_made_anew(each) for each in argument]
    kinds = {base.__name__ for base in type(argument).__mro__}
    if kinds & {"BaseOptimizer", "Optimizer", "Metric"}:
        return type(argument).from_config(argument.get_config())
    return argument

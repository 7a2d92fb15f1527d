"""A replacement for Keras's `multi_gpu_model`, which TensorFlow has removed."""

from __future__ import annotations

import functools
import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


GROUP_KEYS = 1000
"""How many group keys a strategy may use; it takes one for each set of devices."""


def make_parallel(model: Any, replicas: int | list[int] | tuple[int, ...] | None = None) -> Any:
    """Let `model` train data-parallel on this machine's GPUs, and return it.

    Each replica takes its part of every batch, so `batch_size` stays the same. What is returned is the model itself:
    whichever name the script trains, evaluates or saves, the weights are the same ones. You may compile before or
    after; an optimizer keeps its state. It works with Keras 3 and tf_keras, for any built model.

    Args:
        model: a built model.
        replicas: how many GPUs to use, or their numbers; all by default. Without a GPU, logical CPUs are used.

    Raises:
        ValueError: there are too few devices, or the model is not built.
    """
    import tensorflow as tf

    devices = _devices(tf, list(replicas) if isinstance(replicas, (list, tuple)) else replicas)
    if not model.built:
        raise ValueError(
            f"{model.name} is not built, so it has no weights yet: call it on a batch, or build() it"
        )
    keep_apart(tf.distribute.MirroredStrategy)
    strategy = tf.distribute.MirroredStrategy(devices)
    mirror = (_Mirror3 if _keras_of(model) == "keras" else _Mirror2)(strategy)
    mirror.mirror_model(model)
    if not hasattr(model.compile, "_orch_strategy"):
        model.compile = _within(model.compile)
    model.compile._orch_strategy[:] = [mirror]
    return model


def keep_apart(strategy: Any) -> None:
    """Give each MirroredStrategy of a process group keys of its own.

    TensorFlow counts them from 1 in each, so that the collectives of a second one with more devices or fewer would join
    the groups of the first, and fail.
    """
    init = strategy.__init__
    if hasattr(init, "_orch_keys"):
        return
    made = itertools.count()

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self._collective_key_base:
            self._collective_key_base = next(made) * GROUP_KEYS
        init(self, *args, **kwargs)

    __init__._orch_keys = made  # type: ignore[attr-defined]
    strategy.__init__ = __init__


def multi_gpu_model(
    model: Any, gpus: int | list[int] | tuple[int, ...] | None = None, **_placement: Any
) -> Any:
    """Do what `keras.utils.multi_gpu_model` did, by its old name and signature: see `make_parallel`.

    Args:
        model: a built model.
        gpus: how many GPUs to use, or their numbers; all by default.
        _placement: `cpu_merge` and `cpu_relocation`, which placed the weights; a strategy does so by itself.
    """
    return make_parallel(model, gpus)


def _devices(tf: Any, replicas: int | list[int] | None) -> list[str]:
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    devices = [device.name for device in tf.config.list_logical_devices(kind)]
    if replicas is None:
        return devices
    odd = [
        number for number in _flat([replicas]) if isinstance(number, bool) or not hasattr(number, "__index__")
    ]
    if odd:
        raise ValueError(
            f"{odd[0]!r} is no number of {kind}s: give how many, such as 2, or a list of whole numbers, such as [0, 1]"
        )
    if isinstance(replicas, list):
        if (
            not replicas
            or len(set(replicas)) < len(replicas)
            or not set(replicas) <= set(range(len(devices)))
        ):
            raise ValueError(f"the {kind}s here are 0 to {len(devices) - 1}; got {replicas}")
        return [devices[number] for number in replicas]
    if replicas < 1:
        raise ValueError(f"replicas must be at least 1; got {replicas}")
    if replicas > len(devices):
        way = (
            "ask for fewer"
            if kind == "GPU"
            else "give `replicas_on_cpu` in the spec, or call tf.config.set_logical_device_configuration first"
        )
        raise ValueError(
            f"{replicas} replicas need as many devices; there are {len(devices)} {kind}s here: {way}"
        )
    return devices[:replicas]


def _keras_of(model: Any) -> str:
    """Return the library that the model comes from. A class of the script has its base class there."""
    for base in type(model).__mro__:
        top = base.__module__.partition(".")[0]
        if top in ("keras", "tf_keras"):
            return top
    raise ValueError(f"{type(model).__name__} is no Keras model")


def _within(compile_model: Any) -> Any:
    """Wrap `compile` to run within the strategy's scope, with an optimizer and metrics that it mirrors."""

    @functools.wraps(compile_model)
    def compile_within(*args: Any, **kwargs: Any) -> None:
        (mirror,) = compile_within._orch_strategy  # type: ignore[attr-defined]
        for argument in _flat([*args, *kwargs.values()]):
            if _is_stateful(argument):
                mirror.mirror_part(argument)
        with mirror.strategy.scope():
            compile_model(*args, **kwargs)

    compile_within._orch_strategy = []  # type: ignore[attr-defined]
    return compile_within


def _flat(values: Any) -> Iterator[Any]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (list, tuple, dict)):
            yield from _flat(value)
        else:
            yield value


def _is_stateful(value: Any) -> bool:
    return bool({base.__name__ for base in type(value).__mro__} & {"BaseOptimizer", "Optimizer", "Metric"})


def _copy(value: Any) -> Any:
    """Return a tensor with memory of its own. `numpy()` shows that of the variable, which both would then write to."""
    import tensorflow as tf

    return tf.raw_ops.DeepCopy(x=value)


class _Mirror3:
    """Puts a model of Keras 3 under the strategy: each of its variables holds one of TensorFlow, which is replaced."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def mirror_model(self, model: Any) -> None:
        """Mirror the variables of a model and of its optimizer."""
        self._replace(model.variables)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            self.mirror_part(optimizer)
        for layer in model._flatten_layers():
            if hasattr(layer, "_distribute_strategy"):
                layer._distribute_strategy = self.strategy
                layer.train_function = layer.test_function = layer.predict_function = None

    def mirror_part(self, part: Any) -> None:
        """Mirror the variables of an optimizer or a metric."""
        self._replace(part.variables)
        optimizers: list[Any] = [part, getattr(part, "inner_optimizer", None)]
        for optimizer in optimizers:
            if hasattr(optimizer, "_distribution_strategy"):
                optimizer._distribution_strategy = self.strategy
                if getattr(optimizer, "built", False):
                    optimizer._trainable_variables_indices = {
                        optimizer._var_key(variable): place
                        for place, variable in enumerate(optimizer._trainable_variables)
                    }

    def _replace(self, variables: Any) -> None:
        import tensorflow as tf

        with self.strategy.scope():
            for variable in variables:
                if getattr(variable.value, "distribute_strategy", None) is not self.strategy:
                    variable._value = tf.Variable(
                        functools.partial(_copy, variable.value.numpy()),
                        dtype=variable.value.dtype,
                        trainable=variable.trainable,
                        name=variable.name,
                        aggregation=variable._map_aggregation(variable.aggregation),
                        synchronization=variable._map_synchronization(variable.synchronization),
                    )


class _Mirror2:
    """Puts a model of tf_keras under the strategy: whatever of it holds a variable gets the mirrored one."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self._mirrored: dict[int, tuple[Any, Any]] = {}

    def mirror_model(self, model: Any) -> None:
        """Mirror the variables of a model and of its optimizer."""
        for layer in model._flatten_layers():
            self._replace_in(layer)
            if hasattr(layer, "_distribution_strategy"):
                layer.__dict__["_distribution_strategy"] = self.strategy
                for name in ("train_function", "test_function", "predict_function", "train_tf_function"):
                    layer.__dict__[name] = None
        if getattr(model, "optimizer", None) is not None:
            config = model.get_compile_config()
            with self.strategy.scope():
                model.compile_from_config(config)

    def mirror_part(self, part: Any) -> None:
        """Mirror the variables of an optimizer or a metric."""
        self._replace_in(part)
        if hasattr(part, "_distribution_strategy"):
            part.__dict__["_distribution_strategy"] = self.strategy
        if hasattr(part, "_mesh"):
            part._index_dict = {}

    def _replace_in(self, owner: Any) -> None:
        for name, value in list(vars(owner).items()):
            if name != "_self_tracked_trackables":
                vars(owner)[name] = self._replaced(value)

    def _replaced(self, value: Any) -> Any:
        import tensorflow as tf

        if isinstance(value, tf.Variable):
            import tensorflow as tf

            if getattr(value, "distribute_strategy", None) is self.strategy:
                return value
            if id(value) not in self._mirrored:
                with self.strategy.scope():
                    new = tf.Variable(
                        functools.partial(_copy, value.numpy()),
                        dtype=value.dtype,
                        trainable=value.trainable,
                        name=value.name.partition(":")[0],
                        aggregation=value.aggregation,
                        synchronization=value.synchronization,
                    )
                self._mirrored[id(value)] = (value, new)
            return self._mirrored[id(value)][1]
        if isinstance(value, list) and any(isinstance(each, tf.Variable) for each in value):
            value[:] = [self._replaced(each) for each in value]
        return value

"""Small synthetic data in the place of Keras's data sets, and libraries that draw nothing. No network is asked."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import sys
import types
from typing import Any

import numpy as np

TRAIN, TEST = 200, 48
"""200 is no multiple of the batch of 32: each epoch ends with a smaller batch."""

_NOTHING = (
    "matplotlib", "matplotlib.pyplot", "matplotlib.cm", "imageio", "IPython", "IPython.display", "ipywidgets", "pandas"
)  # fmt: skip
"""They draw; and what a script imports and does not use."""


def _images(shape: tuple[int, ...], classes: int, *, column: bool) -> Any:
    def load_data(**_: Any) -> Any:
        random = np.random.default_rng(5)

        def part(count: int) -> tuple[Any, Any]:
            x = random.integers(0, 256, (count, *shape), dtype="uint8")
            y = np.arange(count, dtype="uint8") % classes
            x[np.arange(count), y % shape[0]] = 255  # something to learn
            return x, (y[:, None] if column else y)

        return part(TRAIN), part(TEST)

    return load_data


def _texts(num_words: int | None = None, **_: Any) -> Any:
    random = np.random.default_rng(6)

    def part(count: int) -> tuple[Any, Any]:
        x = np.empty(count, dtype=object)
        for index in range(count):
            x[index] = random.integers(1, num_words or 1000, random.integers(5, 40)).tolist()
        return x, np.arange(count) % 2

    return part(TRAIN), part(TEST)


def _houses(**_: Any) -> Any:
    random = np.random.default_rng(7)
    return tuple((random.normal(size=(n, 13)), random.uniform(5, 50, n)) for n in (TRAIN, TEST))


class _Nothing(types.ModuleType):
    """Takes any call, index and attribute, and does nothing."""

    def __init__(self) -> None:
        super().__init__("nothing")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return [] if name == "__path__" else _Nothing()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Nothing()

    def __getitem__(self, _: Any) -> Any:
        return _Nothing()

    def __iter__(self) -> Any:
        return iter((_Nothing(), _Nothing()))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class NoNetwork(RuntimeError):
    """The script fetches something that is not here."""


def _refused(*words: Any, **_: Any) -> Any:
    raise NoNetwork(f"the script fetches data: {words[:2]}")


def _tfds() -> types.ModuleType:
    """Return what `import tensorflow_datasets` gets: any data set is a few small images with labels."""

    def load(name: str = "", split: Any = None, as_supervised: bool = False, **words: Any) -> Any:
        import tensorflow as tf

        def one(part: Any) -> Any:
            (x, y), (tx, ty) = _images((96, 96, 3), 10, column=False)()
            if any(word in str(part) for word in ("test", "validation")) and "train" not in str(part):
                x, y = tx, ty
            y = y.astype("int64")
            return tf.data.Dataset.from_tensor_slices((x, y) if as_supervised else {"image": x, "label": y})

        sets = [one(part) for part in split] if isinstance(split, (list, tuple)) else one(split)
        return (sets, _Nothing()) if words.get("with_info") else sets

    module = types.ModuleType("tensorflow_datasets")
    vars(module).update(load=load, disable_progress_bar=lambda: None)
    vars(module)["Split"] = types.SimpleNamespace(TRAIN="train", TEST="test", VALIDATION="validation")
    return module


def install() -> None:
    """Put all of it where scripts look for it. Files of `get_file` lie in ~/.keras (see `files.py`)."""
    import keras

    sets = keras.datasets
    for module, shape, classes, column in (
        (sets.mnist, (28, 28), 10, False),
        (sets.fashion_mnist, (28, 28), 10, False),
        (sets.cifar10, (32, 32, 3), 10, True),
        (sets.cifar100, (32, 32, 3), 100, True),
    ):
        module.load_data = _images(shape, classes, column=column)
    sets.imdb.load_data = _texts
    sets.boston_housing.load_data = _houses
    files: Any = sys.modules["keras.src.utils.file_utils"]
    files.urlretrieve = _refused
    files.validate_file = lambda *_, **__: True
    keras.utils.plot_model = lambda *_, **__: None
    missing = [name for name in _NOTHING if importlib.util.find_spec(name.partition(".")[0]) is None]
    sys.modules.update({name: _Nothing() for name in missing})
    sys.modules["tqdm"] = types.ModuleType("tqdm")  # shows progress
    vars(sys.modules["tqdm"])["tqdm"] = lambda each, **_: each
    sys.modules["tqdm.auto"] = sys.modules["tqdm"]
    sys.modules["gdown"] = types.ModuleType("gdown")
    vars(sys.modules["gdown"])["download"] = lambda *_, **__: None
    sys.modules["tensorflow_datasets"] = _tfds()


def still() -> None:
    """Switch noise and 16 bits off, and let BatchNormalization take the statistics of the whole batch."""
    import keras

    def fixed(layer: Any, name: str, value: Any) -> None:
        begin = layer.__init__

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            setattr(self, name, value)

        layer.__init__ = __init__

    _draw_constants()
    fixed(keras.layers.Dropout, "rate", 0.0)
    fixed(keras.layers.GaussianNoise, "stddev", 0.0)
    fixed(keras.layers.BatchNormalization, "synchronized", True)
    for owner in (keras.mixed_precision, keras.config):
        for name in ("set_global_policy", "set_dtype_policy"):
            if hasattr(owner, name):
                setattr(owner, name, lambda _policy: None)  # each replica rounds the sums of its own part


def _draw_constants() -> None:
    """Let what is drawn within a graph be a constant. Weights are drawn before, and stay as they are."""

    def constant(_draw: Any, words: dict[str, Any]) -> Any:
        import tensorflow as tf

        dtype = tf.as_dtype(words["dtype"])
        if "minval" in words:
            low, high = words["minval"] or 0, words["maxval"]
            value = low if high is None or dtype.is_integer else (low + high) / 2
        else:
            value = words["mean"] + words["stddev"] / 2
        return tf.fill(words["shape"], tf.cast(value, dtype))

    _patch_draws(constant, stateless_too=True)


def redrawn(number: int) -> None:
    """Draw other noise within graphs. Weights are drawn before, and stay as they are."""
    import tensorflow as tf

    drawn = itertools.count(1000 * number)

    def other(draw: Any, words: dict[str, Any]) -> Any:
        return draw(**{**words, "seed": next(drawn)})

    _patch_draws(other, stateless_too=False)
    generators: Any = sys.modules["keras.src.random.seed_generator"]
    draw_seed = generators.draw_seed

    @functools.wraps(draw_seed)
    def draw_other_seed(seed: Any) -> Any:
        own = draw_seed(seed)
        return own + 1000 * number if tf.inside_function() and not isinstance(seed, int) else own

    for module in list(sys.modules.values()):
        if getattr(module, "draw_seed", None) is draw_seed:
            vars(module)["draw_seed"] = draw_other_seed


def _patch_draws(made: Any, *, stateless_too: bool) -> None:
    """Let `made(draw, words)` draw for TensorFlow's functions, within graphs only."""
    import tensorflow as tf
    from tensorflow.python.ops import random_ops

    def patched(draw: Any) -> Any:
        @functools.wraps(draw)
        def drawing(*args: Any, **kwargs: Any) -> Any:
            if not tf.inside_function():
                return draw(*args, **kwargs)
            given = inspect.signature(draw).bind(*args, **kwargs)
            given.apply_defaults()
            return made(draw, given.arguments)

        return drawing

    for kind in ("normal", "uniform", "truncated_normal"):
        if stateless_too:
            setattr(tf.random, f"stateless_{kind}", patched(getattr(tf.random, f"stateless_{kind}")))
        plain = f"random_{kind}" if kind != "truncated_normal" else kind
        drawing = patched(getattr(random_ops, plain))
        setattr(random_ops, plain, drawing)
        setattr(tf.random, kind, drawing)

"""Small synthetic data in the place of Keras's data sets, and a matplotlib that draws nothing. No network is asked."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np

TRAIN, TEST = 200, 48
"""200 is no multiple of the batch of 32: each epoch ends with a smaller batch."""


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


class NoNetwork(RuntimeError):
    """The script fetches something that is not here."""


def _refused(*words: Any, **_: Any) -> Any:
    raise NoNetwork(f"the script fetches data: {words[:2]}")


def install() -> None:
    """Put all of it where scripts look for it."""
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
    keras.utils.get_file = _refused
    keras.utils.plot_model = lambda *_, **__: None
    for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.cm"):
        sys.modules[name] = _Nothing()

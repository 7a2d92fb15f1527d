"""Seeds random numbers and sorts lists of files: what a script gets is equal on all workers, and after a restart.

A script that shuffles before `fit`, draws the size of a layer, or reads all files of a directory would otherwise see
another data set or build another model on each worker.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import sys
import uuid

from orchestrator.both.script import is_of_script
from orchestrator.task.transparent.files import replace_everywhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

SEED = 20151109
"""The seed until the script sets one. All workers and restarts share it, or each would shuffle differently."""


def install(library: str, report: Reporter, folder: str) -> None:
    """Seed the global generators, and all that a script in `folder` makes without a seed."""
    sys.modules[library].utils.set_random_seed(SEED)
    equal_generators()
    equal_names(folder)
    equal_order()
    report("seed", f"random seeds are {SEED} on all workers, until the script sets its own")


def equal_generators() -> None:
    """Make the n-th `default_rng()`, `RandomState()`, `SeedSequence()` and `random.Random()` equal on all workers.

    They ignore the global seeds, and ask the operating system.
    """
    import numpy as np

    drawn: Any = np.random.bit_generator
    drawn.randbits = random.Random(SEED).getrandbits
    seed, seeds = random.Random.seed, random.Random(SEED)

    @functools.wraps(seed)
    def seed_equally(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and not isinstance(self, random.SystemRandom) and not _for_temporary_files():
            a = seeds.getrandbits(128)
        seed(self, a, version)

    random.Random.seed = seed_equally  # type: ignore[method-assign]
    random.seed = functools.partial(seed_equally, random._inst)


def equal_order() -> None:
    """Sort what directories hold: each file system lists it in an order of its own.

    `glob`, `os.walk` and `pathlib` read directories by these two functions. `pathlib` of Python 3.10 holds its own.
    """
    listdir, scandir = os.listdir, os.scandir

    @functools.wraps(scandir)
    def sorted_scandir(*args: Any, **kwargs: Any) -> _Entries:
        with scandir(*args, **kwargs) as entries:
            return _Entries(sorted(entries, key=lambda entry: entry.name))

    pairs: list[tuple[Any, Any]] = [(listdir, _in_order(listdir)), (scandir, sorted_scandir)]
    of_pathlib = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
    for function, in_order in pairs:
        if function in os.supports_fd:
            os.supports_fd.add(in_order)
        setattr(os, function.__name__, in_order)
        if of_pathlib is not None:
            setattr(of_pathlib, function.__name__, staticmethod(in_order))
    tensorflow = sys.modules.get("tensorflow.python.lib.io.file_io")
    if tensorflow is not None:
        for listing in (tensorflow.list_directory_v2, tensorflow.get_matching_files_v2):
            replace_everywhere(listing, _in_order(listing))


class _Entries:
    """The entries of a directory, as `os.scandir` returns them."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def close(self, *_error: object) -> None:
        self._entries = iter(())

    __enter__, __exit__ = __iter__, close


def _in_order(listing: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(listing)
    def in_order(*args: Any, **kwargs: Any) -> list[Any]:
        return sorted(listing(*args, **kwargs))

    return in_order


def state() -> list[Any]:
    """Return the state of the process's generators, for JSON."""
    import numpy as np

    numbers: Any = np.random.get_state()
    name, keys, *rest = numbers
    return [[name, keys.tolist(), *rest], *(each.getstate() for each in _generators())]


def restore(states: list[Any]) -> None:
    """Set the generators to what `state` returned."""
    import numpy as np

    numbers, *others = states
    np.random.set_state(tuple(numbers))
    for generator, (version, internal, following) in zip(_generators(), others, strict=False):
        generator.setstate((version, tuple(internal), following))


def _generators() -> list[random.Random]:
    """Return Python's generator, that of TensorFlow's operations, and that of tf_keras's layers."""
    from tensorflow.python.eager import context

    layers = getattr(sys.modules.get("tf_keras.src.backend"), "_SEED_GENERATOR", None)
    of_libraries = (getattr(context.context(), "_rng", None), getattr(layers, "generator", None))
    return [random._inst, *(each for each in of_libraries if each is not None)]


def _for_temporary_files() -> bool:
    """Return whether `tempfile` makes a generator: the names that it draws had better differ."""
    maker = sys._getframe(
        2
    ).f_back  # of Random.__init__, which has called `seed_equally`, which has called this
    return maker is not None and maker.f_globals.get("__name__") == "tempfile"


def equal_names(folder: str) -> None:
    """Make the n-th `uuid.uuid4()` of the script that of this run: the name of a directory, say, is then one name."""
    original, numbers = uuid.uuid4, itertools.count()

    @functools.wraps(original)
    def uuid4() -> uuid.UUID:
        if not is_of_script(sys._getframe(1).f_code.co_filename, folder):
            return original()
        name = f"{os.environ.get('ORCH_RUN')} {next(numbers)}"
        return uuid.UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4)

    uuid.uuid4 = uuid4

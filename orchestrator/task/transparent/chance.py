"""Seeds random numbers: what a script draws without a seed is equal on all workers, and after a restart.

A script that shuffles before `fit`, or draws the size of a layer, would otherwise see another data set or build another
model on each worker.
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

SEED = 20151109
"""The seed until the script sets one. All workers and restarts share it, or each would shuffle differently."""


def install(library: str, report: Reporter, folder: str) -> None:
    """Seed the global generators, and all that a script in `folder` makes without a seed."""
    sys.modules[library].utils.set_random_seed(SEED)
    equal_generators()
    equal_names(folder)
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

"""`transparent: true`: an unchanged single-machine Keras script trains under a strategy.

The strategy is built, seeds are set, and the script runs within the strategy's scope. Keras is patched in four
places, each in its own module: the data (`data`), saved files (`files`), resuming after a restart (`fit`, `backup`),
and the gradients of a `train_step` that the script defines (`gradients`). Each change is reported once.
"""

from __future__ import annotations

import functools
import json
import os
import sys

from orchestrator.runtime.transparent.said import Said
from orchestrator.runtime.transparent.strategy import build, refuse_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.link import Link
    from orchestrator.runtime.script import Imports, Script

SEED = 20151109
"""The seed until the script sets one. All workers and restarts share it, or each would shuffle differently."""


def run(script: Script, arguments: list[str], link: Link, options: dict[str, Any]) -> None:
    """Run the script with the options of ORCH_RUNTIME. Its exceptions pass through."""
    said = Said(link)
    strategy = prepare(script.imports(), options, said, os.path.basename(script.path))
    with strategy.scope():
        script.run(arguments)


def prepare(imports: Imports, options: dict[str, Any], said: Said, script: str) -> Any:
    """Build the strategy, apply all patches, and return the strategy."""
    from orchestrator.runtime.transparent import data, files, fit, gradients

    library = library_of(imports)
    strategy = build(options, said)
    __import__(library)
    _seed(library, said)
    refuse_others(said, script)
    data.shard(strategy, said)
    chief = is_chief(os.environ.get("TF_CONFIG"))
    if not chief:
        files.redirect(library, said)
    gradients.install(library, strategy, said, script)
    fit.install(library, strategy, options, said, chief)
    return strategy


def library_of(imports: Imports) -> str:
    """Return `keras` (Keras 3), or `tf_keras` where the script or the environment asks for it."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if "tf_keras" in imports.named or (legacy and "keras" not in imports.sure):
        return "tf_keras"
    return "keras"


def is_chief(tf_config: str | None) -> bool:
    """Return whether this process saves: it is the chief, else worker 0, else the only process."""
    found = json.loads(tf_config) if tf_config else {}
    cluster, task = found.get("cluster") or {}, found.get("task") or {}
    if not cluster or task.get("type") == "chief":
        return True
    return not cluster.get("chief") and task.get("type") == "worker" and int(task.get("index", 0)) == 0


def _seed(library: str, said: Said) -> None:
    sys.modules[library].utils.set_random_seed(SEED)
    equal_generators()
    said("seed", f"random seeds are {SEED} on all workers, until the script sets its own")


def equal_generators() -> None:
    """Make the n-th `numpy.random.default_rng()` without a seed equal on all workers.

    It ignores NumPy's global seed. If a script shuffled with it before `fit`, each worker would take its shard of a
    different order, so some examples would be used twice and others never.
    """
    import numpy as np

    original, seeds = np.random.default_rng, np.random.SeedSequence(SEED)

    @functools.wraps(original)
    def default_rng(seed: Any = None) -> Any:
        return original(seeds.spawn(1)[0] if seed is None else seed)

    np.random.default_rng = default_rng

"""`transparent: true`: an unchanged single-machine Keras script trains under a strategy.

The strategy is built, seeds are set, and the script runs within the strategy's scope. Keras is patched in four
places, each in its own module: the data (`data`), saved files (`files`), resuming after a restart (`fit`, `backup`),
and the gradients of a `train_step` that the script defines (`gradients`). Each change is reported once.
"""

from __future__ import annotations

import json
import os
import sys

from orchestrator.task.transparent.said import Said
from orchestrator.task.transparent.strategy import build, enter_for_good, mean_over_workers, replace_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.both.script import Imports, Script
    from orchestrator.task.link import Link


def run(script: Script, arguments: list[str], link: Link, options: dict[str, Any]) -> None:
    """Run the script with the options of ORCH_RUNTIME. Its exceptions pass through."""
    said = Said(link)
    strategy = prepare(script.imports(), options, said, script)
    enter_for_good(strategy)
    try:
        script.run(arguments)
    except SystemExit as e:
        if not e.code:
            _wait_for_others(strategy)
        raise
    except Exception as e:
        # TensorFlow makes another error of one that is raised while it converts a function (tf_keras does that).
        if said.refused is not None and e is not said.refused and str(said.refused) in str(e):
            raise said.refused from e
        raise
    _wait_for_others(strategy)


def _wait_for_others(strategy: Any) -> None:
    """Wait until all workers have come to the end of the script.

    A worker that leaves while another one has not received its last collective takes the strategy's services with it,
    and that one waits for ever.
    """
    import tensorflow as tf

    try:
        mean_over_workers(strategy, 0.0)
    except tf.errors.OpError as e:
        print(f"orch: a worker ended before the others had done: {e.message}", file=sys.stderr)


def prepare(imports: Imports, options: dict[str, Any], said: Said, script: Script) -> Any:
    """Build the strategy, apply all patches, and return the strategy."""
    from orchestrator.task.transparent import (
        batches,
        chance,
        data,
        empty_shares,
        figures,
        files,
        fit,
        gradients,
        noise,
        recording,
        settings_of_tensorflow,
    )
    from orchestrator.task.transparent.rescue import Rescue
    from orchestrator.task.transparent.setting import Setting

    name = os.path.basename(script.path)

    library = library_of(imports)
    strategy = build(options, said)
    __import__(library)
    chance.install(library, said, script.folder)
    replace_others(strategy, said, name)
    settings_of_tensorflow.install(said, name, script.folder)
    data.shard(strategy, said)
    data.copy_generated()
    chief = is_chief(os.environ.get("TF_CONFIG"))
    places = files.install(library, strategy, chief, said)
    if not chief:
        recording.leave_to_chief(said)
    files.collect_summaries(library, said)
    gradients.install(library, said, name, script.folder)
    figures.install(library, said, name, script.folder)
    random = noise.install(library, strategy)
    rescue = Rescue.of_this_task()
    batches.install(library, strategy, said, random, script.folder, rescue)
    setting = Setting(library, strategy, options, said, chief, random, rescue)
    empty_shares.install(strategy)
    setting.shrink.install(library, strategy)
    fit.install(setting, places, script.folder)
    return strategy


def library_of(imports: Imports) -> str:
    """Return `keras` (Keras 3), or `tf_keras` where the script or the environment asks for it."""
    legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    if "tf_keras" in imports.named or (legacy and "keras" not in imports.sure):
        return "tf_keras"
    return "keras"


def is_chief(tf_config: str | None) -> bool:
    """Return whether this process saves: it is the chief, else worker 0, else the only process."""
    config = json.loads(tf_config) if tf_config else {}
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    if not cluster or task.get("type") == "chief":
        return True
    return not cluster.get("chief") and task.get("type") == "worker" and int(task.get("index", 0)) == 0

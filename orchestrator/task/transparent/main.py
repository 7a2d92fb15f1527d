"""`transparent: true`: an unchanged single-machine Keras script trains under a strategy.

The strategy is built, seeds are set, and the script runs within the strategy's scope. Keras is patched in four
places, each in its own module: the data (`data`), saved files (`files`), resuming after a restart (`fit`, `backup`),
and the gradients of a `train_step` that the script defines (`gradients`). Each change is reported once.
"""

from __future__ import annotations

import json
import os
import sys

from orchestrator.task import this_task
from orchestrator.task.transparent.reporter import Reporter
from orchestrator.task.transparent.strategy import build, enter_for_good, mean_over_workers, replace_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.both.script import Imports, Script
    from orchestrator.task.link import Link


def run(script: Script, arguments: list[str], link: Link, options: dict[str, Any]) -> None:
    """Run the script with the options of ORCH_RUNTIME. Its exceptions pass through."""
    report = Reporter(link)
    strategy = prepare(script.imports(), options, report, script)
    enter_for_good(strategy)
    try:
        script.run(arguments)
    except SystemExit as e:
        if not e.code:
            _wait_for_others(strategy)
        raise
    except Exception as e:
        # TensorFlow makes another error of one that is raised while it converts a function (tf_keras does that).
        if report.refused is not None and e is not report.refused and str(report.refused) in str(e):
            raise report.refused from e
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


def prepare(imports: Imports, options: dict[str, Any], report: Reporter, script: Script) -> Any:
    """Build the strategy, apply all patches, and return the strategy."""
    from orchestrator.task.transparent import (
        batches,
        chance,
        data,
        empty_shares,
        figures,
        files,
        first_batch,
        fit,
        gradients,
        noise,
        proof,
        recording,
        settings_of_tensorflow,
    )
    from orchestrator.task.transparent.rescue import Rescue
    from orchestrator.task.transparent.setting import Setting

    name = os.path.basename(script.path)

    library = library_of(imports)
    strategy = build(options, report)
    __import__(library)
    chance.install(library, report, script.folder)
    replace_others(strategy, report, name)
    settings_of_tensorflow.install(report, name, script.folder)
    data.shard(strategy, report)
    data.copy_generated()
    first_batch.install(strategy)
    chief = is_chief(os.environ.get("TF_CONFIG"))
    places = files.install(library, strategy, chief, report)
    if not chief:
        recording.leave_to_chief(report)
    files.collect_summaries(library, report)
    gradients.install(library, report, name, script.folder)
    figures.install(library, report, name, script.folder)
    random = noise.install(library, strategy)
    rescue = Rescue.of_this_task()
    setting = Setting(library, strategy, options, report, chief, random, rescue, script.folder)
    proves = options.get("proves", False) if not (options.get("prove") or options.get("measure")) else False
    proofs = None
    if proves:
        failed = _of_this_task("proof-without-memory")
        proofs = proof.Proofs(strategy, chief, proves in (True, "on"), setting.proved_before(), failed)
    if proofs is not None and library == "keras":
        proof.install()
    batches.install(library, strategy, report, random, script.folder, rescue, proofs)
    empty_shares.install(strategy)
    setting.shrink.install(library, strategy)
    fit.install(setting, places, script.folder)
    return strategy


def _of_this_task(name: str) -> str:
    """Return the path of a file that the next generation of this task finds; empty where none would."""
    task = this_task.directory()
    return os.path.join(task, name) if task is not None else ""


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

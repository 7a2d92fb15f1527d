"""Ends a task that trains a copy of its own although it has peers, before its first step."""

from __future__ import annotations

import os
import sys

from orchestrator.task import this_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OTHER_WAYS = ("horovod", "mpi4py", "byteps")
"""Libraries by which a script may share its gradients without a strategy."""

_OF_PEERS = ("CollectiveAllReduce", "MultiWorkerMirrored", "ParameterServer")
"""How the classes of strategies begin that share a training with peers; those of `tf.compat.v1` too."""


class Alone(RuntimeError):
    """No strategy was made that shares the training with the peers."""

    orch_kind = "unsupported"


def refuse(model: Any) -> None:
    """Raise Alone where several tasks are to train together by TensorFlow, and this model is in no strategy for it."""
    options = this_task.options
    tf_class = options.get("tf_class")
    if this_task.strategy is not None or options.get("transparent") or not tf_class or this_task.link is None:
        return
    of_model = type(getattr(model, "distribute_strategy", None)).__name__
    if of_model.startswith(_OF_PEERS):
        return
    workers = _workers()
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if workers < 2 or not path or not sys.modules.keys().isdisjoint(_OTHER_WAYS):
        return
    from orchestrator.both.distribution import distribution

    module = getattr(sys.modules["__main__"], "__package__", None)
    try:
        found = distribution(path, os.getcwd() if module else "")
    except OSError:
        return
    if found.has_peers or found.joins_otherwise:
        return
    said = found.copies(os.path.basename(path), options.get("strategy", ""), tf_class, workers, late=True)
    raise Alone(f"{said}; {found.way_out(tf_class, '`transparent: true`')}")


def _workers() -> int:
    """Return how many tasks train together with this one; 0 if it only evaluates, or others only serve it."""
    import json

    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster = config.get("cluster") or {}
    if "ps" in cluster or (config.get("task") or {}).get("type") == "evaluator":
        return 0
    return len(cluster.get("worker", ())) + len(cluster.get("chief", ()))

"""Ends a task that trains a copy of its own although it has peers, before its first step."""

from __future__ import annotations

import os
import sys

from orchestrator.task import this_task

_OTHER_WAYS = ("horovod", "mpi4py", "byteps")
"""Libraries by which a script may share its gradients without a strategy."""


class Alone(RuntimeError):
    """No strategy was made that shares the training with the peers."""

    orch_kind = "unsupported"


def refuse() -> None:
    """Raise Alone where several tasks are to train together by TensorFlow, and this one made no strategy for it."""
    options = this_task.options
    tf_class = options.get("tf_class")
    if this_task.strategy is not None or options.get("transparent") or not tf_class or this_task.link is None:
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

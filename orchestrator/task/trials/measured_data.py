"""What `fit` is given, for who measures it: its batch size, and one batch of it, repeated."""

from __future__ import annotations

import sys

from orchestrator.task.keras.fit_arguments import DEFAULT_BATCH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def _is_dataset(x: Any) -> bool:
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(x, tf.data.Dataset)


def _are_arrays(x: Any) -> bool:
    parts = list(x.values()) if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else [x]
    return bool(parts) and all(hasattr(part, "shape") and hasattr(part, "__getitem__") for part in parts)


def batch_of(given: Mapping[str, Any]) -> int | None:
    """Return how many examples a step of this `fit` takes, of all replicas together; None where it cannot be told."""
    x = given.get("x")
    if _is_dataset(x):
        from tensorflow.python.data.experimental.ops import distribute

        size = int(distribute.compute_batch_size(x))
        return size if size > 0 else None
    return int(given.get("batch_size") or DEFAULT_BATCH) if _are_arrays(x) else None


def one_batch(given: Mapping[str, Any]) -> Any:
    """Return a tf.data that repeats the first batch from memory; None where the data cannot be repeated."""
    x: Any = given.get("x")
    y = given.get("y")
    if _is_dataset(x):
        return x.take(1).cache().repeat()
    tf = sys.modules.get("tensorflow")
    if tf is None or not _are_arrays(x) or not _are_arrays(y):
        return None
    size = int(given.get("batch_size") or DEFAULT_BATCH)
    first = tf.nest.map_structure(lambda part: part[:size], (x, y))
    return tf.data.Dataset.from_tensors(first).repeat()

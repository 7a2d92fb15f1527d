"""How the script's data is shared among the workers, and what a batch is.

TensorFlow splits each batch of a dataset among all replicas, so that a global step takes the very examples that
a single process would take. Only where each worker can have files of its own is it otherwise.
"""

from __future__ import annotations

from orchestrator.runtime.transparent.strategy import workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from orchestrator.runtime.transparent.said import Said

_READERS = (b"TFRecordDataset", b"TextLineDataset", b"FixedLengthRecordDataset", b"SSTableDataset")


def shard(strategy: Any, said: Said) -> None:
    """Choose the auto-shard policy of each dataset that this strategy is asked to distribute."""
    workers = workers_of(strategy)
    if workers == 1:
        return
    distribute = strategy.experimental_distribute_dataset

    def distribute_sharded(dataset: Any, options: Any = None) -> Any:
        return distribute(with_policy(dataset, workers, said), options)

    strategy.experimental_distribute_dataset = distribute_sharded


def with_policy(dataset: Any, workers: int, said: Said) -> Any:
    """The dataset with FILE where every worker gets as many files, else DATA; as it is where the script chose."""
    import tensorflow as tf

    policies = tf.data.experimental.AutoShardPolicy
    asked = dataset.options().experimental_distribute.auto_shard_policy
    if asked not in (policies.AUTO, policies.FILE):
        return dataset
    policy, why = choice(files_of(dataset), workers)
    said("shard", why)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies[policy]
    return dataset.with_options(options)


def choice(files: int | None, workers: int) -> tuple[str, str]:
    """FILE or DATA, and the sentence that says why. `files`: of how many files it is; None where it is of none."""
    if files and files % workers == 0:
        each = files // workers
        return "FILE", f"a tf.data of {files} files is shared by FILE: {each} for each worker"
    many = "1 file" if files == 1 else f"{files} files"
    why = f"{many} cannot be shared evenly by {workers} workers" if files else "it is not of files"
    return "DATA", f"tf.data is shared by DATA, each worker takes its part of each batch: {why}"


def files_of(dataset: Any) -> int | None:
    """How many files it reads through TensorFlow's own readers, which FILE can share; None where it does not."""
    try:
        graph = dataset._as_serialized_graph().numpy()
    except Exception:  # a Python function in it cannot be written down; nor can FILE look into it
        return None
    if not any(reader in graph for reader in _READERS):
        return None
    counts = [count for source in _sources(dataset) if (count := _names_in(source)) is not None]
    return sum(counts) or None


def _sources(dataset: Any) -> Iterator[Any]:
    inputs = dataset._inputs()
    if not inputs or hasattr(dataset, "_filenames"):
        yield dataset
        return
    for each in inputs:
        yield from _sources(each)


def _names_in(source: Any) -> int | None:
    import tensorflow as tf

    names = getattr(source, "_filenames", None)
    if isinstance(names, tf.data.Dataset):
        names, source = None, names
    if names is not None:
        return int(tf.size(names))
    spec = source.element_spec
    if isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape.rank == 0:
        count = int(source.cardinality())
        return count if count > 0 else None
    return None


def rebatched(dataset: Any, replicas: int) -> Any:
    """The same examples in batches of `replicas` times as many; None where its batches have no known size."""
    from tensorflow.python.data.experimental.ops import distribute

    size = int(distribute.compute_batch_size(dataset))
    return dataset.rebatch(size * replicas) if size > 0 else None

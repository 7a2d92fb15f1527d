"""How the script's data is sharded among the workers, and how large a batch is.

By default, TensorFlow splits each batch of a dataset among all replicas, so a global step takes exactly the examples
that a single process would take. This differs only where each worker can read its own files.
"""

from __future__ import annotations

from orchestrator.task.transparent.strategy import workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from orchestrator.task.transparent.said import Said

_READERS = (b"TFRecordDataset", b"TextLineDataset", b"FixedLengthRecordDataset", b"SSTableDataset")

_BY_DATA = "tf.data is shared by DATA, each worker takes its part of each batch"


def shard(strategy: Any, said: Said) -> None:
    """Make the strategy choose the auto-shard policy of each dataset that it distributes."""
    workers = workers_of(strategy)
    if workers == 1:
        return
    distribute = strategy.experimental_distribute_dataset

    def distribute_sharded(dataset: Any, options: Any = None) -> Any:
        return distribute(with_policy(dataset, workers, said), options)

    strategy.experimental_distribute_dataset = distribute_sharded


def copy_generated() -> None:
    """Make datasets of Python generators copy the arrays that the generators yield.

    TensorFlow uses their memory as it is, and where a batch is shared it takes a replica's slice for a buffer that it
    may write its results to: into the script's own arrays.
    """
    import numpy as np
    import tensorflow as tf

    from_generator = tf.data.Dataset.from_generator

    def copied(leaf: Any) -> Any:
        return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf

    def from_copies(generator: Any, *args: Any, **kwargs: Any) -> Any:
        def copies(*given: Any) -> Any:
            for batch in generator(*given):
                yield tf.nest.map_structure(copied, batch)

        return from_generator(copies, *args, **kwargs)

    tf.data.Dataset.from_generator = staticmethod(from_copies)


def with_policy(dataset: Any, workers: int, said: Said) -> Any:
    """Set FILE where all workers get the same number of files, else DATA. A policy that the script chose stays."""
    import tensorflow as tf

    policies = tf.data.experimental.AutoShardPolicy
    asked = dataset.options().experimental_distribute.auto_shard_policy
    if asked not in (policies.AUTO, policies.FILE):
        return dataset
    policy, why = choice_for(dataset, workers)
    said("shard", why)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies[policy]
    return dataset.with_options(options)


def choice_for(dataset: Any, workers: int) -> tuple[str, str]:
    """Return FILE or DATA for a dataset, and a sentence that says why."""
    try:
        return choice(files_of(dataset), workers)
    except Exception as e:  # a Python function in it cannot be serialised, and FILE cannot shard it either
        return "DATA", f"{_BY_DATA}: whether it is of files cannot be told ({type(e).__name__}: {e!s:.200})"


def choice(files: int | None, workers: int) -> tuple[str, str]:
    """Return FILE or DATA, and a sentence that says why. `files` is the number of files; None: it reads none."""
    if files and files % workers == 0:
        each = files // workers
        return "FILE", f"a tf.data of {files} files is shared by FILE: {each} for each worker"
    many = "1 file" if files == 1 else f"{files} files"
    why = f"{many} cannot be shared evenly by {workers} workers" if files else "it is not of files"
    return "DATA", f"{_BY_DATA}: {why}"


def files_of(dataset: Any) -> int | None:
    """Count the files that a dataset reads with TensorFlow's own readers, which FILE can shard. None: it reads none.

    Raises whatever TensorFlow does for a dataset whose graph it cannot write, such as one with a Python function.
    """
    graph = dataset._as_serialized_graph().numpy()
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


def rebatched(dataset: Any, up: int, down: int = 1) -> Any:
    """Return the dataset with batches `up / down` times as large; None where its batch size is unknown."""
    from tensorflow.python.data.experimental.ops import distribute

    size = int(distribute.compute_batch_size(dataset))
    return dataset.rebatch(max(1, size * up // down)) if size > 0 else None

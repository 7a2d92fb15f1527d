"""How the script's data is sharded among the workers, and how large a batch is.

By default, TensorFlow splits each batch of a dataset among all replicas, so a global step takes exactly the examples
that a single process would take. This differs only where each worker can read its own files.
"""

from __future__ import annotations

import os

from orchestrator.task.transparent.strategy import workers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

_READERS = (b"TFRecordDataset", b"TextLineDataset", b"FixedLengthRecordDataset", b"SSTableDataset")

_BY_DATA = "tf.data is shared by DATA, each worker takes its part of each batch"


def shard(strategy: Any, report: Reporter) -> None:
    """Make the strategy choose the auto-shard policy of each dataset that it distributes."""
    workers = workers_of(strategy)
    if workers == 1:
        return
    distribute = strategy.experimental_distribute_dataset

    def distribute_sharded(dataset: Any, options: Any = None) -> Any:
        return distribute(with_policy(dataset, workers, report), options)

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


def with_policy(dataset: Any, workers: int, report: Reporter) -> Any:
    """Set FILE where that trains the steps of one process, else DATA. A policy that the script chose stays."""
    import tensorflow as tf

    policies = tf.data.experimental.AutoShardPolicy
    asked = dataset.options().experimental_distribute.auto_shard_policy
    if asked == policies.FILE:
        report(
            "shard",
            "a tf.data is shared by FILE, as the script asks: each worker makes batches of its own files, so where "
            "these differ in length the steps are others than those of one process (DATA takes its steps)",
        )
    options = tf.data.Options()
    if asked == policies.AUTO:
        policy, why = choice_for(dataset, workers)
        report("shard", why)
        asked = options.experimental_distribute.auto_shard_policy = policies[policy]
    if asked == policies.DATA:  # each worker takes its part of batches that must be the same on all
        options.deterministic = True
    return dataset.with_options(options)


def choice_for(dataset: Any, workers: int) -> tuple[str, str]:
    """Return FILE or DATA for a dataset, and a sentence that says why."""
    try:
        files = files_of(dataset)
        return choice(None if files is None else sizes_of(files), workers)
    except Exception as e:  # a Python function in it cannot be serialised, and FILE cannot shard it either
        return "DATA", f"{_BY_DATA}: whether it is of files cannot be told ({type(e).__name__}: {e!s:.200})"


def choice(sizes: list[int | None] | None, workers: int) -> tuple[str, str]:
    """Return FILE or DATA, and a sentence that says why.

    Args:
        sizes: of each file; None: it reads none. The size of a file in an object store is None: to ask may take long.
        workers: among how many it is shared.
    """
    if sizes is None:
        return "DATA", f"{_BY_DATA}: it is not of files"
    many = "1 file" if len(sizes) == 1 else f"{len(sizes)} files"
    if len(sizes) % workers:
        return "DATA", f"{_BY_DATA}: {many} cannot be shared evenly by {workers} workers"
    if len(set(sizes)) > 1:
        return "DATA", (
            f"{_BY_DATA}: its {many} differ in size, and shared by FILE the steps would be others than those of one "
            "process. To have each worker read its own files only, set AutoShardPolicy.FILE in the script"
        )
    unknown = "; whether they have equal lengths is not known" if None in sizes else ""
    each = len(sizes) // workers
    return "FILE", f"a tf.data of {many} is shared by FILE{unknown}: {each} for each worker"


def sizes_of(files: list[str]) -> list[int | None]:
    return [None if "://" in file else os.path.getsize(file) for file in files]


def files_of(dataset: Any) -> list[str] | None:
    """Return the files that a dataset reads with TensorFlow's own readers, which FILE can shard. None: it reads none.

    Raises whatever TensorFlow does for a dataset whose graph it cannot write, such as one with a Python function.
    """
    graph = dataset._as_serialized_graph().numpy()
    if not any(reader in graph for reader in _READERS):
        return None
    return [name for source in sources(dataset) for name in _names_in(source)] or None


def sources(dataset: Any) -> Iterator[Any]:
    """Yield the data sets that a data set is made of, which have no inputs themselves."""
    inputs = dataset._inputs()
    if not inputs or hasattr(dataset, "_filenames"):
        yield dataset
        return
    for each in inputs:
        yield from sources(each)


def changes_when_read(dataset: Any) -> bool:
    """Return whether reading a data set may change what its next iterator yields; making one always may.

    Of the kinds below, an iterator makes those of all its inputs at once, and draws the order of a shuffle then.
    """
    kind = type(dataset).__name__.strip("_").removeprefix("Parallel").removesuffix("V2")
    functions = [getattr(dataset, name, None) for name in ("_map_func", "_predicate")]
    if kind not in _DRAWN_AT_ONCE or any(map(_keeps_state, functions)):
        return True
    return any(changes_when_read(each) for each in dataset._inputs())


_DRAWN_AT_ONCE = frozenset(
    f"{kind}Dataset"
    for kind in (
        *("TensorSlice", "Tensor", "Range", "TextLine", "TFRecord", "FixedLengthRecord"),
        *(
            "Shuffle",
            "Batch",
            "PaddedBatch",
            "Map",
            "Filter",
            "Take",
            "Skip",
            "Shard",
            "Prefetch",
            "Zip",
            "Options",
        ),
        *("Rebatch", "LegacyRebatch", "Unbatch"),
    )
)


def _keeps_state(function: Any) -> bool:
    """Return whether a function of a data set calls Python, or uses a variable or another resource of the process."""
    operations = _operations_of(function)
    if operations is None:
        return function is not None
    is_python = any("PyFunc" in each for each in operations)
    return is_python or any(
        each.dtype.name == "resource" for each in function.function.graph.external_captures
    )


def _operations_of(function: Any) -> list[str] | None:
    """Return the kinds of the operations in a function of a data set; None if it has no graph."""
    graph = getattr(getattr(function, "function", None), "graph", None)
    if graph is None:
        return None
    written = graph.as_graph_def()
    return [
        node.op for node in [*written.node, *(n for each in written.library.function for n in each.node_def)]
    ]


def draws_by_turns(dataset: Any) -> bool:
    """Return whether functions that run beside each other draw from one state: whose turn comes first is not known."""
    name = "_map_func" if "Parallel" in type(dataset).__name__ else ""
    drawn = ("Assign", "EagerPyFunc", "Multinomial", "Parameterized", "PyFunc", "Random", "Rng", "Truncated")
    operations = _operations_of(getattr(dataset, name, None)) or ()
    return any(each.startswith(drawn) for each in operations) or any(map(draws_by_turns, dataset._inputs()))


def _names_in(source: Any) -> list[str]:
    import tensorflow as tf

    names = getattr(source, "_filenames", None)
    if names is not None and not isinstance(names, tf.data.Dataset):
        return [name.decode() for name in tf.reshape(names, [-1]).numpy()]
    # To iterate over a source changes nothing: the shuffles are above it.
    source = source if names is None else next(sources(names))
    spec = source.element_spec
    if not isinstance(spec, tf.TensorSpec) or spec.dtype != tf.string or spec.shape.rank != 0:
        return []
    return [name.decode() for name in source.as_numpy_iterator()] if int(source.cardinality()) > 0 else []


def rows_of(dataset: Any) -> int:
    """Return the number of examples in a batch; -1 if it is unknown before the data is read."""
    from tensorflow.python.data.experimental.ops import distribute

    return int(distribute.compute_batch_size(dataset))


def rebatched(dataset: Any, up: int, down: int = 1) -> Any:
    """Return the dataset with batches `up / down` times as large; None if its batch size is unknown."""
    size = rows_of(dataset)
    return dataset.rebatch(max(1, size * up // down)) if size > 0 else None

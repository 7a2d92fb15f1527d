"""The strategy of a transparent run. It is built from the options of ORCH_RUNTIME, and must be the only one."""

from __future__ import annotations

import contextlib
import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter


def build(options: dict[str, Any], report: Reporter) -> Any:
    """Build the strategy that the options name. The spec accepts only those that need no arguments."""
    import tensorflow as tf

    name = str(options["tf_class"])
    # It gets no arguments, so `task/strategies/devices.py` passes the plan's logical CPUs and communication.
    spaces = (tf.distribute, tf.distribute.experimental)
    strategy = next(getattr(space, name) for space in spaces if hasattr(space, name))()
    workers, replicas = workers_of(strategy), strategy.num_replicas_in_sync
    report(
        "strategy",
        f"the script runs within the scope of a {name}: {workers} worker(s), {replicas} replicas",
    )
    return strategy


def enter_for_good(strategy: Any) -> None:
    """Enter the strategy's scope, and enter it again wherever a script clears its session.

    `keras.backend.clear_session()` makes a new default graph, and the scope is a property of the graph: models that
    were built afterwards would train on each worker by themselves. The scope is not left at the end of the script,
    since the graph in which it was entered may be gone; the process ends then.
    """
    import tensorflow as tf

    reset = tf.compat.v1.reset_default_graph

    @functools.wraps(reset)
    def reset_and_enter() -> None:
        reset()
        if not tf.distribute.has_strategy():
            _enter(strategy)

    tf.compat.v1.reset_default_graph = reset_and_enter
    _enter(strategy)


def _enter(strategy: Any) -> None:
    scope = strategy.scope()
    scope.__enter__()
    _entered.append(scope)


_entered: list[Any] = []
"""The scopes that are never left, kept here since the garbage collector would leave them."""


@contextlib.contextmanager
def out_of_scope() -> Iterator[None]:
    """Leave the strategy's scope, and a replica's context, for a while. `strategy.scope()` may be entered within."""
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.framework import ops

    # The graph makes the strategy's variables, and that of a tf.function its own.
    graph = ops.get_default_graph()
    creators, graph._variable_creator_stack = graph._variable_creator_stack, []
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()
        graph._variable_creator_stack = creators


def workers_of(strategy: Any) -> int:
    """Return how many processes train together."""
    if getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)():
        return int(strategy.extended._num_workers)
    return 1


def mean_over_workers(strategy: Any, number: float) -> float:
    """Return the mean of a number over all workers, which must all call this."""
    return number if workers_of(strategy) == 1 else float(_mean_over_workers(strategy, number))


def _mean_over_workers(strategy: Any, numbers: Any) -> Any:
    import numpy as np
    import tensorflow as tf

    global _mean
    if _mean is None:
        _mean = tf.function(
            lambda value: strategy.reduce("MEAN", strategy.run(tf.identity, (value,)), axis=None),
            input_signature=[tf.TensorSpec([None], tf.float64)],
        )
    array = np.asarray(numbers, "float64")
    return _mean(tf.constant(array.ravel())).numpy().reshape(array.shape)


def rows_of_workers(strategy: Any, numbers: list[float]) -> list[list[float]]:
    """Return the numbers of each worker, in the order of `names_of_workers`. All must call this, with as many."""
    workers = workers_of(strategy)
    if workers == 1:
        return [numbers]
    rows = [[0.0] * len(numbers) for _ in range(workers)]
    rows[strategy.extended._id_in_cluster] = [number * workers for number in numbers]
    found: list[list[float]] = _mean_over_workers(strategy, rows).tolist()
    return found


def texts_of_workers(strategy: Any, text: str) -> list[str]:
    """Return the text of each worker. All must call this."""
    data = text.encode()
    sizes = [int(size) for (size,) in rows_of_workers(strategy, [float(len(data))])]
    length = -(-max(sizes) // _BYTES_IN_A_NUMBER)
    padded = data.ljust(length * _BYTES_IN_A_NUMBER)
    parts = [padded[at : at + _BYTES_IN_A_NUMBER] for at in range(0, len(padded), _BYTES_IN_A_NUMBER)]
    rows = rows_of_workers(strategy, [float(int.from_bytes(part, "little")) for part in parts])
    whole = [b"".join(round(each).to_bytes(_BYTES_IN_A_NUMBER, "little") for each in row) for row in rows]
    return [found[:size].decode() for found, size in zip(whole, sizes, strict=True)]


_BYTES_IN_A_NUMBER = 4
"""A number with a fraction holds 53 bits, of which the sum over the workers needs some."""


def names_of_workers(strategy: Any) -> list[str]:
    tasks = strategy.cluster_resolver.cluster_spec().as_dict()
    return [f"{job}:{index}" for job in ("chief", "worker") for index in range(len(tasks.get(job, ())))]


def told_by_chief(strategy: Any, chief: bool, number: float) -> float:
    """Return the chief's number in every worker. All must call this."""
    workers = workers_of(strategy)
    return mean_over_workers(strategy, number * workers if chief else 0.0) if workers > 1 else number


_mean: Any = None
"""The function of `_mean_over_workers`: TensorFlow warns of one that is traced for each length."""


_REPLACED = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "CentralStorageStrategy", "OneDeviceStrategy")
_REFUSED = ("ParameterServerStrategy", "ParameterServerStrategyV2", "TPUStrategy")
"""Strategies that need another kind of script: one with a coordinator, or with a TPU that was initialized before."""


def replace_others(strategy: Any, report: Reporter, script: str) -> None:
    """Give the script the run's strategy wherever it makes one: with two, each would get a part of the work.

    So the strategy of a script is chosen in cluster.yaml. `with strategy.scope()` nests in ours.
    """
    for strategy_class in _classes(_REPLACED):
        strategy_class.__new__ = _same(strategy, strategy_class.__name__, report, script)
        strategy_class.__init__ = _unchanged  # Python calls it where that strategy is of this class too
        # TensorFlow's own would initialize it again.
        strategy_class.__deepcopy__ = lambda _self, _memo: strategy
    for strategy_class in _classes(_REFUSED):
        strategy_class.__init__ = _refusal(strategy_class.__name__, report, script)


def _classes(names: tuple[str, ...]) -> set[Any]:
    import tensorflow as tf

    spaces = (tf.distribute, tf.distribute.experimental)
    return {getattr(space, name) for space in spaces for name in names if hasattr(space, name)}


def _same(strategy: Any, name: str, report: Reporter, script: str) -> Any:
    ours = type(strategy).__name__

    def __new__(_class: Any, *_args: Any, **_options: Any) -> Any:
        report("own-strategy", f"{script} makes a {name}: it gets the {ours} that cluster.yaml asks for")
        return strategy

    return staticmethod(__new__)


def _unchanged(_self: Any, *_args: Any, **_options: Any) -> None:
    """Do nothing: the run's strategy stays as it was built."""


def _refusal(name: str, report: Reporter, script: str) -> Any:
    def __init__(_self: Any, *_args: Any, **_options: Any) -> None:
        raise report.unsupported(
            f"{script} makes a {name}, which transparent cannot replace by another strategy: remove it from the "
            "script, or `transparent: true` from the spec"
        )

    return __init__

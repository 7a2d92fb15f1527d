"""How long a task waits for its next batch, and in collectives for its peers: what limits the pace of a run.

Both waits happen within TensorFlow's graph, where no callback sees them. So the operations that fetch a batch and that
reduce over the workers are put between two timestamps, and the time between them is added to a variable of the
process's own; outside of graphs the clock is read. That costs some microseconds a step. What cannot be timed (a
parameter server's worker, XLA, another framework) is not known, and nothing is said of it.

A collective counts from when its input is there, or from the end of the one before it: of those that wait in a row the
time counts once. On a GPU the input counts as there when its computation is queued, which tells nothing: there
collectives are not timed.
"""

from __future__ import annotations

import functools
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

DATA = "tensorflow.python.ops.gen_dataset_ops"
COLLECTIVES = "tensorflow.python.ops.collective_ops"

WINDOW_S = 2.0
"""Over how long a share is measured at least."""

_WEIGHT = 0.4
"""The weight of the newest window in a share. It is small, so that the displayed share does not jump."""

_UNTIMED = ("parameter_server", "tpu")
"""Strategies whose steps run elsewhere than where they are traced."""


class Wait:
    """The seconds that were waited for one thing."""

    def __init__(self) -> None:
        self._eager_s = 0.0
        self.variables: list[Any] = []
        """The sum, and the end of the last wait, once a graph has them."""
        self._seen_s: float | None = None
        self._seen_at = 0.0
        self._share: float | None = None

    def add(self, seconds: float) -> None:
        """Count a wait outside of graphs."""
        self._eager_s += seconds
        self.is_timed = True

    is_timed = False
    """Whether anything was timed so far."""

    def share(self, now: float) -> float | None:
        """Return the share of the last seconds; None where nothing is timed."""
        if not self.is_timed:
            return None
        if self._seen_s is None or now - self._seen_at >= WINDOW_S:
            total = self._eager_s + (float(self.variables[0].numpy()) if self.variables else 0.0)
            if self._seen_s is not None:
                newest = min(1.0, max(0.0, (total - self._seen_s) / (now - self._seen_at)))
                before = self._share
                self._share = newest if before is None else before + _WEIGHT * (newest - before)
            self._seen_s, self._seen_at = total, now
        return None if self._share is None else round(self._share, 4)


class Waits:
    """Both waits of this process."""

    def __init__(self) -> None:
        self.input, self.peers = Wait(), Wait()
        self._is_broken = False

    def shares(self) -> dict[str, float]:
        """Return the shares that are known, by their names in a report. Never raises."""
        if self._is_broken:
            return {}
        try:
            now = time.monotonic()
            found = {"input_share": self.input.share(now), "peers_share": self.peers.share(now)}
        except Exception as e:  # a measurement must not end the training
            self._is_broken = True
            print(f"orch: waits are not measured any more: {type(e).__name__}: {e}", file=sys.stderr)
            return {}
        return {name: share for name, share in found.items() if share is not None}

    def patches(self, options: Mapping[str, Any]) -> dict[str, Callable[[ModuleType], None]]:
        """Return the patches by the names of TensorFlow's modules; none where waits cannot be told."""
        if options.get("strategy") in _UNTIMED:
            return {}
        return {DATA: self._patch_data, COLLECTIVES: self._patch_collectives}

    def _patch_data(self, module: Any) -> None:
        for name in ("iterator_get_next", "iterator_get_next_as_optional"):
            setattr(module, name, _timed(getattr(module, name), self.input, _between))

    def _patch_collectives(self, module: Any) -> None:
        module.all_reduce_v2 = _timed(module.all_reduce_v2, self.peers, _after_its_input)


def _timed(original: Any, wait: Wait, in_graph: Any) -> Any:
    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        if tf.executing_eagerly():
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                wait.add(time.perf_counter() - began)
        try:
            ready = _prepared(wait, tf)
        except Exception as e:
            ready = False
            print(f"orch: a wait is not measured: {type(e).__name__}: {e}", file=sys.stderr)
        return in_graph(original, args, kwargs, wait, tf) if ready else original(*args, **kwargs)

    return timed


def _prepared(wait: Wait, tf: Any) -> bool:
    """Return whether this graph can be timed, and make the variables for it."""
    graph = tf.compat.v1.get_default_graph()
    if not tf.compat.v1.executing_eagerly_outside_functions() or "Dataset" in str(getattr(graph, "name", "")):
        return False
    if _is_compiled() or "ParameterServer" in type(tf.distribute.get_strategy()).__name__:
        return False
    if not wait.variables:
        wait.variables = _variables(tf)
    wait.is_timed = True
    return True


def _is_compiled() -> bool:
    """Return whether XLA compiles a function that is traced now: it knows no timestamps."""
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        # No attribute of any other object may be read: reading one of a distributed variable may start an all-reduce,
        # for which this one would wait.
        if type(owner).__name__ == "Function" and vars(owner).get("_jit_compile") is True:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _variables(tf: Any) -> list[Any]:
    """Make variables of this process, on its CPU, whatever strategy is in scope."""
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.framework import ops

    with tf.init_scope():
        outer = ops.get_default_graph()
        creators, outer._variable_creator_stack = outer._variable_creator_stack, []
        distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
        try:
            with tf.device("/device:CPU:0"):
                return [tf.Variable(0.0, dtype=tf.float64, trainable=False, name="orch_wait") for _ in "ab"]
        finally:
            distribute_lib._pop_per_thread_mode()
            outer._variable_creator_stack = creators


def _between(original: Any, args: Any, kwargs: Any, wait: Wait, tf: Any) -> Any:
    """Fetch a batch between two timestamps. The replicas of a process wait at the same time."""
    with tf.device("/device:CPU:0"):
        began = tf.timestamp()
    with tf.control_dependencies([began]):
        found = original(*args, **kwargs)
    with tf.device("/device:CPU:0"), tf.control_dependencies(tf.nest.flatten(found)):
        waited = tf.timestamp() - began
        wait.variables[0].assign_add(waited / _replicas_here(tf), read_value=False)
    return found


def _replicas_here(tf: Any) -> float:
    strategy = tf.distribute.get_strategy()
    workers = int(getattr(strategy.extended, "_num_workers", 1) or 1)
    return float(max(1, strategy.num_replicas_in_sync // workers))


def _after_its_input(original: Any, args: Any, kwargs: Any, wait: Wait, tf: Any) -> Any:
    given = args[0] if args else kwargs.get("t")
    # The collectives of several replicas of one process wait for each other. A write to one variable after each of them
    # would make them run one after the other, and so block for ever.
    if _replicas_here(tf) > 1 or tf.config.list_logical_devices("GPU") or not tf.is_tensor(given):
        wait.is_timed = False
        return original(*args, **kwargs)
    total, last = wait.variables
    with tf.device("/device:CPU:0"), tf.control_dependencies([given]):
        began = tf.timestamp()
    # Nothing of ours comes before it, so that nothing of ours can hold it up.
    found = original(*args, **kwargs)
    with tf.device("/device:CPU:0"), tf.control_dependencies([found]):
        ended = tf.timestamp()
        since = tf.maximum(began, last.read_value())
        total.assign_add(tf.maximum(ended - since, 0.0), read_value=False)
        last.assign(tf.maximum(last.read_value(), ended), read_value=False)
    return found

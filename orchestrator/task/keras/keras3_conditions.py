"""Fixes conditions in the optimizers of Keras 3 (`gradient_accumulation_steps`) where replicas meet in a branch.

TensorFlow does not allow the replicas of a process to synchronise (as each update of a weight does) within a branch of
a condition that each replica evaluates by itself. All replicas have the same counts, so the first one's condition holds
for all: they leave the replica context for one common condition, and continue as replicas within its branches.

Under CentralStorageStrategy that would not help: there an accumulator has one copy for all replicas. It does help where
the gradients are those of the whole batch already, as under `transparent: true`.
"""

from __future__ import annotations

import sys

from orchestrator.both import keras_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from orchestrator.task.link import Link

_MIRRORED = ("MirroredStrategy", "CollectiveAllReduceStrategy", "MultiWorkerMirroredStrategy")


def patch(optimizers: ModuleType, link: Link) -> None:
    """Replace what the module `keras.src.optimizers.base_optimizer` knows as `ops`."""
    optimizers.ops = _Together(optimizers.ops, link)  # type: ignore[attr-defined]


def patch_everywhere() -> None:
    """Let the patch hold under every strategy, since the gradients of all replicas are equal."""
    global _everywhere
    _everywhere = True


_everywhere = False


class _Together:
    """Replaces `keras.ops` in the optimizers: a condition in a replica becomes one for all replicas."""

    def __init__(self, ops: Any, link: Link) -> None:
        self._ops = ops
        self._link = link
        self._is_said = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def cond(self, condition: Any, true_fn: Any, false_fn: Any) -> Any:
        context = _replica()
        if context is None:
            return self._ops.cond(condition, true_fn, false_fn)
        if not self._is_said:
            self._is_said = True
            message = (
                f"the optimizers of Keras {_version()} were patched (gradient_accumulation_steps fails under "
                "mirrored strategies without it)"
            )
            self._link.say("keras3-patched", message)

        def for_all(strategy: Any, conditions: Any, branches: Any) -> None:
            def branch(place: int) -> Any:
                def in_each_replica() -> None:
                    strategy.extended.call_for_each_replica(_run, args=(branches, place))

                return in_each_replica

            self._ops.cond(strategy.experimental_local_results(conditions)[0], branch(0), branch(1))

        return context.merge_call(for_all, args=(condition, _Branches(true_fn, false_fn)))


def _replica() -> Any:
    """Return this replica's context; None outside of a replica, and for versions that were not tested."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not tf.distribute.has_strategy():
        return None
    named = type(tf.distribute.get_strategy()).__name__
    tested = named.startswith(_MIRRORED) and keras_versions.patched(_version())
    return tf.distribute.get_replica_context() if tested or _everywhere else None


def _version() -> str:
    return str(sys.modules["keras.src.version"].__version__)


class _Branches:
    """The branches of one replica; not a tuple, which TensorFlow would unpack."""

    def __init__(self, true_fn: Any, false_fn: Any) -> None:
        self.both = (true_fn, false_fn)


def _run(branches: Any, place: int) -> None:
    branches.both[place]()

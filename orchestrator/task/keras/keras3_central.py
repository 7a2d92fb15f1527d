"""Fixes Keras 3 under CentralStorageStrategy with several replicas.

There, a variable has one copy, which all replicas update. Keras 3 does not support that, for two reasons:
- It creates variables that are updated but not trained (moving averages of BatchNormalization, seeds of Dropout)
  without an aggregation, and TensorFlow refuses such updates. Here floating-point values are averaged, and of other
  values the first replica's is used.
- Metrics add with `assign(self + value)`. The sum over the replicas then counts the previous value several times, so
  loss and accuracy are silently wrong. Here such an assignment becomes `assign_add`.
On versions of Keras for which this was not tested, nothing is replaced, and `fit` says what to install.
"""

from __future__ import annotations

import sys

from orchestrator.both import keras_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from orchestrator.task.link import Link


def patch(core: ModuleType, link: Link) -> None:
    """Replace two methods of the class `Variable` in the module `keras.src.backend.tensorflow.core`."""
    _patch_aggregation(core, link)
    _patch_assign(core)


def several_replicas(strategy: Any) -> bool:
    """Return whether it is a CentralStorageStrategy with more than one replica."""
    return type(strategy).__name__.startswith("CentralStorage") and strategy.num_replicas_in_sync > 1


def _ours(strategy: Any) -> bool:
    # Keras imports its version after the patched module, so it is checked here and not in `patch`.
    return several_replicas(strategy) and keras_versions.patched(_version())


def _version() -> str:
    return str(sys.modules["keras.src.version"].__version__)


def _patch_aggregation(core: Any, link: Link) -> None:
    original = core.Variable._map_aggregation
    warned: list[bool] = []

    def _map_aggregation(self: Any, aggregation: str) -> Any:
        if _ours(core.tf.distribute.get_strategy()):
            if not warned:
                warned.append(True)
                message = (
                    f"Keras {_version()} was patched for CentralStorageStrategy with several replicas "
                    "(metrics are wrong there without it, and BatchNormalization and Dropout fail)"
                )
                link.say("keras3-patched", message)
            if aggregation == "none":
                aggregation = "mean" if "float" in self._dtype else "only_first_replica"
        return original(self, aggregation)

    core.Variable._map_aggregation = _map_aggregation


def _patch_assign(core: Any) -> None:
    tf = core.tf
    original = core.Variable._direct_assign

    def _direct_assign(self: Any, value: Any) -> None:
        variable = self._value
        if (
            getattr(variable, "aggregation", None) == tf.VariableAggregation.SUM
            and not tf.distribute.in_cross_replica_context()
            and _ours(tf.distribute.get_strategy())
        ):
            variable.assign_add(tf.cast(value, variable.dtype) - variable)
            return
        original(self, value)

    core.Variable._direct_assign = _direct_assign

"""Mends Keras 3 under CentralStorageStrategy with several replicas.

Variables have one copy there, which the replicas update together. Keras 3 was not written for that, in two ways:
- What changes in a step without being trained (moving averages of BatchNormalization, the seeds of Dropout) is
  made without saying how the replicas' values become one: TensorFlow refuses. Here numbers are averaged, and of
  seeds the first replica's counts.
- Metrics add by `assign(self + value)`. The sum over the replicas then counts what was there before twice, so
  that loss and accuracy come out wrong without a word. Here they add.
On a Keras on which this was not tested, nothing is replaced, and `fit` says what to install.
"""

from __future__ import annotations

import sys

from orchestrator.runtime import keras_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from orchestrator.runtime.link import Link


def patch(core: ModuleType, link: Link) -> None:
    """Replace two methods of the class `Variable` in the module `keras.src.backend.tensorflow.core`."""
    _patch_aggregation(core, link)
    _patch_assign(core)


def several_replicas(strategy: Any) -> bool:
    """Whether it is a CentralStorageStrategy with more than one replica."""
    return type(strategy).__name__.startswith("CentralStorage") and strategy.num_replicas_in_sync > 1


def _ours(strategy: Any) -> bool:
    # Keras imports its version after this module, so it is asked here and not in `patch`.
    return several_replicas(strategy) and keras_versions.patched(_version())


def _version() -> str:
    return str(sys.modules["keras.src.version"].__version__)


def _patch_aggregation(core: Any, link: Link) -> None:
    original = core.Variable._map_aggregation
    said: list[bool] = []

    def _map_aggregation(self: Any, aggregation: str) -> Any:
        if _ours(core.tf.distribute.get_strategy()):
            if not said:
                said.append(True)
                _say(link, _version())
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


def _say(link: Link, version: str) -> None:
    message = (
        f"Keras {version} was patched for CentralStorageStrategy with several replicas "
        "(metrics are wrong there without it, and BatchNormalization and Dropout fail)"
    )
    link.say("keras3-patched", message)

"""The strategy of a transparent run. It is built from the options of ORCH_RUNTIME, and must be the only one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.transparent.said import Said


def build(options: dict[str, Any], said: Said) -> Any:
    """Build the strategy that the options name. The spec accepts only those that need no arguments."""
    import tensorflow as tf

    name = str(options["tf_class"])
    # It gets no arguments, so `runtime/devices.py` passes the plan's logical CPUs and communication.
    spaces = (tf.distribute, tf.distribute.experimental)
    strategy = next(getattr(space, name) for space in spaces if hasattr(space, name))()
    workers, replicas = workers_of(strategy), strategy.num_replicas_in_sync
    said(
        "strategy",
        f"the script runs within the scope of a {name}: {workers} worker(s), {replicas} replicas",
    )
    return strategy


def workers_of(strategy: Any) -> int:
    """Return how many processes train together."""
    if getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)():
        return int(strategy.extended._num_workers)
    return 1


def refuse_others(said: Said, script: str) -> None:
    """Make every other strategy that the script creates an error: two would divide the work between them."""
    import tensorflow as tf

    names: tuple[str, ...] = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "ParameterServerStrategy")
    names += ("TPUStrategy", "CentralStorageStrategy", "OneDeviceStrategy")
    classes: list[Any] = []
    for space in (tf.distribute, tf.distribute.experimental):
        classes += [getattr(space, name) for name in names if hasattr(space, name)]
    for strategy_class in set(classes):
        strategy_class.__init__ = _refusal(strategy_class.__name__, said, script)


def _refusal(name: str, said: Said, script: str) -> Any:
    def __init__(_self: Any, *_args: Any, **_options: Any) -> None:
        raise said.unsupported(
            f"{script} makes a {name} of its own, and transparent has made one: remove it from the script, "
            "or `transparent: true` from the spec"
        )

    return __init__

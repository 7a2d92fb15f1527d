"""Ignore settings of a script in `tf.config` that must come before TensorFlow's first operation.

Without `transparent: true` such a call is early enough. Here it would raise "cannot be modified after being
initialized" and end the script, though cluster.yaml says most of it already.
"""

from __future__ import annotations

import functools

from orchestrator.task.transparent import step as steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

_DIVIDED = "the replicas of cluster.yaml are used (`replicas_on_cpu` divides a CPU)"
_VISIBLE = "each task sees the devices that cluster.yaml gives it"
_GROWTH = 'put `TF_FORCE_GPU_ALLOW_GROWTH: "true"` under `env:` in cluster.yaml'
_WAYS: dict[str, tuple[str, ...]] = {
    _DIVIDED: ("set_logical_device_configuration", "experimental.set_virtual_device_configuration"),
    _VISIBLE: ("set_visible_devices", "experimental.set_visible_devices"),
    _GROWTH: ("experimental.set_memory_growth",),
    "put TF_NUM_INTEROP_THREADS under `env:` in cluster.yaml": (
        "threading.set_inter_op_parallelism_threads",
    ),
    "put TF_NUM_INTRAOP_THREADS under `env:` in cluster.yaml": (
        "threading.set_intra_op_parallelism_threads",
    ),
}
"""By what replaces a setting: the functions of `tf.config` that make it."""


def install(report: Reporter, script: str, folder: str) -> None:
    """Patch these functions. Call it once the strategy is built."""
    import tensorflow as tf

    for way, names in _WAYS.items():
        for name in names:
            space, _, function = name.rpartition(".")
            owner = getattr(tf.config, space) if space else tf.config
            setattr(owner, function, _left_out(getattr(owner, function), way, report, script, folder))


def _left_out(
    setting: Callable[..., Any], way: str, report: Reporter, script: str, folder: str
) -> Callable[..., Any]:
    @functools.wraps(setting)
    def set_or_leave_out(*args: Any, **kwargs: Any) -> None:
        try:
            setting(*args, **kwargs)
        except RuntimeError:
            line = steps.line_of_script(folder) or f"{script}: {setting.__name__}"
            report("devices", f"{line}: left out, the strategy is built before the script begins: {way}")

    return set_or_leave_out

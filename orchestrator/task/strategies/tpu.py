"""The strategy `tpu`: passes the plan's TPU to a resolver that the script builds without arguments, with a deadline.

TensorFlow's client takes a TPU's name from TPU_NAME, but accepts `local` only as an argument, and prefers
KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS to TPU_NAME. So the name is passed as the argument. The client waits silently and far
too long for a TPU that does not answer, so a deadline runs from the release until the TPU system is initialised.
"""

from __future__ import annotations

import functools
import sys
import threading

from orchestrator.task.strategies.part import StrategyPart
from orchestrator.task.tracebacks import last_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType, TracebackType
    from typing import Any

    from orchestrator.task.link import Link

RESOLVER = "tensorflow.python.distribute.cluster_resolver.tpu.tpu_cluster_resolver"
SYSTEM = "tensorflow.python.tpu.tpu_strategy_util"


def patches(options: Mapping[str, Any], link: Link) -> dict[str, Callable[[ModuleType], None]]:
    """Return the patches for TensorFlow's modules by module name, and start the deadline. Call it after the release."""
    name = options.get("tpu")
    if not name:
        return {}
    watch = Watch(str(name), float(options.get("tpu_wait_s") or 0.0), link)

    def resolver(module: Any) -> None:
        cls = module.TPUClusterResolver
        original = cls.__init__

        @functools.wraps(original)
        def __init__(self: Any, tpu: Any = None, *args: Any, **kwargs: Any) -> None:
            with watch:
                original(self, tpu or name, *args, **kwargs)

        cls.__init__ = __init__
        cls.cluster_spec = watch.over(cls.cluster_spec)

    def system(module: Any) -> None:
        original = module.initialize_tpu_system_impl

        @functools.wraps(original)
        def initialize_tpu_system_impl(*args: Any, **kwargs: Any) -> Any:
            with watch:
                topology = original(*args, **kwargs)
            watch.answered()
            return topology

        module.initialize_tpu_system_impl = initialize_tpu_system_impl

    return {RESOLVER: resolver, SYSTEM: system}


class Watch:
    """Ends the task if its TPU does not answer in time. As a context manager, it marks an error as the TPU's.

    `core/diagnosis/signatures.py` says what to check, by the kind of the error.
    """

    def __init__(self, name: str, wait_s: float, link: Link) -> None:
        """Start the deadline, `wait_s` seconds from now; 0 means none."""
        self._name, self._wait_s, self._link = name, wait_s, link
        self._kind = "no-local-tpu" if name == "local" else "no-tpu"
        self._timer = threading.Timer(wait_s, self._expired)
        self._timer.daemon = True
        if wait_s > 0 and link.attached:
            self._timer.start()

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its errors are marked as the TPU's."""

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return watched

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            # After this come the attributes of an operation, in an order that changes each time.
            reason = last_line(error).partition(" used by {{node")[0]
            error.orch_message = f"no TPU {self._name}: {reason}"  # type: ignore[attr-defined]
            error.orch_kind = self._kind  # type: ignore[attr-defined]

    def answered(self) -> None:
        self._timer.cancel()

    def _expired(self) -> None:
        from orchestrator.task.shim_orders import end, stacks

        message = f"no TPU {self._name}: no answer within {self._wait_s:g} s"
        print(f"orch: {message}\n{stacks()}orch: {message}", file=sys.stderr, flush=True)
        self._link.send({"error": {"kind": self._kind, "message": message}}, wait_s=1.0)
        end(1)


PART = StrategyPart(patches=patches)

"""The stage of this process, such as `importing`: sent with each heartbeat, and found without touching the training.

It is read from the stack of the main thread once a second. While TensorFlow connects to its peers, it holds Python's
lock, and no thread of this process runs: so the wrapper of the strategy's constructor sends this stage before. The shim
sees from outside to which peers it connects (`host/shim/peers.py`).
"""

from __future__ import annotations

import functools
import sys
import threading

from orchestrator.both.script import FRAMEWORKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from orchestrator.protocol.reports import Stage
    from orchestrator.protocol.runtime_lines import Heartbeat
    from orchestrator.task.link import Link
    from orchestrator.task.progress import Progress

_KERAS = ("/keras/src/", "/tf_keras/", "/keras/engine/")
_PLACES: dict[str, tuple[Stage, tuple[str, ...]]] = {
    "fit": ("training", _KERAS),
    "evaluate": ("evaluating", _KERAS),
    "predict": ("evaluating", _KERAS),
    "save": ("saving", (*_KERAS, "/tensorflow/python/checkpoint/", "/tensorflow/python/saved_model/")),
    "save_model": ("saving", _KERAS),
    "save_weights": ("saving", _KERAS),
    "write": ("saving", ("/tensorflow/python/checkpoint/",)),
    "func_graph_from_py_func": ("compiling", ("/tensorflow/python/",)),
}
"""By function: what the process does in it, and of which packages it is. The innermost counts."""

_SHOWS_NOTHING = {
    ("__call__", "polymorphic_function.py"),
    ("join", "server_lib.py"),
    ("begin", "server.py"),
}

CONNECTS = {
    "tensorflow.python.distribute.parameter_server_strategy_v2": ("ParameterServerStrategyV2", "__init__"),
    "horovod.common.basics": ("HorovodBasics", "init"),
    "jax._src.distributed": ("State", "initialize"),
}
"""By module: the class and the method that return once all peers are connected. MultiWorkerMirroredStrategy is wrapped
where it is remembered."""


class Stages:
    """The stage of this process; null if it is unknown, as in a loop of the script's own before its first report,
    in a task that only serves, or after a fit."""

    def __init__(self, link: Link, progress: Progress) -> None:
        self._link, self._progress = link, progress
        self._main = threading.main_thread().ident
        self._connecting = False
        self._has_fitted = False
        self._is_unknown = False
        """It serves, or executed a function of TensorFlow's outside of Keras: its own loop may train in there."""

    def connecting(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that connects to the peers: send this stage before it, and the next stage after it."""

        @functools.wraps(connect)
        def connected(*args: Any, **kwargs: Any) -> Any:
            if self._connecting:
                return connect(*args, **kwargs)
            self._connecting = True
            self.send(wait_s=1.0)
            try:
                return connect(*args, **kwargs)
            finally:
                self._connecting = False
                self.send()

        return connected

    def send(self, wait_s: float = 0.0) -> None:
        """Send a heartbeat with the stage, and with how far the data was passed over while that goes on."""
        heartbeat: Heartbeat = {"stage": self.now()}
        replay = sys.modules.get("orchestrator.task.transparent.replay")
        known = getattr(replay, "Passing", None)  # another thread may be importing it
        if known is not None and (passing := known.current) is not None and passing.done:
            heartbeat["passing"] = {"done": passing.done, "total": passing.total}
        self._link.send({"heartbeat": heartbeat}, wait_s=wait_s)

    def now(self) -> Stage | None:
        """Return the present stage."""
        if self._connecting:
            return "connecting"
        stage, imports = self._inspect(sys._current_frames().get(self._main or 0))
        stepped = self._progress.has_stepped
        if stage == "training":
            self._has_fitted = True
            return "training" if stepped else "compiling"
        if stage is not None:
            return stage
        if stepped:
            return None if self._has_fitted else "training"
        if imports:
            return "importing"
        return (
            "building" if not self._is_unknown and any(name in sys.modules for name in FRAMEWORKS) else None
        )

    def _inspect(self, frame: FrameType | None) -> tuple[Stage | None, bool]:
        """Return the stage of the innermost known function on the stack, and whether something is being imported."""
        imports = False
        while frame is not None:
            path, name = frame.f_code.co_filename, frame.f_code.co_name
            stage, packages = _PLACES.get(name, (None, ()))
            if stage is not None and any(package in path for package in packages):
                return stage, imports
            imports = imports or path.startswith("<frozen importlib")
            if (name, path.rpartition("/")[2]) in _SHOWS_NOTHING:
                self._is_unknown = True
            frame = frame.f_back
        return None, imports

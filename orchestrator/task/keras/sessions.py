"""Reports the progress of TensorFlow 1's training loops: MonitoredTrainingSession, and Estimator, which uses it.

Every such session gets one more hook, which fetches the global step with each run. A session in which the step stands
still evaluates or predicts, and reports nothing.
"""

from __future__ import annotations

import functools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from orchestrator.task.progress import Progress


def patch(module: ModuleType, progress: Progress) -> None:
    """Add our hook to the sessions of the module `tensorflow.python.training.monitored_session`."""
    session: Any = module
    original = session._MonitoredSession.__init__

    @functools.wraps(original)
    def __init__(self: Any, session_creator: Any, hooks: Any, *args: Any, **kwargs: Any) -> None:
        base = sys.modules["tensorflow.python.training.session_run_hook"]
        every = [*(hooks or ()), _hook(base, progress)]
        original(self, session_creator, every, *args, **kwargs)

    session._MonitoredSession.__init__ = __init__


def _hook(base: Any, progress: Progress) -> Any:
    util: Any = sys.modules["tensorflow.python.training.training_util"]

    class Reports(base.SessionRunHook):  # type: ignore[misc]
        """Reads the global step, where the graph has one."""

        def begin(self) -> None:
            self._step = None if util.get_global_step() is None else util._get_or_create_global_step_read()
            self._first: int | None = None

        def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002
            if self._step is not None and self._first is None:
                self._first = int(session.run(self._step))

        def before_run(self, _context: Any) -> Any:
            return None if self._step is None else base.SessionRunArgs(self._step)

        def after_run(self, _context: Any, values: Any) -> None:
            if self._step is None or self._first is None or int(values.results) <= self._first:
                return
            progress.began(self._first)
            progress.report(int(values.results), {})

        def end(self, session: Any) -> None:
            # The step that a run fetches may be the one before it was increased, so it is read once more.
            if self._step is None or self._first is None:
                return
            last = int(session.run(self._step))
            if last > self._first:
                progress.report(last, {})
                progress.flush()

    return Reports()

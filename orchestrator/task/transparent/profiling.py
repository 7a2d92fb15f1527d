"""Keeps TensorFlow's profiler to the chief.

In a process of MultiWorkerMirroredStrategy that is not the first, TensorFlow 2.21 corrupts its memory when a profile
ends (`TraceMeRecorder::Stop`), with no orchestrator about: by hand, two workers crashed after 6 to 40 profiles, and
never in 1,200 where the first worker alone took them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.said import Said


def leave_to_chief(said: Said) -> None:
    """Have the profiler of this process record and write nothing. Call it in processes that are not the chief."""
    from tensorflow.python.profiler import profiler_v2

    class NoSession:
        """A session of the profiler that records nothing. `start` and `stop` raise what they raise of a real one."""

        def start(self, logdir: str, options: dict[str, Any]) -> None:  # noqa: ARG002 (TensorFlow's signature)
            """Say that nothing is recorded. TensorBoard's callback tries the profiler without a directory first."""
            if logdir:
                said(
                    "profiler",
                    "not the chief: nothing is profiled here, since TensorFlow's profiler makes workers crash",
                )

        def export_to_tb(self) -> None:
            """Write nothing."""

    profiler_v2._pywrap_profiler.ProfilerSession = NoSession

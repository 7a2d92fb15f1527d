"""Lets only the chief record what one process of a training should record: profiles, and runs of W&B and MLflow.

In a process of MultiWorkerMirroredStrategy that is not the first, TensorFlow 2.21 corrupts its memory when a profile
ends (`TraceMeRecorder::Stop`), with no orchestrator about: by hand, two workers crashed after 6 to 40 profiles, and
never in 1,200 where the first worker alone took them.
"""

from __future__ import annotations

import os

from orchestrator.task import this_task
from orchestrator.task.keras import hooks
from orchestrator.task.transparent.files import NOT_CHIEF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter


def leave_to_chief(report: Reporter) -> None:
    """Have this process record nothing. Call it in processes that are not the chief."""
    _take_no_profiles(report)
    track_nothing(report)


def track_nothing(report: Reporter) -> None:
    """Turn W&B off, unless the spec says otherwise, and let MLflow track into a scratch: it cannot be turned off."""
    mode = os.environ.setdefault("WANDB_MODE", "disabled")

    def off(_wandb: Any) -> None:
        report(
            "tracking", f"not the chief: WANDB_MODE is {mode} here; with `env: {{WANDB_MODE: …}}` it is yours"
        )

    def elsewhere(mlflow: Any) -> None:
        import pathlib

        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        mlflow.set_tracking_uri(pathlib.Path(this_task.scratch(), NOT_CHIEF, "mlflow").absolute().as_uri())
        mlflow.set_tracking_uri = lambda _uri: None
        report(
            "tracking",
            "not the chief: what MLflow tracks here is thrown away; the chief tracks this training",
        )

    hooks.when_imported({"wandb": off, "mlflow": elsewhere})


def _take_no_profiles(report: Reporter) -> None:
    from tensorflow.python.profiler import profiler_v2

    class NoSession:
        """A session of the profiler that records nothing. `start` and `stop` raise what they raise of a real one."""

        def start(self, logdir: str, options: dict[str, Any]) -> None:  # noqa: ARG002 (TensorFlow's signature)
            """Say that nothing is recorded. TensorBoard's callback tries the profiler without a directory first."""
            if logdir:
                report(
                    "profiler",
                    "not the chief: nothing is profiled here, since TensorFlow's profiler makes workers crash",
                )

        def export_to_tb(self) -> None:
            """Write nothing."""

    profiler_v2._pywrap_profiler.ProfilerSession = NoSession

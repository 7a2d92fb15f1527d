"""The runtime's heartbeat to the shim, once per second, with the stage of the process.

TensorFlow notices a peer that died, but never one that is frozen. A task that trains shows its progress. A task that
only serves has no progress, so the heartbeat takes its place. It is sent by a thread of its own, because a script
that is inside TensorFlow's C++ (`server.join()`, a long step) is alive.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.task.progress import Progress
    from orchestrator.task.stages import Stages

INTERVAL_S = 1.0


def begin(stages: Stages, progress: Progress) -> None:
    """Start the thread. Call it after the release; before it, the deadline for the start applies."""
    threading.Thread(target=_send, args=(stages, progress), name="orch-heartbeat", daemon=True).start()


def _send(stages: Stages, progress: Progress) -> None:
    while True:
        progress.catch_up()
        stages.send()
        time.sleep(INTERVAL_S)

"""The runtime's sign of life: a word to the shim each second, for as long as this process runs at all.

TensorFlow notices a peer that died, and one that is frozen never. A task that trains shows its progress; one that
only serves has none, and this in its place. It comes from a thread of its own: a script that sits in TensorFlow's
C++ (`server.join()`, a long step) is alive.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.runtime.link import Link
    from orchestrator.runtime.progress import Progress

INTERVAL_S = 1.0


def begin(link: Link, progress: Progress) -> None:
    """From the release on: before it, the start deadline watches."""
    threading.Thread(target=_send, args=(link, progress), name="orch-heartbeat", daemon=True).start()


def _send(link: Link, progress: Progress) -> None:
    while True:
        progress.catch_up()
        link.send({"heartbeat": {}})
        time.sleep(INTERVAL_S)

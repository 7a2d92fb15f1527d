"""Has the deciding thread itself tell systemd that it lives, so that a coordinator that hangs is restarted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from orchestrator.head.node.notify import Notifier

_OFTEN = 4
"""How many times within systemd's timeout: a loop that is busy for a while may miss some."""


class Call(Protocol):
    """`Loop.call`."""

    def __call__(self, command: Callable[[], Any], *, timeout_s: float) -> Any: ...


@contextlib.contextmanager
def kept_alive(notifier: Notifier, call: Call) -> Iterator[None]:
    """While the block runs, have the thread behind `call` say again and again that it lives."""
    if notifier.watchdog_s is None:
        yield
        return
    every_s = notifier.watchdog_s / _OFTEN
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            with contextlib.suppress(
                TimeoutError
            ):  # the loop is busy, or stuck: then systemd restarts the coordinator
                call(notifier.alive, timeout_s=every_s)
            ended.wait(every_s)

    thread = threading.Thread(target=ask, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()

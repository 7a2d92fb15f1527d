"""One recipient of messages: a bounded queue, and a thread while there is something in it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

log = logging.getLogger(__name__)

UNSENT_MAX = 50
"""How many messages wait for a recipient that does not answer; the oldest make room, and are counted."""

RETRY_S = (5.0, 15.0, 60.0, 300.0)
"""The waits before it is tried again; the last one repeats."""

TRIES_MAX = 100
"""About eight hours."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that is to be delivered."""

    run_id: str
    """The run whose events say that it was not delivered; empty for a message about the head node."""
    title: str
    body: str
    level: str

    FIELDS: ClassVar[tuple[str, ...]] = ("run_id", "title", "body", "level")


class Recipient:
    """Delivers messages in their order, and tries again where that fails."""

    def __init__(
        self,
        name: str,
        url: Callable[[], str | None],
        failed: Callable[[str, str, str], None],
        changed: Callable[[], None],
        *,
        send: Callable[..., str | None],
        retry_s: tuple[float, ...] = RETRY_S,
        tries_max: int = TRIES_MAX,
    ) -> None:
        self._name, self._url, self._failed, self._changed, self._send = name, url, failed, changed, send
        self._retry_s, self._tries_max = retry_s, tries_max
        self._lock = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._is_ending = False

    def put(self, message: Message) -> None:
        """Add a message. It does not block."""
        with self._lock:
            self._waiting.append(message)
            while len(self._waiting) > UNSENT_MAX:
                del self._waiting[1]  # the first may be on its way
                self._dropped += 1
            if self._thread is None and not self._is_ending:
                self._begin()

    def unsent(self) -> list[Message]:
        """Return what has not arrived."""
        with self._lock:
            return list(self._waiting)

    def end(self, wait_s: float) -> None:
        """Try once more to deliver what waits, for `wait_s` at most, and end."""
        with self._lock:
            self._is_ending = True
            thread = self._thread
        self._hurry.set()
        if thread is not None:
            thread.join(timeout=wait_s)

    def _run(self) -> None:
        tries = 0
        while (message := self._first()) is not None:
            problem = self._deliver(message)
            if problem is None:
                tries = 0
                self._done()
                continue
            tries += 1
            if tries == 1:
                again = "" if self._is_ending else "; it is tried again"
                self._safely(self._failed, message.run_id, self._name, f"{problem}{again}")
            if tries >= self._tries_max:
                self._safely(
                    self._failed, message.run_id, self._name, f"{problem}; given up after {tries} attempts"
                )
                tries = 0
                self._done()
                continue
            if self._is_ending:
                break
            self._hurry.wait(self._retry_s[min(tries, len(self._retry_s)) - 1])
        with self._lock:
            self._thread = None
            if self._waiting and not self._is_ending:  # one came just now
                self._begin()

    def _begin(self) -> None:
        """Start a thread. Where none can be had, the next message tries again. The lock is held."""
        thread = threading.Thread(target=self._run, name=f"notify {self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            log.warning("a message to %s waits for the next one: %s", self._name, e)
        else:
            self._thread = thread

    def _first(self) -> Message | None:
        with self._lock:
            if not self._waiting:
                return None
            first = self._waiting[0]
            if not self._dropped:
                return first
            return replace(first, body=f"{first.body}\n\n{self._dropped} earlier messages were dropped.")

    def _deliver(self, message: Message) -> str | None:
        try:
            url = self._url()
            if url is None:
                return None  # this recipient was removed
            return self._send(url, title=message.title, body=message.body, level=message.level)
        except Exception as e:  # of the look-up, say: the thread goes on
            log.exception("cannot deliver to %s", self._name)
            return f"{type(e).__name__}: {e}"

    def _done(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft()
            self._dropped = 0
        self._safely(self._changed)

    def _safely(self, call: Callable[..., None], *arguments: str) -> None:
        """Call the head node's code. An error there must not end the thread, or no more messages would be sent."""
        try:
            call(*arguments)
        except Exception:
            log.exception("cannot record what became of a message to %s", self._name)

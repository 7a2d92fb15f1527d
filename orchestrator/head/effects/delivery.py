"""Delivers a message through apprise. An error that it reports contains no part of the recipient's URL."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from urllib.parse import unquote

from orchestrator.core.words import plain

REASON_MAX = 200

MISSING = (
    "the library apprise is not installed here; `pip install '.[notify]'` in the clone of orch installs it"
)

_LOGGERS = ("apprise", "urllib3", "requests", "requests_oauthlib")
"""Loggers whose messages contain URLs."""


def deliver(url: str, *, title: str, body: str, level: str) -> str | None:
    """Send a message, within seconds. Return why it did not arrive; None if the service has taken it."""
    try:
        import apprise
    except ImportError:
        return MISSING
    with _captured() as messages:
        try:
            target = apprise.Apprise.instantiate(url, suppress_exceptions=True)
            if target is None:
                return "apprise does not understand its URL"
            # The message is sent as plain text, so that text of hosts is never read as markup. The service is called
            # directly and not by `Apprise`, which would use another thread: log messages are collected by thread.
            target.notify_format = apprise.NotifyFormat.TEXT
            if target.notify(title=title, body=body, notify_type=apprise.NotifyType(level)):
                return None
        except Exception as e:  # a fault of a plugin must not harm the run
            messages.append(f"{type(e).__name__}: {e}")
    return redacted(messages[-1], url) if messages else "the service did not accept it, and gave no reason"


def redacted(text: str, url: str) -> str:
    """Return a text without any part of the URL except its service.

    >>> redacted("Failed to send to tok3n at 10.0.0.1: error 404", "json://tok3n@10.0.0.1:81/x?key=404y")
    'Failed to send to … at …: error 404'
    """
    parts: set[str] = set()
    rest = url.partition("://")[2]
    for form in (rest, unquote(rest)):
        parts |= {form, *re.split(r"[/:@?&=#,;+\s]+", form)}
    for part in sorted((text_part for text_part in parts if len(text_part) >= 3), key=len, reverse=True):
        text = text.replace(part, "…")
    return plain(text)[:REASON_MAX]


@contextlib.contextmanager
def _captured() -> Iterator[list[str]]:
    """Collect what apprise logs in this thread, and keep it out of our log."""
    messages: list[str] = []
    handler = _Capture(threading.get_ident(), messages)
    for name in _LOGGERS:
        logging.getLogger(name).propagate = False
    logger = logging.getLogger("apprise")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


class _Capture(logging.Handler):
    def __init__(self, thread: int, messages: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._thread, self._messages = thread, messages

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._messages.append(record.getMessage())

"""Read single keys from a terminal, without Enter."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from types import TracebackType
from typing import Any, TextIO


class Keys:
    """A context in which `wait` returns each key. The terminal's mode is restored at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: list[Any] | None = None

    def __enter__(self) -> Keys:
        if self._stream.isatty():
            self._before = termios.tcgetattr(self._stream)
            tty.setcbreak(self._stream)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._stream, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the next key, or "" after this time."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._stream], [], [], seconds)
        # One byte of the descriptor: the stream would also read ahead what is typed for the shell.
        return os.read(self._stream.fileno(), 1).decode("ascii", "replace") if ready else ""

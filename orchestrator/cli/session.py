"""The session of a command: its streams, its paths, a client. Tests pass their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from orchestrator.cli.show.terminal import cut, fold, inert, one_line
from orchestrator.client.environment import Environment, is_not_running

__all__ = ["Paint", "Session", "StdoutClosed", "discard", "is_not_running"]

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}
_COLOURS |= {"magenta": "35", "cyan": "36", "bright_blue": "94", "bright_magenta": "95", "bright_cyan": "96"}

_UNESCAPED = re.compile("[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that JSON allows unescaped, but that may control a terminal."""


class Paint:
    """Adds colours if they are wanted. The text is the same without them."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, *styles: str) -> str:
        if not self.on or not styles or not text:
            return text
        return f"\x1b[{';'.join(_COLOURS[style] for style in styles)}m{text}\x1b[0m"


class StdoutClosed(Exception):
    """Data cannot be written to stdout. Not an OSError: click would end the process with 1 and no message.

    `reason` is None if the reader has gone (`orch logs | head`), else why the write failed.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Session(Environment):
    """One call of the command line. stdout is for data, stderr for messages."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self.out = out
        self.err = err
        self.out_is_terminal = out.isatty()
        colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self.paint = Paint(on=colour and self.out_is_terminal)
        self.paint_err = Paint(on=colour and err.isatty())
        self.wants_json = False
        """Whether the command was given `--json`."""
        self._is_rewritten = False
        """Whether the last line on the terminal is to make room for the next one."""

    @property
    def width(self) -> int | None:
        """The columns of the terminal behind stdout; None if it is no terminal."""
        return _columns(self.out)

    @property
    def width_err(self) -> int | None:
        """The columns of the terminal behind stderr; None if it is no terminal."""
        return _columns(self.err)

    @staticmethod
    def from_process() -> Session:
        """Return the session of this process's own streams and environment."""
        return Session(sys.stdout, sys.stderr, os.environ)

    def put(self, text: str) -> None:
        """Write data to stdout. Raises StdoutClosed if that fails."""
        self._make_room()
        try:
            _write(self.out, text)
        except BrokenPipeError:
            raise StdoutClosed from None
        except OSError as e:
            raise StdoutClosed(e.strerror or str(e)) from e

    def put_json(self, document: Mapping[str, Any], *, indent: int | None = 2) -> None:
        """Write a JSON document to stdout; `indent=None` for JSON lines."""
        text = json.dumps(document, indent=indent, ensure_ascii=False)
        self.put(_UNESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))

    def answer(self, document: Mapping[str, Any], *lines: str) -> None:
        """Write the document if the command was given `--json`; else the lines for people."""
        if self.wants_json:
            self.put_json(document)
        for line in () if self.wants_json else lines:
            self.put(line)

    def say(self, text: str) -> None:
        """Write a message to stderr, folded to its terminal. A stderr that fails does not end the command."""
        self._make_room()
        width = self.width_err
        lines = [part for line in text.split("\n") for part in fold(line, width, indent="  ")]
        try:
            _write(self.err, "\n".join(lines))
        except OSError:
            discard(self.err)

    def rewrite(self, text: str) -> bool:
        """Show a line on the terminal, in the place of the one that was so shown. False without a terminal."""
        if not self.err.isatty():
            return False
        self._make_room()
        self.err.write(cut(inert(one_line(text)), (self.width_err or 80) - 1))
        self.err.flush()
        self._is_rewritten = True
        return True

    def _make_room(self) -> None:
        if self._is_rewritten:
            self.err.write("\r\x1b[K")
            self.err.flush()
            self._is_rewritten = False

    def prompt(self, text: str) -> None:
        """Write a question to stderr, without a line end."""
        self._make_room()
        self.err.write(inert(text))
        self.err.flush()

    def warn(self, text: str) -> None:
        """Write a warning to stderr."""
        self.say(f"{self.paint_err('warning:', 'yellow', 'bold')} {text}")

    def hint(self, text: str | None) -> None:
        """Write a hint to stderr; None writes nothing."""
        if text:
            self.say(f"{self.paint_err('hint:', 'cyan', 'bold')} {text}")


def _columns(stream: TextIO) -> int | None:
    return shutil.get_terminal_size().columns if stream.isatty() else None


def discard(stream: TextIO) -> None:
    """Send further output of the stream to /dev/null. Otherwise Python reports an error when it flushes at exit."""
    with contextlib.suppress(OSError):  # a stream of a test has no file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write(stream: TextIO, text: str) -> None:
    """Write lines without control sequences except colours, since they contain texts of hosts and specs."""
    text = inert(text)
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        # A log may hold characters that the terminal's encoding lacks. That must not end the command.
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()

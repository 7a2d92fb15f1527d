"""What a command is given of the world: streams, places, a client. Tests hand in others."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from orchestrator.adapters.head.client import Client
from orchestrator.adapters.head.paths import Paths

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}
_COLOURS |= {"magenta": "35", "cyan": "36", "bright_blue": "94", "bright_magenta": "95", "bright_cyan": "96"}


class Paint:
    """Colours where they are wanted; without them the same text. What is said never depends on them."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, *styles: str) -> str:
        if not self.on or not styles or not text:
            return text
        return f"\x1b[{';'.join(_COLOURS[style] for style in styles)}m{text}\x1b[0m"


class NobodyReads(Exception):
    """What takes our data has gone. No OSError: click would end the process with 1 and no word."""


class Session:
    """One call of the command line. stdout is data, stderr is talk."""

    def __init__(self, out: TextIO, err: TextIO, environ: Mapping[str, str]) -> None:
        self.out = out
        self.err = err
        self.environ = environ
        self.out_is_terminal = out.isatty()
        colour = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self.paint = Paint(on=colour and self.out_is_terminal)
        self.paint_err = Paint(on=colour and err.isatty())
        self.paths = Paths.from_environment(environ)

    @property
    def width(self) -> int | None:
        """The columns of the terminal that data goes to; None where it goes elsewhere."""
        return _columns(self.out)

    @property
    def width_err(self) -> int | None:
        """As `width`, of the terminal that talk goes to."""
        return _columns(self.err)

    @staticmethod
    def of_process() -> Session:
        """The process's own streams and environment."""
        return Session(sys.stdout, sys.stderr, os.environ)

    def client(self) -> Client:
        """The coordinator of these paths; whether it answers shows on the first question."""
        self.paths.check_socket_path()
        if os.path.isdir(self.paths.runtime_dir):
            self.paths.check_private()
        return Client(self.paths.socket)

    def put(self, text: str) -> None:
        """A line, or lines, of data. NobodyReads where stdout is closed."""
        try:
            _write(self.out, text)
        except BrokenPipeError:
            raise NobodyReads from None

    def put_json(self, document: Mapping[str, Any], *, indent: int | None = 2) -> None:
        """A document as data; `indent=None` for JSON lines."""
        self.put(json.dumps(document, indent=indent, ensure_ascii=False))

    def say(self, text: str) -> None:
        """Talk. That nobody listens any more ends no command: what it was told to do is done all the same."""
        try:
            _write(self.err, text)
        except BrokenPipeError:
            hang_up(self.err)

    def pause(self, seconds: float) -> None:
        """Wait. The only sleep of the command line."""
        time.sleep(seconds)

    def now(self) -> float:
        """Seconds of a monotonic clock, for deadlines."""
        return time.monotonic()

    def time(self) -> float:
        """Unix time."""
        return time.time()


def _columns(stream: TextIO) -> int | None:
    return shutil.get_terminal_size().columns if stream.isatty() else None


def hang_up(stream: TextIO) -> None:
    """Nobody reads what is written there. Python would complain at its end, when it flushes."""
    with contextlib.suppress(OSError):  # not a stream of the process
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        # A log may hold what the terminal's encoding has no byte for; that must not end the command.
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()

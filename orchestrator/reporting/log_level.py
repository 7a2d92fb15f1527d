"""Finds the level of a line of output, in the formats of TensorFlow, absl and Python's logging."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

Level = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
"""From the least to the most serious."""

HELD_MAX = 400
"""How many lines of a possible traceback are held until its first line is read."""

_Line = TypeVar("_Line")

_LETTERS: dict[str, Level] = {"I": "info", "W": "warning", "E": "error", "F": "error", "D": "debug"}
_WORDS: dict[str, Level] = {
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "WARNING": "warning",
    "ERROR": "error",
    "CRITICAL": "error",
    "FATAL": "error",
}

_FORM = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: (?P<tensorflow>[IWEF]) "
    r"|(?P<glog>[IWEF])\d{4} \d\d:\d\d:\d\d"
    r"|.{0,60}?\b(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b(?=[\s:\])|-]|$)"
    r"|(?:[\w.]*(?P<error>Error|Exception|Interrupt|Exit)(?::|$))"
    r"|.{0,300}?: (?P<warning>\w*Warning): )"
)
_TRACEBACK = "Traceback (most recent call last)"


_OWN_INFO = re.compile(
    r"(?:I\d{4} \d\d:\d\d:\S+\s+\d+ \S+\.(?:cc|cu|h):\d+\]"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: I \S+\.(?:cc|cu|h):\d+\]"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: .*rebuild TensorFlow)"
)


def is_info_of_tensorflow(text: str) -> bool:
    """Return whether TensorFlow's C++ code tells what it does, as it does at each start.

    >>> is_info_of_tensorflow("I0000 00:00:1795863049.940103    7280 cpu_feature_guard.cc:227] This TensorFlow binary")
    True
    >>> [is_info_of_tensorflow(f"{text}:5] x") for text in ("I1128 11:21:23.1 140 train.py", "W0000 00:00:1.1 7 a.cc")]
    [False, False]
    """
    return _OWN_INFO.match(text) is not None


def parse_level(text: str) -> Level:
    """Return the level with this name. Raises ValueError if there is none."""
    for level in LEVELS:
        if level == text:
            return level
    raise ValueError(f"{text!r} is none of the levels {', '.join(LEVELS)}")


def is_serious(level: Level, least: Level) -> bool:
    """Return whether a level is at least `least`."""
    return LEVELS.index(level) >= LEVELS.index(least)


class Levels:
    """Finds the level of each line. All lines of a traceback are errors, so each task's lines must come in order."""

    def __init__(self) -> None:
        self._in_traceback: set[object] = set()

    def level(self, source: object, text: str) -> Level:
        """Return the level of the next line of this source; `info` if the line shows none.

        >>> levels = Levels()
        >>> levels.level("worker:0", "2026-11-20 12:00:00.123456: W tensorflow/core/x.cc:7] slow")
        'warning'
        >>> [levels.level("worker:0", text) for text in (f"{_TRACEBACK}:", "  File", "ValueError: no", "go on")]
        ['error', 'error', 'error', 'info']
        >>> levels.level("worker:0", "ERROR:root:no"), levels.level("worker:0", "no ERRORS here")
        ('error', 'info')
        """
        if text.startswith(_TRACEBACK):
            self._in_traceback.add(source)
            return "error"
        if source in self._in_traceback:
            if not is_within(text):
                self._in_traceback.discard(source)
            return "error"
        return _alone(text)


def backwards(lines: Iterable[_Line], text_of: Callable[[_Line], str]) -> Iterator[tuple[_Line, Level]]:
    """Yield the lines of a source, newest first, with the levels that `Levels` would return.

    >>> [level for _, level in backwards(["go on", "ValueError: no", "  File", f"{_TRACEBACK}:"], str)]
    ['info', 'error', 'error', 'error']
    """
    # The lines of a possible traceback, until its first line is read.
    held: list[_Line] = []
    for line in lines:
        text = text_of(line)
        if text.startswith(_TRACEBACK):
            yield from ((each, "error") for each in (*held, line))
            held = []
            continue
        if not is_within(text) or len(held) >= HELD_MAX:
            yield from ((each, _alone(text_of(each))) for each in held)
            held = []
        held.append(line)
    yield from ((each, _alone(text_of(each))) for each in held)


def is_within(text: str) -> bool:
    """Return whether a line may be within a traceback."""
    return not text or text.startswith((" ", "\t"))


def _alone(text: str) -> Level:
    """Return the level of a line outside of a traceback."""
    match = _FORM.match(text)
    if match is None:
        return "info"
    letter = match["tensorflow"] or match["glog"]
    if letter:
        return _LETTERS[letter]
    if match["word"]:
        return _WORDS[match["word"]]
    return "error" if match["error"] else "warning"

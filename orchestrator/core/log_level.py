"""How serious a line of a task's output is, by the forms in which TensorFlow, absl and Python's logging write it."""

from __future__ import annotations

import re

LEVELS = ("debug", "info", "warning", "error")
"""From the least to the most serious."""

_LETTERS = {"I": "info", "W": "warning", "E": "error", "F": "error", "D": "debug"}
_WORDS = {"WARN": "warning", "CRITICAL": "error", "FATAL": "error"}

_FORM = re.compile(
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+: (?P<tensorflow>[IWEF]) "
    r"|(?P<glog>[IWEF])\d{4} \d\d:\d\d:\d\d"
    r"|.{0,60}?\b(?P<word>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b(?=[\s:\])|-]|$)"
    r"|(?:[\w.]*(?P<error>Error|Exception|Interrupt|Exit)(?::|$))"
    r"|.{0,300}?: (?P<warning>\w*Warning): )"
)
_TRACEBACK = "Traceback (most recent call last)"


class Levels:
    """Tells the level of each line. A traceback is an error in all its lines, so lines are told by task, in order."""

    def __init__(self) -> None:
        self._in_traceback: set[object] = set()

    def level(self, source: object, text: str) -> str:
        """Return the level of the next line of this source. One that does not say is `info`.

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
            if not text.startswith((" ", "\t")) and text:
                self._in_traceback.discard(source)
            return "error"
        found = _FORM.match(text)
        if found is None:
            return "info"
        letter = found["tensorflow"] or found["glog"]
        if letter:
            return _LETTERS[letter]
        if found["word"]:
            return _WORDS.get(found["word"], found["word"].lower())
        return "error" if found["error"] else "warning"

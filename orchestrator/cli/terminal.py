"""Make text fit for a terminal: what tasks print, and long sentences."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, and movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links, the clipboard
    r"|\x1b.?|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_SGR = re.compile(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    """Return a log line as a terminal would show it at last: of what carriage returns overwrote, the last part.

    Colours stay, and end with the line. Other control sequences (movements, titles, the bell) are removed.
    """
    shown = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    shown = _CONTROL.sub(lambda found: found[0] if _SGR.fullmatch(found[0]) else "", shown)
    return f"{shown}\x1b[0m" if "\x1b[" in shown and not shown.endswith("\x1b[0m") else shown


def cut(text: str, width: int | None) -> str:
    """Cut the text to `width` columns; None leaves it whole. Colours take no column."""
    if width is None or len(_SGR.sub("", text)) <= width:
        return text
    shown, left = [], width - 1
    for part in re.split(f"({_SGR.pattern})", text):
        if not part.startswith("\x1b"):
            part = part[:left]
            left -= len(part)
        shown.append(part)
    return "".join(shown) + "…"


def fold(text: str, width: int | None, *, indent: str = "") -> list[str]:
    """Fold the text between words into lines of at most `width` columns; all but the first are indented.

    None leaves one line. Colours take no column. A word that is longer than a line gets a line of its own.
    """
    if width is None:
        return [text]
    lines: list[str] = []
    line, columns, is_blank = "", 0, True
    for word in re.findall(r"\s*\S+", text):
        taken = len(_SGR.sub("", word))
        if columns + taken > width and not is_blank:
            lines.append(line)
            word = indent + word.lstrip()
            line, columns = "", 0
            taken = len(_SGR.sub("", word))
        line, columns, is_blank = line + word, columns + taken, False
    return [*lines, line]

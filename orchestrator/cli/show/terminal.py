"""Make text fit for a terminal: what tasks print, and long sentences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, and movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links, the clipboard
    r"|\x1b.?|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
_SGR = re.compile(r"\x1b\[[0-9;:]*m")

_STYLE = r"(?:0?[0-4]|7|2[1-47]|[349][0-7]|[34]9|10[0-7]|[34]8[;:](?:5[;:]\d{1,3}|2(?:[;:]\d{0,3}){3,4}))"
_ACTING = re.compile(
    rf"(?P<colour>\x1b\[(?:{_STYLE}(?:;{_STYLE})*)?m)"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    "|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # they reorder what is shown around them
)
"""Control sequences of a terminal, and those of them that are harmless colours."""


def inert(text: str) -> str:
    """Return the text with every control character as visible text, such as `\\x1b`, but for ends of lines and tabs.

    Colours stay, and end with the text.

    >>> inert("a\\x1b]0;title\\x07 b")
    'a\\\\x1b]0;title\\\\x07 b'
    """
    if _ACTING.search(text) is None:
        return text
    colours = [match["colour"] for match in _ACTING.finditer(text) if match["colour"]]
    shown = _ACTING.sub(lambda match: match["colour"] or escaped(match[0]), text)
    return f"{shown}\x1b[0m" if colours and colours[-1] not in ("\x1b[0m", "\x1b[m") else shown


def one_line(text: str) -> str:
    """Return the text on one line, such as a file's name: ends of lines and tabs as `\\n` and `\\t`.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    return re.sub("[\t-\r\u0085\u2028\u2029]", lambda match: escaped(match[0]), text)


def escaped(character: str) -> str:
    """Return a control character as Python writes it."""
    return character.encode("unicode_escape").decode("ascii")


def screen(text: str) -> Text:
    """Return the text for rich, with colours and without any other control sequence."""
    from rich.text import Text

    return Text.from_ansi(inert(text))


def printable(text: str) -> str:
    """Return a log line as a terminal finally shows it: the part behind the last carriage return.

    Colours stay, and end with the line. Other control sequences (movements, titles, the bell) are removed.
    """
    shown = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    shown = _CONTROL.sub(lambda match: match[0] if _SGR.fullmatch(match[0]) else "", shown)
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

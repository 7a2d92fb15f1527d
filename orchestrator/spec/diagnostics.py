"""Diagnostics: what is wrong in a cluster spec, and where; and how a diagnostic shows values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Loc = tuple[str | int, ...]
"""The path from the root of the file to a value: keys and list positions."""

Diagnostics = Iterator[tuple[Loc, str]]
"""What a check between values yields: places, and what is wrong there."""

SHOWN_MAX = 50
"""How many diagnostics of a file are printed. A file with more has one mistake that is repeated."""

_VALUE_SHOWN_MAX = 60
_COMPARED_MAX = 64


@dataclass(frozen=True, slots=True, order=True)
class Diagnostic:
    """A sentence about one place in the file. Lines and columns count from 1."""

    line: int
    column: int
    where: str
    sentence: str
    file: str = ""
    """The inventory, where it is the place. Empty: the file that was asked for."""


def render(file: str, diagnostics: Iterable[Diagnostic]) -> str:
    """Return one line per diagnostic, in the order of the file."""
    ordered = sorted(set(diagnostics))
    lines = [f"{c.file or file}:{c.line}:{c.column}: {c.where}: {c.sentence}" for c in ordered[:SHOWN_MAX]]
    if len(ordered) > SHOWN_MAX:
        last = ordered[SHOWN_MAX]
        lines.append(f"{file}:{last.line}:{last.column}: and {len(ordered) - SHOWN_MAX} more diagnostics")
    return "\n".join(lines)


def where(loc: Loc) -> str:
    """Return a place as people write it.

    >>> where(("hosts", 0, "gpus"))
    'hosts[0].gpus'
    """
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{shown_key(step)}"
    return text.lstrip(".") or "cluster spec"


def shown_key(key: str) -> str:
    """Return a key without control characters, and of bounded length."""
    short = key if len(key) <= _VALUE_SHOWN_MAX else key[:_VALUE_SHOWN_MAX] + "…"
    return short if short.isprintable() and short else repr(short)


def shown(value: object) -> str:
    """Return a value without control characters, and of bounded length. Do not pass a value that may be secret."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN_MAX else text[:_VALUE_SHOWN_MAX] + "…"


def closest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, or None."""
    if not isinstance(word, str) or len(word) > _COMPARED_MAX:
        return None
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)), None)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a question whether the closest known word was meant; empty if no word is close."""
    meant = closest(word, known)
    return f"; did you mean `{meant}`?" if meant else ""

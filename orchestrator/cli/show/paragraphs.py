"""Paragraphs for a terminal: folded, indented, and with a label in colour."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.cli.session import Paint
from orchestrator.cli.show.terminal import fold


def labelled(label: str, text: object, paint: Paint, style: str, width: int | None = None) -> list[str]:
    """Return `label text`, the label in colour, folded to the terminal's width less two columns of indent."""
    first, *others = fold(f"{label} {text}", width and width - 2, indent="  ")
    return [paint(label, style) + first.removeprefix(label), *others]


def folded(lines: Iterable[str], width: int | None) -> list[str]:
    """Fold each line to the terminal's width less two columns of indent."""
    return [part for line in lines for part in fold(line, width and width - 2, indent="  ")]


def indent(lines: Iterable[str]) -> list[str]:
    """Indent lines by two columns."""
    return [f"  {line}" if line else "" for line in lines]

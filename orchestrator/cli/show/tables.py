"""Tables that fit a terminal: columns are left out by priority, and no line is wider than it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.cli.session import Paint
from orchestrator.cli.show.terminal import cut

Row = Mapping[str, str]
"""Cells by column. A missing one is shown as `-`."""

GAP = 2


def fitting(
    columns: Sequence[str],
    rows: Sequence[Row],
    paint: Paint,
    *,
    width: int | None,
    right: frozenset[str] = frozenset(),
    always: frozenset[str] = frozenset(),
    drop: Sequence[str] = (),
    styles: Mapping[tuple[int, str], tuple[str, ...]] | None = None,
) -> list[str]:
    """Return the lines of a table, its head first. A column without any cell is left out.

    Args:
        columns: The names, in their order.
        rows: The cells.
        paint: Colours the cells.
        width: The columns of the terminal that may be used; None for any number.
        right: Columns that are aligned to the right.
        always: Columns that are shown without any cell too.
        drop: What is left out where the table is too wide: the first one first.
        styles: The style of a cell, by number of the row (the first is 0) and column.
    """
    shown = [name for name in columns if name in always or any(row.get(name, "-") != "-" for row in rows)]
    widths = {name: max([len(name), *(len(row.get(name, "-")) for row in rows)]) for name in shown}
    for name in drop:
        if width is None or sum(widths.values()) + GAP * (len(widths) - 1) <= width:
            break
        widths.pop(name, None)
    lines = []
    for number, row in enumerate([{name: name for name in widths}, *rows], start=-1):
        cells = []
        for name, columns_taken in widths.items():
            text = row.get(name, "-")
            style = ("dim",) if number < 0 else (styles or {}).get((number, name), ())
            pad = " " * (columns_taken - len(text))
            painted = paint(text, *style)
            cells.append(pad + painted if name in right else painted + pad)
        lines.append(cut((" " * GAP).join(cells).rstrip(), width))
    return lines


def table(
    rows: Sequence[Sequence[str]],
    paint: Paint,
    *,
    right: frozenset[str] = frozenset(),
    styles: Mapping[tuple[int, int], tuple[str, ...]] | None = None,
) -> list[str]:
    """Align rows in columns, two blanks apart. The first row names the columns. Colours take no width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for y, row in enumerate(rows):
        cells = []
        for x, text in enumerate(row):
            pad = " " * (widths[x] - len(text))
            painted = paint(text, *(styles or {}).get((y, x), ()))
            cells.append(pad + painted if rows[0][x] in right else painted + pad)
        lines.append("  ".join(cells).rstrip())
    return lines

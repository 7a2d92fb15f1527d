"""The values of a metric over some steps, as a row of numbers: rows are joined, and no extreme value is lost.

A row is a list, as JSON has it: `[step, value]` for one value; for several
`[first step, last step, count, sum, first value, smallest, its step, largest, its step, last value]`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Row = list[Any]

ROW_MAX = 10
"""How many numbers a row has at most."""

VALUE_MAX = 1e308
"""A larger value is left out, and a larger sum is cut: JSON has no infinity."""

_KEPT_S = 3600.0
_COARSER = ((4, 1.0), (4, 0.0), (2, 0.0))
"""Two neighbouring rows that were told are joined if they came within such a part of their age, less these seconds. If
too many are left so, the next pair counts; if even then, the oldest are dropped."""

_UNTOLD_MAX, _TOLD_MAX = 384, 128
"""How many rows of all metrics together a trail keeps that no report had yet, and how many to tell again."""


def whole(row: Row) -> Row:
    """Return the row with all its numbers.

    >>> whole([7, 0.5])
    [7, 7, 1, 0.5, 0.5, 0.5, 7, 0.5, 7, 0.5]
    """
    if len(row) == ROW_MAX:
        return row
    step, value = row
    return [step, step, 1, value, value, value, step, value, step, value]


def count(row: Row) -> int:
    """Return how many values a row stands for."""
    return int(row[2]) if len(row) == ROW_MAX else 1


def joined(earlier: Row, later: Row) -> Row:
    """Return the row of both.

    >>> joined([1, 2.0], [2, 5.0])
    [1, 2, 2, 7.0, 2.0, 2.0, 1, 5.0, 2, 5.0]
    """
    a, b = whole(earlier), whole(later)
    low, high = b if b[5] < a[5] else a, b if b[7] > a[7] else a
    total = max(-VALUE_MAX, min(VALUE_MAX, a[3] + b[3]))
    return [a[0], b[1], a[2] + b[2], total, a[4], low[5], low[6], high[7], high[8], b[9]]


def halved(rows: list[Row]) -> list[Row]:
    """Return the rows, of which each two neighbours are joined."""
    return [joined(*rows[i : i + 2]) if i + 1 < len(rows) else rows[i] for i in range(0, len(rows), 2)]


def read(value: object, is_step: Callable[[Any], bool]) -> Row | None:
    """Return the value if it is a row; None for anything else."""
    if not isinstance(value, list) or len(value) not in (2, ROW_MAX):
        return None
    numbers = all(type(each) in (int, float) and -VALUE_MAX <= each <= VALUE_MAX for each in value)
    places = (0,) if len(value) == 2 else (0, 1, 2, 6, 8)  # a count is no larger than a step
    return value if numbers and all(is_step(value[place]) for place in places) and count(value) > 0 else None


class Trail:
    """The newest values of a metric, for the reports that are to come.

    Nothing says which reports arrive. So what was told is told again, in fewer rows as it grows older. What was told
    is never joined with what was not: whoever has heard the one takes in the other whole.
    """

    def __init__(self) -> None:
        self.count = 0
        """How many values there were in all: by it a reader knows which rows it has."""
        self._told: list[tuple[float, Row]] = []
        """Each with the time at which it came."""
        self._untold: list[tuple[float, Row]] = []

    def add(self, rows: list[Row], at: float, metrics: int) -> None:
        """Add the rows that follow. `metrics`: how many metrics share the room of a report."""
        self.count += sum(map(count, rows))
        told, untold = self._told, self._untold + [(at, row) for row in rows]
        while len(untold) > max(1, _UNTOLD_MAX // metrics):
            rows = halved([row for _, row in untold])
            untold = [(untold[2 * i][0], row) for i, row in enumerate(rows)]
        room = max(1, _TOLD_MAX // metrics)
        for i, (part, less_s) in enumerate(_COARSER):
            if i == 0 or len(told) > room:
                told = _thinned(told, at, part, less_s)
        self._told, self._untold = told[-room:], untold

    def told(self) -> None:
        """Note that a report with all of it is on its way."""
        self._told, self._untold = self._told + self._untold, []

    def content(self) -> dict[str, Any]:
        """Return it as a report has it."""
        return {"count": self.count, "rows": [row for _, row in self._told + self._untold]}


def _thinned(rows: list[tuple[float, Row]], at: float, part: int, less_s: float) -> list[tuple[float, Row]]:
    made: list[tuple[float, Row]] = []
    for came_at, row in rows:
        if at - came_at > _KEPT_S:
            continue
        if made and came_at - made[-1][0] <= (at - made[-1][0]) / part - less_s:
            made[-1] = made[-1][0], joined(made[-1][1], row)
        else:
            made.append((came_at, row))
    return made

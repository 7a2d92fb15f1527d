"""A figure: a claim and its measurements. The median decides; minimum and maximum show the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

from benchmarks.limits import Limit


class NotMeasured(Exception):
    """The benchmark could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a figure stands in a plot: a bar named `series`, or with `x` a point of that line."""

    plot: str
    """The plot's title."""
    series: str
    x: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table."""

    claim: str
    unit: str
    limit: float
    """The largest allowed median; infinite where the figure is no claim, and only stands beside one."""
    samples: tuple[float, ...]
    note: str = ""
    """How the limit was chosen, or what the figure is compared with."""
    error: float = 0.0
    """Half of the 95 % interval of the samples' mean; 0 where none is stated. The limit is kept only with all of it."""
    point: Point | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Where the sample in the middle went, by name, in order; empty where that was not measured."""

    @property
    def measured(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    @property
    def is_claim(self) -> bool:
        """Whether the figure has a limit."""
        return self.limit != inf

    @property
    def row(self) -> str:
        """The row of the table of limits that judges it; the claim itself where its limit is in no table."""
        return self.limit.row if isinstance(self.limit, Limit) else self.claim

    @property
    def is_kept(self) -> bool:
        """Whether the measurement shows that the claim holds here. What is no claim is kept."""
        return self.verdict in ("ok", "")

    @property
    def verdict(self) -> str:
        """The verdict in a word or two; empty where the figure is no claim.

        NOT SHOWN: the median keeps the limit, but its interval reaches beyond it.
        """
        if not self.is_claim:
            return ""
        if self.measured > self.limit:
            return "MISSED"
        return "ok" if self.measured + self.error <= self.limit else "NOT SHOWN"

    def to_json(self) -> dict[str, object]:
        """Return the figure as JSON, with its samples, so that two runs can be compared."""
        return {
            "claim": self.claim,
            "unit": self.unit,
            "limit": round(self.limit, 3) if self.is_claim else None,
            "min": round(min(self.samples), 3),
            "median": round(self.measured, 3),
            "max": round(max(self.samples), 3),
            "samples": [round(sample, 3) for sample in self.samples],
            "error": round(self.error, 3),
            "verdict": self.verdict,
            "note": self.note,
        }

    def shown(self, number: float) -> str:
        """Return a number of this figure's with as many digits as its size asks for."""
        return f"{number:.{_digits(self.limit if self.is_claim else self.measured)}f}"


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a table, with one line for each."""
    head = ("claim", "limit", "min", "median", "max", "n", "", "")
    rows = [head] + [_row(figure) for figure in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:6], widths[1:6], strict=True)]
        lines.append("  ".join([*cells, row[6].ljust(widths[6]), row[7]]).rstrip())
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    numbers = map(figure.shown, (min(figure.samples), figure.measured, max(figure.samples)))
    limit = f"{figure.shown(figure.limit)} {figure.unit}" if figure.is_claim else figure.unit
    return (figure.claim, limit, *numbers, str(len(figure.samples)), figure.verdict, figure.note)


def _digits(limit: float) -> int:
    return 0 if limit >= 100 else 1 if limit >= 10 else 2

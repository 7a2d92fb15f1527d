"""A figure: what is claimed, and what was measured. The median is judged; min and max show the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


class NotMeasured(Exception):
    """This machine lacks what the benchmark needs; the sentence says what."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    claim: str
    unit: str
    limit: float
    """What the median may be at most."""
    samples: tuple[float, ...]
    note: str = ""
    """How the limit came about, or what the figure was measured against."""
    error: float = 0.0
    """Standard error of the median, where it matters: one above the limit says nothing about the claim."""

    @property
    def measured(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    @property
    def is_kept(self) -> bool:
        """Whether the claim holds here, and it could be told."""
        return self.verdict == "ok"

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.error > self.limit:
            return "TOO NOISY"
        return "ok" if self.measured <= self.limit else "MISSED"

    def to_json(self) -> dict[str, object]:
        """For scripts; the samples too, so that two runs can be compared."""
        return {
            "claim": self.claim,
            "unit": self.unit,
            "limit": round(self.limit, 3),
            "min": round(min(self.samples), 3),
            "median": round(self.measured, 3),
            "max": round(max(self.samples), 3),
            "samples": [round(sample, 3) for sample in self.samples],
            "error": round(self.error, 3),
            "verdict": self.verdict,
            "note": self.note,
        }


def table(figures: Sequence[Figure]) -> str:
    """One line a figure, in columns."""
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
    numbers = (min(figure.samples), figure.measured, max(figure.samples))
    shown = [f"{number:.{_digits(figure.limit)}f}" for number in numbers]
    limit = f"{figure.limit:.{_digits(figure.limit)}f} {figure.unit}"
    return (figure.claim, limit, *shown, str(len(figure.samples)), figure.verdict, figure.note)


def _digits(limit: float) -> int:
    return 0 if limit >= 100 else 1 if limit >= 10 else 2

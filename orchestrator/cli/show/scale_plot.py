"""The plot of `orch scale`: speed-up against the ideal, and where the time of a step goes.

Matplotlib draws it, of the extra `plot`. Only that command imports this, which fails where matplotlib is not installed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from orchestrator.reporting.scaling import Row

KINDS = (".svg", ".png")
"""An SVG is sharp at any size, and its text can be searched; a PNG can be shown anywhere."""

_COLOURS = {"computation": "#3d9578", "input": "#c99a1e", "communication": "#98031f"}
_LINE, _GREY = "#002c76", "#777777"
_VERDICT_COLUMNS = 120


def draw(path: str, rows: Sequence[Row], name: str, verdict: str) -> None:
    """Write the plot of a table, as the path's ending says. Raises OSError."""
    # The text stays text, and the same figures are the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "orch"}):
        figure(rows, name, verdict).savefig(path, dpi=150, metadata={"Date": None})


def figure(rows: Sequence[Row], name: str, verdict: str) -> Figure:
    """Return the plot of a table, with its verdict below."""
    drawn = Figure(figsize=(9, 4.4), layout="constrained")
    drawn.suptitle(name, weight="bold", parse_math=False)
    drawn.supxlabel("\n".join(textwrap.wrap(verdict, _VERDICT_COLUMNS)), size=9, parse_math=False)
    speedups, steps = drawn.subplots(1, 2)
    _speedups(speedups, rows)
    _steps(steps, rows)
    for axes in (speedups, steps):
        axes.set_xlabel("replicas")
        axes.spines[["top", "right"]].set_visible(False)
    return drawn


def _speedups(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the speed-up over the number of replicas, and the ideal, dashed."""
    sizes = [row.replicas for row in rows]
    axes.set_title(f"speed-up over {sizes[0]} (dashed: each replica as fast as the first)", size=10)
    axes.plot(sizes, [size / sizes[0] for size in sizes], "--", color=_GREY)
    axes.plot(sizes, [row.speedup for row in rows], "o-", color=_LINE)
    for row in rows:
        axes.annotate(
            f"{row.speedup:.2f}x",
            (row.replicas, row.speedup),
            xytext=(5, -12),
            textcoords="offset points",
            size=9,
        )
    axes.set_xticks(sizes)
    axes.set_ylim(bottom=0)


def _steps(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw a bar for the step of each size, cut into its parts."""
    axes.set_title("ms a step", size=10)
    places = list(range(len(rows)))
    bottoms = [0.0] * len(rows)
    for name, colour in _COLOURS.items():
        heights = [1000 * row.step_s * _parts(row)[name] for row in rows]
        if any(heights):  # what was not measured is in no legend
            axes.bar(places, heights, bottom=bottoms, width=0.6, color=colour, label=name)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            f"{1000 * row.step_s:.3g}",
            (place, 1000 * row.step_s),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            size=9,
        )
    axes.set_xticks(places, [str(row.replicas) for row in rows])
    axes.margins(y=0.25)
    axes.legend(ncols=len(_COLOURS), loc="upper left", frameon=False, fontsize=9)


def _parts(row: Row) -> dict[str, float]:
    """Return the shares of a step. What was not measured counts as computation."""
    wait, talk = row.input_share or 0.0, row.communication_share or 0.0
    talk = min(talk, 1.0 - wait)
    return {"computation": 1.0 - wait - talk, "input": wait, "communication": talk}

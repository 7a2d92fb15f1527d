"""docs/benchmarks.md and its plots, whole, of one run of one commit: pure functions from figures to Markdown."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from benchmarks import plots
from benchmarks.figure import Figure
from benchmarks.machine import Machine, heading

_HEAD = """<!-- Made by `make bench`, which measures. Never edit it by hand. -->
# Benchmarks

What orch costs and how fast it reacts, against limits that were set before (`benchmarks/limits.py`). `make bench`
measures all of it and writes this page; `python -m benchmarks NAME…` measures some and prints them. The exit code is 1
where a limit is not kept or could not be measured. It needs what the cluster tests need (sshd; as root, namespaces).
The median of n samples decides; least and most show the noise. NOT SHOWN: the median keeps the limit, but its 95 %
interval reaches beyond it. A limit that judges several figures, such as one for each number of hosts, counts once, and
is kept where all of them keep it. What was not measured is not kept. Benchmarks are not part of `make test`.
"""


def document(
    at: Machine,
    measured: Mapping[str, Sequence[Figure]],
    about: Mapping[str, str],
    failures: Sequence[str],
    minutes: float,
    rows: Collection[str] = (),
) -> str:
    """Return the page.

    Args:
        at: the machine.
        measured: the figures by benchmark.
        about: what each benchmark measures and how, by benchmark.
        failures: benchmarks that could not be measured, a sentence each.
        minutes: how long the run took.
        rows: the limits that were to be measured.
    """
    parts = [_HEAD, f"{heading(at)} It took {minutes:.0f} min.", _summary(measured, failures, rows)]
    for name, figures in measured.items():
        shown = [f"![{title}](images/{_file(title)})" for title in drawn(figures)]
        parts += [f"## {name}", about[name], *shown, markdown(figures)]
    return "\n\n".join(parts) + "\n"


def images(measured: Mapping[str, Sequence[Figure]]) -> dict[str, str]:
    """Return the plots by the name of their file."""
    return {_file(title): svg for figures in measured.values() for title, svg in drawn(figures).items()}


def drawn(figures: Sequence[Figure]) -> dict[str, str]:
    """Return the plots of one benchmark by their title. A figure says itself in which plot it stands."""
    by_plot: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.point is not None:
            by_plot.setdefault(figure.point.plot, []).append(figure)
    return {title: _plot(title, figures) for title, figures in by_plot.items()}


def _plot(title: str, figures: Sequence[Figure]) -> str:
    unit = figures[0].unit
    if all(figure.parts for figure in figures):
        return plots.stacked(title, unit, _by_part(figures))
    if all(figure.point is not None and figure.point.x is None for figure in figures):
        named = {figure.point.series: _spread(figure) for figure in figures if figure.point is not None}
        return plots.bars(title, unit, named)
    series: dict[str, dict[float, plots.Spread]] = {}
    limits: dict[str, float] = {}
    for figure in figures:
        if figure.point is not None and figure.point.x is not None:
            series.setdefault(figure.point.series, {})[figure.point.x] = _spread(figure)
            limits[figure.point.series] = figure.limit
    return plots.lines(title, unit, "hosts", series, limits)


def _by_part(figures: Sequence[Figure]) -> dict[str, dict[str, float]]:
    """Return the parts of each figure by name; what a figure has no such part of is zero."""
    names = dict.fromkeys(name for figure in figures for name in figure.parts)
    return {
        figure.point.series: {name: figure.parts.get(name, 0.0) for name in names}
        for figure in figures
        if figure.point is not None
    }


def _spread(figure: Figure) -> plots.Spread:
    return plots.Spread(figure.measured, min(figure.samples), max(figure.samples))


def _file(title: str) -> str:
    return f"bench-{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}.svg"


def _summary(measured: Mapping[str, Sequence[Figure]], failures: Sequence[str], rows: Collection[str]) -> str:
    claims = [figure for figures in measured.values() for figure in figures if figure.is_claim]
    missed = [figure for figure in claims if not figure.is_kept]
    judged = {figure.row for figure in claims}
    left_out = [row for row in rows if row not in judged]
    kept = judged - {figure.row for figure in missed}
    lines = [f"**{len(kept)} of {len(judged) + len(left_out)} limits are kept.**"]
    lines += [
        f"- {figure.verdict}: {figure.claim}: {figure.shown(figure.measured)}{_interval(figure)} {figure.unit}, "
        f"limit {figure.shown(figure.limit)} {figure.unit}"
        for figure in missed
    ]
    lines += [f"- {failure}" for failure in failures]
    lines += [f"- no figure for the limit: {row}" for row in left_out]
    return lines[0] + ("\n\n" + "\n".join(lines[1:]) if lines[1:] else "")


def _interval(figure: Figure) -> str:
    return f" ± {figure.shown(figure.error)}" if figure.error else ""


def markdown(figures: Sequence[Figure]) -> str:
    """Return the figures as a table of Markdown."""
    rows = ["| | limit | least | median | most | n | | |", "|---|---:|---:|---:|---:|---:|---|---|"]
    for figure in figures:
        limit = f"{figure.shown(figure.limit)} {figure.unit}" if figure.is_claim else f"({figure.unit})"
        numbers = (min(figure.samples), figure.measured, max(figure.samples))
        verdict = figure.verdict if figure.is_kept or not figure.is_claim else f"**{figure.verdict}**"
        cells = [
            figure.claim,
            limit,
            *map(figure.shown, numbers),
            str(len(figure.samples)),
            verdict,
            figure.note,
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)

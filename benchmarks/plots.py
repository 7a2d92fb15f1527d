"""Plots of figures as SVG: pure functions. One file serves a light and a dark page, by the reader's own setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from math import ceil, floor, log10
from typing import NamedTuple

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 24, 40, 44
_ROW = 34
_LEGEND_ROW = 20
_TICK = 40
"""A number of the x axis is as wide; one nearer to the next is left out."""
_COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")
_STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#24292f}
.title{font-weight:600;font-size:14px}
.grid{stroke:#d0d7de}.limit{stroke:#cf222e;stroke-dasharray:5 4}.limit-text{fill:#cf222e}.whisker{stroke:#57606a}
.c0{stroke:#0969da;fill:#0969da}.c1{stroke:#bc4c00;fill:#bc4c00}.c2{stroke:#1a7f37;fill:#1a7f37}
.c3{stroke:#8250df;fill:#8250df}.c4{stroke:#57606a;fill:#57606a}.c5{stroke:#bf8700;fill:#bf8700}polyline{fill:none!important;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#30363d}.limit{stroke:#ff7b72}.limit-text{fill:#ff7b72}
.whisker{stroke:#8b949e}.c0{stroke:#58a6ff;fill:#58a6ff}.c1{stroke:#f0883e;fill:#f0883e}.c2{stroke:#3fb950;fill:#3fb950}
.c3{stroke:#bc8cff;fill:#bc8cff}.c4{stroke:#8b949e;fill:#8b949e}.c5{stroke:#e3b341;fill:#e3b341}}
</style>"""


class Spread(NamedTuple):
    """What was measured of one thing: median, least and most."""

    median: float
    least: float
    most: float


def lines(
    title: str,
    unit: str,
    x_label: str,
    series: Mapping[str, Mapping[float, Spread]],
    limits: Mapping[str, float],
) -> str:
    """Return a plot with one line for each series. The x axis is logarithmic.

    Args:
        title: what is plotted.
        unit: that of the y axis.
        x_label: what the x axis counts.
        series: by name, by x.
        limits: by the series' name; one dashed line for each that differs.
    """
    points = [(x, y) for line in series.values() for x, y in line.items()]
    top = _ceiling(max([y.most for _, y in points] + list(limits.values())))
    left, right = min(x for x, _ in points), max(x for x, _ in points)

    def at_x(x: float) -> float:
        share = (log10(x) - log10(left)) / (log10(right) - log10(left)) if right > left else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    body = [_text(16, 22, f"{title}, {unit}", "title")]
    for mark in _marks(top):
        body.append(_line(_LEFT, at_y(mark), _WIDTH - _RIGHT, at_y(mark), "grid"))
        body.append(_text(_LEFT - 8, at_y(mark) + 4, f"{mark:g}", anchor="end"))
    under = _HEIGHT - _BOTTOM + 18
    ticks = _apart({x: at_x(x) for x, _ in points})
    body += [_text(place, under, f"{x:,.0f}", anchor="middle") for x, place in ticks.items()]
    body.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, f"{x_label}, logarithmic", anchor="middle"))
    for limit in set(limits.values()):
        body.append(_line(_LEFT, at_y(limit), _WIDTH - _RIGHT, at_y(limit), "limit"))
    for colour, line in zip(cycle(_COLOURS), series.values(), strict=False):
        places = [(at_x(x), at_y(y.median)) for x, y in sorted(line.items())]
        body.append(
            f'<polyline class="{colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        )
        for x, y in sorted(line.items()):
            body.append(_line(at_x(x), at_y(y.least), at_x(x), at_y(y.most), "whisker"))
            body.append(f'<circle class="{colour}" cx="{at_x(x):.1f}" cy="{at_y(y.median):.1f}" r="4"/>')
    legend = _legend(list(series), limits, unit)
    return _svg(_HEIGHT + _LEGEND_ROW * len(legend) + 8, title, body + legend)


def _apart(places: Mapping[float, float]) -> dict[float, float]:
    """Return the places of the numbers that can be read. The last one always can, and those that leave it room."""
    shown: dict[float, float] = {}
    for x in sorted(places, reverse=True):
        if all(abs(places[x] - other) >= _TICK for other in shown.values()):
            shown[x] = places[x]
    return shown


def _legend(names: Sequence[str], limits: Mapping[str, float], unit: str) -> list[str]:
    """Return a row below the plot for each line, and one for each limit: names beside the lines would overlap."""
    rows = [(colour, name, "") for colour, name in zip(cycle(_COLOURS), names, strict=False)]
    for limit in sorted(set(limits.values())):
        of = ", ".join(name for name in names if limits.get(name) == limit)
        rows.append(("limit", f"limit of {limit:g} {unit}: {of}", "limit-text"))
    legend = []
    for number, (line, text, style) in enumerate(rows):
        y = _HEIGHT + 12 + _LEGEND_ROW * number
        legend.append(_line(_LEFT, y, _LEFT + 24, y, line) + _text(_LEFT + 32, y + 4, text, style))
    return legend


def bars(title: str, unit: str, measured: Mapping[str, Spread]) -> str:
    """Return a plot with a horizontal bar for each thing, its least and most as a whisker. Bars begin at zero."""
    top = max(0.0, *(spread.most for spread in measured.values()))
    bottom = min(0.0, *(spread.least for spread in measured.values()))
    scale = _ceiling(top - bottom)
    left = 16 + max(7 * len(name) for name in measured)
    height = _TOP + _ROW * len(measured) + 12

    def at_x(value: float) -> float:
        return left + (value - bottom) / scale * (_WIDTH - left - 90)

    body = [_text(16, 22, f"{title}, {unit}", "title")]
    if bottom < 0:
        body.append(_line(at_x(0), _TOP, at_x(0), height - 8, "grid"))
    for number, (name, spread) in enumerate(measured.items()):
        y = _TOP + _ROW * number
        colour = _COLOURS[number % len(_COLOURS)]
        begin, end = sorted((at_x(0), at_x(spread.median)))
        body.append(_text(left - 8, y + 18, name, anchor="end"))
        body.append(
            f'<rect class="{colour}" x="{begin:.1f}" y="{y + 4}" width="{end - begin:.1f}" height="20"/>'
        )
        body.append(_line(at_x(spread.least), y + 14, at_x(spread.most), y + 14, "whisker"))
        number_text = f"{spread.median:.{_decimals(scale)}f} {unit}"
        body.append(_text(at_x(max(spread.most, 0)) + 8, y + 18, number_text))
    return _svg(height, title, body)


def stacked(title: str, unit: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    """Return a plot with a horizontal bar for each thing, made of its parts one after the other, and their sum.

    Args:
        title: what is plotted.
        unit: that of all parts.
        measured: the parts by name, by thing. All things have the same parts.
    """
    parts = list(next(iter(measured.values())))
    scale = _ceiling(max(sum(each.values()) for each in measured.values()))
    left = 16 + max(7 * len(name) for name in measured)
    height = _TOP + _ROW * len(measured) + 12
    body = [_text(16, 22, f"{title}, {unit}", "title")]
    for number, (name, each) in enumerate(measured.items()):
        x, y = float(left), _TOP + _ROW * number
        body.append(_text(left - 8, y + 18, name, anchor="end"))
        for colour, part in zip(cycle(_COLOURS), parts, strict=False):
            width = each[part] / scale * (_WIDTH - left - 90)
            body.append(
                f'<rect class="{colour}" x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="20">'
                f"<title>{escape(f'{part}: {each[part]:.2f} {unit}')}</title></rect>"
            )
            x += width
        body.append(_text(x + 8, y + 18, f"{sum(each.values()):.{_decimals(scale)}f} {unit}"))
    for number, (colour, part) in enumerate(zip(cycle(_COLOURS), parts, strict=False)):
        y = height + _LEGEND_ROW * number
        body.append(f'<rect class="{colour}" x="{left}" y="{y}" width="24" height="10"/>')
        body.append(_text(left + 32, y + 10, part))
    return _svg(height + _LEGEND_ROW * len(parts) + 8, title, body)


def _decimals(scale: float) -> int:
    """Return how many decimals show three digits of the largest number.

    >>> _decimals(0.2), _decimals(5), _decimals(20), _decimals(1000)
    (3, 2, 1, 0)
    """
    return max(0, 2 - floor(log10(scale)))


def _svg(height: float, title: str, body: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'width="{_WIDTH}" height="{height:.0f}" role="img">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, *body, "</svg>", ""])


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _ceiling(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten.

    >>> _ceiling(0.34), _ceiling(7), _ceiling(11)
    (0.5, 10.0, 20.0)
    """
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if value <= factor * power * (1 + 1e-9))


def _marks(top: float) -> list[float]:
    step = _ceiling(top / 5)
    return [number * step for number in range(ceil(top / step) + 1) if number * step <= top * (1 + 1e-9)]

"""The plot of `orch scale`, as an SVG: speed-up against the ideal, and where the time of a step goes. Pure.

It is drawn without a library: every browser shows an SVG, it is sharp at any size, its text can be searched, and a test
can read it. A drawing library for two plots would weigh more than orch itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from orchestrator.core.scaling import Row

_WIDTH, _HEIGHT = 860, 380
_LEFT, _TOP, _BOTTOM = 60, 60, 310
_PANEL = 320
_SECOND = 500
"""Where the second panel begins."""

_COLOURS = {"computation": "#3d9578", "input": "#c99a1e", "communication": "#98031f"}
_LINE, _GREY = "#002c76", "#777"


def svg(rows: Sequence[Row], name: str, verdict: str) -> str:
    """Return the plot of a table, with its verdict below."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img" font-family="sans-serif" font-size="12">',
        f"<title>{escape(name)}: {escape(verdict)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, name, size=16, weight="bold"),
        *_speedups(rows),
        *_steps(rows),
        *_wrapped(verdict),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def _wrapped(verdict: str, width: int = 125) -> Iterator[str]:
    """Yield the verdict in lines."""
    line, y = "", _BOTTOM + 40.0
    for word in verdict.split():
        if line and len(line) + len(word) >= width:
            yield _text(_LEFT, y, line)
            line, y = "", y + 16
        line = f"{line} {word}".strip()
    yield _text(_LEFT, y, line)


def _speedups(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the speed-up over the number of replicas, and the ideal, dashed."""
    least, most = rows[0].replicas, rows[-1].replicas
    top = max(most / least, *(row.speedup for row in rows))

    def at(replicas: float, speedup: float) -> tuple[float, float]:
        across = (replicas - least) / (most - least) if most > least else 0.5
        return _LEFT + across * _PANEL, _BOTTOM - (_BOTTOM - _TOP) * speedup / top

    yield _text(_LEFT, 46, f"speed-up over {least} (dashed: each replica as fast as the first)")
    yield _line(_LEFT, _TOP, _LEFT, _BOTTOM, _GREY)
    yield _line(_LEFT, _BOTTOM, _LEFT + _PANEL, _BOTTOM, _GREY)
    yield _line(*at(least, 1.0), *at(most, most / least), _GREY, more='stroke-dasharray="5 4"')
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(row.replicas, row.speedup) for row in rows))
    yield f'<polyline points="{points}" fill="none" stroke="{_LINE}" stroke-width="2"/>'
    for row in rows:
        x, y = at(row.replicas, row.speedup)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_LINE}"/>'
        yield _text(x + 6, y - 8, f"{row.speedup:.2f}x")
        yield _text(x, _BOTTOM + 16, str(row.replicas), anchor="middle")


def _steps(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a bar for the step of each size, cut into its parts; with a thin line from the least to the greatest."""
    top = max(row.step_s for row in rows)
    place = _PANEL / len(rows)
    wide = min(60.0, 0.6 * place)
    known = [
        name for name in _COLOURS if any(share for row in rows for key, share in _parts(row) if key == name)
    ]
    yield _text(_SECOND, 46, "ms a step")
    for number, name in enumerate(known):
        left = _SECOND + 75 + 95 * number
        yield f'<rect x="{left}" y="37" width="10" height="10" fill="{_COLOURS[name]}"/>'
        yield _text(left + 14, 46, name)
    yield _line(_SECOND, _BOTTOM, _SECOND + _PANEL, _BOTTOM, _GREY)
    for number, row in enumerate(rows):
        x, y = _SECOND + place * number + (place - wide) / 2, float(_BOTTOM)
        for name, share in _parts(row):
            high = (_BOTTOM - _TOP) * row.step_s / top * share
            y -= high
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{_COLOURS[name]}"/>'
            )
        yield _text(x + wide / 2, y - 6, f"{1000 * row.step_s:.3g}", anchor="middle")
        yield _text(x + wide / 2, _BOTTOM + 16, str(row.replicas), anchor="middle")


def _parts(row: Row) -> list[tuple[str, float]]:
    """Return the shares of a step. What was not measured counts as computation."""
    wait, talk = row.input_share or 0.0, row.communication_share or 0.0
    talk = min(talk, 1.0 - wait)
    return [("computation", 1.0 - wait - talk), ("input", wait), ("communication", talk)]

"""Formats that sentences and tables share: times, amounts, counts, and text from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)|[\x00-\x1f\x7f-\x9f]+")


def plain(text: str) -> str:
    """Return a process's words as one line without control characters.

    >>> plain("a\\x1b[31mb\\x1b[0m\\tc\\n")
    'ab c'
    """
    return _CONTROL.sub(lambda match: "" if match[0].startswith("\x1b") else " ", text).strip()


_FIGURES = (
    (
        re.compile(
            r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2}(?= +\d)"
            r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"
        ),
        "#",
    ),
    (re.compile(r"(?<=/tmp/)[^\s/'\"]+"), "#"),
    (re.compile(r"0[xX][0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"\b(?=[a-fA-F:-]*\d)[0-9a-fA-F]{2,}(?:[:-]+[0-9a-fA-F]+)+\b|\[\s*\]"), "#"),
    (
        re.compile(
            r"(?<![A-Za-z_])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b", re.IGNORECASE
        ),
        "#",
    ),
    (re.compile(r"\d+"), "#"),
    (re.compile(r"[\s\[\](){},;+-]*#(?:(?:[\s\[\](){},;:+-]|\.\.\.)*#)*[\s\[\](){},;]*"), " # "),
    (re.compile(r"\s+"), " "),
)


def without_figures(text: str) -> str:
    """Return an error's text without numbers, arrays, addresses and temporary names, which differ each time.

    >>> without_figures("loss is -3.1e-05 at [[ 1.  2.]\\n [-3. nan]] of <Batch object at 0x7F3a>")
    'loss is # at # of <Batch object at # >'
    >>> without_figures("[fd00::1]:80 of trial 3f2a-77b1 has []")
    '# of trial # has #'
    >>> without_figures("10.0.0.1:2222"), without_figures("10.0.0.22:3333"), without_figures("Fri Nov 27 10:00:01 2026")
    ('#', '#', '#')
    >>> without_figures("x = - 3 + 4j"), without_figures("x = 5.5j")
    ('x = # j', 'x = # j')
    """
    for pattern, put in _FIGURES:
        text = pattern.sub(put, text)
    return text.strip()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "host"), counted(2, "host")
    ('1 host', '2 hosts')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_LISTED_MAX = 6


def listed(items: Sequence[str]) -> str:
    """Name some things, and count the rest.

    >>> listed(["a", "b"]), listed([f"gpu-{n}" for n in range(9)])
    ('a, b', 'gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, and 3 more')
    """
    if len(items) <= _LISTED_MAX:
        return ", ".join(items)
    return ", ".join(items[:_LISTED_MAX]) + f", and {len(items) - _LISTED_MAX} more"


_UNITS = ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s"))
"""Seconds of a unit and of the next smaller one, with their names."""


def duration(seconds: float) -> str:
    """Return a duration as people read it, in two units at most.

    >>> duration(0.44), duration(4), duration(12.3), duration(185)
    ('0.4 s', '4 s', '12 s', '3 min 5 s')
    >>> duration(7500), duration(3 * 86400 + 4 * 3600)
    ('2 h 5 min', '3 d 4 h')
    """
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for unit, small, name, small_name in _UNITS:
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit} {name} {rest} {small_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def size(count: float) -> str:
    """Return an amount of bytes as people read it.

    >>> size(900), size(1 << 20), size(812 << 20)
    ('900 B', '1.0 MiB', '812 MiB')
    """
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"


def pace(steps_per_s: float) -> str:
    """Return steps per second, with significant digits only.

    >>> pace(0.0421), pace(3.44), pace(1234)
    ('0.042', '3.4', '1234')
    """
    return f"{steps_per_s:.0f}" if steps_per_s >= 99.5 else f"{steps_per_s:.2g}"


_PROOFS = {
    "cgroup": "each task's control group, which holds every process that it has started",
    "marker": "no control group can be made on the host: processes are found by ORCH_RUN in their environment, by "
    "recorded pid, and as children of the shim; a process that outlived its shim and has another environment or user "
    "would not be found",
}


def proof_by(by: str) -> str:
    """Return a sentence on how a sweep finds processes, and which ones it cannot see.

    >>> proof_by("cgroup")
    "each task's control group, which holds every process that it has started"
    """
    return _PROOFS.get(by, by)

"""The document of a band: one measurement of many tasks, hosts or GPUs, in a few lines.

A plot of more than a dozen lines cannot be read. So a band has the median, the range of four fifths of the values, and
the three lines that are furthest from the median.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from orchestrator.head.records import history

OUTLIERS = 3
BUCKETS_MAX = 2000

_GPU = re.compile(r"gpu(\d+)_")

Member = tuple[str, str]
"""Task and name of a series."""


def family(task: str, name: str) -> tuple[str, str]:
    """Return the family of a series: the kind of its owner, and the measurement. All GPUs are one family.

    >>> family("worker:0", "cpu_percent"), family("host:a", "gpu3_power_w")
    (('task', 'cpu_percent'), ('gpu', 'power_w'))
    """
    if not task.startswith("host:"):
        return "task", name
    return ("gpu", _GPU.sub("", name)) if _GPU.match(name) else ("host", name)


def called(task: str, name: str) -> str:
    """Return the label of a line of a band.

    >>> called("worker:0", "cpu_percent"), called("host:a", "gpu3_power_w")
    ('worker:0', 'a GPU 3')
    """
    match = _GPU.match(name)
    return task.removeprefix("host:") + (f" GPU {match[1]}" if match else "")


def document(run_dir: str, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the band of a family. Raises ValueError if the query has no such numbers.

    Query: `of` (`task`, `host` or `gpu`), `name`, `from` and `to` (Unix time), `buckets`.
    """
    count = int(query.get("buckets") or 300)
    if not 1 <= count <= BUCKETS_MAX:
        raise ValueError(f"buckets are 1 to {BUCKETS_MAX}")
    begin, end = (float(query[key]) if query.get(key) else None for key in ("from", "to"))
    path, wanted = os.path.join(run_dir, history.FILE), (query.get("of", ""), query.get("name", ""))
    members = [key for key in history.names(path) if key[0] and family(*key) == wanted]
    series = history.cells(path, members, begin=begin, end=end, count=count)
    return {"schema": 1, "run_id": run_id, "of": wanted[0], "name": wanted[1], **band(series)}


def band(series: Mapping[Member, Mapping[int, float]]) -> dict[str, Any]:
    """Return the lines over a common axis. Values that were not measured are null.

    >>> drawn = band({("w", "x"): {0: 1.0}, ("v", "x"): {0: 2.0}, ("u", "x"): {0: 9.0, 10: 9.0}})
    >>> drawn["x"], drawn["middle"], drawn["outliers"][0]["called"]
    ([0, 10], [2.0, 9.0], 'u')
    """
    xs = sorted({at for line in series.values() for at in line})
    there = [[line[at] for line in series.values() if at in line] for at in xs]
    middle = [median(values) for values in there]
    apart = sorted(series, key=lambda key: -_distance(series[key], dict(zip(xs, middle, strict=True))))
    return {
        "members": len(series),
        "x": xs,
        "middle": middle,
        "low": [_quantile(values, 0.1) for values in there],
        "high": [_quantile(values, 0.9) for values in there],
        "outliers": [
            {"task": key[0], "name": key[1], "called": called(*key), "y": [series[key].get(at) for at in xs]}
            for key in apart[:OUTLIERS]
        ],
    }


def _distance(line: Mapping[int, float], middle: Mapping[int, float]) -> float:
    return sum(abs(value - middle[at]) for at, value in line.items()) / max(1, len(line))


def _quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[round((len(values) - 1) * part)]

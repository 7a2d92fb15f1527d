"""Makes the documents `/v1/runs/RUN/history` and `/v1/runs/RUN/series` from the disk, without a coordinator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from orchestrator.head.records import history
from orchestrator.head.records.accounts import Accounts
from orchestrator.head.records.history import Bucket, Series
from orchestrator.reporting.goodput import Account, Generation

SCHEMA = 1
GENERATIONS_MAX = 500
"""The newest generations are listed; `cut` is the number of the others."""

SERIES_MAX = 64
"""The most series in one answer."""

BUCKETS_MAX = 4000


def history_document(accounts: Accounts, run_dir: str, run_id: str) -> dict[str, Any]:
    """Return the generations of a run with their spans in seconds since `begin`, its checkpoints, and its goodput."""
    account = accounts.account(run_id)
    kept = history.names(os.path.join(run_dir, history.FILE))
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "run_id": run_id,
        "series": [{"task": task, "name": name} for task, name in kept],
    }
    if account is None:
        return {**document, "begin": None, "goodput": None, "generations": [], "checkpoints": [], "cut": None}
    shown = [part for part in account.generations if part.spans][-GENERATIONS_MAX:]
    cut = len(account.generations) - len(shown)
    return {
        **document,
        "begin": account.begin,
        "end": account.end,
        "goodput": account.as_data(),
        "generations": [_generation(part, account) for part in shown],
        "checkpoints": [[round(at - account.begin, 1), step] for at, step in account.checkpoints[-2000:]],
        "cut": cut if len(account.generations) > GENERATIONS_MAX else None,
    }


def _generation(part: Generation, account: Account) -> dict[str, Any]:
    begin = account.begin
    return {
        "generation": part.number,
        "resumed_from": part.resumed_from,
        "last_step": part.last_step,
        "kept_to": part.kept_to,
        "at_risk": part.at_risk,
        "spans": [[s.state, round(s.begin - begin, 2), round(s.end - begin, 2)] for s in part.spans],
    }


def series_document(run_dir: str, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return series of a run, thinned out to `buckets`. Raises ValueError if the query has no such numbers.

    Query: `names` (comma-separated; `worker:0/cpu_percent` is one of a task; `%2C` and `%2F` are part of a name), `x`
    (`step` or `time`), `from` and `to` (Unix time), `from_step` and `to_step` (where `x` is `step`), `buckets`.
    """
    path = os.path.join(run_dir, history.FILE)
    begin, end = _number(query.get("from")), _number(query.get("to"))
    count = int(query.get("buckets") or 900)
    if not 1 <= count <= BUCKETS_MAX or query.get("x", "time") not in ("time", "step"):
        raise ValueError(f"buckets are 1 to {BUCKETS_MAX}, and x is `time` or `step`")
    wanted = [_named(text) for text in (query.get("names") or "").split(",") if text]
    by_step = query.get("x") == "step"
    asked = wanted[:SERIES_MAX]
    if by_step and begin is None and end is None:
        first, last = (int(float(query[key])) if query.get(key) else None for key in ("from_step", "to_step"))
        series = history.read_by_step(path, asked, first=first, last=last, buckets=count)
    else:
        series = history.read(path, asked, begin=begin, end=end, buckets=count)
    return {
        "schema": SCHEMA,
        "run_id": run_id,
        "series": [part for each in series for part in _parts(each, by_step=by_step)],
        "cut": len(wanted) - SERIES_MAX if len(wanted) > SERIES_MAX else None,
    }


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def named(task: str, name: str) -> str:
    """Return a series as `names` takes it.

    >>> named("", "val/loss"), named("worker:0", "cpu_percent")
    ('val%2Floss', 'worker%3A0/cpu_percent')
    """
    return "/".join(quote(part, safe="") for part in ((task, name) if task else (name,)))


def _named(text: str) -> tuple[str, str]:
    task, slash, name = text.partition("/")
    return (unquote(task), unquote(name)) if slash else ("", unquote(text))


def _parts(series: Series, *, by_step: bool) -> list[dict[str, Any]]:
    """Return the series as one line for each generation."""
    lines: dict[int, list[Bucket]] = {}
    for bucket in series.buckets:
        lines.setdefault(bucket.generation, []).append(bucket)
    for generation in series.nonfinite:
        lines.setdefault(generation, [])
    made = []
    for generation, buckets in sorted(lines.items()):
        xs: list[float] = []
        ys: list[float | None] = []
        means: list[tuple[float | None, float | None, int]] = []
        """Of each bucket: where it ends by step or begins by time, the mean of its values, and their number."""
        for before, bucket in zip([None, *buckets], buckets, strict=False):
            if (
                before is not None
                and not by_step
                and _is_gap(before, bucket, series.tier_s, len(buckets), buckets)
            ):
                xs.append(bucket.begin)
                ys.append(None)
                means.append((bucket.begin, None, 0))
            for x, y in _points(bucket, series.tier_s, by_step=by_step):
                xs.append(x)
                ys.append(y)
            if (mean := bucket.mean) is not None and (bucket.step_last is not None or not by_step):
                means.append((bucket.step_last if by_step else bucket.begin, mean, bucket.n))
        named = {"task": series.task, "name": series.name, "generation": generation}
        odd = [list(series.nonfinite[generation])] if generation in series.nonfinite else []
        more = {"means": means} if any(n > 1 for _, _, n in means) else {}
        made.append({**named, "tier_s": series.tier_s, "x": xs, "y": ys, "nonfinite": odd, **more})
    return made


def _is_gap(before: Bucket, bucket: Bucket, tier_s: int, count: int, buckets: list[Bucket]) -> bool:
    """Return whether the time between two buckets is so long that nothing was measured in it."""
    usual = max(tier_s, (buckets[-1].begin - buckets[0].begin) / max(1, count - 1))
    return bucket.begin - before.begin > 3 * usual + 10


def _points(bucket: Bucket, tier_s: int, *, by_step: bool) -> list[tuple[float, float]]:
    """Return first, smallest, largest and last of a bucket, each value once, in an order that is always the same."""
    if by_step and (bucket.step_first is None or bucket.step_last is None):
        return []
    if by_step and bucket.step_min is not None and bucket.step_max is not None:
        # Each is a value that was reported, at its own step.
        at = (bucket.step_first, bucket.step_min, bucket.step_max, bucket.step_last)
        known = zip(at, (bucket.first, bucket.min, bucket.max, bucket.last), strict=True)
        return [
            (step, value)
            for step, value in sorted({pair[0]: pair for pair in known}.values())
            if step is not None
        ]
    low = bucket.step_first if by_step else bucket.begin
    high = bucket.step_last if by_step else bucket.begin + (tier_s if bucket.n > 1 else 0)
    assert low is not None
    assert high is not None
    if bucket.n == 1 or high <= low:
        return [(high if by_step else low, bucket.last)]
    values = [bucket.first]
    values += [each for each in (bucket.max, bucket.min) if each not in (bucket.first, bucket.last)]
    values.append(bucket.last)
    width = (high - low) / len(values)
    if by_step:
        return [(low + round((high - low) * i / (len(values) - 1)), value) for i, value in enumerate(values)]
    return [(round(low + width * i, 2), value) for i, value in enumerate(values)]

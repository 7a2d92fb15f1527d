"""The measurements of a run, as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.head.api.client import Client
from orchestrator.head.records.run_series import named

BUCKETS = 4000
"""About how many points are requested for each series and generation at most."""

Axis = Literal["step", "time"]


class Series(NamedTuple):
    """A measured quantity. The three arrays have the same length; NumPy can use them without a copy."""

    x: array[float]
    """The global step, or the Unix time."""
    y: array[float]
    generation: array[int]
    """A step that two generations trained occurs twice."""


class Metrics(dict[str, Series]):
    """Series by name: `steps_per_s`, the script's metrics, and those of tasks, such as `worker:0/cpu_percent`."""

    def frame(self) -> Any:
        """Return a pandas DataFrame with a column for each name. A step that was trained twice has its last value."""
        try:
            import pandas
        except ImportError as e:
            raise OrchestratorError(
                "pandas is not installed", hint="pip install pandas, or use the arrays"
            ) from e
        columns = {
            name: pandas.Series(series.y, index=series.x).groupby(level=0).last()
            for name, series in self.items()
        }
        return pandas.DataFrame(columns)


def read(client: Client, run_id: str, names: Sequence[str], x: Axis) -> Metrics:
    """Return the series with these names; without names, those of the whole run."""
    kept = client.get(f"/v1/runs/{run_id}/history").get("series") or []
    known = {"/".join(filter(None, (row["task"], row["name"]))): (row["task"], row["name"]) for row in kept}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"{run_id} has no measurement {unknown[0]!r}",
            hint=f"it has: {', '.join(sorted(known))}" if known else "nothing was measured yet",
        )
    wanted = list(names) or sorted(name for name, (task, _) in known.items() if not task)
    made = Metrics()
    # In parts: an answer has a limited number of series, and a run any number of names.
    for name in wanted:
        query: dict[str, str | int | float] = {"names": named(*known[name]), "x": x, "buckets": BUCKETS}
        # All generations in one series, without the gaps between points
        parts = client.get(f"/v1/runs/{run_id}/series", query).get("series") or []
        points = [
            (float(at), float(value), int(part["generation"]))
            for part in parts
            for at, value in zip(part["x"], part["y"], strict=True)
            if value is not None
        ]
        made[name] = Series(
            array("d", (at for at, _, _ in points)),
            array("d", (value for _, value, _ in points)),
            array("q", (number for _, _, number in points)),
        )
    return made

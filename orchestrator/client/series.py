"""The measurements of a run, as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.head.api.client import Client
from orchestrator.head.records.run_series import named

BUCKETS = 4000
"""The most points of one series and generation that are asked for, about."""

Axis = Literal["step", "time"]


class Series(NamedTuple):
    """One measured quantity. All three arrays have the same length; NumPy takes them without a copy."""

    x: array[float]
    """The global step, or the Unix time."""
    y: array[float]
    generation: array[int]
    """A step that was trained twice is there twice: once of each generation."""


class Metrics(dict[str, Series]):
    """Series by name: `steps_per_s`, and what the script reports; `worker:0/cpu_percent` is one of a task."""

    def frame(self) -> Any:
        """Return a pandas DataFrame with a column for each name. Of a step that was trained twice, the last value."""
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
    """Return the series of these names; without any, those of the run as a whole."""
    kept = client.get(f"/v1/runs/{run_id}/history").get("series") or []
    known = {"/".join(filter(None, (row["task"], row["name"]))): (row["task"], row["name"]) for row in kept}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"nothing was measured of {run_id} by the name of {unknown[0]!r}",
            hint=f"there is: {', '.join(sorted(known))}" if known else "nothing was measured yet",
        )
    wanted = list(names) or sorted(name for name, (task, _) in known.items() if not task)
    made = Metrics()
    # One at a time: an answer has a limit of series, and a run any number of names.
    for name in wanted:
        query: dict[str, str | int | float] = {"names": named(*known[name]), "x": x, "buckets": BUCKETS}
        # The generations as one series, without the gaps between points
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

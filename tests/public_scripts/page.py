"""The table of public scripts in docs/strategies.md."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "strategies.md"
BEGIN, END = "<!-- public scripts: begin, by `make public-scripts` -->", "<!-- public scripts: end -->"

EQUAL = 1e-3
"""Of weights, relative to the largest of their array: sums differ in their order, and steps repeat that."""

ALIKE = 0.25
"""Of the last loss, relative, where noise differs by replica."""


def good(row: dict[str, Any], run: str) -> bool:
    """Return whether this run shows what the page promises: equal, alike for what has noise, or refused."""
    return run not in row or verdict(row, run).partition(" ")[0] in ("equal", "alike", "refused")


def verdict(row: dict[str, Any], run: str) -> str:
    """Return what one run of the table shows."""
    seen = row.get(run)
    if seen is None:
        return ""
    if seen["outcome"] != "ran":
        return str(seen["outcome"])
    weights, loss = seen["weights_apart"], seen["loss_apart"]
    if seen["weights"] == 0:
        return "trains nothing"
    if weights is not None and weights <= EQUAL:
        return f"equal ({weights:.0e})"
    if row["noise"] and loss is not None and loss <= ALIKE:
        return f"alike (loss {loss:.1%})"
    return f"differs (weights {weights:.0e}, loss {loss:.0%})" if weights is not None else "other weights"


def write_page(collection: dict[str, Any], known: dict[str, Any]) -> None:
    """Write the table between its marks."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = "\n".join(table_of(collection, known))
    PAGE.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}")


def table_of(collection: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """Return the lines of the table."""
    rows = [(script, _run(known.get(name_of(script)))) for script in collection["script"]]
    ran = [row for _, row in rows if row and row["outcome"] != "not run"]
    bad = sum(not all(good(row, run) for run in ("2", "still", "3")) for row in ran)
    commits = ", ".join(sorted({row.get("commit", "unknown") for row in ran})) or "none"
    yield (
        f"{datetime.date.today()}, commit {commits}: {len(ran)} of {len(rows)} scripts ran, "
        f"{len(ran) - bad} of them as the page promises, {bad} not."
    )
    yield ""
    yield "| script | fits | 2 workers, one killed | noise off | 3 workers | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for script, row in rows:
        yield "| " + " | ".join(_cells(script, row)) + " |"
    yield ""
    for each in collection["collection"]:
        yield f"- {each['name']}: {each['repository']} at {each['commit'][:10]}, {each['license']}"


def commit() -> str:
    """Return the commit of these sources."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return asked.stdout.strip()


def _run(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the row, or None where only one process has trained so far."""
    there = row is not None and (
        row["outcome"] == "not run" or any(run in row for run in ("2", "still", "3"))
    )
    return row if there else None


def name_of(script: dict[str, Any]) -> str:
    """Return how a script is called in the table and in the results."""
    return f"{script['of']}: {script['path']}"


def _cells(script: dict[str, Any], row: dict[str, Any] | None) -> tuple[str, ...]:
    name = name_of(script)
    if row is None:
        return (name, "", "", "", "", "not run: no time for it")
    if row["outcome"] == "not run":
        return (name, "", "", "", "", f"not run: {_cell(row['why'])}")
    two = row.get("2") or {}
    why = next((row[run]["why"] for run in ("2", "still", "3") if "why" in row.get(run, {})), "")
    noise = f"noise: {', '.join(row['noise'])}" if row["noise"] else ""
    killed = two.get("killed")
    at = f"; {killed['worker']} at step {killed['at']}, from {killed['from']}" if killed else ""
    still = verdict(row, "still") if row["noise"] else ""
    return (name, str(row["fits"]), verdict(row, "2") + at, still, verdict(row, "3"), _cell(why or noise))


def _cell(text: str) -> str:
    """Return a script's own words for a cell of the table, in which nothing is a link or a column."""
    return text.replace("](", "] (").replace("|", "\\|").replace("\n", " ")[:240]

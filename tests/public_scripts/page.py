"""The table of public scripts: docs/public-scripts.md, of the results in docs/public-scripts.json."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "public-scripts.md", ROOT / "docs" / "public-scripts.json"
BEGIN, END = "<!-- public scripts: begin, by `make public-scripts` -->", "<!-- public scripts: end -->"
OWN = "here"
"""The collection of the scripts that are written after public ones."""

EQUAL = 1e-3
"""Of weights, relative to the largest of their array: sums differ in their order, and steps repeat that."""

ALIKE = 0.25
"""Of the last loss, relative, where noise differs by replica."""

ITSELF = 2.0
"""How many times as far from one process as that is from itself a run may end."""

SAME_LOSS = 0.02
"""Of the last loss, relative, where one process does not end with the same weights twice either."""

RUNS = ("2", "still", "3", "2x2", "keras2")


def good(row: dict[str, Any], run: str) -> bool:
    """Return whether this run shows what the page promises: see `verdict`."""
    return run not in row or verdict(row, run).partition(" ")[0] in ("equal", "alike", "unstable", "refused")


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
        return f"equal ({weights:.0e}{', as it resumes' if seen.get('resumed') else ''})"
    moved = _itself(row, "moved still" if run == "still" else "moved")
    if moved is not None and weights is not None and _as_itself(seen, moved):
        return f"unstable ({weights:.0e}; by itself {moved['weights_apart']:.0e})"
    if row["noise"] and run != "still" and loss is not None:
        redrawn = _itself(row, "redrawn")
        own = f"; by itself {redrawn['loss_apart']:.1%}" if redrawn is not None else ""
        if loss <= max(ALIKE, ITSELF * redrawn["loss_apart"] if redrawn is not None else 0.0):
            return f"alike (loss {loss:.1%}{own})"
    return f"differs (weights {weights:.0e}, loss {loss:.0%})" if weights is not None else "other weights"


def _as_itself(seen: dict[str, Any], moved: dict[str, Any]) -> bool:
    """Return whether a run ended no farther from one process than that from itself, and with the same loss."""
    near: bool = seen["weights_apart"] <= ITSELF * moved["weights_apart"]
    return near and (seen["loss_apart"] or 0.0) <= max(SAME_LOSS, ITSELF * moved["loss_apart"])


def _itself(row: dict[str, Any], control: str) -> dict[str, Any] | None:
    """Return how far one process ended from itself, where that was measured."""
    found: dict[str, Any] = row.get("itself", {}).get(control) or {}
    return found if found.get("outcome") == "ran" else None


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
    bad = sum(not all(good(row, run) for run in RUNS) for row in ran)
    yield (
        f"{datetime.date.today()}: {len(ran)} of {len(rows)} scripts ran, {len(ran) - bad} of them as the page "
        f"promises, {bad} not; {sum('still' in row for row in ran)} of {sum(bool(row['noise']) for row in ran)} with "
        "noise were also trained with it off. Each row names the commits at which its runs were made."
    )
    yield ""
    heads = (
        "script",
        "fits",
        "2 workers, one killed",
        "proof",
        "files",
        "noise off",
        "3 workers",
        "2 of 2",
        "tf_keras",
    )
    yield f"| {' | '.join(heads)} | | commit |"
    yield f"|{' --- |' * (len(heads) + 2)}"
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
    there = row is not None and (row["outcome"] == "not run" or any(run in row for run in RUNS))
    return row if there else None


def name_of(script: dict[str, Any]) -> str:
    """Return how a script is called in the table and in the results."""
    return f"{script['of']}: {script['path']}"


def _cells(script: dict[str, Any], row: dict[str, Any] | None) -> tuple[str, ...]:
    name = name_of(script)
    if row is None:
        return (name, *[""] * 8, "not run: no time for it", "")
    if row["outcome"] == "not run":
        return (name, *[""] * 8, f"not run: {_cell(row['why'])}", _commits(row))
    two = row.get("2") or {}
    why = next((row[run]["why"] for run in RUNS if "why" in row.get(run, {})), "")
    noise = f"noise: {', '.join(row['noise'])}" if row["noise"] else ""
    killed = two.get("killed")
    at = f"; {killed['worker']} at step {killed['at']}, from {killed['from']}" if killed else ""
    shown = (
        verdict(row, "2") + at,
        _cell(two.get("proof", "")),
        _files(two, is_equal=verdict(row, "2").startswith("equal")),
        *(verdict(row, run) for run in RUNS[1:]),
    )
    return (name, str(row["fits"]), *shown, _cell(why or noise), _commits(row))


def _files(seen: dict[str, Any], *, is_equal: bool) -> str:
    """Return whether the chief leaves the files that one process leaves, where that was looked at.

    What is in them is compared where the trainings are equal: else it is that of another training.
    """
    if "files" not in seen:
        return ""
    apart, count = seen["files_apart"], len(seen["files"])
    if apart or not count:
        return _cell(f"other: {', '.join(apart)}") if apart else "none"
    if not is_equal or "files_compared" not in seen:
        return f"the same {count}"
    if seen["files_differing"]:
        return _cell(f"differ: {', '.join(seen['files_differing'])}")
    return f"the same {count}, {seen['files_compared']} by what is in them"


def _commits(row: dict[str, Any]) -> str:
    """Return the commits of a row's runs. A run that does not name its own is of the row's."""
    first = row.get("commit", "unknown")
    runs = [row[run] for run in RUNS if run in row] + list(row.get("itself", {}).values())
    return ", ".join(dict.fromkeys(run.get("commit", first) for run in runs) or [first])


def _cell(text: str) -> str:
    """Return a script's own words for a cell of the table, in which nothing is a link or a column."""
    return text.replace("](", "] (").replace("|", "\\|").replace("\n", " ")[:400]

"""Public Keras scripts, plain and under `transparent: true`: `make public-scripts DIR=…`.

Each script is run as its author does, by two workers that are killed once and go on, and by three. Weights of what is
deterministic are compared; of what is not, the loss. A refusal is recorded with its line. `--page` writes the results
into docs/strategies.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomllib

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "strategies.md"
BEGIN, END = "<!-- public scripts: begin, by `make public-scripts` -->", "<!-- public scripts: end -->"

EQUAL = 1e-3
"""Of weights, relative to the largest of their array: sums differ in their order, and steps repeat that."""

ALIKE = 0.25
"""Of the last loss, relative, where noise differs by replica."""

_NOISE = re.compile(
    r"Dropout|Random\w+\(|random\.|GaussianNoise|BatchNormalization|shuffle=|\.shuffle\(|sample"
)


def main() -> None:
    """Run what is asked for, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.public_scripts", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the collection's folder is, or is fetched to")
    parser.add_argument("--fetch", action="store_true", help="get the scripts that are missing from GitHub")
    parser.add_argument("--only", default="", help="only scripts whose path contains this")
    parser.add_argument("--results", type=Path, default=Path("build/public-scripts.json"))
    parser.add_argument("--workers", default="2,3", help="with how many workers, one after the other")
    parser.add_argument("--again", action="store_true", help="also run what the results have already")
    parser.add_argument("--page", action="store_true", help="only write the results into docs/strategies.md")
    args = parser.parse_args()
    with open(HERE / "collection.toml", "rb") as file:
        collection = tomllib.load(file)
    known = json.loads(args.results.read_text()) if args.results.exists() else {}
    if not args.page:
        for script in collection["script"]:
            path = script["path"]
            if args.only in path and (args.again or path not in known):
                known[path] = _row(collection, script, args)
                print(f"{path}: {known[path]}", flush=True)
                args.results.parent.mkdir(parents=True, exist_ok=True)
                args.results.write_text(json.dumps(known, indent=1))
    else:
        write_page(collection, known)


def _row(collection: dict[str, Any], script: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    from tests.public_scripts.running import shortened

    source = args.directory / script["path"]
    if not source.exists() and args.fetch:
        _fetch(collection, script["path"], source)
    if not source.exists():
        return {"outcome": "not run", "why": "it is not here"}
    home = args.results.parent.resolve() / "public-scripts" / source.stem
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    copy = home / source.name
    copy.write_text(shortened(source.read_text(), script.get("change", [])))
    noise = sorted(set(_NOISE.findall(copy.read_text())))
    return {**_runs(copy, home, args.workers.split(",")), "noise": noise}


def _fetch(collection: dict[str, Any], path: str, target: Path) -> None:
    base = f"https://raw.githubusercontent.com/{collection['repository']}/{collection['commit']}"
    with urllib.request.urlopen(f"{base}/{collection['folder']}/{path}", timeout=30) as answer:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(answer.read())


def _runs(copy: Path, home: Path, sizes: list[str]) -> dict[str, Any]:
    from tests.public_scripts.running import plain, until

    alone = plain(copy, home / "plain")
    if not until(lambda: alone.poll() is not None):
        alone.kill()
        return {"outcome": "not run", "why": "it takes too long alone"}
    if alone.code != 0:
        return {"outcome": "not run", "why": f"it fails alone: {_last(alone.log)}"}
    expected = alone.result()
    assert expected is not None
    found: dict[str, Any] = {"outcome": "ran", "fits": len(expected["fits"])}
    for workers in map(int, sizes):
        seen = _transparent(copy, home / f"workers-{workers}", workers, kill=workers == 2)
        found[str(workers)] = seen if "why" in seen else {**seen, **_compared(expected, seen.pop("result"))}
        if found[str(workers)].get("outcome") == "refused":
            return {**found, "outcome": "refused", "why": found[str(workers)]["why"]}
    return found


def _transparent(copy: Path, home: Path, workers: int, *, kill: bool) -> dict[str, Any]:
    from tests.public_scripts.running import Gang, saved_step, seeded, until

    directories = seeded(home, 1, workers)
    gang = Gang(copy, home / "first", directories)
    killed = None
    if kill:
        until(lambda: gang.ended() or saved_step(directories[0]) >= 4)
        if not gang.ended():
            gang.kill()
            killed = saved_step(directories[0])
            gang = Gang(copy, home / "second", seeded(home, 2, workers))
    if not until(gang.ended):
        gang.kill()
        return {"outcome": "hung", "why": "it did not end"}
    failed = next((worker for worker in gang.workers if worker.code not in (0, -9)), None)
    if failed is not None:
        refused = "Unsupported" in failed.log or "orch: transparent" in failed.log
        return {"outcome": "refused" if refused else "failed", "why": _last(failed.log)}
    result = gang.workers[0].result()
    if result is None:
        return {"outcome": "failed", "why": "it left no result"}
    return {"outcome": "ran", "killed_at": killed, "result": result}


def _compared(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the largest difference of a weight, and of the last losses."""
    pairs = list(zip(expected["weights"], found["weights"], strict=False))
    same = len(expected["weights"]) == len(found["weights"]) and all(a.shape == b.shape for a, b in pairs)
    apart = (
        max((float(np.abs(a - b).max() / (np.abs(a).max() + 1e-8)) for a, b in pairs), default=0.0)
        if same
        else None
    )
    losses = []
    for one, other in zip(expected["fits"], found["fits"], strict=False):
        a, b = (next((fit[key] for key in fit if "loss" in key), [0.0]) for fit in (one, other))
        losses.append(abs(a[-1] - b[-1]) / max(abs(a[-1]), 1e-8) if a and b else 0.0)
    return {"weights_apart": apart, "loss_apart": max(losses, default=None)}


def _last(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Unsupported|NoNetwork)\b", line)]
    return (said or lines or ["nothing"])[-1][:300]


def verdict(row: dict[str, Any], workers: str) -> str:
    """Return what one run of the table shows."""
    seen = row.get(workers)
    if seen is None:
        return ""
    if seen["outcome"] != "ran":
        return str(seen["outcome"])
    weights, loss = seen["weights_apart"], seen["loss_apart"]
    if weights is not None and weights <= EQUAL:
        return f"equal ({weights:.0e})"
    if row["noise"] and loss is not None and loss <= ALIKE:
        return f"alike (loss {loss:.0%})"
    return f"differs (weights {weights:.0e}, loss {loss:.0%})" if weights is not None else "other weights"


def write_page(collection: dict[str, Any], known: dict[str, Any]) -> None:
    """Write the table between its marks."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = "\n".join(_table(collection, known))
    PAGE.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}")


def _table(collection: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    rows = [(script["path"], known.get(script["path"])) for script in collection["script"]]
    ran = [row for _, row in rows if row and row["outcome"] != "not run"]
    yield (
        f"{datetime.date.today()}, commit {commit.stdout.strip()}: {len(ran)} of {len(rows)} scripts of "
        f"{collection['repository']} (`{collection['folder']}/`, {collection['commit'][:7]}), shortened to 2 epochs "
        "of 200 synthetic examples with a batch of 32."
    )
    yield ""
    yield "| script | fits | 2 workers | killed at step | 3 workers | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for path, row in rows:
        if row is None:
            yield f"| {path} | | | | | not run: no time for it |"
        elif row["outcome"] == "not run":
            yield f"| {path} | | | | | not run: {_cell(row['why'])} |"
        else:
            two = row.get("2") or {}
            why = next((s["why"] for s in (two, row.get("3") or {}) if "why" in s), "")
            noise = (
                f"noise: {', '.join(sorted({n.rstrip('(').strip('.') for n in row['noise']}))}"
                if row["noise"]
                else ""
            )
            at = two.get("killed_at")
            shown = "too short" if at is None and two.get("outcome") == "ran" else at or ""
            cells = (path, row["fits"], verdict(row, "2"), shown, verdict(row, "3"), _cell(why or noise))
            yield "| " + " | ".join(map(str, cells)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:220]


if __name__ == "__main__":
    main()

"""`make faults`: inject every fault of the table for real, and write docs/faults.md from what was measured.

With `--rows 15,24` only those are run, and what is known of the others stays. Exit 1 where a row fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.faults import page, rows

RESULTS = rows.ROOT / "docs" / "faults.json"
PAGE = rows.ROOT / "docs" / "faults.md"


def main() -> int:
    """Run, keep, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rows", default="", metavar="N,N…", help="only these rows")
    parser.add_argument("--short", action="store_true", help="faults as short as in CI")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the last results; run nothing"
    )
    options = parser.parse_args()
    known = rows.load()
    chosen = _chosen(parser, options.rows, known)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.page:
        outcomes = _run(chosen, options.short)
        results.update(summed_up(outcomes, chosen, _stamp()))
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page.render(known, results))
    failed = [row.number for row in known if page.outcome_of(row, results.get(str(row.number))) == "failed"]
    for number in failed:
        broken = [t for t, outcome in results[str(number)]["tests"].items() if outcome == "failed"]
        print(f"row {number} fails: {', '.join(broken)}", file=sys.stderr)
    print(PAGE.relative_to(rows.ROOT))
    return 1 if failed else 0


def _chosen(parser: argparse.ArgumentParser, asked: str, known: list[rows.Row]) -> list[int]:
    numbers = [row.number for row in known]
    if not asked:
        return numbers
    words = asked.split(",")
    wrong = [word for word in words if not word.strip().isdecimal() or int(word) not in numbers]
    if wrong:
        parser.error(f"no such row: {', '.join(wrong)}; rows are 1 to {max(numbers)}")
    return [int(word) for word in words]


def _run(chosen: list[int], short: bool) -> dict[str, dict[str, Any]]:
    """Outcomes by the test's id."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "fault", "--timeout", "600"]
        command += [f"--fault-report={report}", f"--fault-rows={','.join(map(str, chosen))}"]
        subprocess.run([*command, *([] if short else ["--long"]), "tests"], cwd=rows.ROOT, check=False)
        if not report.exists():
            raise SystemExit("the tests could not be run; see above")
        return dict(json.loads(report.read_text()))


def _stamp() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=rows.ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit or "unknown", "cores": os.cpu_count() or 0}


_WORST_FIRST = ("failed", "passed", "skipped")


def summed_up(
    outcomes: Mapping[str, Mapping[str, Any]], chosen: Iterable[int], stamp: Mapping[str, Any]
) -> dict[str, Any]:
    """What was found of each row. Where several tests measure, the slowest counts."""
    found: dict[str, Any] = {}
    for number in chosen:
        of_row = {test: entry for test, entry in outcomes.items() if number in entry["rows"]}
        if not of_row:
            continue
        tests: dict[str, str] = {}
        for test, entry in of_row.items():
            function = test.partition("[")[0]
            tests[function] = min(entry["outcome"], tests.get(function, "skipped"), key=_WORST_FIRST.index)
        row: dict[str, Any] = {**stamp, "tests": tests}
        for entry in of_row.values():
            for key, value in entry.get("measured", {}).items():
                row[key] = max(value, row.get(key, value))
        found[str(number)] = row
    return found


if __name__ == "__main__":
    sys.exit(main())

"""`make faults`: inject every fault of the table for real, and write docs/faults.md from what was measured.

The page is made whole, from one run of one commit. With `--rows 15,24` only those rows are run, the outcome is
printed, and nothing is written. Exit 1 where a row fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.faults import freshness, page, results, rows
from tests.faults.results import Results, TestResult, outcome_of

PAGE = rows.ROOT / "docs" / "faults.md"
SHOWN_MAX = 20


def main() -> int:
    """Run the tests and write the page, or do one of the smaller things."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rows", default="", metavar="N,N…", help="run only these rows, and write nothing")
    parser.add_argument("--page", action="store_true", help="write the page from the last run; run nothing")
    parser.add_argument("--check", action="store_true", help="exit 1 where the page is not of this commit")
    options = parser.parse_args()
    if options.check:
        return check()
    if options.page:
        return write(results.load())
    if options.rows:
        chosen = _chosen(parser, options.rows)
        found = measure(chosen, commit="")
        print(page.told([row for row in rows.load() if row.number in chosen], found))
        return 1 if _failed(found) else 0
    return whole()


def whole() -> int:
    """Run all rows, of a tree that is committed, and write the results and the page."""
    try:
        freshness.need_history()
        commit, changed = freshness.git("rev-parse", "HEAD"), freshness.uncommitted()
    except freshness.NoHistoryError as e:
        raise SystemExit(f"the page names the commit that it measures: {e}") from e
    if changed:
        raise SystemExit(
            "commit these first, or the page would name the wrong commit:\n" + "\n".join(changed)
        )
    found = measure([], commit=commit)
    if freshness.git("rev-parse", "HEAD") != commit or freshness.uncommitted():
        raise SystemExit("the sources changed while they were measured; nothing was written")
    differences = freshness.differences(found, rows.marked())
    if differences:
        raise SystemExit("not all tests were run; nothing was written:\n" + "\n".join(differences))
    results.RESULTS.write_text(results.dump(found), encoding="utf-8")
    return write(found)


def write(found: Results) -> int:
    """Write the page; 1 where a row fails."""
    PAGE.write_text(page.render(rows.load(), found), encoding="utf-8")
    print(PAGE.relative_to(rows.ROOT))
    return 1 if _failed(found) else 0


def check() -> int:
    """Say what is wrong with the page as a part of a release; 1 where something is."""
    found, marked = results.load(), rows.marked()
    wrong = freshness.unfit(found, rows.load(), marked)
    if PAGE.read_text(encoding="utf-8") != page.render(rows.load(), found):
        wrong.append("docs/faults.md is not what docs/faults.json makes; `python -m tests.faults --page`")
    try:
        wrong += filter(None, [freshness.why_old(found.commit)])
    except freshness.NoHistoryError as e:
        print(f"NO HISTORY HERE, so the age of the page is not judged: {e}", file=sys.stderr)
    wrong += freshness.differences(found, marked)
    for sentence in wrong[:SHOWN_MAX]:
        print(f"docs/faults.md: {sentence}", file=sys.stderr)
    if len(wrong) > SHOWN_MAX:
        print(f"docs/faults.md: and {len(wrong) - SHOWN_MAX} more", file=sys.stderr)
    if wrong:
        print(
            "hint: `make faults` makes it anew (about 25 minutes), as the last act of a release",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def _failed(found: Results) -> bool:
    numbers = sorted({number for result in found.tests.values() for number in result.rows})
    failing = [number for number in numbers if outcome_of(found.of_row(number).values()) == "failed"]
    for number in failing:
        broken = [test for test, result in found.of_row(number).items() if result.outcome == "failed"]
        print(f"row {number} fails: {', '.join(broken)}", file=sys.stderr)
    return bool(failing)


def _chosen(parser: argparse.ArgumentParser, asked: str) -> list[int]:
    numbers = [row.number for row in rows.load()]
    words = asked.split(",")
    wrong = [word for word in words if not word.strip().isdecimal() or int(word) not in numbers]
    if wrong:
        parser.error(f"no such row: {', '.join(wrong)}; rows are 1 to {max(numbers)}")
    return [int(word) for word in words]


def measure(chosen: list[int], *, commit: str) -> Results:
    """Run the tests of these rows; of all, where none is named.

    Those without TensorFlow mostly wait, and run three at a time. The others, whose times people compare with their own
    start by hand, run one after the other.
    """
    began, began_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), time.monotonic()
    load_begin = os.getloadavg()[0]
    entries = _run("fault and not tensorflow", chosen, "-n", "3", "--dist", "worksteal")
    entries |= _run("fault and tensorflow", chosen)
    return Results(
        commit=commit,
        began=began,
        wall_s=round(time.monotonic() - began_at, 1),
        machine=_machine(),
        load={"begin": round(load_begin, 2), "end": round(os.getloadavg()[0], 2)},
        tests={test: TestResult.of(entry) for test, entry in entries.items()},
    )


def _run(marks: str, chosen: list[int], *more: str) -> dict[str, Any]:
    """Run the tests with these marks, and return what each process that ran some has left."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        command = [sys.executable, "-m", "pytest", "-q", "-m", marks, "--timeout", "600", "--long", *more]
        command += [f"--fault-report={report}", f"--fault-rows={','.join(map(str, chosen))}", "tests"]
        subprocess.run(command, cwd=rows.ROOT, check=False)
        if not report.exists():
            raise SystemExit("the tests could not be run; see above")
        entries: dict[str, Any] = {}
        for path in sorted(Path(directory).iterdir()):
            entries |= json.loads(path.read_text())
        return entries


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count() or 0,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "tensorflow": _version("tensorflow-cpu") or _version("tensorflow") or "none",
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())

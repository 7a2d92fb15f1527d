"""Tests that failed while others ran beside them run once more, alone: `python -m tests.alone`.

Four at once on two busy cores make a deadline pass now and then. What passes alone is a test (or a product) that does
not bear load: it is written to build/flakes.jsonl with the load, the test and the commit, and printed. What fails
alone, what passes alone for the second time in that log, and more than a few at once, fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

LASTFAILED = Path(".pytest_cache/v/cache/lastfailed")
FLAKES = Path("build/flakes.jsonl")
"""A line for each time that a test passed alone only. Who mends a test removes its lines."""
MOST = 5
MOST_TIMES = 1
"""So often a test may pass alone only, before it fails."""
TIMEOUT_S = 300.0


def main() -> int:
    failed = sorted(json.loads(LASTFAILED.read_text())) if LASTFAILED.exists() else []
    # A file that could not be collected is no test: what else it holds did not run.
    if not 0 < len(failed) <= MOST or not all("::" in test for test in failed):
        return 1
    print(f"\n{len(failed)} failed beside others and run once more, alone:", flush=True)
    load = os.getloadavg()[0]  # of the minute in which they failed, or nearly
    # Each in a process of its own: what one has left behind is not what the next one meets.
    again = [test for test in failed if not _passes(test)]
    counted = _logged([test for test in failed if test not in again], load)
    often = [test for test in failed if test not in again and counted[test] > MOST_TIMES]
    for test in failed:
        if test in again:
            said = "FAILED TWICE"
        elif test in often:
            said = f"PASSES ALONE ONLY, {counted[test]} times now, and fails until it is mended ({FLAKES})"
        else:
            said = "PASSES ALONE ONLY, to be mended"
        print(f"{said}: {test}", flush=True)
    print(f"{len(counted)} tests passed alone only, {counted.total()} times in all:", flush=True)
    for test, times in counted.most_common():
        print(f"  {times} {test}", flush=True)
    return 1 if again or often else 0


def _logged(passed: list[str], load: float) -> Counter[str]:
    """Add those that passed alone to the log, and return how often it has each test."""
    common: dict[str, Any] = {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load": round(load, 1),
        "cores": os.cpu_count(),
        "commit": _commit(),
    }
    FLAKES.parent.mkdir(parents=True, exist_ok=True)
    with FLAKES.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps({"test": test, **common}) + "\n" for test in passed)
    return Counter(json.loads(line)["test"] for line in FLAKES.read_text(encoding="utf-8").splitlines())


def _commit() -> str | None:
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None


def _passes(test: str) -> bool:
    try:
        return subprocess.run([sys.executable, "-m", "pytest", "-q", test], timeout=TIMEOUT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False  # it may have failed, and left a thread that keeps its process


if __name__ == "__main__":
    sys.exit(main())

"""Tests that failed while others ran beside them run once more, alone: `python -m tests.alone`.

Four at once on two busy cores make a deadline pass now and then. What passes alone is printed as what it is,
a test (or a product) that does not bear load, to be mended; what fails alone, and more than a few, fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LASTFAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 5
TIMEOUT_S = 300.0


def main() -> int:
    failed = sorted(json.loads(LASTFAILED.read_text())) if LASTFAILED.exists() else []
    # A file that could not be collected is no test: what else it holds did not run.
    if not 0 < len(failed) <= MOST or not all("::" in test for test in failed):
        return 1
    print(f"\n{len(failed)} failed beside others and run once more, alone:", flush=True)
    # Each in a process of its own: what one has left behind is not what the next one meets.
    again = [test for test in failed if not _passes(test)]
    for test in failed:
        print(
            f"FAILED TWICE: {test}" if test in again else f"PASSES ALONE ONLY, to be mended: {test}",
            flush=True,
        )
    return 1 if again else 0


def _passes(test: str) -> bool:
    try:
        return subprocess.run([sys.executable, "-m", "pytest", "-q", test], timeout=TIMEOUT_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False  # it may have failed, and left a thread that keeps its process


if __name__ == "__main__":
    sys.exit(main())

"""Which lines of the package have changed since docs/mutants.md was written."""

from __future__ import annotations

import re
import subprocess

from tests.mutants.drawing import PRODUCT, ROOT


def changed_since(commit: str) -> dict[str, set[int]]:
    """Return the lines of each file of the package that are not as they were at that commit.

    Where that commit is not here, every line counts as changed.
    """
    known = subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False)
    if known.returncode != 0:
        return {path.relative_to(PRODUCT).as_posix(): set(range(1, 10_000)) for path in PRODUCT.rglob("*.py")}
    return lines_of(
        git("diff", "--unified=0", "--no-color", "--no-ext-diff", commit, "--", "orchestrator/*.py")
    )


def lines_of(diff: str) -> dict[str, set[int]]:
    """Return the lines that a diff without context has added or changed, by file."""
    changed: dict[str, set[int]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/orchestrator/")
        elif found := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            changed.setdefault(file, set()).update(range(first, first + count))
    return changed


def git(*command: str) -> str:
    """Return what git says of this tree."""
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout

"""The product does not grow unnoticed: CONTRIBUTING.md says how many lines it may have."""

from __future__ import annotations

import re
from pathlib import Path

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent


def lines(package: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in package.rglob("*.py"))


def test_there_are_no_more_lines_than_contributing_allows() -> None:
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    named = re.search(r"`orchestrator/` has at most ([\d,]+) lines of Python", text)
    assert named is not None
    allowed = int(named[1].replace(",", ""))
    found = lines(PACKAGE)
    assert found <= allowed, f"{found} lines, {allowed} are allowed: what comes pays with what goes"
    assert allowed - found < 500, f"there are only {found} lines: lower the number of CONTRIBUTING.md"


def test_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.py").write_text("1\n2\n")
    (tmp_path / "below" / "b.py").write_text("3\n")
    (tmp_path / "c.txt").write_text("4\n")
    assert lines(tmp_path) == 3

"""docs/strategies.md counts the scripts that are compared where shares are taken in parts, as the test has them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.contract.test_transparent_cases import IN_PARTS

ROOT = Path(__file__).parents[2]


def compared() -> set[str]:
    """Return the names of all cases but those that must be refused. The script trains them all when it is imported."""
    tree = ast.parse((ROOT / "tests/contract/scripts/transparent/cases.py").read_text())
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark) in ("case", "case_of_parts") for mark in node.decorator_list)
        and not node.name.startswith("refused")
    }


def test_the_page_counts_the_cases_that_the_test_compares() -> None:
    text = " ".join((ROOT / "docs/strategies.md").read_text().split())
    ((in_parts, whole),) = re.findall(r"(\d+) in parts, and (\d+) that get their share as a whole", text)
    assert (int(in_parts), int(whole)) == (len(IN_PARTS), len(compared() - IN_PARTS))
    assert compared() >= IN_PARTS

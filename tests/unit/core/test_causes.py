"""The table of causes: what stands in its rows, and that nothing beside it names causes in groups."""

import ast
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from orchestrator.core.causes import REPORTED, Blame, Cause
from orchestrator.core.diagnosis.signatures import SIGNATURES
from orchestrator.core.ends import Exit

ROOT = Path(__file__).parents[3] / "orchestrator"


@pytest.mark.parametrize("cause", list(Cause))
def test_a_cause_is_written_by_its_name_and_read_again(cause: Cause) -> None:
    exits = TypeAdapter(Exit)
    written = exits.dump_json(Exit(cause))
    assert f'"cause":"{cause.row.name}"'.encode() in written
    assert exits.validate_json(written).cause is cause


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause.row.blame is not Blame.NOBODY])
def test_every_failure_is_explained(cause: Cause) -> None:
    assert cause.row.means or any(sign.cause is cause for sign in SIGNATURES)


def test_no_two_causes_are_reported_alike() -> None:
    assert len(REPORTED) == sum(1 for cause in Cause if cause.row.reported_as)


def _causes_in(group: ast.AST) -> int:
    values = [*getattr(group, "elts", ()), *getattr(group, "keys", ())]
    return sum(ast.unparse(value).startswith("Cause.") for value in values if value is not None)


def test_causes_are_grouped_by_their_rows_alone() -> None:
    grouped = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict) and _causes_in(node) > 1
    ]
    assert grouped == []

"""The table of notes: its names are in journals, and tasks say no others than theirs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from orchestrator.core.notes import NoteKind, kind_of, said_by_task

ROOT = Path(__file__).parents[3] / "orchestrator"


@pytest.mark.parametrize("kind", list(NoteKind))
def test_a_kind_is_found_by_its_name_and_means_something(kind: NoteKind) -> None:
    assert kind_of(kind.value) is kind
    assert kind.row.means.endswith(".")


@pytest.mark.parametrize("name", ["", "no-such-kind", None, 7])
def test_a_kind_of_another_version_is_none(name: object) -> None:
    assert kind_of(name) is None


def test_a_task_says_only_what_a_task_can_know() -> None:
    assert said_by_task("keras3-patched") is NoteKind.KERAS3_PATCHED
    for name in ("failed", "task-lost", "epoch", "of another version", ""):
        assert said_by_task(name) is NoteKind.SAID


def _said_in(path: Path) -> set[str]:
    """Find the kinds in `link.say("kind", …)`, in `report("kind", …)` of transparent runs, and in dicts of the shim."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict) and "shim" in path.parts:
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            values = dict(zip(keys, node.values, strict=True))
            if isinstance(values.get("kind"), ast.Constant) and path.name == "report.py":
                found.add(str(values["kind"].value))  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name, kind = ast.unparse(node.func).rpartition(".")[2], node.args[0].value
            if name == "say":
                found.add(str(kind))
            elif name.lstrip("_") == "report" and path.parent.name == "transparent":
                found.add(f"transparent-{kind!s}")
    return found


def test_what_runtime_and_shim_say_is_in_the_table_and_nothing_else_is() -> None:
    paths = [*(ROOT / "task").rglob("*.py"), ROOT / "host" / "shim" / "report.py"]
    said = set().union(*(_said_in(path) for path in paths))
    known = {kind.value for kind in NoteKind if kind.row.by_task and kind is not NoteKind.SAID}
    assert said == known


def test_what_may_repeat_are_kinds_and_none_that_the_end_of_a_run_or_a_task_needs() -> None:
    needed = {kind for kind in NoteKind if kind.row.ends_the_run or kind.row.by_task}
    needed |= {
        NoteKind.TASK_EXITED,
        NoteKind.TASK_LOST,
        NoteKind.STOPPING,
        NoteKind.BACKOFF,
        NoteKind.HOST_LOST,
    }
    repeating = {kind for kind in NoteKind if kind.row.may_repeat}
    assert len(repeating) == 20
    assert repeating.isdisjoint(needed)

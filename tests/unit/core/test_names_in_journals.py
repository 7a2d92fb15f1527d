"""The names that the version before has written into journals: none is lost, whatever its class is called now."""

from __future__ import annotations

import ast

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.events import EVENTS, Event
from tests.contract.test_version_before import VERSION_BEFORE
from tests.faults.freshness import NoHistoryError, git


def landed(module: str) -> list[ast.ClassDef]:
    """Return the classes of a module of the version before."""
    try:
        text = git("show", f"{VERSION_BEFORE}:orchestrator/{module}")
    except NoHistoryError as e:
        pytest.skip(f"the version before is not here: {e}")
    return [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def test_causes_keep_their_names() -> None:
    (table,) = (each for each in landed("core/causes.py") if each.name == "Cause")
    rows = [each.value for each in table.body if isinstance(each, ast.Assign)]
    names = {ast.literal_eval(row.args[0]) for row in rows if isinstance(row, ast.Call)}
    assert len(names) > 30
    assert names - {cause.value for cause in Cause} == set()


def test_events_are_read_by_the_names_that_they_had() -> None:
    classes = landed("core/events.py")
    names = {each.name for each in classes if "at: Instant" in map(ast.unparse, each.body)}
    names |= {each.name for each in classes if "Event" in map(ast.unparse, each.bases)}
    assert len(names) > 20
    assert names - {*EVENTS, Event.__name__} == set()

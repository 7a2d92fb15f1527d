"""A little of `make fuzz` in every run of the tests, and all that it ever found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

KEPT = sorted((Path(__file__).parent / "found").glob("*.json"))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.fault(56)
def test_whatever_is_read_is_taken_or_refused_with_a_sentence(name: str, data: Any) -> None:
    drawn = data.draw(TARGETS[name].inputs)
    assert TARGETS[name].takes(drawn) is None


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
@pytest.mark.fault(56)
def test_what_was_found_once_is_taken(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert TARGETS[path.stem.rsplit("-", 1)[0]].takes(found) is None


def test_every_kept_input_is_of_a_target() -> None:
    assert {path.stem.rsplit("-", 1)[0] for path in KEPT} <= set(TARGETS)

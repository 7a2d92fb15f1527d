"""A little of `make fuzz` in every run of the tests, and all that it ever found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import __main__ as fuzz
from tests.fuzz import targets
from tests.fuzz.targets import TARGETS
from tests.protocol_orders import TABLE

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


PATHS = ("../x", "/etc/passwd", "a//b", "a\0b", "", "GUARD/x", "/c/gen-000001/../../h", "\ud800", "x" * 300)
NUMBERS = (2**63, 10**400, -1, 1e308, True, None, -0.0)


@pytest.mark.parametrize("order", [row.name for row in TABLE if targets.places_in(row.name)])
@pytest.mark.fault(101, 103)
def test_each_field_of_each_answer_may_be_a_path_or_a_number_of_another_kind(order: str) -> None:
    for at, place in enumerate(targets.places_in(order)):
        for value in (PATHS[at % len(PATHS)], NUMBERS[at % len(NUMBERS)]):
            assert TARGETS["answer"].takes([order, [[list(place), value]]]) is None


def test_the_shortest_fuzz_has_an_input_of_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--minutes", "0", "--inputs", "1"]) == 0
    counts = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert counts.keys() == TARGETS.keys()
    assert "0 inputs" not in counts.values()


def test_every_kept_input_is_of_a_target() -> None:
    assert {path.stem.rsplit("-", 1)[0] for path in KEPT} <= set(TARGETS)

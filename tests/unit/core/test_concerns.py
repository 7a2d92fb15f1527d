"""The concerns: none knows another, all are in the tuple, and whatever happens is heard by one of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import orchestrator
from orchestrator.core import events as ev
from orchestrator.core import moments
from orchestrator.core.concerns import CONCERNS, HEARS, outstanding
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.core.turn import Concern, Turn
from tests.protocol_page import repeated
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan
from tests.unit.test_imports import PACKAGE, imports

CORE = Path(orchestrator.__file__).parent / "core"


def defined() -> Iterator[tuple[str, str]]:
    """Yield each module of the core that defines a concern, with the concern's name in it."""
    for path in sorted(CORE.rglob("*.py")):
        module = ".".join(("orchestrator", *path.relative_to(CORE.parent).with_suffix("").parts))
        yield from (
            (module, name) for name in re.findall(r"^(\w+) = Concern\(", path.read_text(), re.MULTILINE)
        )


def test_no_concern_knows_another() -> None:
    modules = {module for module, _ in defined()}
    files = imports(PACKAGE)
    assert len(modules) > 15
    assert {module: files[module] & modules for module in modules if files[module] & modules} == {}


def test_every_concern_that_is_defined_is_in_the_tuple() -> None:
    named = {f"{module.rpartition('.')[2]}.{name}" for module, name in defined()}
    listed = (CORE / "concerns.py").read_text().partition("CONCERNS: tuple")[2].partition("\n)")[0]
    assert set(re.findall(r"\w+\.[A-Z]+", listed)) == named
    assert len(CONCERNS) == len({concern.name for concern in CONCERNS}) == len(named)


def test_every_event_and_every_moment_is_heard() -> None:
    told = {
        kind
        for _, kind in inspect.getmembers(moments, inspect.isclass)
        if kind.__module__ == moments.__name__
    }
    assert HEARS.keys() == {*ev.EVENTS.values(), *told} - {ev.Ticked}
    texts = "".join(path.read_text() for path in CORE.rglob("*.py"))
    assert [moment.__name__ for moment in told if f"turn.tell({moment.__name__}(" not in texts] == []


def test_all_hear_what_is_told_and_the_first_answer_counts() -> None:
    heard: list[str] = []

    def hears(name: str, answer: object) -> Concern:
        def on(turn: Turn, _event: ev.Ticked) -> object:
            heard.append(name)
            return answer

        return Concern(name, on={ev.Ticked: on})

    three = [hears("a", None), hears("b", False), hears("c", 3)]
    run = new_run("t-20260101-1", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    turn = Turn(run, 1.0, {ev.Ticked: [concern.on[ev.Ticked] for concern in three]})
    assert turn.tell(ev.Ticked(1.0)) is False
    assert turn.tell(ev.Submitted(1.0)) is None
    assert heard == ["a", "b", "c"]


def test_the_annotation_of_what_a_concern_repeats_names_each_action() -> None:
    nothing = Concern._field_defaults["repeats"]
    named = {concern.name: repeated(concern) for concern in CONCERNS if concern.repeats is not nothing}
    assert len(named) > 5
    assert [name for name, told in named.items() if not told or not all(map(inspect.isclass, told))] == []


def test_of_a_host_that_owes_the_proof_nothing_else_is_asked() -> None:
    run = new_run("t-20260101-1", make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0)
    asked = in_phase(run, Phase.STOPPING, proof={})
    assert [type(order).__name__ for order in outstanding(asked, "b", 1.0)] == ["SweepHost"]
    assert [type(order).__name__ for order in outstanding(run, "b", 1.0)] == ["PrepareHost"]

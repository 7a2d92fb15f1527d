"""A small, fixed part of the simulation. `make sim` runs more seeds, and `make mutants-known` what it must find."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator

import pytest

from tests.mutants.drawing import ROOT
from tests.mutants.known import Known, found_by_seed, found_by_test, hunt, load
from tests.sim.__main__ import BROKEN, CRASHED, play
from tests.sim.checks import Checks
from tests.sim.draw import ASKED
from tests.sim.fibers import Fiber, Fibers, Killed, Waiters
from tests.sim.heap import Heap, Violation


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the logs of the many coordinators that die here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_thread_that_another_test_has_left_does_not_play_along() -> None:
    """It would hand over to the scheduler in the place of the thread that plays, and both would run."""
    fibers = Fibers(Heap())
    fibers.current = Fiber(fibers, [], lambda: None)
    for wait in (fibers.wait, Waiters(fibers).wait):
        with pytest.raises(Killed):
            wait(1.0)
    assert fibers.back.locked()


SHORT = [kind for kind in ASKED if kind != "long"]


@pytest.mark.parametrize(("seed", "kind"), list(enumerate(SHORT)))
def test_no_rule_is_broken(seed: int, kind: str) -> None:
    result = play(seed, kind=kind)
    again = f"make sim SEEDS=1 SEED={seed} KIND={kind}"
    assert result.check is None, f"{again}: {result.sentence}\n" + "\n".join(result.last)


def test_a_seed_is_the_same_world_each_time() -> None:
    first, again = play(3), play(3)
    assert (first.hours, first.turns, first.ends) == (again.hours, again.turns, again.ends)
    assert first.last == again.last


def test_faults_happen() -> None:
    """A simulator in which nothing happens would always pass."""
    assert sum(play(seed, kind="chaos").faults for seed in (0, 2)) > 5


@pytest.mark.parametrize("rule", ["changed", "performed", "posted", "spawned", "heard"])
def test_a_broken_rule_ends_the_play_wherever_it_is_checked(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product guards what follows a decision, and must not swallow what a rule says there."""

    def broken(*_: object) -> None:
        raise Violation("broken", rule)

    monkeypatch.setattr(Checks, rule, broken)
    assert play(0, kind="calm").check == "broken"


@pytest.mark.long  # `make mutants-known` hunts it too, and a rule that is broken wherever it is checked is seen above
def test_a_mistake_is_found() -> None:
    (mutant,) = (each for each in load() if each.name.startswith("adoption without identity"))
    assert "foreign-pid" in hunt(mutant).by


@pytest.mark.parametrize("tests", ["", "tests/unit/host/test_shim_state.py"])
def test_a_crash_is_no_catch(tests: str) -> None:
    old = "def begin(generation: int, epoch: int, hold: bool) -> tuple[State, Actions]:\n"
    crash = Known("crash", "host/shim/state.py", old, f"{old}    raise OSError\n", seeds=2, tests=tests)
    verdict = hunt(crash)
    assert (verdict.by, verdict.why[:15]) == ("", "it only crashes")


def test_only_a_broken_rule_or_a_failed_assertion_is_a_catch() -> None:
    def ran(code: int, said: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, said, "")

    assert (
        found_by_seed(ran(BROKEN, "…\nbroken: 3 (budget), 5 (exception)\n"))[0] == "3 (budget), 5 (exception)"
    )
    assert found_by_seed(ran(CRASHED, "broken: 5 (exception)\n"))[0] == ""
    assert found_by_seed(ran(0, "60 seeds")) == ("", "no seed breaks a rule")
    assert found_by_test(ran(1, "FAILED tests/t.py::a[x y] - assert 1 == 2\n"))[0] == "t.py::a"
    assert found_by_test(ran(1, "FAILED tests/t.py::a - AssertionError: no\n"))[0] == "t.py::a"
    assert (
        found_by_test(ran(1, "FAILED tests/t.py::a - Failed: DID NOT RAISE <class 'OSError'>\n"))[0]
        == "t.py::a"
    )
    for crash in (
        "FAILED tests/t.py::a - TypeError: x",
        "FAILED tests/t.py::a - Failed: Timeout >120.0s",
        "ERROR tests/t.py",
    ):
        assert found_by_test(ran(1, crash))[0] == ""


def test_there_are_mistakes_of_every_part() -> None:
    assert len(load()) >= 40
    parts = {
        "core/": 15,
        "head/coordinator/": 4,
        "head/links/": 4,
        "host/agent/": 4,
        "host/shim/": 4,
    }
    for part, at_least in parts.items():
        assert sum(mutant.file.startswith(part) for mutant in load()) >= at_least, part


@pytest.mark.parametrize("mutant", load(), ids=lambda mutant: mutant.name.partition(":")[0])
def test_every_mistake_can_still_be_made(mutant: Known) -> None:
    """A mutant whose text has changed proves nothing."""
    text = (ROOT / "orchestrator" / mutant.file).read_text(encoding="utf-8")
    assert mutant.made_in(text) is not None, f"{mutant.file} reads otherwise now"
    assert not mutant.tests or (ROOT / mutant.tests.partition("::")[0]).exists()

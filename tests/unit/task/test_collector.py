"""The garbage collector is paused while a framework is imported, and is afterwards as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.task import collector
from tests.unit.task.runtime_task import Task

THRESHOLDS = (700, 11, 12)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*before)


def collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


def allocate() -> list[list[int]]:
    """Make so many objects that live that Python would collect several times."""
    return [[number] for number in range(20 * THRESHOLDS[0])]


@pytest.mark.parametrize(("freeze", "afterwards"), [(True, 0), (False, 1)])
def test_nothing_is_collected_meanwhile_and_once_or_never_at_the_end(freeze: bool, afterwards: int) -> None:
    before = collections()
    with collector.paused(freeze=freeze):
        kept = allocate()
        assert collections() == before
    # Nothing more was collected, although far more than the first threshold has been made.
    assert collections() == before + afterwards
    assert gc.get_threshold() == THRESHOLDS
    assert gc.isenabled()
    assert (gc.get_freeze_count() > len(kept)) is freeze


def test_what_is_made_afterwards_is_collected_as_ever() -> None:
    with collector.paused(freeze=True):
        pass
    before = collections()
    assert allocate()
    assert collections() > before


def test_an_error_passes_and_collection_goes_on() -> None:
    with pytest.raises(ImportError), collector.paused():
        raise ImportError
    assert gc.get_threshold() == THRESHOLDS


def test_an_import_within_an_import_ends_no_pause() -> None:
    with collector.paused():
        with collector.paused():
            pass
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == THRESHOLDS


def test_who_sets_thresholds_meanwhile_is_not_overruled() -> None:
    with collector.paused():
        gc.set_threshold(5, 6, 7)
    assert gc.get_threshold() == (5, 6, 7)


def test_who_disables_collection_meanwhile_is_not_overruled() -> None:
    before = collections()
    with collector.paused():
        gc.disable()
    assert not gc.isenabled()
    assert collections() == before


def test_where_collection_is_off_it_stays_so_and_nothing_is_frozen() -> None:
    gc.disable()
    before = collections()
    with collector.paused(freeze=True):
        assert gc.get_threshold() == THRESHOLDS
    assert not gc.isenabled()
    assert (collections(), gc.get_freeze_count()) == (before, 0)


SHOW = """
import gc
import tensorflow
print(tensorflow.THRESHOLD, gc.isenabled(), gc.get_freeze_count() > 0, gc.get_threshold())
"""
UNCLEAR = "import os\nos.environ['A'] = str(1)\n"


@pytest.mark.parametrize(
    ("source", "env", "frozen"),
    [(SHOW, {}, True), (SHOW, {"ORCH_STANDBY": "1"}, True), (UNCLEAR + SHOW, {}, False)],
    ids=["at the gate", "as a standby", "by the script"],
)
def test_tensorflow_is_imported_without_collection(
    task: Callable[..., Task], tmp_path: Path, source: str, env: dict[str, str], frozen: bool
) -> None:
    (tmp_path / "tensorflow.py").write_text("import gc\nTHRESHOLD = gc.get_threshold()[0]\n")
    run = task(source, env=env)
    run.release()
    assert run.ended() == 0
    usual = subprocess.check_output([sys.executable, "-c", "import gc; print(gc.get_threshold())"], text=True)
    assert run.out == f"0 True {frozen} {usual}"


def test_a_script_without_a_framework_is_left_alone(task: Callable[..., Task]) -> None:
    run = task("import gc\nprint(gc.get_freeze_count())\n")
    run.release()
    assert run.ended() == 0
    assert run.out == "0\n"

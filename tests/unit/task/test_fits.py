"""Which backup is a fit's own."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.link import Link
from orchestrator.task.transparent import backup
from orchestrator.task.transparent.fit import has_constant_batch
from orchestrator.task.transparent.identity import described, difference, differences
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.reporter import Reporter
from orchestrator.task.transparent.saver import Saver
from orchestrator.task.transparent.setting import Setting

CALL, MODEL, DATA, WEIGHTS = 0, 1, 2, 6


def identity(**changed: float) -> list[float]:
    numbers = [7.0] * 10
    for part, number in changed.items():
        numbers[globals()[part.upper()]] = number
    return numbers


def restarted(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    *saved: tuple[list[float], int, int],
    seeded: bool = True,
    replicas: int = 0,
) -> Setting:
    """Return the setting of a generation of one replica that begins with these backups.

    Args:
        saved: of each: the identity, the epochs done, the epochs asked for.
        replicas: with how many they were saved.
    """
    pytest.importorskip("h5py")
    for fit, (known, done, asked) in enumerate(saved):
        position = backup.Position(done, 0, 10 * (fit + 1))
        position.fit, position.identity, position.epochs, position.replicas = fit, known, asked, replicas
        backup.write(backup.folder(str(root), fit), {backup.STEPS: position.steps}, position)
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(root))
    strategy = SimpleNamespace(extended=SimpleNamespace(), num_replicas_in_sync=1)
    setting = Setting("keras", strategy, {}, Reporter(Link(None)), True)
    setting.is_seeded = seeded
    return setting


def numbers_of(setting: Setting, *called: list[float], epochs: int = 3) -> list[int]:
    numbers = []
    for each in called:
        numbers.append(setting.number_of(each, epochs))
        setting.backups.pop(numbers[-1], None)
    return numbers


FOLDS = [identity(data=float(fold)) for fold in range(4)]


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        (FOLDS, [0, 1, 2, 3]),  # all again
        (FOLDS[1:], [1, 2, 3]),  # the first is there
        (FOLDS[3:], [3]),  # only one that had not begun
        (FOLDS[1::-1], [1, 0]),  # in another order
        ([FOLDS[1], FOLDS[1]], [1, 3]),  # a backup is that of one fit only
        ([identity(weights=1.0), identity(model=1.0), identity(call=1.0)], [3, 4, 5]),
    ],
)
def test_a_fit_goes_on_from_its_own_backup_whatever_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: list[list[float]], expected: list[int]
) -> None:
    setting = restarted(tmp_path, monkeypatch, (FOLDS[0], 3, 3), (FOLDS[1], 3, 3), (FOLDS[2], 1, 3))
    assert setting.steps_before == 30
    assert numbers_of(setting, *called) == expected


def test_what_is_skipped_and_what_has_no_backup_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = restarted(tmp_path, monkeypatch, (FOLDS[0], 3, 3), (FOLDS[1], 1, 3))
    numbers_of(setting, FOLDS[1], FOLDS[2])
    told = capsys.readouterr().err
    assert "fit 2 comes before fit 1, which differs in the data: skipped or reordered by the script" in told
    assert "fit 3 has no backup, and is not fit 1, which differs in the data: it begins as the script" in told


@pytest.mark.parametrize(
    ("done", "asked", "now", "goes_on"),
    [
        (1, 3, 3, True),
        (1, 3, 5, True),
        (1, 3, 2, True),
        (2, 3, 1, False),
        (3, 3, 3, True),
        (3, 3, 5, False),
        (3, 3, 2, False),
    ],
)
def test_a_fit_of_other_epochs_is_another_one_if_the_backup_is_of_more_or_had_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int, asked: int, now: int, goes_on: bool
) -> None:
    setting = restarted(tmp_path, monkeypatch, (identity(), done, asked))
    assert numbers_of(setting, identity(), epochs=now) == [0 if goes_on else 1]


def test_what_is_saved_of_the_epoch_in_which_a_callback_stops_a_fit_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = restarted(tmp_path, monkeypatch, seeded=False)
    for stops, epoch in ((False, 4), (True, 9)):
        saver = Saver(setting, Course(0), {"epochs": 9})
        saver._directory, saver._is_due = str(tmp_path / str(stops)), True
        model: Any = SimpleNamespace(metrics_variables=[], variables=[], stop_training=stops)
        saver._end_epoch(model, 3)
        setting.writer.wait()
        saved = backup.position(saver._directory)
        assert saved is not None
        assert saved.epoch == epoch


def scaled(replicas: int, *, rate: float = 1e-3, kind: float = 7.0, **changed: float) -> list[float]:
    """Return the identity of a fit whose batch and learning rate follow the number of replicas."""
    numbers = identity(model=100.0 * replicas + kind + 1e5 * rate, **changed)
    return [*numbers, kind, numbers[DATA], 64.0 * replicas, 0.0, rate * replicas]


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        ([{}, {"rate": 1e-5}], [0, 1]),
        ([{"rate": 1e-5}], [1]),  # the one that had ended is skipped by the script
        ([{"rate": 1e-4}], [2]),  # not begun yet
        ([{"kind": 8.0}], [2]),  # what else is compiled does not follow it
        ([{"data": 1.0}, {"weights": 1.0}, {"call": 1.0}], [2, 3, 4]),
        ([{}, {"rate": 1e-5, "data": 1.0}], [0, 1]),  # the first batch of a generator, in the only fit left
        ([{}, {"rate": 1e-5, "data": 1.0, "weights": 1.0}], [0, 2]),
    ],
)
def test_fits_whose_batch_and_rate_follow_the_number_of_replicas_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: list[dict[str, float]], expected: list[int]
) -> None:
    monkeypatch.setenv("ORCH_SCRIPT", "one")
    saved = ((scaled(3), 3, 3), (scaled(3, rate=1e-5), 1, 3))
    begin = functools.partial(restarted, tmp_path, monkeypatch, *saved)
    assert numbers_of(begin(replicas=3), *(scaled(1, **each) for each in called)) == expected
    assert numbers_of(begin(replicas=0), scaled(1)) == [2], "a backup of the version before"
    setting = begin(replicas=3)
    monkeypatch.setenv("ORCH_SCRIPT", "changed")
    assert numbers_of(setting, scaled(1)) == [2], "what the script has changed is told as ever"


def test_of_fits_that_are_like_it_the_one_that_does_not_follow_the_replicas_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = ((scaled(2, rate=5e-4), 3, 3), (scaled(1), 1, 3))
    assert numbers_of(restarted(tmp_path, monkeypatch, *saved, replicas=2), scaled(1)) == [1]


def test_what_follows_the_replicas_does_so_in_proportion_by_the_root_or_the_other_way_round() -> None:
    def grown(*sizes: float) -> list[str]:
        one, other = ([*identity(model=place), 7.0, 7.0] for place in (1.0, 2.0))
        return differences([*one, 64.0, 75.0, 0.1], [*other, *sizes], 4.0)

    for sizes in ((256.0, 19.0, 0.4), (255.0, 18.0, 0.2), (64.0, 75.0, 0.1), (64.0, 75.0, 0.4)):
        assert grown(*sizes) == [], sizes
    for sizes in ((64.0, 75.0, 0.3), (96.0, 19.0, 0.1), (64.0, 40.0, 0.1)):
        assert grown(*sizes) == ["the model or how it is compiled"], sizes


@pytest.mark.parametrize(
    ("length", "now", "mine", "batch"),
    [
        (20, 60, scaled(1), 30),
        (20, 7, scaled(1), 3),
        (20, 1, scaled(1), 1),  # with 0 it would seem that nothing of the epoch is done
        (0, 60, scaled(1), 0),  # the size of its batches is not known: the epoch begins again
        (20, None, scaled(1), 0),
        (20, 60, scaled(3), 10),  # the script does not follow the number of replicas
        (20, 60, scaled(1, kind=8.0), 0),  # it was changed
    ],
)
def test_with_other_batches_a_fit_goes_on_behind_the_same_part_of_its_epoch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    now: int | None,
    mine: list[float],
    batch: int,
) -> None:
    course = Course(0)
    course.keep_handler(SimpleNamespace(num_batches=now))
    saver = Saver(restarted(tmp_path, monkeypatch), course, {"epochs": 3})
    saver._identity = mine
    position = backup.Position(1, 10)
    position.identity, position.replicas, position.length = scaled(3), 3, length
    saver._place(position)
    assert (position.epoch, position.batch, position.begun) == (1, batch, batch > 0)


def test_a_script_whose_chance_differs_in_each_generation_goes_on_unless_a_fit_of_other_data_had_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = ((identity(data=1.0), 3, 3), (identity(data=2.0), 1, 3))
    begin = functools.partial(restarted, tmp_path, monkeypatch, *saved, seeded=False)
    assert numbers_of(begin(), identity(data=1.0, weights=5.0), identity(data=9.0, weights=6.0)) == [0, 1]
    assert numbers_of(begin(), identity(data=9.0), identity(data=8.0)) == [1, 2]
    assert numbers_of(begin(), identity(model=1.0)) == [2]


def test_numbers_with_a_fraction_may_be_rounded_in_another_way() -> None:
    one = identity()
    assert difference(one, [*one[:9], 7.00005]) == ""
    assert difference(one, [*one[:9], 7.001]) == "the starting weights"
    assert difference(one, [one[0] + 1, *one[1:]]) == "the function that calls fit"
    assert difference([], one) != ""


class Optimizer:
    """As one of Keras."""

    def __init__(self, rate: float, name: str = "adam") -> None:
        self.rate, self.name = rate, name

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.rate, "name": self.name}


def focal(gamma: float) -> Any:
    def loss(t: float, p: float) -> float:
        return abs(t - p) * gamma

    return loss


def recursive() -> Any:
    def loss(t: float) -> float:
        return t * missing

    if loss.__name__ == "another":
        missing = 1.0
    return loss


def test_settings_are_described_without_names_and_with_all_that_may_differ() -> None:
    assert described(Optimizer(0.1)) == described(Optimizer(0.1, "adam_7"))
    assert described(Optimizer(0.1)) != described(Optimizer(0.2))
    assert described(focal(2.0)) == described(focal(2.0))
    assert described(focal(2.0)) != described(focal(3.0))
    assert described(functools.partial(max, 1)) != described(functools.partial(max, 2))
    assert described(lambda x: x + 1) != described(lambda x: x + 2)
    assert described(object()) == described(object())
    assert described(recursive()) == described(recursive())
    assert described({"b": 1, "a": [True, None]}) == described({"a": [True, None], "b": 1})


@pytest.mark.parametrize(
    ("error", "replicas", "is_constant"),
    [
        ("INVALID_ARGUMENT:  Incompatible shapes: [8,1] vs. [16,1]", 2, True),
        ("Incompatible shapes: [6,4] vs. [16,4]", 3, True),
        ("Incompatible shapes: [8,1] vs. [16,1]", 1, False),
        ("Incompatible shapes: [8,3] vs. [11,3]", 2, False),
        (
            "Input to reshape is a tensor with 48 values, but the requested shape has 96",
            2,
            True,
        ),
        ("OOM when allocating tensor with shape[8,16]", 2, False),
    ],
)
def test_a_constant_number_of_examples_is_told_by_shapes_of_which_one_is_a_part(
    error: str, replicas: int, is_constant: bool
) -> None:
    assert has_constant_batch(error, replicas) is is_constant

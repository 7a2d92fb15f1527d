"""A state that a survivor has handed over needs no more room than a run without rescues."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import inventory, places, seed
from orchestrator.task.transparent import backup
from tests.contract.small_disk import mounted

pytest.importorskip("h5py")
np: Any = pytest.importorskip("numpy")

MEGABYTES = 3
STATE = np.arange(MEGABYTES << 18, dtype="f4")


def save(directory: str | Path, steps: int, task: str = "", fit: int = 0) -> None:
    """Save as a task does, or as a survivor hands over."""
    folder = backup.folder(str(directory), fit)
    folder = backup.rescued(folder, task) if task else folder
    backup.write(folder, {backup.STEPS: steps, "model/00000": STATE}, backup.Position(0, steps, steps))


@pytest.mark.fault(107)
def test_a_run_with_rescues_goes_on_where_one_without_would(tmp_path: Path) -> None:
    """Of 3.5 checkpoints' room each generation saves often, and a survivor hands over: four times in a row."""
    with mounted(tmp_path / "disk", megabytes=int(3.5 * MEGABYTES) + 1) as disk:
        directory, steps = Path(places.directory_of(str(disk.path / "ckpt"), 1)), 0
        directory.mkdir(parents=True)
        for number in range(2, 6):
            for _ in range(3):
                steps += 10
                save(directory, steps)
            steps += 1
            save(directory, steps, f"worker:{number % 2}")
            answer = seed.seed(str(disk.path / "ckpt"), number, keep=3)
            assert answer["global_step"] == steps
            directory = Path(answer["path"])
            found = backup.read(backup.folder(str(directory), 0))
            assert found is not None
            assert found[1].steps == steps


@pytest.mark.fault(107)
def test_nothing_is_removed_where_there_is_room_and_the_copies_take_none(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", megabytes=7 * MEGABYTES) as disk:
        directory = Path(places.directory_of(str(disk.path / "ckpt"), 1))
        directory.mkdir(parents=True)
        save(directory, 100)
        save(directory, 101, "worker:1")
        before = places.free_bytes(str(disk.path / "ckpt"))
        answer = seed.seed(str(disk.path / "ckpt"), 2)
        assert (answer["global_step"], answer["dropped"]) == (101, [])
        assert before - places.free_bytes(str(disk.path / "ckpt")) < 100_000
        assert {path.stat().st_nlink for path in disk.path.rglob("*.h5")} == {2}
        save(answer["path"], 110)
        assert [path.stat().st_nlink for path in Path(answer["path"]).rglob("*.h5")] == [1], "it was replaced"
        assert seed.seed(str(disk.path / "ckpt"), 3)["global_step"] == 110


@pytest.mark.fault(107)
def test_the_older_file_goes_first_and_it_is_told(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", megabytes=3 * MEGABYTES + 1) as disk:
        directory = Path(places.directory_of(str(disk.path / "ckpt"), 1))
        directory.mkdir(parents=True)
        save(directory, 100)
        save(directory, 101, "worker:1")
        answer = seed.seed(str(disk.path / "ckpt"), 2)
        old = os.path.join(backup.folder(str(directory), 0), backup.NAME)
        assert (answer["global_step"], answer["dropped"]) == (101, [old])
        assert len(list(disk.path.rglob("*.h5"))) == 2


@pytest.mark.fault(107)
def test_neither_what_was_pinned_nor_what_lies_in_the_root_makes_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are a person's: who pins a state has said that it stays, and the root's was there before the run.

    A pin is one more name of a file, so the file's other names go in vain, and stay. The next older file goes.
    """
    directory = Path(places.directory_of(str(tmp_path), 1))
    save(tmp_path, 50)
    save(directory, 100)
    pinned = inventory.pin(str(tmp_path), "100")["path"]
    save(directory, 101, "worker:0")
    save(directory, 102, "worker:1")
    monkeypatch.setattr(places, "free_bytes", lambda _path: 0)
    answer = seed.seed(str(tmp_path), 2)
    old = os.path.join(backup.rescued(backup.folder(str(directory), 0), "worker:0"), backup.NAME)
    assert (answer["global_step"], answer["dropped"]) == (102, [old])
    first, pin = (os.path.join(backup.folder(str(top), 0), backup.NAME) for top in (directory, pinned))
    assert os.path.samefile(first, pin)
    for top, steps in ((pinned, 100), (tmp_path, 50)):
        kept = backup.read(backup.folder(str(top), 0))
        assert kept is not None
        assert kept[1].steps == steps


@pytest.mark.fault(107)
def test_the_newest_state_of_a_fit_that_has_ended_does_not_make_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training would be done again: a pretraining, before the fit in which a worker died."""
    first, second = (Path(places.directory_of(str(tmp_path), number)) for number in (1, 2))
    save(first, 90, fit=2)
    save(second, 50)
    save(second, 51, "worker:0")
    save(second, 100, fit=1)
    save(second, 101, "worker:1", fit=1)
    monkeypatch.setattr(places, "free_bytes", lambda _path: 0)
    answer = seed.seed(str(tmp_path), 3)
    older = [os.path.join(backup.folder(str(second), fit), backup.NAME) for fit in (0, 1)]
    assert (answer["global_step"], answer["dropped"]) == (101, older)
    given = {fit: position.steps for fit, position in backup.positions(answer["path"]).items()}
    assert given == {0: 51, 1: 101}
    assert backup.read(backup.folder(str(first), 2)), "another place has none of that fit"


@pytest.mark.fault(107)
def test_what_a_task_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "gen-000001"
    save(directory, 100)
    folder = Path(backup.rescued(backup.folder(str(directory), 0), "worker:1"))
    for half in (
        folder / "saving_temp",
        directory / "manager" / "rescued-by-worker-1-9.tmp",
        directory / "saving_temp",
    ):
        half.mkdir(parents=True)
        (half / "half").write_bytes(b"x")
    assert seed.seed(str(tmp_path), 2)["global_step"] == 100
    assert [str(path.relative_to(directory)) for path in directory.rglob("half")] == ["saving_temp/half"]

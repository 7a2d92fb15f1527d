"""What people do with checkpoints: look, pin, go back; and what `keep`, a full disk and a second agent do to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.within import Tree
from orchestrator.checkpoints import (
    copying,
    inventory,
    places,
    records,
    seed,
    share,
    units,
    verify,
)
from orchestrator.checkpoints.places import SeedError
from orchestrator.host.agent.directories import probe
from tests.contract.small_disk import mounted
from tests.unit.checkpoints import saved as made
from tests.unit.checkpoints.test_checkpoints import FIXTURES, answer_of, flip, generation, truncate

BY = {"run": "t-1", "host": "gpu-a", "task": "worker:0"}


def names(root: Path, **where: Any) -> list[str]:
    entries = inventory.listed(str(root))["checkpoints"]
    return [e["name"] for e in entries if all(e[key] == value for key, value in where.items())]


def entry(root: Path, name: str) -> dict[str, Any]:
    (found,) = [e for e in inventory.listed(str(root))["checkpoints"] if e["name"] == name]
    return dict(found)


def seeded(root: Path, number: int, **options: Any) -> dict[str, Any]:
    return seed.seed(str(root), number, by=BY, **options)


# What there is


def test_the_list_tells_step_size_whose_it_is_and_whether_it_was_read(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    seeded(tmp_path, 2)
    found = inventory.listed(str(tmp_path))
    assert [(e["generation"], e["global_step"]) for e in found["checkpoints"]] == [
        (2, 32),
        (2, 24),
        (1, 32),
        (1, 24),
    ]
    assert found["checkpoints"][0]["name"] == "gen-000002/manager/ckpt-2"
    first = entry(tmp_path, "gen-000002/manager/ckpt-2")
    assert (first["by"], first["given"]) == (BY, True)
    assert first["bytes"] > 160_000
    assert (first["whole"], first["verified_at"]) == (None, None), (
        "its structure is right; nobody has read it"
    )
    source = entry(tmp_path, "gen-000001/manager/ckpt-2")
    assert source["whole"] is True, "read when it was given on"
    assert (source["by"], source["given"]) == (None, False)


def test_reading_all_of_them_finds_the_flipped_bit_that_a_glance_does_not(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager", "keras3_backup")
    flip(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    assert all(e["whole"] is not False for e in inventory.listed(str(tmp_path))["checkpoints"])
    status = {
        e["name"]: (e["whole"], e["why"]) for e in inventory.listed(str(tmp_path), read=True)["checkpoints"]
    }
    assert status["gen-000001/manager/ckpt-1"] == (True, None)
    assert status["gen-000001/manager/ckpt-2"][0] is False
    assert "checksum" in str(status["gen-000001/manager/ckpt-2"][1])
    again = entry(tmp_path, "gen-000001/manager/ckpt-2")
    assert again["whole"] is False, "the record of it is kept"


def test_a_record_counts_only_while_the_files_are_as_they_were(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    verify(str(directory))
    name = "gen-000001/manager/ckpt-2"
    assert entry(tmp_path, name)["whole"] is True
    os.utime(directory / "manager" / "ckpt-2.index", (0, 1_700_009_999))
    assert entry(tmp_path, name)["whole"] is None


def test_what_is_cut_off_is_being_written_as_long_as_its_files_change(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    data = directory / "manager" / "ckpt-2.data-00000-of-00001"
    truncate(data, 90_000)
    name = "gen-000001/manager/ckpt-2"
    found = entry(tmp_path, name)
    assert (found["whole"], found["writing"]) == (False, True)
    inventory.listed(str(tmp_path), read=True)
    assert entry(tmp_path, name)["writing"] is True
    for file in data.parent.glob("ckpt-2.*"):
        os.utime(file, (0, 1_700_009_999))
    found = entry(tmp_path, name)
    assert (found["whole"], found["writing"]) == (False, False)


def test_what_changes_while_it_is_looked_at_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = generation(tmp_path, 1, "manager")
    truncate(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    for file in directory.rglob("ckpt-2.*"):
        os.utime(file, (0, 1_700_009_999))
    read_step = units.Unit.read_step

    def read_late(unit: units.Unit) -> None:
        """Look while a writer goes on, whose clock is behind."""
        for path in unit.paths:
            os.utime(path, (0, 1_700_010_000))
        read_step(unit)

    monkeypatch.setattr(units.Unit, "read_step", read_late)
    assert entry(tmp_path, "gen-000001/manager/ckpt-2")["writing"] is True


def test_records_of_what_is_gone_are_forgotten(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    inventory.listed(str(tmp_path), read=True)
    shutil.rmtree(directory)
    unit, *_ = made.found(generation(tmp_path, 2, "manager")).units
    with Tree(str(tmp_path)) as tree:
        kept = records.Records(tree)
        kept.add(unit, None)
        kept.save()
    assert list(json.loads((tmp_path / ".orch" / "verified.json").read_text())) == [
        "gen-000002/manager/ckpt-2"
    ]


def test_what_was_truncated_since_it_was_read_is_read_again_though_its_time_is_the_same(
    tmp_path: Path,
) -> None:
    directory = generation(tmp_path, 1, "manager")
    data = directory / "manager" / "ckpt-2.data-00000-of-00001"
    inventory.listed(str(tmp_path), read=True)

    def record() -> dict[str, Any] | None:
        with Tree(str(tmp_path)) as tree:
            (unit,) = (unit for unit in made.found(directory).units if unit.path.endswith("ckpt-2"))
            return records.Records(tree).find(unit)

    assert record() is not None
    was = data.stat()
    truncate(data, was.st_size - 1)
    os.utime(data, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert record() is None


def test_the_root_counts_too_and_what_is_ours_does_not(tmp_path: Path) -> None:
    shutil.copytree(Path(generation(tmp_path / "other", 1, "manager")) / "manager", tmp_path / "run")
    shutil.rmtree(tmp_path / "other")
    inventory.pin(str(tmp_path), "32")
    found = inventory.listed(str(tmp_path))["checkpoints"]
    assert [(e["name"], e["generation"], e["pinned"]) for e in found if e["generation"] is None] == [
        ("run/ckpt-2", None, False),
        ("run/ckpt-1", None, False),
    ]


# Pins


def test_a_pinned_one_stays_when_the_script_and_keep_remove_it(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    answer = inventory.pin(str(tmp_path), "24")
    assert answer["checkpoint"]["name"] == "gen-000001/manager/ckpt-1"
    assert names(tmp_path, pinned=True) == ["gen-000001/manager/ckpt-1"], (
        "one line, as long as both are there"
    )
    for path in (directory / "manager").glob("ckpt-1*"):
        path.unlink()
    for number in range(2, 7):
        seeded(tmp_path, number, keep=2)
        for path in (tmp_path / f"gen-00000{number}" / "manager").glob("ckpt-1*"):
            path.unlink()
    assert made.generations(tmp_path) == [6, 5]
    (kept,) = names(tmp_path, pinned=True)
    assert kept.startswith(".orch/pinned/gen-000001.step-24")
    assert inventory.listed(str(tmp_path), read=True)["checkpoints"][-1]["whole"] is True


def test_a_pin_is_whole_or_it_is_none(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    flip(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    with pytest.raises(SeedError, match="does not read whole"):
        inventory.pin(str(tmp_path), "32")
    assert made.pinned(tmp_path) == []
    assert inventory.pin(str(tmp_path), "gen-1")["checkpoint"]["global_step"] == 24, (
        "the newest of it that is"
    )


def test_pinning_twice_is_once_and_unpinning_ends_it(tmp_path: Path) -> None:
    generation(tmp_path, 1, "keras3_backup")
    assert inventory.pin(str(tmp_path), "20")["already"] is False
    assert inventory.pin(str(tmp_path), "20")["already"] is True
    assert len(made.pinned(tmp_path)) == 1
    inventory.unpin(str(tmp_path), "20")
    assert made.pinned(tmp_path) == []
    with pytest.raises(SeedError, match="no pinned checkpoint of step 20"):
        inventory.unpin(str(tmp_path), "20")


def test_what_is_written_over_is_another_than_the_one_that_was_pinned(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "keras3_backup")
    inventory.pin(str(tmp_path), "20")
    os.utime(directory / "keras3_backup" / "latest.weights.h5", (0, 1_700_009_999))
    pinned = names(tmp_path, pinned=True)
    assert len(pinned) == 1
    assert pinned[0].startswith(".orch/pinned/")


class Training:
    """Writes over its newest checkpoint just before each of the first copies that are made of it."""

    def __init__(self, path: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self._path, self._place = times, path, copying.place
        monkeypatch.setattr(copying, "place", self)

    def __call__(self, tree: Tree, source: str, to: Tree, target: str, *, link: bool = False) -> None:
        if self.left and source == str(self._path):
            self.left -= 1
            saved_at = os.stat(source).st_mtime + 1
            os.utime(source, (saved_at, saved_at))
        self._place(tree, source, to, target, link=link)


def test_what_the_training_writes_over_while_it_is_pinned_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = generation(tmp_path, 3, "keras3_backup") / "keras3_backup" / "latest.weights.h5"
    training = Training(newest, inventory.PIN_ATTEMPTS - 1, monkeypatch)
    pinned = inventory.pin(str(tmp_path), "gen-3")
    assert training.left == 0
    assert Path(pinned["path"]).is_dir()
    training.left = inventory.PIN_ATTEMPTS
    inventory.unpin(str(tmp_path), "gen-3")
    with pytest.raises(SeedError, match="while it was copied"):
        inventory.pin(str(tmp_path), "gen-3")


def test_what_a_zombie_writes_over_while_it_is_seeded_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = generation(tmp_path, 3, "keras3_backup") / "keras3_backup" / "latest.weights.h5"
    zombie = Training(newest, 3, monkeypatch)
    answer = seed.seed(str(tmp_path), 4)
    assert (zombie.left, answer["source"], answer["rejected"]) == (0, str(newest), [])


def test_what_cannot_be_verified_and_is_written_while_it_is_seeded_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that nobody writes it any more could show that it is whole, and somebody does."""
    for step in (100, 200):
        folder = tmp_path / "gen-000001" / f"step_{step}"
        folder.mkdir(parents=True)
        (folder / "state.msgpack").write_bytes(b"x" * 100)
    made.aged(tmp_path)
    newest = tmp_path / "gen-000001" / "step_200"
    zombie = Training(newest / "state.msgpack", 1, monkeypatch)
    answer = seed.seed(str(tmp_path), 2)
    assert (zombie.left, answer["global_step"], answer["verified"]) == (0, 100, False)
    assert [(each["path"], each["why"]) for each in answer["rejected"]] == [
        (str(newest), "it was written, or removed, while it was copied")
    ]


def test_where_all_generations_are_torn_a_pinned_one_is_resumed_from(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "keras3_backup") / "keras3_backup"
    inventory.pin(str(tmp_path), "20")
    for name in ("latest.weights.h5", "latest.weights.h5.bkp"):
        truncate(directory / name, 100)
    answer = seeded(tmp_path, 2)
    assert answer["global_step"] == 20
    assert ".orch/pinned" in answer["source"]


@pytest.mark.parametrize("what", ["77", "gen-9", "gen-000001/nothing", "--json", "$(id)"])
def test_what_is_not_there_is_said_with_what_is(tmp_path: Path, what: str, capsys: Any) -> None:
    generation(tmp_path, 1, "manager")
    status, answer = answer_of(capsys, "pin", root=str(tmp_path), what=what, group=None)
    assert status == 1
    assert answer["error"]["code"] == "no-such-checkpoint"
    assert "24, 32" in answer["error"]["hint"]


# Going back


def test_going_back_sets_aside_what_is_newer_and_removes_nothing(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        generation(tmp_path, number, "manager", age_s=1000 - number)
    answer = inventory.rollback(str(tmp_path), "gen-000001/manager/ckpt-1")
    assert answer["set_aside"] == [3, 2]
    assert set(names(tmp_path, set_aside=False)) == {"gen-000001/manager/ckpt-1"}
    given = seeded(tmp_path, 4, keep=1)
    assert (given["global_step"], given["source"]) == (24, str(tmp_path / "gen-000001/manager/ckpt-1"))
    assert not list(Path(given["path"]).rglob("ckpt-2*"))
    assert made.generations(tmp_path) == [4, 3, 2, 1], "what was gone back from is never removed"
    assert seeded(tmp_path, 5)["source"].startswith(str(tmp_path / "gen-000004")), (
        "and then it goes on from there"
    )


def test_what_the_generation_saves_after_one_went_back_within_it_does_not_count(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager") / "manager"
    inventory.rollback(str(tmp_path), "24")
    for path in list(directory.glob("ckpt-2*")):  # the gang has not been stopped yet, and saves once more
        shutil.copy2(path, path.with_name(path.name.replace("ckpt-2", "ckpt-3")))
    assert seeded(tmp_path, 2)["global_step"] == 24


def test_what_an_older_generation_saved_later_does_not_count_either(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    given = Path(seeded(tmp_path, 2)["path"])
    inventory.rollback(str(tmp_path), "gen-000002/manager/ckpt-1")
    shutil.rmtree(given)
    assert seeded(tmp_path, 3)["global_step"] == 24, "not step 32 of generation 1"


def test_what_one_went_back_to_stays_though_its_script_removes_it(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager") / "manager"
    inventory.rollback(str(tmp_path), "24")
    for path in list(directory.glob("ckpt-1*")):
        path.unlink()
    assert seeded(tmp_path, 2)["global_step"] == 24


def test_one_may_go_forward_again_to_what_was_set_aside(tmp_path: Path) -> None:
    for number in (1, 2):
        generation(tmp_path, number, "manager", age_s=1000 - number)
    inventory.rollback(str(tmp_path), "gen-000001/manager/ckpt-1")
    seeded(tmp_path, 3)
    answer = inventory.rollback(str(tmp_path), "gen-2")
    assert answer["set_aside"] == [3]
    assert entry(tmp_path, "gen-000002/manager/ckpt-2")["set_aside"] is False
    assert entry(tmp_path, "gen-000001/manager/ckpt-2")["set_aside"] is False, (
        "that mark belonged to generation 3"
    )
    assert seeded(tmp_path, 4)["global_step"] == 32


def test_a_mark_from_before_the_chosen_generation_stays(tmp_path: Path) -> None:
    for number in (1, 2):
        generation(tmp_path, number, "manager", age_s=1000 - number)
    inventory.rollback(str(tmp_path), "gen-000001/manager/ckpt-1")
    for number in (3, 4):
        seeded(tmp_path, number)
    inventory.rollback(str(tmp_path), "gen-3")
    aside = {e["generation"] for e in inventory.listed(str(tmp_path))["checkpoints"] if e["set_aside"]}
    assert aside == {1, 2, 4}, "of 1 what it saved after the chosen one, and 2, which 3 never came from"
    assert entry(tmp_path, "gen-000001/manager/ckpt-1")["set_aside"] is False


def test_after_two_rollbacks_each_generation_has_its_own_limit(tmp_path: Path) -> None:
    for number in (1, 2):
        generation(tmp_path, number, "manager", age_s=1000 - number)
    inventory.rollback(str(tmp_path), "gen-000001/manager/ckpt-1")
    given = Path(seeded(tmp_path, 3)["path"])
    generation(tmp_path / "new", 1, "manager")  # generation 3 trains on
    shutil.copytree(tmp_path / "new" / "gen-000001" / "manager", given / "manager", dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "new")
    inventory.rollback(str(tmp_path), "gen-000003/manager/ckpt-2")
    assert seeded(tmp_path, 4)["global_step"] == 32, "the second goes back to the end of generation 3"
    shutil.rmtree(tmp_path / "gen-000004")
    shutil.rmtree(given / "manager")
    for _, pin in made.pinned(tmp_path):
        shutil.rmtree(pin)
    assert seeded(tmp_path, 5)["global_step"] == 24, "without it, the first holds for generation 1"


def test_going_back_behind_a_start_from_scratch(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    seeded(tmp_path, 2, from_scratch=True)
    assert names(tmp_path, set_aside=False) == []
    inventory.rollback(str(tmp_path), "gen-1")
    assert seeded(tmp_path, 3)["global_step"] == 32


def test_a_pin_of_what_began_from_scratch_counts_though_its_script_removes_the_original(
    tmp_path: Path,
) -> None:
    made.npz(tmp_path / "step_8.npz", 8)
    top = Path(seeded(tmp_path, 1, from_scratch=True)["path"])
    for step in (24, 32):
        made.npz(top / f"step_{step}.npz", step)
    inventory.rollback(str(tmp_path), "24")
    (top / "step_24.npz").unlink()
    assert seeded(tmp_path, 2)["global_step"] == 24
    assert names(tmp_path, set_aside=True) == ["gen-000001/step_32.npz", "step_8.npz"]


def test_going_back_sets_aside_a_newer_pin_too_whose_generation_is_gone(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        generation(tmp_path, number, "manager", age_s=1000 - number)
    inventory.pin(str(tmp_path), "gen-2")
    inventory.rm(str(tmp_path), "gen-2")
    assert inventory.rollback(str(tmp_path), "gen-000001/manager/ckpt-1")["set_aside"] == [3, 2]
    assert seeded(tmp_path, 4)["global_step"] == 24


def test_what_a_start_from_scratch_left_behind_stays_aside_when_that_generation_is_removed(
    tmp_path: Path,
) -> None:
    made.npz(tmp_path / "step_8.npz", 8)
    for number in range(1, 5):
        generation(tmp_path, number, "manager")
    for number in range(5, 8):
        top = Path(seeded(tmp_path, number, from_scratch=number == 5)["path"])
        made.npz(top / f"step_{number}.npz", number)
    inventory.pin(str(tmp_path), "gen-000005/step_5.npz")
    inventory.rm(str(tmp_path), "gen-5")
    assert seeded(tmp_path, 8, keep=2)["global_step"] == 7
    assert made.generations(tmp_path) == [8, 7, 4, 3, 2, 1]

    def counting() -> set[int | None]:
        found = inventory.listed(str(tmp_path))["checkpoints"]
        return {each["generation"] for each in found if not each["set_aside"]}

    inventory.rollback(str(tmp_path), "gen-5")
    assert counting() == {5}, "its pin alone"
    inventory.rollback(str(tmp_path), "gen-3")
    assert counting() == {3, 2, 1, None}, "as for whoever goes back to before a start from scratch"


def test_a_start_from_scratch_that_was_rolled_back_leaves_nothing_behind_when_it_is_removed(
    tmp_path: Path,
) -> None:
    generation(tmp_path, 1, "manager")
    seeded(tmp_path, 2, from_scratch=True)
    inventory.rollback(str(tmp_path), "gen-1")
    seeded(tmp_path, 3)
    inventory.rm(str(tmp_path), "gen-2")
    assert names(tmp_path, set_aside=True) == []


def test_one_goes_back_only_to_what_reads_whole(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    flip(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    with pytest.raises(SeedError, match="checksum"):
        inventory.rollback(str(tmp_path), "32")
    assert not (tmp_path / ".orch" / "aside.json").exists()


def test_one_goes_back_by_the_step_where_a_copy_has_lost_the_times(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    for path in directory.rglob("*"):
        os.utime(path, (0, 1_700_000_000))
    inventory.rollback(str(tmp_path), "24")
    assert seeded(tmp_path, 2)["global_step"] == 24


def test_one_does_not_go_back_where_neither_steps_nor_times_tell_what_is_newer(tmp_path: Path) -> None:
    for epoch in (3, 4):
        path = made.npz(tmp_path / "gen-000001" / f"epoch_{epoch}.npz")
        os.utime(path, (0, 1_700_000_000))
    with pytest.raises(SeedError, match="written in the same millisecond"):
        inventory.rollback(str(tmp_path), "gen-000001/epoch_3.npz")
    assert not (tmp_path / ".orch" / "aside.json").exists()


def test_marks_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    inventory.rollback(str(tmp_path), "24")
    (tmp_path / ".orch" / "aside.json").write_text("{")
    with pytest.raises(SeedError, match=r"aside\.json cannot be read"):
        seeded(tmp_path, 2)


# keep


def test_keep_removes_nothing_where_no_good_one_is_known(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        generation(tmp_path, number, "manager")
    seeded(tmp_path, 4, from_scratch=True, keep=1)
    assert made.generations(tmp_path) == [4, 3, 2, 1]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_through_any_number_of_bad_generations_the_last_good_one_is_kept(tmp_path: Path, keep: int) -> None:
    generation(tmp_path, 1, "manager")
    for number in range(2, 12):
        answer = seeded(tmp_path, number, keep=keep)
        assert answer["global_step"] == 32
        if number % 3:  # the training tears what it was given
            for path in Path(answer["path"]).rglob("ckpt-*.index"):
                truncate(path, 10)
    assert len(made.generations(tmp_path)) <= keep + 1


# A full disk


@pytest.mark.fault(36)
def test_row_36_a_full_disk_leaves_nothing_half_and_the_source_whole(tmp_path: Path, capsys: Any) -> None:
    with mounted(tmp_path / "disk") as disk:
        source = generation(disk.path / "c", 1, "keras3_backup")
        disk.fill()
        status, answer = answer_of(capsys, "seed", root=str(disk.path / "c"), generation=2, keep=1)
        assert (status, answer["error"]["code"]) == (1, "no-space")
        assert "no space left" in answer["error"]["message"]
        assert "orch ckpt ls" in answer["error"]["hint"]
        assert made.generations(disk.path / "c") == [1]
        assert not list((disk.path / "c").glob("*.tmp"))
        assert verify(str(source))["checkpoint"]["global_step"] == 20
        disk.empty()
        assert seeded(disk.path / "c", 2)["global_step"] == 20


@pytest.mark.fault(36)
def test_row_36_a_full_scratch_is_left_empty_and_filled_when_there_is_room(tmp_path: Path) -> None:
    generation(tmp_path / "c", 1, "manager")
    given = seeded(tmp_path / "c", 2)["path"]
    with mounted(tmp_path / "disk") as disk:
        disk.fill()
        scratch = disk.path / "scratch"
        with pytest.raises(SeedError, match=r"\d+ bytes are free, \d{6} bytes are needed") as caught:
            copying.copy(given, str(scratch))
        assert caught.value.code == "no-space"
        assert os.listdir(scratch) == []
        disk.empty()
        assert copying.copy(given, str(scratch))["files"] > 0


# Two at once


def test_a_second_seed_waits_for_the_first_and_gives_its_answer(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    program = "import sys; from orchestrator.checkpoints import checkpoints_main as c; c(sys.argv[1:])"
    command = [sys.executable, "-c", program, "seed", json.dumps({"root": str(tmp_path), "generation": 2})]
    with places.locked(str(tmp_path)):
        others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    answers = [json.loads(other.communicate(timeout=60)[0]) for other in others]
    assert answers[0] == answers[1]
    assert answers[0]["global_step"] == 32


def test_who_holds_the_lock_for_too_long_is_said(tmp_path: Path) -> None:
    with (
        places.locked(str(tmp_path)),
        pytest.raises(SeedError, match="another process"),
        places.locked(str(tmp_path), 0),
    ):
        pass


# One directory for all hosts


@pytest.mark.fault(45)
def test_row_45_all_who_share_a_directory_find_what_the_first_wrote(tmp_path: Path) -> None:
    first = share.token(str(tmp_path / "shared"), "t-1")
    assert len(first) == 32
    assert share.token(str(tmp_path / "shared"), "t-1") == first
    assert share.token(str(tmp_path / "own"), "t-1") != first
    shutil.copytree(tmp_path / "shared", tmp_path / "copied")
    assert share.token(str(tmp_path / "shared"), "t-2") != share.token(str(tmp_path / "copied"), "t-2")


@pytest.mark.fault(45, 62)
def test_a_token_stays_while_its_run_may_ask_for_it(tmp_path: Path) -> None:
    home = tmp_path / ".orch"
    first = share.token(str(tmp_path), "t-1")
    share.token(str(tmp_path), "t-2")
    assert share.token(str(tmp_path), "t-1") == first, "it is taken over, and its other hosts ask"

    os.utime(home / "share-t-1", (0, 0))
    share.token(str(tmp_path), "t-3")
    assert sorted(os.listdir(home)) == ["share-t-2", "share-t-3"]

    os.utime(home / "share-t-2", (0, 0))
    (home / "share-t-0").symlink_to("nowhere")  # as one that another host removes between the two looks
    assert share.token(str(tmp_path), "t-4")
    assert sorted(os.listdir(home)) == ["share-t-0", "share-t-3", "share-t-4"]


@pytest.mark.fault(111)
def test_row_111_a_directory_without_the_token_is_not_the_share_and_nothing_is_made_there(
    tmp_path: Path,
) -> None:
    shared, bare = tmp_path / "shared", tmp_path / "bare"
    bare.mkdir()
    token = share.token(str(shared), "t-1")
    os.utime(shared / ".orch/share-t-1", (0, 0))
    assert share.is_there(str(shared), "t-1", token)
    assert (shared / ".orch/share-t-1").stat().st_mtime > 0, "it is kept while somebody looks for it"
    for directory in (bare, tmp_path / "gone"):
        assert not share.is_there(str(directory), "t-1", token)
        assert probe(str(directory), "t-1", str(tmp_path / "host"), token) == {
            "free_bytes": None,
            "missing": True,
        }
    assert list(bare.iterdir()) == []
    assert not (tmp_path / "gone").exists()
    assert not share.is_there(str(shared), "t-1", share.token(str(bare), "t-1")), "another directory's"
    assert probe(str(shared), "t-1", str(tmp_path / "host"), token)["missing"] is False


@pytest.mark.fault(111)
def test_row_111_a_task_never_begins_without_what_its_generation_was_given(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    given = seeded(tmp_path, 2)["path"]
    scratch = tmp_path / "scratch"
    with pytest.raises(SeedError, match="is not there whole on this host"):
        copying.copy(str(tmp_path / "unmounted/gen-000002"), str(scratch))
    with pytest.raises(SeedError, match="is not there whole on this host"):
        copying.copy(str(tmp_path / "gen-000001"), str(scratch))  # never completed
    assert not scratch.exists()
    assert copying.copy(given, str(scratch))["global_step"] == 32
    assert copying.copy(given, str(scratch)) == {"files": 0, "bytes": 0, "global_step": 32}


# A start from scratch, and what a person removes


def saved(root: Path, number: int) -> None:
    """Let a generation save what the next one starts from."""
    source = root / f"gen-{number:06d}"
    shutil.rmtree(source / "manager", ignore_errors=True)
    shutil.copytree(FIXTURES / "manager", source / "manager")


@pytest.mark.fault(82)
def test_what_was_trained_before_a_start_from_scratch_stays_until_a_person_removes_it(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    seeded(tmp_path, 2, keep=1)
    shutil.rmtree(tmp_path / "gen-000001")  # its source; retention itself never removes that
    answer = seeded(tmp_path, 3, keep=1, from_scratch=True)
    assert (answer["source"], answer["aside"]["generations"], answer["aside"]["global_step"]) == (
        None,
        [2],
        32,
    )
    assert answer["aside"]["bytes"] > 100_000
    removed = []
    for number in range(4, 12):
        saved(tmp_path, number - 1)
        removed += seeded(tmp_path, number, keep=1).get("removed", [])
    assert (tmp_path / "gen-000002").exists(), "what was trained before"
    assert (tmp_path / "gen-000003").exists(), "where the history begins"
    assert removed == [4, 5, 6, 7, 8, 9]
    assert set(names(tmp_path, set_aside=True)) == {
        "gen-000002/manager/ckpt-1",
        "gen-000002/manager/ckpt-2",
    }
    with pytest.raises(SeedError, match="generation 11 is what the next start goes on from"):
        inventory.rm(str(tmp_path), "gen-11")
    gone = inventory.rm(str(tmp_path), "set-aside")
    assert (gone["removed"], gone["bytes"] > 100_000) == ([2], True)
    assert not (tmp_path / "gen-000002").exists()
    assert inventory.rm(str(tmp_path), "set-aside") == {"removed": [], "bytes": 0}
    assert inventory.rm(str(tmp_path), "gen-3")["removed"] == [3]
    with pytest.raises(SeedError, match="there is no generation 'gen-3'"):
        inventory.rm(str(tmp_path), "gen-3")


@pytest.mark.fault(93)
def test_the_checkpoints_of_another_run_below_the_directory_are_never_taken(tmp_path: Path) -> None:
    """`orch scale` trains in directories of its own below that of the run."""
    trial = tmp_path / "scale" / "2"
    trial.mkdir(parents=True)
    generation(trial, 1, "manager")
    seeded(trial, 2)
    assert seeded(tmp_path, 1)["source"] is None
    assert names(tmp_path) == []
    mine = tmp_path / "old"
    mine.mkdir()
    generation(mine, 1, "manager")
    (mine / "gen-000001").rename(mine / "manager-of-before")
    assert seeded(tmp_path, 2)["source"] is not None, "a person's own, from before there was orch, is adopted"

"""Which files form one checkpoint, in each way in which scripts save, and what the next generation is given of them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.within import Tree
from orchestrator.checkpoints import (
    arrival,
    copying,
    discovery,
    inventory,
    places,
    records,
    safe,
    seed,
    verify,
)
from orchestrator.checkpoints.places import SeedError
from orchestrator.checkpoints.units import ORBAX, Unit
from tests.arrivals import Arrivals
from tests.contract.small_disk import mounted
from tests.unit.checkpoints import saved
from tests.unit.checkpoints.saved import aged, flip, truncate


def gen(root: Path, number: int) -> Path:
    """Make a generation's directory."""
    directory = Path(places.directory_of(str(root), number))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def found(directory: Path) -> list[tuple[str, str, int | None]]:
    """Return (name, kind, step that the name tells) of the units, newest first."""
    units = saved.found(directory).units
    return [(os.path.relpath(unit.path, directory), unit.kind, unit.named_step) for unit in units]


def below(directory: str | Path) -> set[str]:
    """Return all files below it, but for our own."""
    paths = (path for path in Path(directory).rglob("*") if path.is_file())
    return {str(path.relative_to(directory)) for path in paths} - {places.MARKER}


def settled(directory: Path) -> dict[str, Any]:
    """Return the answer of `verify`, which needs no pause: all was written long ago."""

    def pause(_seconds: float) -> None:
        raise AssertionError("there was nothing to wait for")

    return verify(str(directory), pause)


# What is one unit


def test_files_of_one_directory_are_units_by_step_and_those_without_one_belong_together(
    tmp_path: Path,
) -> None:
    for step in (100, 200):
        saved.npz(tmp_path / f"model-{step}.npz")
        saved.npz(tmp_path / f"optimizer-{step}.npz")
        saved.npz(tmp_path / f"model-{step}-rank0.npz")
    saved.npz(tmp_path / "best.npz")
    saved.npz(tmp_path / "vocabulary.npz")
    assert found(aged(tmp_path)) == [
        ("model-200-rank0.npz", "npz", 200),
        ("model-100-rank0.npz", "npz", 100),
        ("best.npz", "npz", None),
    ]


def test_whatever_numbers_the_files_of_a_script_tells_which_were_saved_together(tmp_path: Path) -> None:
    for number in (1, 2):
        for name in ("generator", "discriminator"):
            saved.npz(tmp_path / f"{name}-{number}.npz")
        saved.npz(tmp_path / "epochs" / f"epoch_{number}.npz")
        saved.npz(tmp_path / "ranks" / f"model-rank{number}.npz")
    saved.npz(tmp_path / "once" / "resnet50.npz")
    saved.npz(tmp_path / "once" / "optimizer.npz")
    assert set(found(tmp_path)) == {
        ("discriminator-1.npz", "npz", None),
        ("discriminator-2.npz", "npz", None),
        ("epochs/epoch_1.npz", "npz", None),
        ("epochs/epoch_2.npz", "npz", None),
        ("ranks/model-rank1.npz", "npz", None),
        ("once/optimizer.npz", "npz", None),
    }


def test_a_directory_that_is_named_after_its_step_is_one_unit(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"  # as the Trainer of transformers writes it
    saved.npz(folder / "model.npz")
    for name in ("optimizer.npz", "scheduler.npz", "rng_state_0.npz", "rng_state_1.npz"):
        saved.npz(folder / name)
    (folder / "trainer_state.json").write_text("{}")
    saved.npz(tmp_path / "global_step100" / "mp_rank_00_model_states.npz")
    assert found(aged(tmp_path)) == [("checkpoint-500", "npz", 500), ("global_step100", "npz", 100)]
    assert [len(unit.paths) for unit in saved.found(tmp_path).units] == [6, 1]
    (folder / "model.safetensors").write_bytes(b"x" * 100_000)
    kinds = [unit.kind for unit in saved.found(aged(tmp_path)).units if unit.name == "checkpoint-500"]
    assert kinds == ["unknown"], (
        "most of it nothing here can read: that its small arrays are whole proves nothing"
    )


def test_a_directory_that_is_named_after_its_step_and_holds_nothing_is_no_checkpoint(tmp_path: Path) -> None:
    """A script that was killed as it began to save has left a directory, or files without content."""
    (gen(tmp_path, 1) / "step_100").mkdir()
    (gen(tmp_path, 1) / "step_100" / "state.msgpack").write_bytes(b"x" * 100)
    (gen(tmp_path, 1) / "step_200").mkdir()
    (gen(tmp_path, 1) / "step_300").mkdir()
    (gen(tmp_path, 1) / "step_300" / "state.msgpack").touch()
    assert found(gen(aged(tmp_path), 1)) == [("step_100", "unknown", 100)]
    assert seed.seed(str(tmp_path), 2)["global_step"] == 100


def test_a_directory_of_keras_or_tensorflow_is_looked_into_whatever_its_name(tmp_path: Path) -> None:
    shutil.copytree(saved.FIXTURES / "keras3_backup", tmp_path / "epoch_3")
    shutil.copytree(saved.FIXTURES / "manager", tmp_path / "run-1" / "7")
    kinds = {(name, kind) for name, kind, _ in found(tmp_path)}
    assert ("epoch_3/latest.weights.h5", "hdf5") in kinds
    assert ("run-1/7/ckpt-2", "tensorflow") in kinds


def test_where_a_script_stamps_what_is_whole_what_has_no_stamp_is_not(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        folder = gen(tmp_path, 1) / f"step_{step}"
        folder.mkdir()
        (folder / "state.msgpack").write_bytes(b"x" * 100)
        if step < 300:
            (folder / "DONE").touch()
    aged(tmp_path)
    answer = settled(gen(tmp_path, 1))
    assert answer["checkpoint"]["global_step"] == 200
    assert "it has no DONE, which step_" in answer["rejected"][0]["why"]
    given = seed.seed(str(tmp_path), 2)
    assert (given["global_step"], given["verified"]) == (200, False)
    assert not (Path(given["path"]) / "step_300").exists()


@pytest.mark.parametrize(
    "name", ["model.npz.tmp", "tmp_model.npz", "model.tmp.npz", "model.npz.part", "x.pt~"]
)
def test_what_has_a_temporary_name_is_part_of_nothing(tmp_path: Path, name: str) -> None:
    (gen(tmp_path, 1) / name).write_bytes(b"half")
    assert settled(gen(tmp_path, 1)) == {"checkpoint": None, "rejected": []}
    given = seed.seed(str(tmp_path), 2)
    assert given["source"] is None
    assert [(Path(r["path"]).name, "temporary name" in r["why"]) for r in given["rejected"]] == [(name, True)]


def test_data_in_the_checkpoint_directory_itself_is_no_checkpoint(tmp_path: Path) -> None:
    saved.npz(tmp_path / "mnist.npz")
    saved.npz(tmp_path / "resnet50.npz")
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "cat.png").write_bytes(b"image")
    assert seed.seed(str(tmp_path), 1)["source"] is None
    saved.npz(tmp_path / "before" / "model-70.npz")
    given = seed.seed(str(tmp_path), 2)
    assert (given["global_step"], below(given["path"])) == (70, {"before/model-70.npz"})


# Row 42: the newest is torn


def _of_steps(directory: Path, kind: str) -> dict[int, Path]:
    """Two checkpoints of steps 100 and 200, and a file of each whose damage makes it torn."""
    files = {}
    for step in (100, 200):
        if kind == "orbax":
            path = saved.orbax(directory, step) / "default" / "_METADATA"
        elif kind == "folder":
            saved.npz(directory / f"checkpoint-{step}" / "model.npz")
            path = saved.npz(directory / f"checkpoint-{step}" / "optimizer.npz")
        else:
            path = saved.npz(directory / f"model-{step}.npz", step)
        files[step] = path
    aged(directory)
    return files


KINDS = ["npz", "orbax", "folder"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.fault(42)
def test_row_42_a_torn_newest_is_dropped_for_the_one_before_and_both_are_named(
    tmp_path: Path, kind: str
) -> None:
    files = _of_steps(gen(tmp_path, 1), kind)
    (gen(tmp_path, 1) / "config.json").write_text("{}")
    written_at = files[200].stat().st_mtime
    truncate(files[200], -20)
    os.utime(files[200], (written_at, written_at))
    looked = settled(gen(tmp_path, 1))
    assert (looked["checkpoint"]["global_step"], looked["checkpoint"]["verified"]) == (100, kind != "orbax")
    given = seed.seed(str(tmp_path), 2)
    assert (given["global_step"], given["verified"]) == (100, kind != "orbax")
    assert "100" in given["source"]
    assert ["200" in r["path"] for r in given["rejected"]] == [True]
    assert not [
        path for path in Path(given["path"]).rglob("*") if "200" in path.name and "gen" not in path.name
    ]
    assert (Path(given["path"]) / "config.json").exists()
    assert verify(given["path"])["checkpoint"]["global_step"] == 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.fault(42)
def test_row_42_nothing_that_reads_is_an_error_and_not_step_0(tmp_path: Path, kind: str) -> None:
    for path in _of_steps(gen(tmp_path, 1), kind).values():
        truncate(path, -20)
    with pytest.raises(SeedError) as caught:
        seed.seed(str(tmp_path), 2)
    assert caught.value.code == "no-readable-checkpoint"
    assert "200" in str(caught.value)


@pytest.mark.fault(42)
def test_row_42_of_files_without_a_step_one_that_is_torn_takes_the_generation_before(tmp_path: Path) -> None:
    for number in (1, 2):
        saved.npz(gen(tmp_path, number) / "model.npz", 100 * number)
        saved.npz(gen(tmp_path, number) / "optimizer.npz")
        aged(gen(tmp_path, number), 1000 - number)
    truncate(gen(tmp_path, 2) / "optimizer.npz", 50)
    given = seed.seed(str(tmp_path), 3)
    assert given["global_step"] == 100, "the model of one save is of no use with the optimizer of another"
    assert below(given["path"]) == {"model.npz", "optimizer.npz"}


@pytest.mark.fault(42)
def test_row_42_a_pointer_to_what_was_dropped_points_to_what_was_kept(tmp_path: Path) -> None:
    for step in (100, 200):
        saved.npz(gen(tmp_path, 1) / f"global_step{step}" / "mp_rank_00_model_states.npz")
    (gen(tmp_path, 1) / "latest").write_text("global_step200\n")  # as DeepSpeed writes it
    (gen(tmp_path, 1) / "other").write_text("global_step100")
    aged(tmp_path)
    truncate(gen(tmp_path, 1) / "global_step200" / "mp_rank_00_model_states.npz", 100)
    target = Path(seed.seed(str(tmp_path), 2)["path"])
    assert (target / "latest").read_text() == (target / "other").read_text() == "global_step100"


@pytest.mark.fault(42)
def test_row_42_what_lacks_a_part_that_the_others_have_was_not_saved_to_its_end(tmp_path: Path) -> None:
    for step in (100, 200, 300):
        saved.npz(gen(tmp_path, 1) / "flat" / f"model-{step}.npz")
        saved.npz(gen(tmp_path, 1) / "folders" / f"checkpoint-{step}" / "model.npz")
        if step < 300:
            saved.npz(gen(tmp_path, 1) / "flat" / f"optimizer-{step}.npz")
            saved.npz(gen(tmp_path, 1) / "folders" / f"checkpoint-{step}" / "optimizer.npz")
    saved.npz(gen(tmp_path, 1) / "flat" / "embedding-7.npz")
    given = seed.seed(str(tmp_path), 2)
    assert given["global_step"] == 200
    assert {(Path(torn["path"]).name, torn["why"].partition(",")[0]) for torn in given["rejected"]} == {
        ("model-300.npz", "it has no optimizer-#.npz"),
        ("checkpoint-300", "it has no optimizer.npz"),
    }
    assert (Path(given["path"]) / "flat" / "embedding-7.npz").exists(), "a series of its own lacks nothing"


@pytest.mark.fault(42, 53)
def test_links_that_stay_inside_are_made_anew_and_none_leads_to_what_was_dropped(tmp_path: Path) -> None:
    for step in (100, 200):
        saved.npz(gen(tmp_path, 1) / f"model-{step}.npz", step)
    secret = saved.npz(tmp_path / "secret" / "model.npz")
    for name, leads_to in {
        "latest.npz": "model-200.npz",
        "best.npz": "model-100.npz",
        "out.npz": "../secret/model.npz",
        "absolute.npz": str(secret),
    }.items():
        (gen(tmp_path, 1) / name).symlink_to(leads_to)
    assert {Path(path).name for path, _ in saved.found(gen(tmp_path, 1)).skipped} == {
        "out.npz",
        "absolute.npz",
    }
    manifest = safe.snapshot(str(tmp_path), str(gen(tmp_path, 1)), None)
    assert {name for name, _, _, _ in manifest["files"]} == {"model-200.npz", "latest.npz"}
    truncate(gen(tmp_path, 1) / "model-200.npz", 99)
    target = Path(seed.seed(str(tmp_path), 2)["path"])
    copying.copy(str(target), str(tmp_path / "scratch"))
    for made in (target, tmp_path / "scratch"):
        links = {path.name: os.readlink(path) for path in made.iterdir() if path.is_symlink()}
        assert links == {"latest.npz": "model-100.npz", "best.npz": "model-100.npz"}


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    def broken(code: int, kind: type[OSError]) -> OSError:
        return kind(code, os.strerror(code), str(tmp_path))

    discovery._complain(broken(errno.ENOENT, FileNotFoundError))
    discovery._forgive(broken(errno.EACCES, PermissionError))  # lost+found, beside the generations
    for look, error in (
        (discovery._complain, broken(errno.EACCES, PermissionError)),
        (discovery._forgive, broken(errno.EIO, OSError)),
    ):
        with pytest.raises(OSError, match=str(tmp_path)):
            look(error)


# What is handed on


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.fault(27, 28)
def test_what_a_left_over_process_writes_does_not_reach_the_new_generation(tmp_path: Path, kind: str) -> None:
    files = _of_steps(gen(tmp_path, 1), kind)
    given = seed.seed(str(tmp_path), 2)
    files[200].write_bytes(b"x")
    assert verify(given["path"])["checkpoint"]["global_step"] == 200
    shutil.rmtree(gen(tmp_path, 1))
    whole = None if kind == "orbax" else True
    assert [u["whole"] for u in inventory.listed(str(tmp_path), read=True)["checkpoints"]] == [whole, whole]


def test_only_the_newest_is_copied_and_older_ones_get_a_second_name(tmp_path: Path) -> None:
    for step in range(100, 600, 100):
        saved.npz(gen(tmp_path, 1) / f"model-{step}.npz", step)
    aged(tmp_path)
    given = Path(seed.seed(str(tmp_path), 2)["path"])
    links = {path.name: path.stat().st_nlink for path in given.glob("*.npz")}
    assert links == {f"model-{step}.npz": 1 if step == 500 else 2 for step in range(100, 600, 100)}


def test_the_data_files_of_orbax_are_not_copied(tmp_path: Path) -> None:
    saved.orbax(gen(tmp_path, 1), 200)
    given = Path(seed.seed(str(tmp_path), 2)["path"])
    assert all(
        (path.stat().st_nlink == 2) == (path.parent.name == "d")
        for path in given.rglob("?*")
        if path.is_file()
    )


def test_an_export_without_a_step_does_not_stand_for_the_checkpoints(tmp_path: Path) -> None:
    saved.npz(gen(tmp_path, 1) / "model-100.npz", 100)
    saved.npz(gen(tmp_path, 2) / "final.npz")
    aged(tmp_path)
    assert seed.seed(str(tmp_path), 3)["global_step"] == 100


# A format that nothing here reads


def _unknown(directory: Path, step: int = 100, content: bytes = b"a format of their own") -> Path:
    (directory / f"checkpoint_{step}").write_bytes(content)
    (directory / "events.out.tfevents.1").write_bytes(b"log")
    (directory / "train.log").write_bytes(b"log")
    return aged(directory)


def test_files_that_nothing_here_reads_are_handed_on_and_said_not_to_be_verified(tmp_path: Path) -> None:
    source = _unknown(gen(tmp_path, 1))
    looked = settled(source)["checkpoint"]
    assert (looked["global_step"], looked["path"], looked["verified"]) == (100, str(source), False)
    given = seed.seed(str(tmp_path), 2)
    assert (given["global_step"], given["source"], given["verified"]) == (100, str(source), False)
    assert below(given["path"]) == {"checkpoint_100", "events.out.tfevents.1", "train.log"}
    assert given["rejected"] == []
    (entry, _) = inventory.listed(str(tmp_path), read=True)["checkpoints"]
    assert (entry["name"], entry["kind"], entry["whole"], entry["proof"]) == (
        "gen-000002",
        "unknown",
        None,
        "names",
    )


def test_logs_alone_are_no_checkpoint(tmp_path: Path) -> None:
    directory = _unknown(gen(tmp_path, 1))
    (directory / "checkpoint_100").write_bytes(b"")
    assert settled(directory)["checkpoint"] is None
    assert seed.seed(str(tmp_path), 2)["source"] is None


def test_the_newest_generation_of_an_unknown_format_is_taken_through_any_number_of_them(
    tmp_path: Path,
) -> None:
    _unknown(gen(tmp_path, 1))
    for number in range(2, 8):
        given = seed.seed(str(tmp_path), number, keep=2)
        assert given["global_step"] == 100 * (number - 1)
        assert Path(given["source"]).is_dir(), "what it came from stays"
        _unknown(Path(given["path"]), step=100 * number)
    assert saved.generations(tmp_path) == [7, 6]


def test_what_can_be_verified_counts_before_what_cannot(tmp_path: Path) -> None:
    saved.npz(gen(tmp_path, 1) / "model-50.npz", 50)
    _unknown(gen(tmp_path, 2))
    assert seed.seed(str(tmp_path), 3)["global_step"] == 50


def test_what_is_written_while_it_is_looked_at_is_not_complete(tmp_path: Path) -> None:
    path = gen(tmp_path, 1) / "state.bin"
    path.write_bytes(b"a")
    pauses: list[float] = []

    def write_on(seconds: float) -> None:
        pauses.append(seconds)
        path.write_bytes(b"a" * (len(pauses) + 1))

    looked = verify(str(gen(tmp_path, 1)), write_on)
    assert looked["checkpoint"] is None
    assert looked["rejected"][0]["why"] == "it is still being written"
    assert len(pauses) >= 5, "it was given some time"
    assert verify(str(gen(tmp_path, 1)), pauses.append)["checkpoint"]["verified"] is False
    assert 0 < pauses[-1] <= 2, "and was written a moment ago"


def test_a_generation_that_had_only_begun_to_save_falls_back_to_the_one_before(tmp_path: Path) -> None:
    _unknown(gen(tmp_path, 1))
    seed.seed(str(tmp_path), 2)
    (gen(tmp_path, 2) / "checkpoint_200.tmp").write_bytes(b"half")
    given = seed.seed(str(tmp_path), 3)
    assert (given["global_step"], Path(given["source"]).name) == (100, "gen-000002")
    assert [Path(r["path"]).name for r in given["rejected"]] == ["checkpoint_200.tmp"]


# What people do with them, and what travels


@pytest.mark.parametrize("kind", [*KINDS, "unknown"])
def test_one_can_be_pinned_gone_back_to_and_let_go(tmp_path: Path, kind: str) -> None:
    if kind == "unknown":
        for step in (100, 200):
            _unknown(gen(tmp_path, step // 100), step)
    else:
        _of_steps(gen(tmp_path, 1), kind)
    root = str(tmp_path)
    assert inventory.pin(root, "100")["already"] is False
    assert inventory.pin(root, "100")["already"] is True
    inventory.rollback(root, "100")
    for number in (3, 4):
        given = seed.seed(root, number, keep=1)
        assert (given["global_step"], given["verified"]) == (100, kind not in ("unknown", "orbax"))
    assert not [name for name in below(given["path"]) if "200" in name]
    for number in (1, 3, 4):
        shutil.rmtree(gen(tmp_path, number))
    assert ".orch/pinned" in seed.seed(root, 5)["source"]
    assert inventory.unpin(root, "100")["checkpoint"]["pinned"] is False


@pytest.mark.parametrize("kind", [*KINDS, "unknown"])
def test_one_travels_between_hosts_that_share_no_directory(tmp_path: Path, kind: str) -> None:
    here, there, arrivals = tmp_path / "a", tmp_path / "b", Arrivals()
    if kind == "unknown":
        _unknown(gen(here, 1), 200)
    else:
        _of_steps(gen(here, 1), kind)
    path = settled(gen(here, 1))["checkpoint"]["path"]
    manifest = safe.snapshot(str(here), str(gen(here, 1)), path)
    assert safe.snapshot(str(here), str(gen(here, 1)), None)["digest"] == manifest["digest"]
    assert manifest["global_step"] == 200
    missing = arrivals.receive(str(there), manifest)["missing"]
    for name, _, _, made_of in manifest["files"]:
        whole = Path(safe.directory_of(str(here), manifest["digest"]), name).read_bytes()
        assert len(made_of) <= 1
        for chunk in made_of:
            arrivals.receive_part({"sha256": chunk, "offset": 0, "last": True}, whole)
    assert missing
    assert arrivals.receive(str(there), manifest) == {"missing": []}
    received = safe.directory_of(str(there), manifest["digest"])
    given = seed.seed(str(there), 2, only=received)
    assert (given["global_step"], given["verified"]) == (200, kind not in ("unknown", "orbax"))
    assert not list((there / ".orch" / "safe").glob("*.tmp"))


def test_an_agent_does_not_read_again_what_it_has_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost as long as the transfer. Another agent, which remembers nothing, has to."""
    here, there, arrivals = tmp_path / "a", tmp_path / "b", Arrivals()
    saved.npz(gen(here, 1) / "model-100.npz", 100)
    manifest = safe.snapshot(str(here), str(gen(here, 1)), None)
    (missing,) = arrivals.receive(str(there), manifest)["missing"]
    ((name, size, _, _),) = manifest["files"]
    whole = Path(safe.directory_of(str(here), manifest["digest"]), name).read_bytes()
    arrivals.receive_part({"sha256": missing, "offset": 0, "last": True}, whole)
    read: list[int] = []

    def reads(place: arrival.Place, *, reading: Callable[[arrival.Place], bytes] = arrival._read) -> bytes:
        data = reading(place)
        read.append(len(data))
        return data

    monkeypatch.setattr(arrival, "_read", reads)
    assert safe.arrival(str(there), manifest).missing() == []
    assert read == [size]
    read.clear()
    assert arrivals.receive(str(there), manifest) == {"missing": []}
    assert read == []


def test_a_snapshot_that_is_there_is_not_sent_again_and_counts_as_the_newest(tmp_path: Path) -> None:
    saved.npz(gen(tmp_path, 1) / "model-100.npz", 100)
    manifest = safe.snapshot(str(tmp_path), str(gen(tmp_path, 1)), None)
    there = safe.directory_of(str(tmp_path), manifest["digest"])
    os.utime(there, (1, 1))
    assert Arrivals().receive(str(tmp_path), manifest) == {"missing": []}
    assert os.stat(there).st_mtime > 1, "or it would be the first to be removed"


def test_what_cannot_be_verified_is_copied_once_nobody_writes_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gen(tmp_path, 1) / "checkpoint_100"
    path.write_bytes(b"half")

    def settle(unit: Unit, beside: str) -> bool:
        assert not unit.is_verified
        assert os.listdir(beside) == []
        path.write_bytes(b"half and the rest")
        monkeypatch.setattr(Unit, "is_unchanged", lambda _: True)
        return True

    monkeypatch.setattr(Unit, "settle", settle)
    with Tree(str(tmp_path)) as tree, places.room_for(tree, str(tmp_path / "copy")) as need:
        (unit,) = discovery.find(tree, str(gen(tmp_path, 1))).units
        copying.copied_once(unit, str(gen(tmp_path, 1)), need.tree)
        assert (tmp_path / "copy" / "checkpoint_100").read_bytes() == b"half and the rest"


def test_the_list_is_no_error_while_keep_removes_what_it_looks_at(tmp_path: Path) -> None:
    saved.npz(gen(tmp_path, 1) / "model-100.npz", 100)
    saved.orbax(gen(tmp_path, 1), 200)
    shutil.copytree(saved.FIXTURES / "manager", gen(tmp_path, 1) / "manager")

    def restart() -> None:
        for number in range(2, 30):
            seed.seed(str(tmp_path), number, keep=1)

    thread = threading.Thread(target=restart)
    thread.start()
    lists: list[dict[str, Any]] = []
    while thread.is_alive():
        lists.append(inventory.listed(str(tmp_path), read=len(lists) % 2 == 0))
    thread.join()
    assert {entry["why"] for found in lists for entry in found["checkpoints"]} == {None}
    assert saved.generations(tmp_path) == [29, 28]
    assert os.listdir(tmp_path / ".orch" / "removed") == []


def test_a_directory_that_vanished_before_its_files_were_found_is_gone(tmp_path: Path) -> None:
    with Tree(str(tmp_path)) as tree:
        assert Unit(tree, ORBAX, str(tmp_path / "200"), []).is_gone()


def test_what_vanishes_between_two_looks_is_not_listed(tmp_path: Path) -> None:
    saved.npz(gen(tmp_path, 1) / "model-100.npz", 100)
    with Tree(str(tmp_path)) as tree:
        (entry,) = inventory._entries(tree)
        shutil.rmtree(gen(tmp_path, 1))
        entry.inspect(records.Records(tree), read=True)
        assert entry.is_gone
    assert inventory.listed(str(tmp_path))["checkpoints"] == []
    assert not (tmp_path / ".orch" / "verified.json").exists()


# Row 36: the disk is full


@pytest.mark.parametrize("kind", ["npz", "orbax", "unknown"])
@pytest.mark.fault(36)
def test_row_36_a_full_disk_is_told_from_other_trouble_with_what_is_free_and_needed(
    tmp_path: Path, kind: str
) -> None:
    with mounted(tmp_path / "disk") as disk:
        root = disk.path / "c"
        if kind == "unknown":
            _unknown(gen(root, 1), content=b"x" * 5000)
        else:
            saved.npz(gen(root, 1) / "model-100.npz", 100) if kind == "npz" else saved.orbax(
                gen(root, 1), 100
            )
        disk.fill()
        ways: list[Callable[[], object]] = [
            lambda: seed.seed(str(root), 2),
            lambda: inventory.pin(str(root), "100"),
            lambda: safe.snapshot(str(root), str(gen(root, 1)), None),
        ]
        for do in ways:
            with pytest.raises(SeedError, match=r"\d+ bytes are free, \d{4,} bytes are needed") as caught:
                do()
            assert caught.value.code == "no-space"
        assert saved.generations(root) == [1]
        assert not list(root.rglob("*.tmp"))
        disk.empty()
        assert seed.seed(str(root), 2)["global_step"] == 100


def test_a_flipped_bit_is_found_before_it_is_handed_on(tmp_path: Path) -> None:
    files = _of_steps(gen(tmp_path, 1), "npz")
    flip(files[200], 9000)
    assert seed.seed(str(tmp_path), 2)["global_step"] == 100


def test_a_writer_is_waited_for_once_and_a_time_in_the_future_is_none(tmp_path: Path) -> None:
    """What was waited is told: the next verification is timed by the cost of reading alone."""
    torn = gen(tmp_path, 1) / "model.keras"
    torn.write_bytes(b"PK cut off")
    pauses: list[float] = []

    def write_on(seconds: float) -> None:
        pauses.append(seconds)
        torn.write_bytes(b"PK cut off" + b"." * len(pauses))

    answer = verify(str(gen(tmp_path, 1)), write_on)
    assert answer["checkpoint"] is None
    assert answer["waited_s"] == pytest.approx(sum(pauses), abs=0.01)
    assert sum(pauses) < 2.5
    os.utime(torn, (time.time() + 3600, time.time() + 3600))
    pauses.clear()
    answer = verify(str(gen(tmp_path, 1)), pauses.append)
    assert (pauses, [one["path"] for one in answer["rejected"]]) == ([], [str(torn)])


# What a power cut, or a process that is left over, must not change


@pytest.mark.parametrize("fixture", ["manager", "keras3_backup"])
def test_a_file_that_scripts_rewrite_in_place_is_copied_and_has_no_second_name(
    tmp_path: Path, fixture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow's index and Keras's second copy, of older checkpoints too: a link would be written through."""
    before = gen(tmp_path, 1)
    shutil.copytree(saved.FIXTURES / fixture, before / fixture)
    rewritten = [path for path in before.rglob("*") if path.is_file() and ".data-" not in path.name]
    assert len([path for path in rewritten if path.suffix in (".index", ".h5", ".bkp")]) >= 2
    needs: list[places.Need] = []

    @contextlib.contextmanager
    def room_for(tree: Tree, path: str) -> Iterator[places.Need]:
        with places.room_for(tree, path) as need:
            yield need
            needs.append(need)

    monkeypatch.setattr(seed, "room_for", room_for)
    seeded = Path(seed.seed(str(tmp_path), 2)["path"])
    copies = [path for path in seeded.rglob("*.*") if path.is_file() and path.stat().st_nlink == 1]
    told = sum(path.stat().st_size for path in copies if path.name != places.MARKER)
    assert told <= needs[0].bytes < told + 1000, (
        "what a full disk is said to lack: the copies, and the pointer"
    )
    for path in rewritten:
        copy = seeded / path.relative_to(before)
        assert not copy.exists() or not copy.samefile(path), path.name


def test_a_generation_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved.FIXTURES / "manager", gen(tmp_path, 1) / "manager")
    synced: set[int] = set()
    renamed: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted(handle: int) -> None:
        fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    def checked(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        building = Path(os.readlink(f"/proc/self/fd/{src_dir_fd}")) / source
        if building.is_dir():
            missing = [path for path in (building, *building.rglob("*")) if path.stat().st_ino not in synced]
            assert missing == []
            synced.clear()
            renamed.append(str(building.parent / target))
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "rename", checked)
    answer = seed.seed(str(tmp_path), 2)
    assert renamed == [answer["path"]]
    assert tmp_path.stat().st_ino in synced, "the rename itself"

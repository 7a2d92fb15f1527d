"""What is read of each format, and what damage is found: on real files, and on files that differ in one thing."""

from __future__ import annotations

import doctest
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.checkpoints import names, npz, units
from orchestrator.checkpoints.torn import Torn
from tests.unit.checkpoints import saved
from tests.unit.checkpoints.saved import FIXTURES, flip, truncate


def read(path: Path) -> units.Unit:
    """Read the one unit below a directory, or in that of a file, to its last byte."""
    directory = path if path.is_dir() else path.parent
    (unit,) = saved.found(directory).units
    unit.check_structure()
    unit.read_step()
    unit.read()
    return unit


def copied(tmp_path: Path, *names_: str) -> Path:
    """Copy fixtures into a directory of their own."""
    for name in names_:
        source = FIXTURES / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / "c" / source.name)
        else:
            (tmp_path / "c").mkdir(exist_ok=True)
            shutil.copy2(source, tmp_path / "c")
    return tmp_path / "c"


# Names


def test_the_examples_of_names() -> None:
    assert doctest.testmod(names).failed == 0
    assert doctest.testmod(npz).failed == 0


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_000120", 120),
        ("ckpt-120", 120),
        ("model-120.npz", 120),
        ("model_120_rank0.pt", 120),
        ("step=100-epoch=3.ckpt", 100),
        ("00000120", 120),
        ("saved-model-07-0.55.hdf5", 7),
        ("rng_state_3.pth", None),
        ("mp_rank_00_model_states.pt", None),
        ("2026-01-15", None),
        ("1700000000.pt", None),
        ("epoch=3-val_loss=0.12.ckpt", None),
    ],
)
def test_the_step_is_what_a_name_surely_tells(name: str, step: int | None) -> None:
    assert names.step_in(name) == step


# Real files of Keras and Orbax


def test_a_real_archive_of_keras_reads_and_none_that_is_cut_off_does(tmp_path: Path) -> None:
    path = copied(tmp_path, "model.keras") / "model.keras"
    unit = read(path)
    assert (unit.kind, unit.proof, unit.is_verified, unit.global_step) == ("keras", "checksums", True, 32)
    whole = path.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:size])
        with pytest.raises(Torn):
            read(path)


def test_real_directories_of_orbax_read_and_their_names_tell_the_step(tmp_path: Path) -> None:
    found = saved.found(copied(tmp_path, "orbax", "orbax_zarr")).units
    for unit in found:
        unit.read()
    steps = {(Path(unit.path).name, unit.kind, unit.global_step) for unit in found}
    assert steps == {("100", "orbax", 100), ("200", "orbax", 200), ("step_7", "orbax", 7)}


# Files that differ in one thing


def test_what_is_cut_off_anywhere_is_torn(tmp_path: Path) -> None:
    path = saved.npz(tmp_path / "model-120.npz", 120)
    assert read(path).global_step == 120
    whole = path.read_bytes()
    for size in (0, 1, 7, 9, 100, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Torn):
            read(path)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6])
def test_a_flipped_bit_is_found_where_there_are_checksums(tmp_path: Path, share: float) -> None:
    path = saved.npz(tmp_path / "model-120.npz", 120)
    flip(path, int(path.stat().st_size * share))
    with pytest.raises(Torn, match="CRC"):
        read(path)


def test_a_flipped_bit_in_the_weights_of_a_keras_archive_is_found(tmp_path: Path) -> None:
    path = copied(tmp_path, "model.keras") / "model.keras"
    flip(path, path.stat().st_size // 2)
    with pytest.raises(Torn):
        read(path)


def test_an_array_of_another_length_than_its_header_says_is_torn(tmp_path: Path) -> None:
    import zipfile

    path = saved.npz(tmp_path / "model.npz")
    with zipfile.ZipFile(path) as archive:
        content = archive.read("w.npy")
    for changed in (content[:-8], content[:4], b"", content.replace(b"descr", b"dascr")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("w.npy", changed)
        with pytest.raises(Torn):
            read(path)


def test_all_kinds_of_arrays_read_and_no_object_is_unpickled(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "objects": np.array([Bomb(tmp_path)], dtype=object),
        "records": np.zeros(3, dtype=[("a", "i4")]),
        "words": np.array(["a", "bb"]),
        "time": np.array("2026-01-01", dtype="M8[s]"),
        "none": np.zeros((0, 4)),
        "optimizer/iterations": np.array(7, dtype=">i4"),
    }
    assert read(saved.npz(tmp_path / "c" / "state.npz", **arrays)).global_step == 7
    np.savez_compressed(tmp_path / "c" / "state.npz", w=np.arange(5000.0), step=np.array([9]))
    assert read(tmp_path / "c").global_step == 9
    assert not (tmp_path / "bang").exists()


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.directory / "bang"),)


def test_a_number_that_is_none_does_no_harm(tmp_path: Path) -> None:
    path = saved.npz(tmp_path / "state.npz", global_step=np.uint64(2**64 - 1))
    assert read(path).global_step is None


@pytest.mark.parametrize("name", ["state-120.ckpt", "model-120.pt", "model-00001-of-00002.safetensors"])
def test_what_nothing_here_reads_is_handed_on_and_not_verified(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04, or whatever")
    (unit,) = saved.found(tmp_path).units
    assert (unit.kind, unit.is_verified, unit.proof) == ("unknown", False, "names")
    assert unit.named_step == (120 if "120" in name else None)


# Orbax


def _unmerged(step: Path) -> None:
    (step / "default" / "manifest.ocdbt").unlink()


def _uncommitted(step: Path) -> None:
    path = step / "_CHECKPOINT_METADATA"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit_timestamp_nsecs": None}))
    (step / "commit_success.txt").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_unmerged, "has not joined"),
        (_uncommitted, "has not committed"),
        (lambda step: (step / "_CHECKPOINT_METADATA").write_text("{"), "_CHECKPOINT_METADATA cannot be read"),
        (lambda step: (step / "default" / "_METADATA").write_text(""), "_METADATA cannot be read"),
    ],
)
def test_a_damaged_directory_of_orbax_is_torn(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    step = saved.orbax(tmp_path, 300)
    damage(step)
    with pytest.raises(Torn, match=why):
        read(tmp_path)


def test_what_orbax_has_committed_is_handed_on_and_never_called_verified(tmp_path: Path) -> None:
    step = saved.orbax(tmp_path, 300)
    truncate(next((step / "default" / "d").iterdir()), 10)
    unit = read(tmp_path)
    assert (unit.global_step, unit.is_verified, unit.proof) == (300, False, "names")


def test_what_orbax_has_not_renamed_yet_is_no_checkpoint(tmp_path: Path) -> None:
    saved.orbax(tmp_path, 200).rename(tmp_path / "200.orbax-checkpoint-tmp")
    found = saved.found(tmp_path)
    assert found.units == []
    assert [Path(path).name for path, _ in found.unfinished] == ["200.orbax-checkpoint-tmp"]

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

from orchestrator.checkpoints import discovery, names, npz, units
from orchestrator.checkpoints.torn import Torn
from tests.unit.checkpoints import saved
from tests.unit.checkpoints.saved import FIXTURES, flip, truncate

Maker = Callable[..., Path]

MAKERS: dict[str, tuple[str, Maker]] = {
    "npz": ("model-120.npz", saved.npz),
    "torch": ("model-120.pt", saved.torch),
    "safetensors": ("model-120.safetensors", saved.safetensors),
}


def read(path: Path) -> units.Unit:
    """Read the one unit below a directory, or in that of a file, to its last byte."""
    directory = path if path.is_dir() else path.parent
    (unit,) = discovery.find(str(directory)).units
    unit.glance()
    unit.peek()
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


# Real files of torch, safetensors and Orbax


@pytest.mark.parametrize(
    ("fixture", "kind", "proof"),
    [
        ("torch/model-120.pt", "torch", "checksums"),
        ("torch/no-checksums.pt", "torch", "structure"),
        ("torch/model.safetensors", "safetensors", "structure"),
        ("model.keras", "keras", "checksums"),
    ],
)
def test_real_files_read_and_none_that_is_cut_off_does(
    tmp_path: Path, fixture: str, kind: str, proof: str
) -> None:
    path = copied(tmp_path, fixture) / Path(fixture).name
    unit = read(path)
    assert (unit.kind, unit.proof, unit.is_verified) == (kind, proof, True)
    assert unit.global_step == (32 if kind == "keras" else 120)
    whole = path.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:size])
        with pytest.raises(Torn):
            read(path)


def test_what_torch_wrote_before_1_6_is_handed_on_and_not_verified(tmp_path: Path) -> None:
    (unit,) = discovery.find(str(copied(tmp_path, "torch/legacy.pt"))).units
    assert (unit.kind, unit.is_verified) == ("unknown", False)


def test_real_directories_of_orbax_read_and_their_names_tell_the_step(tmp_path: Path) -> None:
    found = discovery.find(str(copied(tmp_path, "orbax", "orbax_zarr"))).units
    for unit in found:
        unit.read()
    steps = {(Path(unit.path).name, unit.kind, unit.global_step) for unit in found}
    assert steps == {("100", "orbax", 100), ("200", "orbax", 200), ("step_7", "orbax", 7)}


# Files that differ in one thing


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_cut_off_anywhere_is_torn(tmp_path: Path, kind: str) -> None:
    name, make = MAKERS[kind]
    path = make(tmp_path / name, 120)
    assert read(path).global_step == 120
    whole = path.read_bytes()
    for size in (0, 1, 7, 9, 100, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Torn):
            read(path)


@pytest.mark.parametrize("kind", ["npz", "torch"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.6])
def test_a_flipped_bit_is_found_where_there_are_checksums(tmp_path: Path, kind: str, share: float) -> None:
    name, make = MAKERS[kind]
    path = make(tmp_path / name, 120)
    flip(path, int(path.stat().st_size * share))
    with pytest.raises(Torn, match="CRC"):
        read(path)


def test_a_flipped_bit_in_the_weights_of_a_keras_archive_is_found(tmp_path: Path) -> None:
    path = copied(tmp_path, "model.keras") / "model.keras"
    flip(path, path.stat().st_size // 2)
    with pytest.raises(Torn):
        read(path)


def test_safetensors_has_no_checksums_and_so_it_is_said(tmp_path: Path) -> None:
    path = saved.safetensors(tmp_path / "model.safetensors")
    flip(path, path.stat().st_size - 100)
    assert read(path).proof == "structure"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"shape": [500], "dtype": "F32", "data_offsets": [0, 1996]}, "does not lie where"),
        ({"shape": [501], "dtype": "F32", "data_offsets": [0, 2000]}, "does not lie where"),
        ({"shape": [499], "dtype": "F32", "data_offsets": [4, 2000]}, "does not lie where"),
        ({"shape": [400], "dtype": "F32", "data_offsets": [0, 1600]}, "too long"),
        ({"shape": [600], "dtype": "F32", "data_offsets": [0, 2400]}, "cut off"),
        ({"dtype": "F32"}, "cannot be read"),
        ("what", "cannot be read"),
    ],
)
def test_a_header_of_safetensors_that_cannot_be_right_is_torn(
    tmp_path: Path, entry: object, why: str
) -> None:
    with pytest.raises(Torn, match=why):
        read(saved.safetensors(tmp_path / "model.safetensors", w=entry))


def test_types_of_safetensors_that_are_not_known_are_no_damage(tmp_path: Path) -> None:
    entry = {"shape": [7], "dtype": "F8_E4M3FNUZ", "data_offsets": [0, 7]}
    later = {"shape": [3], "dtype": "NEW", "data_offsets": [7, 2000]}
    assert read(saved.safetensors(tmp_path / "model.safetensors", w=entry, later=later)).is_verified


def test_an_index_of_safetensors_and_its_shards_are_one_unit(tmp_path: Path) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for shard in shards:
        saved.safetensors(tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": shards[0], "v": shards[1]}}))
    assert len(read(tmp_path).paths) == 3
    for damage, why in (("[]", "cannot be read"), ('{"weight_map": {"w": "../x"}}', "no file beside it")):
        index.write_text(damage)
        with pytest.raises(Torn, match=why):
            read(tmp_path)
    index.unlink()
    read(tmp_path)
    (tmp_path / shards[0]).unlink()
    with pytest.raises(Torn, match="1 of 2 shards of"):
        read(tmp_path)


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


def test_a_number_that_is_none_and_a_name_without_end_do_no_harm(tmp_path: Path) -> None:
    path = saved.npz(tmp_path / "state.npz", step=np.uint64(2**64 - 1))  # type: ignore[arg-type]
    assert read(path).global_step in (-1, None)
    entry = {"shape": [1], "dtype": "F32", "data_offsets": [5, 1]}
    header: dict[str, Any] = {"n" * 100_000: entry}
    saved.safetensors(tmp_path / "x" / "model.safetensors", **header)
    with pytest.raises(Torn) as caught:
        read(tmp_path / "x")
    assert len(str(caught.value)) < 1000


def test_nothing_of_torch_is_unpickled(tmp_path: Path) -> None:
    path = saved.torch(tmp_path / "c" / "x.pt", what={"global_step": 5, "bomb": Bomb(tmp_path)})
    assert read(path).global_step == 5
    assert not (tmp_path / "bang").exists()


def test_a_zip_without_what_torch_writes_last_is_torn(tmp_path: Path) -> None:
    path = saved.npz(tmp_path / "x.npz")
    path.rename(tmp_path / "x.pt")
    with pytest.raises(Torn, match=r"no data\.pkl"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"msgpack or whatever", b"\x80\x04\x95pickle"])
def test_what_others_save_under_the_endings_of_torch_is_not_taken_for_torch(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "state.ckpt").write_bytes(content)
    (unit,) = discovery.find(str(tmp_path)).units
    assert (unit.kind, unit.is_verified, unit.proof) == ("unknown", False, "names")


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
    found = discovery.find(str(tmp_path))
    assert found.units == []
    assert [Path(path).name for path, _ in found.unfinished] == ["200.orbax-checkpoint-tmp"]

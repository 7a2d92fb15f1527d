"""What reads whole but cannot be restored, is not what it says, or claims what no training reached or file holds."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import backup_file
from orchestrator.both.within import Tree
from orchestrator.checkpoints import (
    checkpoints_main,
    hdf5,
    keras_archive,
    npz,
    orbax,
    seed,
    tensor_bundle,
    tensorflow_files,
    verify,
)
from orchestrator.checkpoints.torn import Torn
from orchestrator.task.transparent import backup
from tests.unit.checkpoints import saved

h5py = pytest.importorskip("h5py")
np: Any = pytest.importorskip("numpy")

NOW = 1_700_000_000.0


def written(root: Path, number: int, steps: int, task: str = "", at: float = NOW) -> Path:
    """Write a backup of ours, or what a survivor hands over."""
    directory = backup.folder(str(root / f"gen-{number:06d}"), 0)
    folder = backup.rescued(directory, task) if task else directory
    backup.write(
        folder, {backup.STEPS: steps, "model/00000": np.full(9, steps, "f4")}, backup.Position(1, 2, steps)
    )
    path = Path(folder, backup.NAME)
    os.utime(path, (at, at))
    return path


def change(path: Path, **values: Any) -> None:
    """Replace datasets of a file, or remove those that are None, and keep its time."""
    times = (path.stat().st_atime, path.stat().st_mtime)
    with h5py.File(path, "r+") as file:
        for name, value in values.items():
            if name in file:
                del file[name]
            if value is not None:
                file[name] = value
    os.utime(path, times)


def as_text(value: Any) -> Any:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def looked(root: Path, number: int = 1, **options: Any) -> dict[str, Any]:
    return verify(str(root / f"gen-{number:06d}"), lambda _: None, **options)


def reads(reader: Any, path: Path) -> int | None:
    with Tree(str(path.parent)) as tree:
        return reader.read(tree, str(path))  # type: ignore[no-any-return]


POSITION = {"epoch": 1, "batch": 2, "callbacks": {}}


CASES: list[tuple[dict[str, Any], str]] = [
    ({"position": None}, "it lacks the position"),
    ({"position": as_text({**POSITION, "epoch": "x"})}, "its position"),
    ({"position": as_text({"epoch": 1, "batch": 2})}, "callbacks"),
    ({"position": as_text([1, 2])}, "HDF5"),
    ({"optimizer/iterations": None}, "it has no step"),
    ({"optimizer/iterations": 10**14}, "it has no step that a training can have made"),
    ({"optimizer/iterations": -1}, "it has no step that a training can have made"),
    ({"optimizer/iterations": 751}, "optimizer/iterations is not what was written"),
    ({"model/00000": None}, "model/00000 is missing"),
    ({"model/00001": np.zeros(3)}, "model/00001 is missing, or was not written"),
    (
        {"orch-about": as_text({"run": "t-1", "generation": "1", "step": 9, "digest": "0"})},
        "it is not what it says",
    ),
    ({"orch-about": as_text([])}, "HDF5"),
]
OF_THE_VERSION_BEFORE = CASES[:7]
"""Without sums and a name, only this is known of a file."""


@pytest.mark.fault(106)
@pytest.mark.parametrize(
    ("values", "why", "is_old"),
    [*((*case, False) for case in CASES), *((*case, True) for case in OF_THE_VERSION_BEFORE)],
)
def test_a_handed_over_file_that_no_task_could_restore_is_not_used(
    tmp_path: Path, values: dict[str, Any], why: str, is_old: bool
) -> None:
    own, handed_over = written(tmp_path, 1, 700), written(tmp_path, 1, 750, "worker:1")
    for path in (own, handed_over) if is_old else ():
        change(path, **{"orch-about": None, "orch-checksums": None})
    change(handed_over, **values)
    answer = looked(tmp_path)
    assert answer["checkpoint"]["global_step"] == 700
    assert seed.seed(str(tmp_path), 2)["global_step"] == 700
    rejected = [item["why"] for item in answer["rejected"]]
    if values.get("optimizer/iterations", 1) not in (
        None,
        10**14,
        -1,
    ):  # else it is behind the other, and is not read
        assert [why in each for each in rejected] == [True], rejected


@pytest.mark.fault(106)
def test_a_file_without_its_name_is_refused_where_the_others_have_one_and_is_ordinary_elsewhere(
    tmp_path: Path,
) -> None:
    old = written(tmp_path, 1, 700)
    change(old, **{"orch-about": None})
    assert looked(tmp_path)["checkpoint"]["global_step"] == 700, "the version before wrote it"
    seed.seed(str(tmp_path), 2)
    assert looked(tmp_path, 2)["checkpoint"]["global_step"] == 700
    written(tmp_path, 2, 720)
    change(written(tmp_path, 2, 750, "worker:1"), **{"orch-about": None})
    answer = looked(tmp_path, 2)
    assert answer["checkpoint"]["global_step"] == 720
    assert "does not say of which run" in answer["rejected"][0]["why"]


@pytest.mark.fault(106)
def test_a_step_that_the_training_cannot_have_reached_is_not_believed_of_files_of_ours(
    tmp_path: Path,
) -> None:
    written(tmp_path, 1, 700)
    written(tmp_path, 1, 10**9, "worker:1")
    answer = looked(tmp_path, step_max=1750)
    assert answer["checkpoint"]["global_step"] == 700
    assert answer["rejected"][0]["why"] == "it claims step 1000000000, and no state beyond step 1750 counts"
    assert seed.seed(str(tmp_path), 2, step_max=1750)["global_step"] == 700
    saved.npz(tmp_path / "own" / "gen-000001" / "model-5000.npz", 5000)
    assert seed.seed(str(tmp_path / "own"), 2, step_max=1750)["global_step"] == 5000, (
        "a script counts as it likes"
    )


@pytest.mark.fault(106)
def test_what_a_task_could_not_restore_is_passed_over_in_all_its_copies_and_never_for_step_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, 1, 700, at=NOW)
    bad = written(tmp_path, 1, 750, "worker:1", at=NOW + 9)
    assert seed.seed(str(tmp_path), 2)["global_step"] == 750
    failed = {
        "file": "orch/fit-000/rescued-by-worker-1/latest.weights.h5",
        "step": None,
        "saved_at": NOW + 9,
        "bytes": bad.stat().st_size,
        "why": "KeyError: 'position'",
    }
    wish = {"root": str(tmp_path), "generation": 3, "unrestorable": [failed]}
    assert checkpoints_main(["seed", json.dumps(wish)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["global_step"] == 700
    assert answer["rejected"][0]["why"] == "a task could not restore it: KeyError: 'position'"
    other = {**failed, "file": "orch/fit-000/latest.weights.h5", "saved_at": NOW}
    other["bytes"] = (tmp_path / "gen-000001" / "orch" / "fit-000" / backup.NAME).stat().st_size
    wish |= {"generation": 4, "unrestorable": [failed, other]}
    assert checkpoints_main(["seed", json.dumps(wish)]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "no-readable-checkpoint"
    assert seed.seed(str(tmp_path), 5)["global_step"] == 700, "another run tries again"


def test_a_backup_is_compared_with_its_sums_again_when_it_is_restored(tmp_path: Path) -> None:
    path = written(tmp_path, 1, 700)
    assert backup.read(str(path.parent)) is not None
    path.write_bytes(path.read_bytes().replace(np.float32(700).tobytes(), np.float32(701).tobytes()))
    with pytest.raises(ValueError, match="model/00000 is not what was written"):
        backup.read(str(path.parent))


def test_a_backup_that_could_not_be_written_takes_no_room(tmp_path: Path) -> None:
    class Full:
        dtype = np.dtype("f4")

        def __array__(self, *_: Any, **_options: Any) -> Any:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        backup.write(
            str(tmp_path),
            {"model/00000": np.zeros(9), "model/00001": Full(), backup.STEPS: 5},
            backup.Position(0, 0),
        )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# What claims to be larger than it is


def test_hdf5_that_claims_more_than_it_holds_is_refused_before_it_is_read(tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "empty": {"shape": (1 << 36,), "dtype": "f4"},
        "scalar": {"shape": (), "dtype": f"S{(1 << 31) - 1}"},
        "packed": {"shape": (1 << 36,), "dtype": "f4", "chunks": (1 << 20,), "compression": "gzip"},
        "slab": {"shape": (1 << 10,), "dtype": "f4", "chunks": (1 << 10,), "maxshape": (None,)},
    }
    for name, options in cases.items():
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            data = file.create_dataset("w", **options)
            if name in ("packed", "slab"):
                data[:10] = 1.0
        assert path.stat().st_size < 1 << 20
        if name == "slab":
            assert reads(hdf5, path) is None, "a small one that was not written to its end is no bomb"
            continue
        with pytest.raises(Torn, match="claims"):
            reads(hdf5, path)


def test_hdf5_does_not_lead_to_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(400))
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("w", shape=(100,), dtype="f4", external=[(str(tmp_path / "secret"), 0, 400)])
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout(shape=(100,), dtype="f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "external.h5"), "w", shape=(100,))
        file.create_virtual_dataset("w", layout)
    for name in ("external", "virtual"):
        with pytest.raises(Torn, match="kept in another file"):
            reads(hdf5, tmp_path / f"{name}.h5")


@pytest.mark.parametrize("shape", [(40,), (5, 8), (1, 40), (2, 2, 10), (0, 7), ()])
def test_large_datasets_are_summed_slab_by_slab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(hdf5, "_SLAB_BYTES", 24)
    values = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)
    directory = backup.folder(str(tmp_path), 0)
    backup.write(directory, {backup.STEPS: 7, "model/00000": values}, backup.Position(0, 7, 7))
    assert reads(hdf5, Path(directory, backup.NAME)) == 7
    with h5py.File(Path(directory, backup.NAME)) as file:
        slabs = list(hdf5._slabs(file["model/00000"]))
    assert max(slab.nbytes for slab in slabs) <= 24, "memory is needed for one of them only"
    assert [value for slab in slabs for value in np.ravel(slab)] == np.ravel(values).tolist()


def test_zip_archives_that_claim_more_than_they_hold_are_refused(tmp_path: Path) -> None:
    path = saved.npz(tmp_path / "model-5.npz", 5)
    data = bytearray(path.read_bytes())
    directory = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, directory + 24, 0xF0000000)
    path.write_bytes(data)
    with pytest.raises(Torn, match="claim"):
        reads(npz, path)
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("model.weights.h5", bytes(1 << 20))
    with pytest.raises(Torn, match="packed in another way"):
        reads(keras_archive, tmp_path / "model.keras")


def test_a_bundle_whose_strings_claim_more_than_their_tensor_is_torn(tmp_path: Path) -> None:
    entry = tensor_bundle.BundleEntry()
    entry.elements, entry.size = 1 << 40, 64
    with (tmp_path / "shard").open("w+b") as file, pytest.raises(Torn, match="claims"):
        tensor_bundle._string_sum(file, entry)
    entry.elements, entry.size = 4, 1 << 38
    with (tmp_path / "shard").open("w+b") as file, pytest.raises(Torn, match="claims"):
        tensor_bundle._string_sum(file, entry)


def test_metadata_of_orbax_is_read_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved.orbax(tmp_path, 200)
    reads(orbax, folder)
    monkeypatch.setattr(orbax, "_JSON_BYTES_MAX", 20)
    with pytest.raises(Torn):
        reads(orbax, folder)


def test_a_place_is_told_from_others() -> None:
    assert backup_file.is_ours("gen-000001/manager/rescued-by-worker-1-750")
    assert not backup_file.is_ours("gen-000001/manager/ckpt-750")
    assert not backup_file.is_backup("gen-000001/keras3_backup/latest.weights.h5")


@pytest.mark.fault(106)
def test_what_a_script_restores_by_itself_is_named_where_an_older_one_could_take_its_place(
    tmp_path: Path,
) -> None:
    first = tmp_path / "gen-000001"
    saved.npz(first / "model-100.npz", 100)
    assert seed.seed(str(tmp_path), 2)["replaceable"] is None, "there is no older one"
    saved.npz(tmp_path / "gen-000002" / "model-200.npz", 200)
    answer = seed.seed(str(tmp_path), 3)
    assert (answer["global_step"], answer["replaceable"]["file"]) == (200, "model-200.npz")
    failed: Any = {**answer["replaceable"], "why": "two generations ended as they restored it"}
    again = seed.seed(str(tmp_path), 4, unrestorable=[failed])
    assert (again["global_step"], again["replaceable"]) == (100, None)
    assert not (tmp_path / "gen-000004" / "model-200.npz").exists()


@pytest.mark.fault(106)
def test_a_prefix_that_was_handed_over_is_what_the_file_beside_it_says(tmp_path: Path) -> None:
    prefix = saved.handed_over(tmp_path / "gen-000001" / "manager", 750)
    assert seed.seed(str(tmp_path), 2)["source"] == str(prefix)
    copy = tmp_path / "gen-000002" / "manager" / prefix.name
    assert Path(f"{copy}.about").exists(), "it goes with its prefix"
    other = saved.handed_over(tmp_path / "of-another", 760)
    for ending in (".index", ".data-00000-of-00001"):
        os.replace(f"{other}{ending}", f"{prefix}{ending}")
    Path(f"{prefix}.about").write_bytes(Path(f"{other}.about").read_bytes())
    with Tree(str(tmp_path)) as tree, pytest.raises(Torn, match="it is not what it says to be"):
        tensorflow_files.check_structure(tree, str(prefix))
    for damage in (b"", b"[]", b'{"step": 750}'):
        Path(f"{copy}.about").write_bytes(damage)
        with Tree(str(tmp_path)) as tree, pytest.raises(Torn, match="it is not what it says to be"):
            tensorflow_files.check_structure(tree, str(copy))


@pytest.mark.fault(106)
def test_a_prefix_that_says_nothing_is_taken_only_of_the_version_before(tmp_path: Path) -> None:
    saved.handed_over(tmp_path / "gen-000001" / "manager", 750, says=False)
    assert seed.seed(str(tmp_path), 2)["source"], "its directory was made by the version before"
    given = saved.found(tmp_path / "gen-000002").units
    assert [unit.problem for unit in given] == [None], "and so its copy is"
    silent = saved.handed_over(tmp_path / "gen-000002" / "manager", 760, says=False)
    whole = saved.handed_over(tmp_path / "gen-000002" / "manager", 755)
    answer = seed.seed(str(tmp_path), 3)
    assert answer["source"] == str(whole)
    assert [item["path"] for item in answer["rejected"]] == [str(silent)]

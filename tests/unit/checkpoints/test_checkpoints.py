from __future__ import annotations

import json
import os
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.within import Tree
from orchestrator.checkpoints import checkpoints_main, copying, names, places, seed, verify
from orchestrator.checkpoints.crc32c import by_table, crc32c, masked
from orchestrator.checkpoints.places import SeedError
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.tensor_bundle import Bundle
from orchestrator.checkpoints.torn import Torn
from tests.unit.checkpoints import saved

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"


def generation(root: Path, number: int, *fixtures: str, age_s: float = 0.0) -> Path:
    """Make a generation's directory with copies of fixtures, saved one after the other."""
    directory = Path(places.directory_of(str(root), number))
    directory.mkdir(parents=True)
    for fixture in fixtures:
        source = FIXTURES / fixture
        if source.is_dir():
            shutil.copytree(source, directory / fixture)
        else:
            shutil.copy2(source, directory / fixture)
    for place, path in enumerate(sorted(directory.rglob("*"))):
        os.utime(path, (0, 1_700_000_000 - age_s + place))
    return directory


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as f:
        f.truncate(size)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)


def answer_of(capsys: pytest.CaptureFixture[str], verb: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
    status = checkpoints_main([verb, json.dumps(arguments)])
    return status, json.loads(capsys.readouterr().out)


# Sums and structure


def checked(directory: Path) -> Bundle:
    """Read all of `ckpt-2`. Its tree stays open."""
    bundle = Bundle(Tree(str(directory)), "ckpt-2")
    bundle.check_tensors()
    return bundle


def test_crc32c_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_crc32c_without_the_library_is_the_same() -> None:
    data = bytes((i * 7 + i // 251) & 0xFF for i in range(9999))
    assert by_table(data) == by_table(data[5000:], by_table(data[:5000])) == crc32c(data)


def test_a_bundle_of_tensorflow_reads_with_strings_and_large_tensors() -> None:
    bundle = checked(FIXTURES / "manager")
    assert bundle.integer("optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE") == 32
    assert bundle.data_bytes > 160_000


@pytest.mark.parametrize("at", [10, 1000, 90_000, 163_000])
def test_one_flipped_bit_anywhere_in_the_data_is_found(tmp_path: Path, at: int) -> None:
    directory = generation(tmp_path, 1, "manager")
    flip(directory / "manager" / "ckpt-2.data-00000-of-00001", at)
    with pytest.raises(Torn, match="checksum"):
        checked(directory / "manager")


@pytest.mark.parametrize("size", [0, 1, 47, 48, 100, 1100, 1167])
@pytest.mark.fault(42)
def test_an_index_cut_off_anywhere_is_torn(tmp_path: Path, size: int) -> None:
    directory = generation(tmp_path, 1, "manager")
    truncate(directory / "manager" / "ckpt-2.index", size)
    with pytest.raises(Torn):
        checked(directory / "manager")


def test_every_flipped_byte_of_an_index_is_found_or_harmless(tmp_path: Path) -> None:
    path = generation(tmp_path, 1, "manager") / "manager" / "ckpt-2.index"
    whole = path.read_bytes()
    wrong = 0
    for at in range(0, len(whole) - 48, 13):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            checked(path.parent)
        except Torn:
            wrong += 1
    assert wrong >= (len(whole) - 48) // 13 - 2  # all but the statistics blocks that nothing reads


def test_masking_is_not_the_sum_itself() -> None:
    assert masked(0) == 0xA282EAD8
    assert struct.pack("<I", masked(0xFFFFFFFF))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ckpt-50", 50),
        ("weights.07.h5", 7),
        ("model-3.weights.h5", 3),
        ("latest.weights.h5", None),
        ("m.keras", None),
    ],
)
def test_number_in_a_name(name: str, number: int | None) -> None:
    assert names.step_in(name) == number


@pytest.mark.parametrize(
    ("integers", "step"),
    [
        ({"model/optimizer/_iterations": 20, "train_counter": 24, "ckpt_saved_epoch": 2}, 20),
        ({"optimizer/vars/0": 36, "layers/seed/vars/0": 1337}, 36),
        ({"optimizer_weights/Adam/iter:0": 9}, 9),
        ({"global_step": 70, "epoch": 3}, 70),
        ({"step": 5}, 5),
        ({"epoch": 3}, None),
        ({}, None),
    ],
)
def test_the_step_is_the_optimizers_count(integers: dict[str, int], step: int | None) -> None:
    assert choose_step(integers) == step


# verify


@pytest.mark.parametrize(
    ("fixture", "step", "name"),
    [
        ("keras3_backup", 20, "latest.weights.h5"),
        ("tf_keras_backup", 20, "ckpt-4"),
        ("manager", 32, "ckpt-2"),
        ("model.keras", 32, "model.keras"),
    ],
)
def test_verify_knows_what_scripts_leave(tmp_path: Path, fixture: str, step: int, name: str) -> None:
    found = verify(str(generation(tmp_path, 1, fixture)))
    assert found["rejected"] == []
    assert found["checkpoint"]["global_step"] == step
    assert Path(found["checkpoint"]["path"]).name == name
    assert found["checkpoint"]["saved_at"] >= 1_600_000_000


def test_verify_goes_back_to_the_one_before_and_says_why(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    data = directory / "manager" / "ckpt-2.data-00000-of-00001"
    truncate(data, 5000)
    os.utime(data, (0, 1_700_000_000))
    found = verify(str(directory))
    assert Path(found["checkpoint"]["path"]).name == "ckpt-1"
    assert found["rejected"] == [
        {
            "path": str(directory / "manager" / "ckpt-2"),
            "why": "ckpt-2.data-00000-of-00001 is cut off: 5000 of 163178 bytes",
        }
    ]


def test_what_was_written_a_moment_ago_is_called_torn_only_if_nobody_goes_on(tmp_path: Path) -> None:
    """The training saves while it is looked at: half of a file is no damage, and nobody is told of any."""
    directory = generation(tmp_path, 1, "manager")
    data = directory / "manager" / "ckpt-2.data-00000-of-00001"
    whole = data.read_bytes()
    waited: list[float] = []

    def goes_on(seconds: float) -> None:
        waited.append(seconds)
        data.write_bytes(whole)

    truncate(data, 5000)
    found = verify(str(directory), goes_on)
    assert (Path(found["checkpoint"]["path"]).name, found["rejected"]) == ("ckpt-2", [])
    assert 1 < waited[0] <= 2

    def is_dead(_seconds: float) -> None:
        os.utime(data, (0, 1_700_000_000))

    truncate(data, 5000)
    found = verify(str(directory), is_dead)
    assert (Path(found["checkpoint"]["path"]).name, len(found["rejected"])) == ("ckpt-1", 1)


def test_a_checkpoint_that_goes_away_while_it_is_read_is_torn_and_no_crash(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager", "keras3_backup", "model.keras")
    found = saved.found(directory).units
    shutil.rmtree(directory)
    for unit in found:
        with pytest.raises(Torn):
            unit.read()
    assert verify(str(directory)) == {"checkpoint": None, "rejected": []}


def test_what_a_living_training_rotates_away_is_not_taken_for_torn(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager") / "manager"
    done = threading.Event()

    def rotate() -> None:
        number = 2
        while not done.is_set():
            for ending in (".data-00000-of-00001", ".index"):  # as TensorFlow: whole before it has its name
                shutil.copyfile(FIXTURES / "manager" / f"ckpt-2{ending}", directory / "new")
                os.rename(directory / "new", directory / f"ckpt-{number + 1}{ending}")
            for ending in (".index", ".data-00000-of-00001"):
                (directory / f"ckpt-{number}{ending}").unlink()
            number += 1
            done.wait(0.01)

    rotating = threading.Thread(target=rotate)
    rotating.start()
    try:
        looks = [verify(str(directory)) for _ in range(8)]
    finally:
        done.set()
        rotating.join()
    assert any(look["checkpoint"] is not None for look in looks)
    torn = [said for look in looks for said in look["rejected"] if "index is missing" not in said["why"]]
    assert torn == []


def test_verify_of_an_empty_directory_is_nothing(tmp_path: Path) -> None:
    assert verify(str(tmp_path)) == {"checkpoint": None, "rejected": []}


# seed


def test_an_empty_history_gives_an_empty_directory(tmp_path: Path) -> None:
    answer = seed.seed(str(tmp_path / "new"), 1)
    assert answer["global_step"] is None
    assert answer["source"] is None
    assert os.listdir(answer["path"]) == [places.MARKER]


@pytest.mark.parametrize("fixture", ["keras3_backup", "tf_keras_backup", "manager"])
def test_the_newest_generation_is_copied_whole(tmp_path: Path, fixture: str) -> None:
    generation(tmp_path, 1, fixture, age_s=1000)
    newest = generation(tmp_path, 2, fixture)
    answer = seed.seed(str(tmp_path), 3)
    assert answer["source"].startswith(str(newest))
    assert answer["rejected"] == []
    wanted = {str(p.relative_to(newest)) for p in newest.rglob("*") if p.is_file()}
    target = Path(answer["path"])
    assert {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()} - {places.MARKER} == wanted
    assert verify(answer["path"])["checkpoint"]["global_step"] == answer["global_step"]


def _pointer(directory: Path) -> Path:
    return directory / "manager" / "checkpoint"


@pytest.mark.fault(42)
def test_a_pointer_that_is_empty_or_points_to_nothing_is_written_anew(tmp_path: Path) -> None:
    for content in ("", 'model_checkpoint_path: "ckpt-99"\n', "\0\0\0"):
        root = tmp_path / str(len(content))
        _pointer(generation(root, 1, "manager")).write_text(content)
        answer = seed.seed(str(root), 2)
        assert answer["global_step"] == 32
        assert 'model_checkpoint_path: "ckpt-2"' in _pointer(Path(answer["path"])).read_text()


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
@pytest.mark.fault(42)
def test_a_torn_newest_is_dropped_for_the_one_before_and_both_are_named(tmp_path: Path, ending: str) -> None:
    directory = generation(tmp_path, 1, "manager")
    truncate(directory / "manager" / f"ckpt-2.{ending}", 900)
    answer = seed.seed(str(tmp_path), 2)
    assert answer["global_step"] == 24
    assert answer["source"].endswith("gen-000001/manager/ckpt-1")
    assert [Path(r["path"]).name for r in answer["rejected"]] == ["ckpt-2"]
    target = Path(answer["path"])
    assert not list(target.rglob("ckpt-2*"))
    assert "ckpt-2" not in _pointer(target).read_text()


def test_bits_that_went_bad_are_found_before_they_are_given_on(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager")
    flip(directory / "manager" / "ckpt-2.data-00000-of-00001", 90_000)
    answer = seed.seed(str(tmp_path), 2)
    assert answer["global_step"] == 24
    # Only the copy shows it, so the copy was made: a script that looks for the highest number must not find it.
    assert not list(Path(answer["path"]).rglob("ckpt-2*"))


@pytest.mark.fault(42)
def test_a_torn_backup_of_keras_is_restored_from_the_one_that_it_keeps(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "keras3_backup") / "keras3_backup"
    os.utime(directory / "latest.weights.h5", (0, 1_700_009_999))
    truncate(directory / "latest.weights.h5", 7000)
    (directory / "training_metadata.json").write_text("")
    answer = seed.seed(str(tmp_path), 2)
    assert answer["source"].endswith("latest.weights.h5.bkp")
    assert answer["global_step"] == 15
    restored = Path(answer["path"]) / "keras3_backup"
    assert (restored / "latest.weights.h5").read_bytes() == (directory / "latest.weights.h5.bkp").read_bytes()
    assert json.loads((restored / "training_metadata.json").read_text())["epoch"] == 1


def test_a_generation_whose_backup_is_torn_falls_back_to_the_one_before(tmp_path: Path) -> None:
    before = generation(tmp_path, 1, "keras3_backup", age_s=1000)
    torn = generation(tmp_path, 2, "keras3_backup", "model.keras") / "keras3_backup"
    for name in ("latest.weights.h5", "latest.weights.h5.bkp"):
        truncate(torn / name, 9000)
    answer = seed.seed(str(tmp_path), 3)
    assert answer["source"].startswith(str(before))  # not model.keras: no script resumes from it by itself
    assert len(answer["rejected"]) == 2


def test_a_generation_that_saved_nothing_falls_back_to_the_one_before(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    (generation(tmp_path, 2) / "events.out.tfevents.1").write_text("log")
    assert seed.seed(str(tmp_path), 3)["source"].endswith("gen-000001/manager/ckpt-2")


def test_an_exported_model_does_not_hide_the_backup_of_the_generation_before(tmp_path: Path) -> None:
    generation(tmp_path, 1, "keras3_backup", age_s=1000)
    generation(tmp_path, 2, "model.keras")  # fit had ended, and Keras had deleted its backup
    assert "gen-000001" in seed.seed(str(tmp_path), 3)["source"]


@pytest.mark.fault(42)
def test_nothing_that_reads_is_an_error_and_not_step_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        directory = generation(tmp_path, number, "keras3_backup") / "keras3_backup"
        for name in ("latest.weights.h5", "latest.weights.h5.bkp"):
            truncate(directory / name, 100)
    status, answer = answer_of(capsys, "seed", root=str(tmp_path), generation=3)
    assert status == 1
    assert answer["error"]["code"] == "no-readable-checkpoint"
    assert "gen-000002" in answer["error"]["message"]
    assert "--from-scratch" in answer["error"]["hint"]
    assert not (tmp_path / "gen-000003").exists()
    status, answer = answer_of(capsys, "seed", root=str(tmp_path), generation=3, from_scratch=True)
    assert (status, answer["global_step"]) == (0, None)


def test_from_scratch_stays_so_for_the_generations_after_it(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    seed.seed(str(tmp_path), 2, from_scratch=True)
    assert seed.seed(str(tmp_path), 3)["global_step"] is None


def test_a_first_save_that_was_never_finished_is_no_checkpoint(tmp_path: Path) -> None:
    directory = generation(tmp_path, 1, "manager") / "manager"
    for name in ("ckpt-1.index", "ckpt-2.index", "ckpt-1.data-00000-of-00001"):
        (directory / name).unlink()
    answer = seed.seed(str(tmp_path), 2)
    assert answer["global_step"] is None
    assert "index is missing" in answer["rejected"][0]["why"]


def test_asked_twice_it_answers_the_same_and_touches_nothing(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    first = seed.seed(str(tmp_path), 2)
    mark = Path(first["path"]) / "written-by-the-training"
    mark.write_text("x")
    assert seed.seed(str(tmp_path), 2) == first
    assert mark.exists()


def test_a_seed_that_died_half_way_is_made_anew(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager")
    (tmp_path / "gen-000002.tmp").mkdir()
    (tmp_path / "gen-000002.tmp" / "half").write_text("x")
    answer = seed.seed(str(tmp_path), 2)
    assert not (Path(answer["path"]) / "half").exists()
    assert not (tmp_path / "gen-000002.tmp").exists()


def test_an_older_generation_is_refused(tmp_path: Path) -> None:
    generation(tmp_path, 5)
    with pytest.raises(SeedError, match="generation 5") as caught:
        seed.seed(str(tmp_path), 4)
    assert caught.value.code == "superseded"


@pytest.mark.fault(40)
def test_a_generation_that_was_begun_for_a_chief_elsewhere_is_refused(tmp_path: Path) -> None:
    """Two coordinators that know nothing of each other may count to the same number."""
    by = {"run": "t-1", "host": "a", "task": "chief:0"}
    first = seed.seed(str(tmp_path), 4, by=by)
    assert seed.seed(str(tmp_path), 4, by=by) == first
    with pytest.raises(SeedError, match="begun by another coordinator, for chief:0 of t-1 on a") as caught:
        seed.seed(str(tmp_path), 4, by={**by, "host": "b"})
    assert caught.value.code == "taken"


@pytest.mark.fault(27, 28)
def test_what_a_zombie_writes_or_removes_does_not_reach_the_new_generation(tmp_path: Path) -> None:
    old = generation(tmp_path, 1, "manager", "keras3_backup")
    answer = seed.seed(str(tmp_path), 2)
    for path in old.rglob("*"):  # as TensorFlow and Keras write: data by rename, the others in place
        if ".data-" in path.name:
            path.with_name("new").write_bytes(b"x")
            path.with_name("new").rename(path)
        elif path.is_file():
            path.write_bytes(b"x")
    shutil.rmtree(old)
    assert verify(answer["path"])["checkpoint"]["global_step"] == answer["global_step"]


def test_keep_removes_the_oldest_but_never_the_source(tmp_path: Path) -> None:
    generation(tmp_path, 1, "manager", age_s=1000)
    generation(tmp_path, 2, "manager")
    for number in (3, 4, 5):
        generation(tmp_path, number)
    answer = seed.seed(str(tmp_path), 6, keep=3)
    assert "gen-000002" in answer["source"]
    assert saved.generations(tmp_path) == [6, 5, 4, 2]


def test_checkpoints_in_the_root_count_as_before_all_generations(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "manager", tmp_path / "run")
    (tmp_path / "dataset.bin").write_bytes(bytes(100))
    answer = seed.seed(str(tmp_path), 1)
    assert answer["source"] == str(tmp_path / "run" / "ckpt-2")
    assert not (Path(answer["path"]) / "dataset.bin").exists()


@pytest.mark.fault(53)
def test_links_are_not_followed_out_of_the_tree(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("s")
    directory = generation(tmp_path / "root", 1, "manager")
    (directory / "linked").symlink_to(secret)
    (directory / "key").symlink_to(secret / "key")
    answer = seed.seed(str(tmp_path / "root"), 2)
    assert {Path(r["path"]).name for r in answer["rejected"]} == {"linked", "key"}
    assert not list(Path(answer["path"]).rglob("key"))
    (directory / places.MARKER).write_text("{}")
    copying.copy(str(directory), str(tmp_path / "scratch"))
    assert not list((tmp_path / "scratch").rglob("key"))


def test_copy_fills_a_scratch_once(tmp_path: Path) -> None:
    generation(tmp_path / "root", 1, "manager")
    seeded = seed.seed(str(tmp_path / "root"), 2)
    scratch = tmp_path / "scratch"
    assert copying.copy(seeded["path"], str(scratch))["files"] == 5
    assert verify(str(scratch))["checkpoint"]["global_step"] == 32
    assert copying.copy(seeded["path"], str(scratch))["files"] == 0


# The command


def test_the_command_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generation(tmp_path, 7, "manager")
    assert (places.highest(str(tmp_path)), places.highest(str(tmp_path / "none"))) == (7, 0)
    status, answer = answer_of(capsys, "verify", directory=str(tmp_path / "gen-000007"))
    assert (status, answer["checkpoint"]["global_step"]) == (0, 32)


@pytest.mark.parametrize(
    "argv", [[], ["seed"], ["seed", "--dir"], ["verify", "[1]"], ["burn", "{}"], ["seed", "3"]]
)
def test_bad_arguments_are_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints_main(argv) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["error"]["code"] == "usage"


def test_a_directory_that_cannot_be_made_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    status, answer = answer_of(capsys, "seed", root=str(tmp_path / "file" / "x"), generation=1)
    assert status == 1
    assert answer["error"]["code"] == "checkpoint-dir"

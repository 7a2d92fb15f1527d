"""What is the newest checkpoint, whatever the clocks of the hosts said when it was saved."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.both import newest
from orchestrator.checkpoints import discovery, inventory, places, safe, seed, verify
from orchestrator.head.records.checkpoint_store import CheckpointStore
from tests.unit.checkpoints import saved

NOW = 1_700_000_000.0
AHEAD = NOW + 6 * 3600


def gen(root: Path, number: int) -> Path:
    directory = Path(places.directory_of(str(root), number))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def tensorflow(directory: Path, step: int, at: float, name: str = "ckpt") -> None:
    """Save a checkpoint of TensorFlow at that time."""
    prefix = saved.tensor_bundle(directory / f"{name}-{step}", 400, 1)
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        os.utime(path, (at, at))


def npz(directory: Path, name: str, at: float, step: int | None = None) -> None:
    os.utime(saved.npz(directory / name, step), (at, at))


def seeded(root: Path, number: int, **options: Any) -> dict[str, Any]:
    return seed.seed(str(root), number, **options)


def pointer(directory: str | Path) -> str:
    return (Path(directory) / discovery.POINTER).read_text().splitlines()[0].split('"')[1]


def verified(directory: Path) -> int | None:
    checkpoint = verify(str(directory), lambda _: None)["checkpoint"]
    return None if checkpoint is None else checkpoint["global_step"]


@pytest.mark.fault(105)
@pytest.mark.parametrize("away_s", [6 * 3600.0, -6 * 3600.0])
def test_the_furthest_is_used_where_a_clock_was_wrong_in_an_earlier_generation(
    tmp_path: Path, away_s: float
) -> None:
    tensorflow(gen(tmp_path, 1), 600, NOW + away_s)
    assert seeded(tmp_path, 2)["global_step"] == 600
    for step in (650, 700, 750):
        tensorflow(gen(tmp_path, 2), step, NOW + step)
        assert verified(gen(tmp_path, 2)) == step
    answer = seeded(tmp_path, 3)
    assert (answer["global_step"], pointer(answer["path"])) == (750, "ckpt-750")
    assert inventory.listed(str(tmp_path))["checkpoints"][0]["global_step"] == 750


@pytest.mark.fault(105)
def test_the_furthest_is_used_where_a_clock_was_set_right_within_a_generation(tmp_path: Path) -> None:
    for step, at in ((600, AHEAD), (650, NOW), (700, NOW + 1)):
        tensorflow(gen(tmp_path, 1), step, at)
    assert verified(gen(tmp_path, 1)) == 700
    answer = seeded(tmp_path, 2)
    assert (answer["global_step"], pointer(answer["path"])) == (700, "ckpt-700")


@pytest.mark.fault(105)
def test_what_a_generation_saved_itself_is_newer_than_what_it_was_given_although_its_steps_begin_at_0(
    tmp_path: Path,
) -> None:
    tensorflow(gen(tmp_path, 1), 600, AHEAD)
    seeded(tmp_path, 2)
    tensorflow(gen(tmp_path, 2), 50, NOW)
    tensorflow(gen(tmp_path, 2), 100, NOW + 1)
    for number in (3, 4):  # the third saves nothing: what it was given stays in order
        answer = seeded(tmp_path, number)
        assert (answer["global_step"], pointer(answer["path"])) == (100, "ckpt-100")


@pytest.mark.fault(105)
def test_without_a_step_the_count_of_the_script_decides_and_then_the_time(tmp_path: Path) -> None:
    for epoch, at in ((9, AHEAD), (10, NOW)):
        npz(gen(tmp_path, 1), f"epoch_{epoch}.npz", at)
    assert seeded(tmp_path, 2)["source"].endswith("epoch_10.npz")
    for name, at in (("first", NOW), ("second", NOW + 5), ("third", NOW + 3)):
        prefix = saved.tensor_bundle(tmp_path / "other" / "gen-000001" / name, 400, 1)
        for path in prefix.parent.glob(f"{name}.*"):
            os.utime(path, (at, at))
    assert seeded(tmp_path / "other", 2)["source"].endswith("second")


@pytest.mark.fault(105)
def test_several_prefixes_are_compared_by_the_step_within_and_not_by_their_names(tmp_path: Path) -> None:
    for name, step, at in (("model-7", 700, NOW), ("ckpt-2", 750, NOW - 50), ("save-9", 650, AHEAD)):
        npz(gen(tmp_path, 1), f"{name}.npz", at, step)
    answer = seeded(tmp_path, 2)
    assert (answer["global_step"], os.path.basename(answer["source"])) == (750, "ckpt-2.npz")


@pytest.mark.fault(105)
def test_a_rollback_holds_although_the_clock_was_ahead(tmp_path: Path) -> None:
    for step, at in ((600, AHEAD), (650, NOW), (700, NOW + 1)):
        tensorflow(gen(tmp_path, 1), step, at)
    inventory.rollback(str(tmp_path), "600")
    assert seeded(tmp_path, 2)["global_step"] == 600
    inventory.rollback(str(tmp_path), "gen-000001/ckpt-650")
    assert seeded(tmp_path, 3)["global_step"] == 650


def test_a_generation_of_the_version_before_has_no_list_and_is_ordered_by_its_times_and_steps(
    tmp_path: Path,
) -> None:
    tensorflow(gen(tmp_path, 1), 600, NOW)
    answer = seeded(tmp_path, 2)
    marker = Path(answer["path"]) / places.MARKER
    assert [name for name, *_ in json.loads(marker.read_text())["given"]] == ["ckpt-600"]
    assert "given" not in seeded(tmp_path, 2), "the answer to the order is as it was"
    marker.write_text(json.dumps(answer))
    os.utime(marker, (NOW + 10, NOW + 10))
    tensorflow(gen(tmp_path, 2), 100, NOW + 20)
    assert seeded(tmp_path, 3)["global_step"] == 100


@pytest.mark.parametrize("given", ["x", [1], [["a", "b", "c"]], [["ckpt-600", None, 1]], {"a": 1}])
def test_a_list_that_is_damaged_is_none(tmp_path: Path, given: Any) -> None:
    tensorflow(gen(tmp_path, 1), 600, NOW)
    tensorflow(gen(tmp_path, 1), 700, NOW)
    (gen(tmp_path, 1) / places.MARKER).write_text(json.dumps({"given": given}))
    assert seeded(tmp_path, 2)["global_step"] == 700


def test_a_torn_newest_is_named_and_an_old_torn_one_is_not(tmp_path: Path) -> None:
    for step in (1, 5, 20):
        npz(gen(tmp_path, 1), f"ckpt-{step}.npz", NOW, 100 * step)
    for name in ("ckpt-20.npz", "ckpt-1.npz"):
        saved.truncate(gen(tmp_path, 1) / name, 50)
        os.utime(gen(tmp_path, 1) / name, (NOW, NOW))
    answer = verify(str(gen(tmp_path, 1)), lambda _: None)
    assert answer["checkpoint"]["global_step"] == 500
    assert [os.path.basename(item["path"]) for item in answer["rejected"]] == ["ckpt-20.npz"]


@pytest.mark.fault(105)
def test_pins_of_one_generation_are_in_order_of_their_steps(tmp_path: Path) -> None:
    for step in (50, 100):
        tensorflow(gen(tmp_path, 1), step, AHEAD - step)
        inventory.pin(str(tmp_path), str(step))
    for path in gen(tmp_path, 1).glob("ckpt-*"):
        path.unlink()
    assert seeded(tmp_path, 2)["global_step"] == 100


@pytest.mark.fault(105)
def test_a_clock_that_was_ahead_does_not_remove_the_furthest_snapshot(tmp_path: Path) -> None:
    furthest = {}
    for step, at in ((700, NOW - 9), (600, AHEAD), (500, AHEAD + 1), (400, AHEAD + 2)):
        tensorflow(gen(tmp_path, 1), step, NOW)
        path = str(gen(tmp_path, 1) / f"ckpt-{step}")
        furthest[step] = safe.snapshot(str(tmp_path), str(gen(tmp_path, 1)), path)["digest"]
        os.utime(safe.directory_of(str(tmp_path), furthest[step]), (at, at))
    kept = set(os.listdir(tmp_path / ".orch" / "safe"))
    assert kept == {furthest[700], furthest[500], furthest[400]}


def prefixes(root: Path, path: str | None = None, number: int = 1) -> set[str]:
    """Return the prefixes in a snapshot of a generation, and check that TensorFlow's files name them."""
    digest = safe.snapshot(str(root), str(gen(root, number)), path)["digest"]
    top = Path(safe.directory_of(str(root), digest))
    found = {str(index.relative_to(top).with_suffix("")) for index in top.rglob("*.index")}
    assert all(pointer((top / prefix).parent) == Path(prefix).name for prefix in found)
    return found


def test_a_snapshot_holds_the_newest_of_each_manager_and_nothing_later_than_its_own(tmp_path: Path) -> None:
    one, other = gen(tmp_path, 1) / "generator", gen(tmp_path, 1) / "discriminator"
    for step in (100, 200, 300):
        tensorflow(one, step, NOW + step)
        tensorflow(other, step, NOW + step + 1)
    tensorflow(other, 400, NOW + 400)  # the script goes on, and will save the first one's in a moment
    asked = str(one / "ckpt-300")
    assert prefixes(tmp_path, asked) == {"generator/ckpt-300", "discriminator/ckpt-300"}
    assert prefixes(tmp_path) == {"generator/ckpt-300", "discriminator/ckpt-400"}
    saved.flip(other / "ckpt-300.data-00000-of-00001", 50)
    assert prefixes(tmp_path, asked) == {"generator/ckpt-300", "discriminator/ckpt-200"}
    for step in (100, 200, 300):  # of a script that keeps one
        (other / f"ckpt-{step}.index").unlink()
    assert prefixes(tmp_path, asked) == {"generator/ckpt-300", "discriminator/ckpt-400"}


@pytest.mark.fault(105)
def test_a_snapshot_holds_the_newest_that_a_generation_was_given_although_a_clock_was_ahead(
    tmp_path: Path,
) -> None:
    tensorflow(gen(tmp_path, 1) / "pretrained", 100, NOW - 50)
    tensorflow(gen(tmp_path, 1) / "pretrained", 200, AHEAD)
    seeded(tmp_path, 2)
    tensorflow(gen(tmp_path, 2) / "tuned", 300, NOW)
    assert prefixes(tmp_path, number=2) == {"pretrained/ckpt-200", "tuned/ckpt-300"}


@pytest.mark.parametrize("name", ["epoch-{}/variables/variables", "step_{}/model", "{}/weights", "ckpt-{}"])
def test_a_snapshot_holds_only_the_newest_of_what_is_saved_under_the_number_of_its_step(
    tmp_path: Path, name: str
) -> None:
    for number in (1, 2, 10):
        prefix = saved.tensor_bundle(gen(tmp_path, 1) / name.format(number), 400, 1)
        for path in prefix.parent.iterdir():
            os.utime(path, (NOW + number, NOW + number))
    assert prefixes(tmp_path) == {name.format(10)}


@pytest.mark.fault(105)
def test_the_head_keeps_and_hands_out_the_furthest_copy_too(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), "mnist", "/ckpt", keep=2)
    for number, (generation, step, at) in enumerate(
        [(1, 600, AHEAD), (1, 700, NOW), (1, 750, NOW - 5), (1, 650, AHEAD + 5)]
    ):
        Path(store.path("x")).parent.mkdir(parents=True, exist_ok=True)
        manifest: Any = {"digest": f"{number:064d}", "files": [], "piece_bytes": 8, "bytes": 0, "by": None}
        manifest |= {"generation": generation, "global_step": step, "saved_at": at}
        store.add(manifest, "a")
    newest = store.newest()
    assert newest is not None
    assert newest["global_step"] == 750
    assert store.holds(700, NOW)
    assert not store.holds(600, AHEAD)


def test_units_tell_their_steps_without_being_read(tmp_path: Path) -> None:
    saved.npz(gen(tmp_path, 1) / "model-7.npz", 700, more=np.zeros(3))
    assert [unit.global_step for unit in saved.found(gen(tmp_path, 1)).units] == [700]


def test_what_is_not_recorded_of_a_checkpoint_counts_as_the_oldest() -> None:
    of_generation, of_step, of_time = {"generation": 1}, {"global_step": 0}, {"saved_at": 1.0}
    about: list[dict[str, Any]] = [of_generation, of_step, of_time, {}]
    assert sorted(about, key=newest.across) == [{}, of_time, of_step, of_generation]


def test_where_the_step_of_one_of_them_is_not_known_the_later_one_is_further() -> None:
    """A run that had saved nothing yet has no step: what it saves then is further."""
    nothing: dict[str, Any] = {"global_step": None, "saved_at": 0.0}
    first: dict[str, Any] = {"global_step": 0, "saved_at": NOW}
    assert newest.is_further(first, nothing)
    assert not newest.is_further(nothing, first)

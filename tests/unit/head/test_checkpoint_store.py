"""The head's copies: a chunk is judged by all of its bytes, whether they came in one transfer or in two."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.within import Tree
from orchestrator.checkpoints import safe
from orchestrator.head.records.checkpoint_store import CheckpointStore

PARTS = (b"first", b"second", b"third")
CHUNK = hashlib.sha256(b"".join(PARTS)).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return opened(tmp_path)


def opened(state_dir: Path) -> CheckpointStore:
    return CheckpointStore(str(state_dir), "t", "/ckpt", 3)


def test_a_chunk_that_came_whole_is_kept(store: CheckpointStore) -> None:
    for part in PARTS:
        store.append(CHUNK, part)
    assert store.finish(CHUNK)
    assert store.held_bytes(CHUNK) is None
    assert Path(store.path(CHUNK)).read_bytes() == b"".join(PARTS)


@pytest.mark.parametrize("damaged", range(3))
def test_a_damaged_part_costs_the_chunk(store: CheckpointStore, damaged: int) -> None:
    for number, part in enumerate(PARTS):
        store.append(CHUNK, part[::-1] if number == damaged else part)
    assert not store.finish(CHUNK)
    assert store.held_bytes(CHUNK) == 0


@pytest.mark.parametrize("early", [PARTS[0], b"wrong"])
def test_a_part_that_an_earlier_coordinator_took_is_read(tmp_path: Path, early: bytes) -> None:
    with closing(opened(tmp_path)) as earlier:
        earlier.append(CHUNK, early)
    store = opened(tmp_path)
    for part in PARTS[1:]:
        store.append(CHUNK, part)
    assert store.finish(CHUNK) == (early == PARTS[0])


def test_a_chunk_that_came_damaged_comes_anew(store: CheckpointStore) -> None:
    store.append(CHUNK, b"wrong")
    assert not store.finish(CHUNK)
    for part in PARTS:
        store.append(CHUNK, part)
    assert store.finish(CHUNK)


def test_a_write_that_fails_leaves_nothing_open_and_no_sum(store: CheckpointStore) -> None:
    path = Path(store.path(CHUNK) + ".part")
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space left"):
        store.append(CHUNK, PARTS[0])
    assert len(os.listdir("/proc/self/fd")) == before
    path.unlink()
    path.write_bytes(PARTS[0][:1])  # as a disk that fills up takes it
    for part in (PARTS[0][1:], *PARTS[1:]):
        store.append(CHUNK, part)
    assert store.finish(CHUNK), "what is on disk is read again"


def test_a_transfer_that_breaks_off_leaves_no_file_open(store: CheckpointStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store.append(CHUNK, PARTS[0])
    assert len(os.listdir("/proc/self/fd")) == before + 1
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    for part in PARTS[1:]:
        store.append(CHUNK, part)
    assert store.finish(CHUNK)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_refuses_to_sync_a_snapshot_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "gen-000001"
    directory.mkdir()
    (directory / "model-7.bin").write_bytes(b"x" * 100)
    told: list[str] = []

    def refuse(tree: Tree) -> None:
        if not told:  # the kernel tells an error of the disk once
            told.append(tree.path)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Tree, "sync", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        safe.snapshot(str(tmp_path), str(directory), None)
    assert safe.snapshot(str(tmp_path), str(directory), None)["global_step"] == 7


def added(store: CheckpointStore, step: int) -> str:
    """Add the snapshot of a step, and return its chunk."""
    data = f"step {step}".encode()
    chunk = hashlib.sha256(data).hexdigest()
    store.append(chunk, data)
    assert store.finish(chunk)
    made_of: Any = {"generation": step, "global_step": step, "saved_at": step, "bytes": len(data)}
    made_of |= {"digest": f"snapshot-{step}", "piece_bytes": 1 << 20, "files": [["w", 6, 1, [chunk]]]}
    store.add(made_of, "a")
    return chunk


def test_what_reads_the_manifests_to_change_them_excludes_others(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(store, 1)
    newest, load = store.newest(), CheckpointStore._load
    alone: list[bool] = []
    assert newest is not None

    def loaded(self: CheckpointStore, kind: str) -> list[dict[str, Any]]:
        alone.append(self.shared.change.locked())
        return load(self, kind)

    monkeypatch.setattr(CheckpointStore, "_load", loaded)
    changes: list[Callable[[], None]] = [
        lambda: store.add(newest, "a"),
        lambda: store.make_room(newest),
        lambda: store.pass_over(()),
        lambda: store.go_back(None, 1),
        lambda: store.remove([1]),
    ]
    for change in changes:
        alone.clear()
        change()
        assert set(alone) == {True}
        assert not store.shared.change.locked()


def test_a_snapshot_that_cannot_be_read_now_keeps_its_chunks(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses for a moment, or the process has too many files open."""
    chunk = added(store, 1)
    newest = store.newest()
    assert newest is not None
    whole = os.open

    def opens(path: Any, *arguments: Any, **options: Any) -> Any:
        if "manifests" in str(path):
            raise OSError(errno.EMFILE, "Too many open files")
        return whole(path, *arguments, **options)

    other: Any = {**newest, "digest": "other", "files": []}
    with monkeypatch.context() as patched:
        patched.setattr("os.open", opens)
        for act in (lambda: store.make_room(other), lambda: store.remove([9]), store.newest):
            with pytest.raises(OSError, match="Too many open files"):
                act()
    assert Path(store.path(chunk)).exists()
    assert store.newest() == newest


def steps(store: CheckpointStore) -> set[int]:
    return {step for step in range(1, 9) if store.holds(step, step)}


def test_what_arrives_after_a_rollback_is_set_aside_where_it_is_newer_than_that(tmp_path: Path) -> None:
    """Its pull may take an hour, and the run goes back meanwhile since the loss was no number."""
    store = opened(tmp_path)
    added(store, 1)
    store.go_back({"generation": 1, "global_step": 1, "saved_at": 1, "name": "w"}, 3)
    later = opened(tmp_path)  # of a coordinator that has started anew
    added(later, 3)
    assert steps(later) == {1}
    later.begin(4)
    added(later, 4)
    assert steps(later) == {1, 4}, "what the run trains from there on counts"
    later.go_back(None, 5)
    added(later, 5)
    assert steps(later) == set()


def test_a_rollback_does_not_concern_hosts_that_count_anew(store: CheckpointStore) -> None:
    store.go_back({"generation": 1, "global_step": 1, "saved_at": 1, "name": "w"}, 3)
    store.begin(2)
    added(store, 2)
    assert steps(store) == {2}


def test_what_one_went_back_from_keeps_its_chunks(store: CheckpointStore) -> None:
    chunks = [added(store, step) for step in (1, 2)]
    store.go_back({"generation": 1, "global_step": 1, "saved_at": 1, "name": "w"}, 2)
    store.remove([9])  # of a generation that is not there: nothing else is swept with it
    assert [Path(store.path(chunk)).exists() for chunk in chunks] == [True, True]
    store.remove([2])
    assert [Path(store.path(chunk)).exists() for chunk in chunks] == [True, False], (
        "until a person removes it"
    )

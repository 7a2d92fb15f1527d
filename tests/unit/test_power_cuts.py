"""After a power cut at any moment: what was acknowledged is there, and nothing half-written is believed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.both import durable, hostdir, process
from orchestrator.both.tree_digest import digest_of
from orchestrator.both.within import Tree
from orchestrator.checkpoints import claims, inventory, lineage, places, safe, seed, verify
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.node.paths import Paths
from orchestrator.head.records import plan_copies
from orchestrator.head.records.checkpoint_store import CheckpointStore
from orchestrator.host.shim import record
from orchestrator.host.system import codestore, workdir
from orchestrator.protocol.orders.checkpoints import Manifest
from orchestrator.task.transparent import backup
from tests import power
from tests.arrivals import Arrivals
from tests.unit.checkpoints import saved
from tests.unit.core.transcript import make_plan


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir(mode=0o700)
    return made


def each(tmp_path: Path, cuts: list[power.Cut], holds: Callable[[Path, int], object], *, least: int) -> None:
    """Start on every disk, and say which one breaks the promise."""
    assert len(cuts) >= least, f"{len(cuts)} disks only"
    for cut in cuts:
        after = cut.plug_in(tmp_path / "plugged")
        try:
            holds(after, cut.done)
        except Exception as e:
            raise AssertionError(
                f"cut before {cut.before}, with {cut.how}, {cut.done} done: {sorted(cut.disk)}: {e!r}"
            ) from e
        shutil.rmtree(after)


def test_a_cut_shows_what_was_not_synced(root: Path) -> None:
    """The harness itself: a plain write and a rename leave a missing, an empty, a torn or a whole file, or zeros."""

    def careless() -> None:
        durable.fill(str(root / "synced"), b"first")
        (root / "new").write_bytes(b"content")
        os.rename(root / "new", root / "file")

    ends = [cut.disk.get("file", "missing") for cut in power.cuts(root, careless) if cut.done]
    assert sorted(map(str, ends)) == sorted(map(str, [b"", b"con", b"content", b"\0" * 7, "missing"]))


def test_a_file_is_the_old_or_the_new_one(root: Path, tmp_path: Path) -> None:
    path = root / "file.json"
    path.write_text('{"value": 0}')

    def write(value: int) -> None:
        durable.write_json(str(path), {"value": value})

    def holds(after: Path, done: int) -> None:
        assert durable.read_json(str(after / "file.json"))["value"] in (done, done + 1)

    each(tmp_path, power.cuts(root, lambda: write(1), lambda: write(2)), holds, least=8)


@pytest.mark.parametrize("file", ["words", None])
def test_a_tree_that_was_synced_and_renamed_is_there_and_no_descriptor_stays(
    root: Path, tmp_path: Path, file: str | None
) -> None:
    def write() -> None:
        (root / "made/deep").mkdir(parents=True)
        if file is not None:
            (root / "made/deep" / file).write_bytes(b"content")

    def holds(after: Path, done: int) -> None:
        if done >= 2:
            place = after / ("made" if (after / "made").exists() else "kept") / "deep"
            assert place.is_dir()
            assert file is None or (place / file).read_bytes() == b"content"
        assert done < 3 or not (after / "made").exists()

    with Tree(str(root)) as tree:
        before = len(os.listdir("/proc/self/fd"))
        cuts = power.cuts(root, write, tree.sync, lambda: tree.rename("made", "kept"))
        assert len(os.listdir("/proc/self/fd")) == before
    each(tmp_path, cuts, holds, least=5)


@pytest.mark.fault(68)
def test_an_exit_record_is_whole_or_not_there(root: Path, tmp_path: Path) -> None:
    start = {"run": "t-1", "task": "worker:0", "generation": 1, "epoch": 1}
    record.keep_room(str(root))

    def holds(after: Path, done: int) -> None:
        task = record.read_exit(str(after))
        assert (task is not None) or not done
        said = task["error"] if task is not None else None
        assert task is None or (said is not None and said["message"] == "no python")

    cuts = power.cuts(root, lambda: record.write_failed_start(str(root), start, "no python"))
    each(tmp_path, cuts, holds, least=4)


@pytest.mark.fault(68)
def test_a_tree_of_code_is_whole_or_built_again(root: Path, tmp_path: Path) -> None:
    texts = {"train.py": b"print('a')", "lib/b.py": b"b = 1\n"}
    shas = {name: hashlib.sha256(data).hexdigest() for name, data in texts.items()}
    files = [(name, shas[name], 0o644, len(data)) for name, data in texts.items()]

    def push(host_dir: Path) -> None:
        receiver = codestore.Receiver(str(host_dir / "blobs"))
        for sha in codestore.missing(str(host_dir), files):
            data = next(data for name, data in texts.items() if shas[name] == sha)
            assert receiver.receive(sha, 0, data, last=True)

    def build(host_dir: Path) -> None:
        assert codestore.build(str(host_dir), "t-1", files) == []

    def holds(after: Path, done: int) -> None:
        tree = Path(codestore.tree_dir(str(after), "t-1", digest_of(files)))
        assert tree.is_dir() or done < 2
        push(after)
        for _ in range(2):  # a blob that is damaged is asked for again
            if codestore.build(str(after), "t-1", files) == []:
                break
            push(after)
        assert codestore.repair(str(after), str(tree), files) == []
        assert {name: (tree / name).read_bytes() for name in texts} == texts

    each(tmp_path, power.cuts(root, lambda: push(root), lambda: build(root)), holds, least=20)


@pytest.mark.fault(68)
def test_an_epoch_that_was_accepted_is_never_forgotten(root: Path, tmp_path: Path) -> None:
    def accept(epoch: int) -> None:
        hostdir.accept_epoch(str(root), "t-1", epoch, create=True)

    def holds(after: Path, done: int) -> None:
        assert hostdir.epoch(str(after), "t-1") in (done, done + 1)

    each(tmp_path, power.cuts(root, lambda: accept(1), lambda: accept(2)), holds, least=4)


def test_a_generation_is_whole_or_made_again(root: Path, tmp_path: Path) -> None:
    shutil.copytree(saved.FIXTURES / "manager", Path(places.directory_of(str(root), 1)) / "manager")

    def holds(after: Path, done: int) -> None:
        there = saved.generations(after)
        assert there == ([2, 1] if done else there)
        assert seed.seed(str(after), 2)["global_step"] == 32
        assert verify(places.directory_of(str(after), 2))["checkpoint"]["global_step"] == 32

    each(tmp_path, power.cuts(root, lambda: seed.seed(str(root), 2)), holds, least=20)


def test_a_pinned_and_a_rolled_back_checkpoint_stay_so(root: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        shutil.copytree(saved.FIXTURES / "manager", Path(places.directory_of(str(root), number)) / "manager")

    def roll_back() -> None:
        with places.locked(str(root)) as tree:
            lineage.roll_back(tree, 1, 4e9, 32)

    def holds(after: Path, done: int) -> None:
        assert len(saved.pinned(after)) in ((1,) if done else (0, 1))
        with places.locked(str(after)) as tree:
            aside = [origin.generation for origin in lineage.set_aside(tree)]
        assert aside == [2] if done == 2 else aside in ([], [2])
        assert seed.seed(str(after), 3)["global_step"] == 32

    pin = lambda: inventory.pin(str(root), "gen-000001/manager/ckpt-2")  # noqa: E731
    each(tmp_path, power.cuts(root, pin, roll_back), holds, least=20)


def test_a_copy_of_the_head_is_whole_or_not_there(root: Path, tmp_path: Path) -> None:
    data = b"weights" * 100
    chunk = hashlib.sha256(data).hexdigest()
    manifest: Any = {
        "digest": hashlib.sha256(b"manifest").hexdigest(),
        "generation": 1,
        "global_step": 3,
        "saved_at": 1.0,
        "bytes": len(data),
        "piece_bytes": 1 << 20,
        "files": [["w", len(data), 1.0, [chunk]]],
    }

    def receive() -> None:
        with closing(CheckpointStore(str(root), "t", "/ckpt", 3)) as store:
            store.append(chunk, data)
            assert store.finish(chunk)
            store.add(manifest, "a")

    def holds(after: Path, done: int) -> None:
        with closing(CheckpointStore(str(after), "t", "/ckpt", 3)) as store:
            known = store.newest()
            assert known is not None or not done
            assert known is None or Path(store.path(chunk)).read_bytes() == data

    each(tmp_path, power.cuts(root, receive), holds, least=10)


def test_the_plan_of_a_run_that_goes_on_is_kept(root: Path, tmp_path: Path) -> None:
    plan = make_plan(["a"], checkpoint=False)
    (root / "runs" / "t-1").mkdir(parents=True)

    def keep() -> None:
        plan_copies.keep(Paths(str(root), str(root / "run")), "t-1", plan)

    def holds(after: Path, done: int) -> None:
        known = plan_copies.plans_of_runs(Paths(str(after), str(after / "run")))
        assert known == {"t-1": plan} if done else set(known) <= {"t-1"}

    each(tmp_path, power.cuts(root, keep), holds, least=4)


def test_a_snapshot_of_a_checkpoint_is_whole_or_made_again(root: Path, tmp_path: Path) -> None:
    shutil.copytree(saved.FIXTURES / "manager", Path(places.directory_of(str(root), 1)) / "manager")

    def snapshot(where: Path) -> Manifest:
        return safe.snapshot(str(where), places.directory_of(str(where), 1), None)

    def holds(after: Path, done: int) -> None:
        with places.locked(str(after)) as tree:
            kept = places.safe(tree)
        assert len(kept) in ((1,) if done else (0, 1))
        for _, directory in kept:
            assert verify(directory)["checkpoint"]["global_step"] == 32
        assert snapshot(after)["global_step"] == 32

    each(tmp_path, power.cuts(root, lambda: snapshot(root)), holds, least=20)


def test_code_that_was_kept_for_a_run_is_whole(root: Path, tmp_path: Path) -> None:
    texts = {"train.py": b"print('a')", "lib/b.py": b"b = 1\n"}
    workdir = tmp_path / "work"
    for name, data in texts.items():
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_bytes(data)
    plan = replace(make_plan(["a"], checkpoint=False), workdir=str(workdir), script="train.py")

    def keep(state_dir: Path) -> None:
        store = Snapshots(str(state_dir))
        store.keep("t-1", store.take(plan).digest)

    def holds(after: Path, done: int) -> None:
        if not done:  # the command had no answer, and a person gives it again
            keep(after)
        code = Snapshots(str(after)).code_of("t-1")
        assert code is not None
        assert {name: code.text(name) for name in code.files} == {
            name: data.decode() for name, data in texts.items()
        }

    each(tmp_path, power.cuts(root, lambda: keep(root)), holds, least=20)


def test_a_backup_is_the_old_or_the_new_one(root: Path, tmp_path: Path) -> None:
    def write(steps: int) -> None:
        values = {backup.STEPS: steps, "model/00000": np.full(50, float(steps))}
        backup.write(str(root / "fit-1"), values, backup.Position(1, steps, steps))

    def holds(after: Path, done: int) -> None:
        found = backup.read(str(after / "fit-1"))
        assert found is not None or not done
        if found is not None:
            assert found[1].steps in (done, done + 1)
            assert (found[0]["model/00000"] == found[1].steps).all()

    each(tmp_path, power.cuts(root, lambda: write(1), lambda: write(2)), holds, least=8)


def test_a_snapshot_that_comes_from_another_host_is_whole_or_sent_again(root: Path, tmp_path: Path) -> None:
    sender = tmp_path / "sender"
    shutil.copytree(saved.FIXTURES / "manager", Path(places.directory_of(str(sender), 1)) / "manager")
    manifest = safe.snapshot(str(sender), places.directory_of(str(sender), 1), None)
    chunks = {
        made_of[0]: Path(safe.directory_of(str(sender), manifest["digest"]), name).read_bytes()
        for name, _, _, made_of in manifest["files"]
        if made_of
    }

    def receive(where: Path) -> None:
        arrivals = Arrivals()
        for chunk in arrivals.receive(str(where), manifest)["missing"]:
            part = {"sha256": chunk, "offset": 0, "last": True}
            assert arrivals.receive_part(part, chunks[chunk]) == {}
        if chunks:
            assert arrivals.receive(str(where), manifest) == {"missing": []}

    def holds(after: Path, done: int) -> None:
        with places.locked(str(after)) as tree:
            kept = places.safe(tree)
        assert len(kept) in ((1,) if done else (0, 1))
        receive(after)
        found = verify(safe.directory_of(str(after), manifest["digest"]))["checkpoint"]
        assert found["global_step"] == 32

    each(tmp_path, power.cuts(root, lambda: receive(root)), holds, least=20)


def test_the_code_in_a_working_directory_is_whole_or_copied_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not synced. What the script has written or changed, and what was synced, stays."""
    tree, texts = tmp_path / "c0ffee", {"train.py": b"print('a')", "lib/b.py": b"b = 1\n", "empty": b""}
    for name, text in texts.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(text)

    def prepare(host_dir: Path) -> Path:
        return Path(workdir.prepare(str(host_dir), "t-1", "worker:0", str(tree)))

    def trains() -> None:
        for name in ("log.csv", "lib/b.py"):
            durable.fill(str(Path(workdir.work_dir(str(root), "t-1", "worker:0"), name)), b"of the script")

    cuts = power.cuts(root, lambda: prepare(root), trains)
    monkeypatch.setattr(process, "boot_id", lambda: "the next boot")

    def holds(after: Path, done: int) -> None:
        directory = Path(workdir.work_dir(str(after), "t-1", "worker:0"))
        record = durable.read_object(f"{directory}.json") or {"files": {}}
        for name, (size, changed_ns) in record["files"].items():
            # A disk has the times with the names; the one that was plugged in was only just written.
            if (directory / name).is_file() and not _is_of_the_script(directory / name):
                assert size == len(texts[name])
                os.utime(directory / name, ns=(changed_ns, changed_ns))
        mine = [name for name in ("log.csv", "lib/b.py") if _is_of_the_script(directory / name)]
        assert prepare(after) == directory
        assert done < 2 or "log.csv" in mine
        for name in mine if record["files"] else ():
            assert _is_of_the_script(directory / name)
        for name, text in texts.items():
            assert name in mine or (directory / name).read_bytes() == text, name

    each(tmp_path, cuts, holds, least=10)


def _is_of_the_script(path: Path) -> bool:
    return path.exists() and path.read_bytes() == b"of the script"


def test_who_drives_a_run_and_who_saves_somewhere_is_not_forgotten(root: Path, tmp_path: Path) -> None:
    claim: Any = {"id": "o1", "head": "h", "user": "u", "run": "t-1", "name": "t", "checkpoint_dir": "/c"}
    (root / "runs" / "t-1").mkdir(parents=True)

    def stamp() -> None:
        with places.opened(str(root)) as tree:
            claims.stamp(tree, claim, str(tmp_path))

    def holds(after: Path, done: int) -> None:
        said, is_watched, ago_s = claims.read(str(after / "runs" / "t-1"))
        assert (said is not None and said["id"] == "o1") or not done
        assert is_watched or done in (0, 2, 3), "it lives: this very process"
        assert (said is None or not is_watched) or done < 3
        assert ago_s is None if done == 3 else True
        with places.opened(str(after)) as tree:
            owner = claims.stamped(tree)
        assert (owner is not None and owner["claim"]["run"] == "t-1") or done < 2

    def release() -> None:
        claims.release(str(root / "runs" / "t-1"))

    steps = (lambda: claims.write(str(root / "runs" / "t-1"), claim), stamp, release)
    each(tmp_path, power.cuts(root, *steps), holds, least=10)

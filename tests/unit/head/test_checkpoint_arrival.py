"""What comes to a host: each chunk in its place, after a broken connection, a damaged disk, and a full one."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.checkpoints import arrival, safe
from orchestrator.core.state.run import Run
from orchestrator.head.links.conversation import LinkDown, OrderRefused
from orchestrator.head.transfer.partwise import PULL_BYTES
from tests.arrivals import Arrivals
from tests.contract.small_disk import mounted
from tests.unit.head.test_checkpoint_transfer import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_what_came_of_a_transfer_that_was_given_up_is_removed_after_a_day(lab: Lab) -> None:
    lab.a.train(1)
    old, new = lab.b.safe / f"{'0' * 64}.tmp", lab.b.safe / f"{'1' * 64}.tmp"
    for directory in (old, new):
        directory.mkdir(parents=True)
        (directory / "model").write_bytes(b"half")
    before = time.time() - 2 * arrival.ABANDONED_S
    os.utime(old, (before, before))
    lab.seed(lab.run(), 2)
    assert [path.name for path in lab.b.safe.glob("*.tmp")] == [new.name]


def _cut_off(lab: Lab, run: Run, large: bytes) -> Path:
    """Break off the bringing of a checkpoint to host b, whose agent is a new one then. Return where it comes."""
    (lab.a.train(1) / "vocabulary").write_bytes(large)
    lab.b.cut_after = 3 * safe.CHUNK_BYTES // PULL_BYTES
    with pytest.raises(LinkDown):
        lab.seed(run, 2)
    lab.b.cut_after, lab.b.arrivals, lab.b.moved_bytes = None, Arrivals(), 0
    (building,) = lab.b.safe.glob("*.tmp")
    return building


@pytest.mark.parametrize("harm", ["flipped", "cut off", "removed"])
def test_what_was_damaged_on_the_disk_since_it_came_is_sent_again(lab: Lab, harm: str) -> None:
    run, large = lab.run(), os.urandom(4 * safe.CHUNK_BYTES)
    building = _cut_off(lab, run, large)
    with (building / "vocabulary").open("r+b") as file:
        if harm == "flipped":
            file.seek(safe.CHUNK_BYTES + 5)
            file.write(bytes([large[safe.CHUNK_BYTES + 5] ^ 1]))
        elif harm == "cut off":
            file.truncate(safe.CHUNK_BYTES)
        else:
            shutil.rmtree(building)
    given = lab.seed(run, 2)
    assert (lab.copy_on(lab.b, given) / "vocabulary").read_bytes() == large
    assert lab.b.moved_bytes >= (len(large) if harm == "removed" else 3 * safe.CHUNK_BYTES)


@pytest.mark.fault(53)
@pytest.mark.parametrize("name", ["vocabulary", "empty"])
def test_nothing_is_written_through_a_link_where_a_checkpoint_arrives(
    lab: Lab, tmp_path: Path, name: str
) -> None:
    """A chunk would be written into the file that the link leads to, or that file be cut to the size of ours."""
    run = lab.run()
    (lab.a.train(1) / "empty").write_bytes(b"")
    building = _cut_off(lab, run, os.urandom(4 * safe.CHUNK_BYTES))
    others = tmp_path / "precious"
    others.write_bytes(b"of another")
    (building / name).unlink(missing_ok=True)
    (building / name).symlink_to(others)
    with pytest.raises(OSError, match="a link or a file is in its path"):
        lab.seed(run, 2)
    assert others.read_bytes() == b"of another"


@pytest.mark.fault(53)
def test_nothing_is_written_through_a_link_of_a_directory(tmp_path: Path) -> None:
    others, building = tmp_path / "others", tmp_path / "building"
    others.mkdir()
    building.mkdir()
    (others / "words").write_bytes(b"of another")
    (building / "deep").symlink_to(others)
    chunk = hashlib.sha256(b"ours").hexdigest()
    with pytest.raises(OSError, match=r"a link or a file is in its path; remove .*building"):
        arrival.Writer().add(
            memoryview(b"ours"), 4, (str(building), "deep/words", 0, 4), 4, chunk, 0, last=True
        )
    assert (others / "words").read_bytes() == b"of another"


def test_only_a_chunk_of_its_own_digest_whose_parts_follow_each_other_is_written(tmp_path: Path) -> None:
    writer, place = arrival.Writer(), (str(tmp_path), "words", 0, 8)
    chunk = hashlib.sha256(b"part one").hexdigest()

    def take(data: bytes, offset: int, *, last: bool) -> int:
        return writer.add(memoryview(data), len(data), place, 8, chunk, offset, last)

    assert take(b"part", 0, last=False) == arrival.TAKEN
    with pytest.raises(HostFault, match="a part at 5 does not follow"):
        take(b"one", 5, last=True)
    assert take(b" two", 4, last=True) == arrival.DAMAGED
    assert list(tmp_path.iterdir()) == []
    assert (take(b"part", 0, last=False), take(b" one", 4, last=True)) == (arrival.TAKEN, arrival.WHOLE)
    assert (tmp_path / "words").read_bytes() == b"part one"
    (tmp_path / "words").unlink()
    # A part that makes it whole is the last, whatever its sender says; and one that says so early is.
    assert (take(b"part", 0, last=False), take(b" one", 4, last=False)) == (arrival.TAKEN, arrival.WHOLE)
    assert take(b"part", 0, last=True) == arrival.DAMAGED
    assert (tmp_path / "words").read_bytes() == b"part one"


def test_a_directory_that_came_in_the_place_of_the_one_written_to_is_read(lab: Lab) -> None:
    """As after its removal by hand, and another agent's beginning: what we wrote is gone."""
    run, large = lab.run(), os.urandom(2 * safe.CHUNK_BYTES)
    (lab.a.train(1) / "vocabulary").write_bytes(large)
    take, others = lab.b.arrivals.receive_part, Arrivals()

    def taken(order: Mapping[str, Any], data: bytes) -> dict[str, Any]:
        came = take(order, data)
        if lab.b.moved_bytes > safe.CHUNK_BYTES + 5 * PULL_BYTES and others_came:
            shutil.rmtree(lab.b.safe)
            newest = lab.checkpoints.store(run).newest()
            assert newest is not None
            others.receive(others_came.pop(), newest)
        return came

    others_came = [str(lab.b.root)]
    lab.b.arrivals.receive_part = taken  # type: ignore[method-assign]
    given = lab.seed(run, 2)
    assert (lab.copy_on(lab.b, given) / "vocabulary").read_bytes() == large


def test_a_chunk_that_occurs_more_than_once_is_sent_once(lab: Lab) -> None:
    once = os.urandom(safe.CHUNK_BYTES)
    directory = lab.a.train(1)
    (directory / "twice").write_bytes(once + once + b"end")
    (directory / "again").write_bytes(once)
    (directory / "empty").write_bytes(b"")
    copy = lab.copy_on(lab.b, lab.seed(lab.run(), 2))
    assert (copy / "twice").read_bytes() == once + once + b"end"
    assert ((copy / "again").read_bytes(), (copy / "empty").read_bytes()) == (once, b"")
    assert lab.b.moved_bytes < 2 * safe.CHUNK_BYTES


@pytest.mark.fault(36)
def test_a_disk_of_a_host_that_is_full_is_told_and_left_as_it_was(lab: Lab, tmp_path: Path) -> None:
    run, large = lab.run(), os.urandom(2 * safe.CHUNK_BYTES)
    (lab.a.train(1) / "vocabulary").write_bytes(large)
    with mounted(tmp_path / "disk", megabytes=12) as disk:
        lab.b.root = disk.path / "ckpt"
        with pytest.raises(OrderRefused, match=r"\d+ bytes are free, \d{8} bytes are needed") as refused:
            lab.seed(run, 2)
        assert refused.value.problem.code == "no-space"
        assert list(lab.b.safe.iterdir()) == []
        lab.b.root = tmp_path / "b" / "ckpt"
    assert (lab.copy_on(lab.b, lab.seed(run, 2)) / "vocabulary").read_bytes() == large


def test_memory_that_is_used_again_holds_nothing_of_the_chunk_before(tmp_path: Path) -> None:
    writer = arrival.Writer()
    long, short, beside = os.urandom(4000), os.urandom(1500), os.urandom(3000)

    def take(data: bytes, at: int, part: bytes, offset: int = 0, *, last: bool = True) -> int:
        place = (str(tmp_path), "model", at, len(data))
        digest = hashlib.sha256(data).hexdigest()
        return writer.add(memoryview(part), len(part), place, 0, digest, offset, last)

    assert take(long, 0, long) == arrival.WHOLE
    assert take(short, 4000, short + b"more than it has, in memory that holds it") == arrival.DAMAGED
    assert take(beside, 5500, beside[:2000], last=False) == arrival.TAKEN
    assert take(short, 4000, short) == arrival.WHOLE  # while another one comes
    assert take(beside, 5500, beside[2000:], 2000) == arrival.WHOLE
    assert (tmp_path / "model").read_bytes() == long + short + beside

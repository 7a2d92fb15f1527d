"""A host's directory: the epochs, after every kind of power cut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.both import durable, hostdir
from orchestrator.both.hostdir import HostFault

RUN = "mnist-20260101-000000"


def accept(host: Path, epoch: int, *, create: bool = True) -> None:
    hostdir.accept_epoch(str(host), RUN, epoch, create=create)


def epoch_file(host: Path) -> Path:
    return host / "runs" / RUN / "epoch"


def test_an_epoch_only_grows(tmp_path: Path) -> None:
    accept(tmp_path, 3)
    accept(tmp_path, 3)
    accept(tmp_path, 5)
    with pytest.raises(HostFault, match="a coordinator of epoch 5 has taken over"):
        accept(tmp_path, 4)
    assert hostdir.epoch(str(tmp_path), RUN) == 5


def test_nothing_is_made_for_a_run_that_is_not_known(tmp_path: Path) -> None:
    accept(tmp_path, 3, create=False)
    assert os.listdir(tmp_path) == []
    assert hostdir.epoch(str(tmp_path), RUN) == 0


def test_an_epoch_is_on_the_disk_before_it_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    accept(tmp_path, 3)
    assert synced == [str(epoch_file(tmp_path)), str(epoch_file(tmp_path).parent)]
    accept(tmp_path, 3)
    assert len(synced) == 2, "nothing has changed"


@pytest.mark.fault(68)
@pytest.mark.parametrize("left", [b"", b"\0" * 21, b"\0" * 4096, b"0000000\0\0\0\0", b"???"])
def test_a_damaged_epoch_is_what_the_runs_other_files_tell_of(tmp_path: Path, left: bytes) -> None:
    accept(tmp_path, 7)
    durable.write_json(str(tmp_path / "runs" / RUN / hostdir.RECORD), {"epoch": 6})
    generation = hostdir.generation_dir(str(tmp_path), RUN, "worker:0", 2)
    os.makedirs(generation)
    durable.write_json(os.path.join(generation, "start.json"), {"epoch": 7})
    epoch_file(tmp_path).write_bytes(left)
    assert hostdir.epoch(str(tmp_path), RUN) == 7
    with pytest.raises(HostFault, match="a coordinator of epoch 7 has taken over"):
        accept(tmp_path, 6)
    accept(tmp_path, 7)
    assert epoch_file(tmp_path).read_bytes() == b"%020d\n" % 7


@pytest.mark.fault(68)
def test_where_all_is_damaged_the_next_coordinator_is_obeyed_and_no_order_is_refused_for_ever(
    tmp_path: Path,
) -> None:
    accept(tmp_path, 7)
    (tmp_path / "runs" / RUN / hostdir.RECORD).write_bytes(b"\0" * 100)
    epoch_file(tmp_path).write_bytes(b"\0" * 21)
    accept(tmp_path, 8)
    assert hostdir.epoch(str(tmp_path), RUN) == 8

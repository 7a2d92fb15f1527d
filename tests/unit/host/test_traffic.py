"""What a host and a task move over disks and networks: the kernel's counters become bytes a second."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.host.agent.traffic import Traffic
from orchestrator.host.system import usage

DISKS = """\
   8       0 sda 10 0 {read} 5 10 0 {written} 5 0 5 5
   8       1 sda1 10 0 {read} 5 10 0 {written} 5 0 5 5
   7       0 loop0 10 0 99999 5 10 0 99999 5 0 5 5
 253       0 dm-0 10 0 {read} 5 10 0 {written} 5 0 5 5
 259       0 nvme0n1 10 0 {read} 5 10 0 {written} 5 0 5 5
"""
NETWORKS = """\
Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets
    lo: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0
  eth0:{into} 1 0 0 0 0 0 0 {out} 1 0 0 0 0 0 0
docker0: 555 1 0 0 0 0 0 0 555 1 0 0 0 0 0 0
"""


class Machine:
    def __init__(self, directory: Path, *, cards: tuple[str, ...]) -> None:
        self.proc, self.sys = directory / "proc", directory / "sys"
        (self.proc / "net").mkdir(parents=True)
        for name in ("block/sda", "block/nvme0n1", *(f"class/net/{card}" for card in cards)):
            (self.sys / name / "device").mkdir(parents=True)
        self.traffic = Traffic(proc=str(self.proc), sys=str(self.sys))

    def at(self, when: float, *, read: int, written: int, into: int, out: int) -> list[float | None]:
        (self.proc / "diskstats").write_text(DISKS.format(read=read, written=written))
        (self.proc / "net/dev").write_text(NETWORKS.format(into=into, out=out))
        return self.traffic.sample(when)


def test_disks_and_cards_are_counted_once_from_one_sample_to_the_next(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cards=("eth0",))
    assert machine.at(10.0, read=100, written=50, into=1000, out=500) == [None] * 4
    rates = machine.at(12.0, read=120, written=54, into=5000, out=700)
    assert rates == [2 * 20 * 512 / 2, 2 * 4 * 512 / 2, 2000, 100]
    assert machine.at(12.0, read=130, written=60, into=6000, out=800) == [None] * 4, "no time has passed"
    anew = machine.at(13.0, read=0, written=61, into=0, out=900)
    assert anew == [None, 2 * 512, None, 100], "a counter that began anew says nothing yet"


def test_in_a_container_all_but_loopback_counts_and_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path, cards=())
    machine.at(0.0, read=0, written=0, into=0, out=0)
    assert machine.at(1.0, read=0, written=0, into=300, out=40) == [0, 0, 300, 40]
    for path in ("diskstats", "net/dev"):
        (machine.proc / path).unlink()
    assert machine.traffic.sample(2.0) == [None] * 4


def test_what_a_task_writes_is_measured_and_one_that_is_gone_writes_nothing(tmp_path: Path) -> None:
    sampler, path = usage.Sampler(), tmp_path / "written"
    first = sampler.sample(os.getpid(), 1.0)
    assert (first["disk_read_per_s"], first["disk_write_per_s"]) == (None, None)
    with path.open("wb") as file:
        file.write(b"x" * (4 << 20))
        file.flush()
        os.fsync(file.fileno())
    written = sampler.sample(os.getpid(), 3.0)["disk_write_per_s"]
    if written == 0:
        pytest.skip("the directory of this test is on no disk")
    assert written is not None
    assert written >= (4 << 20) / 2
    assert usage.disk_bytes(1 << 22) is None

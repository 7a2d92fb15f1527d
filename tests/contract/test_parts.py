"""The process that reads snapshots for an agent: its answers keep their order, and a hang in it hangs nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.host.agent import parts
from orchestrator.host.agent.parts import Parts
from orchestrator.host.agent.streams import Loop

Answers = list[tuple[bytes, HostFault | None]]


def read_part(room: memoryview, path: str, offset: int, bytes_max: int) -> int:
    if path == "hangs":
        time.sleep(60)
    if path == "dies":
        os._exit(1)
    if path == "raises":
        raise HostFault("bad", "no such thing", "look")
    with open(path, "rb") as file:
        file.seek(offset)
        return file.readinto(room[:bytes_max])


class Rig:
    def __init__(self, deadline_s: float = 10.0) -> None:
        self.loop = Loop()
        self.parts = Parts(self.loop, read_part, deadline_s)
        self.answers: Answers = []

    def ask(self, path: str, offset: int = 0, bytes_max: int = 1 << 20) -> None:
        def done(data: memoryview, fault: HostFault | None, sent: Callable[[], None]) -> None:
            self.answers.append((bytes(data), fault))
            sent()

        self.parts.read((path, offset, bytes_max), done)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            self.loop.after(0.05, lambda: None)
            self.loop.turn()


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(deadline_s: float = 10.0) -> Rig:
        made.append(Rig(deadline_s))
        return made[-1]

    yield make
    for rig in made:
        rig.parts.end()


def test_many_parts_come_in_their_order_from_one_process(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    content = os.urandom(5_000_001)
    (tmp_path / "x").write_bytes(content)
    rig = rigs()
    for offset in range(0, len(content), 500_000):
        rig.ask(str(tmp_path / "x"), offset, 500_000)
    pid = rig.parts._pid
    rig.until(lambda: len(rig.answers) == 11)
    assert b"".join(data for data, _ in rig.answers) == content
    assert rig.parts._pid == pid


def test_what_has_not_left_yet_is_not_written_over_and_further_parts_wait(
    rigs: Callable[..., Rig], tmp_path: Path
) -> None:
    content = os.urandom(3 * parts.SLOTS)
    (tmp_path / "x").write_bytes(content)
    rig, kept = rigs(), deque[tuple[memoryview, Callable[[], None]]]()
    for offset in range(len(content)):
        rig.parts.read((str(tmp_path / "x"), offset, 1), lambda data, _fault, sent: kept.append((data, sent)))
    rig.until(lambda: len(kept) == parts.SLOTS)
    came = bytearray()
    while len(came) < len(content):
        rig.until(lambda: kept)
        data, sent = kept.popleft()
        came += data
        sent()
    assert bytes(came) == content


def test_a_fault_is_told_and_the_next_part_is_read(rigs: Callable[..., Rig], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    rig = rigs()
    for path in ("raises", str(tmp_path / "missing"), str(tmp_path / "x")):
        rig.ask(path)
    rig.until(lambda: len(rig.answers) == 3)
    faults = [fault.code if fault else None for _, fault in rig.answers]
    assert faults[0] == "bad"
    assert faults[1] is not None
    assert rig.answers[2] == (b"abc", None)


def test_what_hangs_is_killed_at_its_deadline_and_the_next_question_gets_a_new_process(
    rigs: Callable[..., Rig], tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    rig = rigs(deadline_s=0.2)
    rig.ask("hangs")
    rig.ask(str(tmp_path / "x"))
    rig.until(lambda: len(rig.answers) == 2)
    assert [fault.code for _, fault in rig.answers if fault] == ["timeout", "timeout"]
    rig.ask(str(tmp_path / "x"))
    rig.until(lambda: len(rig.answers) == 3)
    assert rig.answers[2] == (b"abc", None)


def test_one_that_dies_is_told(rigs: Callable[..., Rig]) -> None:
    rig = rigs()
    rig.ask("dies")
    rig.until(lambda: rig.answers)
    assert [fault.code for _, fault in rig.answers if fault] == ["job-failed"]


def test_one_that_nobody_needs_ends(
    rigs: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "IDLE_S", 0.0)
    (tmp_path / "x").write_bytes(b"abc")
    rig = rigs()
    rig.ask(str(tmp_path / "x"))
    rig.until(lambda: rig.answers)  # it is asked, however long its process took to be made
    rig.until(lambda: rig.parts._socket is None)
    assert os.waitpid(rig.parts._pid, 0)[0] == rig.parts._pid
    rig.ask(str(tmp_path / "x"))
    rig.until(lambda: len(rig.answers) == 2)
    assert rig.answers == [(b"abc", None)] * 2


def test_a_process_that_dies_while_its_answers_wait_fails_only_what_is_left(
    rigs: Callable[..., Rig], tmp_path: Path
) -> None:
    rig, file = rigs(), tmp_path / "part"
    file.write_bytes(b"abc")
    asked = (
        parts.SLOTS + 4
    )  # more than are under way at once: an answer is followed by a request to the dead process
    for _ in range(asked):
        rig.ask(str(file))
    # All answers of the first slots lie in the socket by then, unread.
    _until_readable(rig, parts.SLOTS * parts._HEADER.size)
    os.kill(rig.parts._pid, 9)
    os.waitpid(rig.parts._pid, 0)
    rig.until(lambda: len(rig.answers) == asked)
    assert rig.answers[0] == (b"abc", None)
    assert rig.answers[-1][1] is not None
    rig.ask(str(file))
    rig.until(lambda: len(rig.answers) == asked + 1)
    assert rig.answers[-1] == (b"abc", None), "and the next has a new process"


def _until_readable(rig: Rig, size: int) -> None:
    deadline = time.monotonic() + 20
    there, sock = b"", rig.parts._socket
    assert sock is not None
    while len(there) < size:
        assert time.monotonic() < deadline
        with contextlib.suppress(BlockingIOError):
            there = sock.recv(size, socket.MSG_PEEK)
        time.sleep(0.01)

"""What an agent sends: only its newest report, and answers although there is always a new one."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator

import pytest

from orchestrator.host.agent.streams import Loop, Output
from orchestrator.protocol.channel import Decoder, encode

Ends = tuple[int, int]


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """What sshd gives a command as its stdout: a pipe, which can be made larger, or a socket. The reader first."""
    if request.param == "pipe":
        reader, writer = os.pipe()
    else:
        reader, writer = (each.detach() for each in socket.socketpair())
    yield reader, writer
    os.close(reader)
    os.close(writer)


def turn(loop: Loop) -> None:
    """Do what is due within five milliseconds: a full pipe is left alone for a moment, and then waited for."""
    over: list[bool] = []
    loop.after(0.005, lambda: over.append(True))
    while not over:
        loop.turn()


def read(loop: Loop, reader: int, size: int) -> bytes:
    """Do what is due until there is something to read, and read it: how long a turn takes is the machine's to say."""
    while not select.select([reader], [], [], 0)[0]:
        turn(loop)
    return os.read(reader, size)


def test_answers_go_between_reports_that_never_end(ends: Ends) -> None:
    reader, writer = ends
    loop = Loop()
    output, decoder = Output(loop, writer), Decoder()
    answers: list[int] = []
    reports = 0
    for number in range(40):
        output.send({"reply": number, "ok": {}}, b"x" * 100_000)
    for _ in range(400):  # a new report is there whenever the head reads
        output.report(encode({"report": {"fill": "x" * 50_000}}))
        for message, _ in decoder.feed(read(loop, reader, 30_000)):
            if "reply" in message:
                answers.append(message["reply"])
            else:
                reports += 1
        turn(loop)
    assert answers == list(range(40))
    assert reports >= 40


def test_the_blob_of_a_frame_is_free_once_it_has_left(ends: Ends) -> None:
    reader, writer = ends
    loop = Loop()
    output, decoder = Output(loop, writer), Decoder()
    left: list[int] = []
    room = memoryview(bytearray(b"x" * 900_000))
    for number in range(3):
        output.send({"reply": number, "ok": {}}, room, lambda number=number: left.append(number))  # type: ignore[misc]
    assert 1 not in left
    came: list[tuple[dict[str, object], bytes]] = []
    while len(came) < 3:
        came += decoder.feed(read(loop, reader, 1 << 20))
    assert left == [0, 1, 2]
    assert came == [({"reply": number, "ok": {}}, bytes(room)) for number in range(3)]


def test_a_head_that_is_gone_ends_the_output(ends: Ends) -> None:
    reader, writer = ends
    loop = Loop()
    output = Output(loop, writer)
    for number in range(3):
        output.send({"reply": number, "ok": {}}, b"x" * 900_000)
    assert not output.broken
    spare = os.dup(writer)
    os.dup2(spare, reader)  # closes the reader's end
    os.close(spare)
    while not output.broken:
        turn(loop)


def test_a_head_that_takes_nothing_does_not_wake_the_agent(ends: Ends) -> None:
    _, writer = ends
    loop, over = Loop(), list[bool]()
    output = Output(loop, writer)
    for number in range(3):
        output.send({"reply": number, "ok": {}}, b"x" * 900_000)
    loop.after(0.1, lambda: over.append(True))
    turns = 0
    while not over:
        loop.turn()
        turns += 1
    assert turns <= 3

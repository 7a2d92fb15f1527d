"""What an agent sends: only its newest report, and answers although there is always a new one."""

from __future__ import annotations

import os

from orchestrator.adapters.channel import Decoder, encode
from orchestrator.daemon.agent.streams import Loop, Output


def test_answers_go_between_reports_that_never_end() -> None:
    reader, writer = os.pipe()
    output, decoder = Output(Loop(), writer), Decoder()
    answers: list[int] = []
    reports = 0
    for number in range(40):
        output.send({"reply": number, "ok": {}}, b"x" * 100_000)
    for _ in range(400):  # a new report is there whenever the head reads
        output.report(encode({"report": {"fill": "x" * 50_000}}))
        for message, _ in decoder.feed(os.read(reader, 30_000)):
            if "reply" in message:
                answers.append(message["reply"])
            else:
                reports += 1
    os.close(reader)
    os.close(writer)
    assert answers == list(range(40))
    assert reports >= 40


def test_the_blob_of_a_frame_is_free_once_it_has_left() -> None:
    reader, writer = os.pipe()
    loop = Loop()
    output, decoder = Output(loop, writer), Decoder()
    left: list[int] = []
    room = memoryview(bytearray(b"x" * 300_000))
    output.send({"reply": 0, "ok": {}}, room, lambda: left.append(0))
    output.send({"reply": 1, "ok": {}}, b"", lambda: left.append(1))
    assert left == []
    came = decoder.feed(os.read(reader, 1 << 20))
    while len(came) < 2:
        loop.turn()
        came += decoder.feed(os.read(reader, 1 << 20))
    assert left == [0, 1]
    assert came == [({"reply": 0, "ok": {}}, bytes(room)), ({"reply": 1, "ok": {}}, b"")]
    os.close(reader)
    os.close(writer)

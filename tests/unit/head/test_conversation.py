"""The end of a connection, while replies come."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any

import pytest

from orchestrator.head.links import edge
from orchestrator.head.links.conversation import LATE_S, UNWRITTEN_BYTES_MAX, Conversation, LinkDown, Silence
from orchestrator.head.links.crew import Crew
from orchestrator.head.reach.transport import Receiver
from orchestrator.protocol.channel import BLOB_BYTES_MAX
from orchestrator.protocol.hello import Hello
from orchestrator.protocol.orders.base import Order
from tests.contract.fake_agent import until
from tests.protocol_orders import TABLE
from tests.protocol_values import valid


class Silent:
    """A connection whose agent takes all and says nothing."""

    def stderr_tail(self) -> str:
        return ""

    def write(self, data: bytes) -> None:
        """Receiver it."""

    def read(self, _size: int) -> bytes:
        return b""

    def feed(self, receive: Receiver) -> None:
        receive(b"")

    def close(self) -> None:
        """Nothing is open."""

    def exit_status(self) -> int | None:
        return None


def test_a_reply_in_the_moment_of_the_end_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation("n1", Silent(), valid(Hello), Crew())
    order: Order[Any] = Order(TABLE[0], {"order": TABLE[0].name})
    first: Future[Any] = Future()
    second: Future[Any] = Future()
    conversation.send(order, future=first)
    conversation.send(order, future=second)
    check = edge.answer

    def ends_meanwhile(*asked: Any) -> Any:
        conversation.end()
        return check(*asked)

    monkeypatch.setattr(edge, "answer", ends_meanwhile)
    assert conversation.replied({"reply": 1, "ok": valid(TABLE[0].answer)}, b"")
    conversation.end()
    for one in (first, second):
        assert isinstance(one.exception(0), LinkDown)


class Reading(Silent):
    """One that stays open."""

    def feed(self, _receive: Receiver) -> None:
        """Nothing comes."""


def test_what_was_written_does_not_wait_to_be_written() -> None:
    """A host that reads for days all that it is sent is not one that reads nothing."""
    conversation = Conversation("n1", Reading(), valid(Hello), Crew())
    conversation.start(lambda: math.inf, 1000.0)
    order: Order[Any] = Order(TABLE[0], {"order": TABLE[0].name})
    for number in range(1, 2 + UNWRITTEN_BYTES_MAX // BLOB_BYTES_MAX):
        conversation.send(order, bytes(BLOB_BYTES_MAX))
        assert conversation.replied({"reply": number, "ok": valid(TABLE[0].answer)}, b"")
        until(lambda: not conversation._is_writing)
    why = conversation.why
    conversation.end()
    assert why is None


def test_time_in_which_the_head_did_not_run_is_no_silence_of_a_host() -> None:
    silence = Silence(0.0, 1.0)
    assert silence.lasts_s(1.0, 0.9) == pytest.approx(0.1)
    assert silence.lasts_s(15.0, 0.9) == pytest.approx(0.1 + 1.0 + LATE_S), "it was stopped for 14 s"
    assert silence.lasts_s(16.0, 15.5) == pytest.approx(0.5), "what had arrived was read"
    for second in range(17, 25):
        silence.lasts_s(float(second), 15.5)
    assert silence.lasts_s(25.0, 15.5) == pytest.approx(9.5), (
        "nothing is left out of a silence that was watched"
    )

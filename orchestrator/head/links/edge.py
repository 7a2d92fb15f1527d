"""The edge of the head: the one place that checks and cleans what agents send. Code behind it trusts the types.

A host may lie, another program may run in place of our agent, or the agent may have a bug. In each case the connection
to that host is dropped with a sentence that names the field, and no other host is affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from orchestrator.protocol.check import NOTHING_ASKED, Asked, Misfit, check_of, cleaned, shown
from orchestrator.protocol.hello import CommandFrame, Greeting, Hello
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.replies import ErrorFrame, OkFrame, Reply
from orchestrator.protocol.reports import Report, ReportFrame

A = TypeVar("A")


class WireError(ValueError):
    """An agent has broken the protocol. str() is a sentence with the host and the field."""


def hello(host: str, message: Mapping[str, Any]) -> Greeting:
    """Check the first frame of an agent, and return its hello."""
    if "hello" not in message:
        raise WireError(f"{host} began with {_kind(message)} and not with a hello")
    return cast("Greeting", _checked(host, "a hello", Hello, message["hello"]))


def frame(host: str, message: Mapping[str, Any], blob: bytes) -> ReportFrame | Reply:
    """Check a frame that follows the hello, and return it."""
    if "report" in message:
        if blob:
            raise WireError(f"{host} sent a report with {len(blob)} bytes that nobody asked for")
        return {"report": _checked(host, "a report", Report, message["report"])}
    if "reply" in message:
        kind: type[Any] = ErrorFrame if "error" in message else OkFrame
        return cast("Reply", _checked(host, "a reply", kind, message))
    raise WireError(f"{host} sent {_kind(message)}, which is neither report nor reply")


def answer(host: str, order: Order[A], ok: Mapping[str, Any], blob: bytes) -> A:
    """Check the reply to an order, and return its content.

    Its blob may not exceed the bytes that were requested, and its paths lie in the directories that the order named.
    """
    what = f"an answer to `{order.verb.name}`"
    room = order.fields.get("bytes_max", 0)
    if len(blob) > room:
        raise WireError(f"{host} sent {what} with {len(blob)} bytes, where {room} were asked for")
    return cast("A", _checked(host, what, order.verb.answer, ok, Asked.of(order.fields)))


def command(host: str, message: Mapping[str, Any]) -> CommandFrame:
    """Check a frame of a person's command, and return it."""
    return cast("CommandFrame", _checked(host, "a frame of a command", CommandFrame, message))


def _checked(host: str, what: str, type_: Any, value: Any, asked: Asked = NOTHING_ASKED) -> Any:
    try:
        return check_of(type_, asked)(value)
    except Misfit as e:
        raise WireError(f"{host} sent {what} that orch cannot use: {e}") from None


def _kind(message: Mapping[str, Any]) -> str:
    return f"a frame with {shown(next(iter(message)))}" if message else "an empty frame"


def last_line(text: str) -> str:
    """Return the last line of a host's output, for a sentence; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return cleaned(lines[-1][:300]) if lines else ""

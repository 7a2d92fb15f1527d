"""The edge: what an agent says is checked and cleaned here, and nowhere behind it is anything of it doubted.

A host may lie, run another program in the place of ours, or have a fault of ours. Whatever it is, it costs that host
its connection, and is said with the field that shows it; no other host notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from orchestrator.protocol import frames
from orchestrator.protocol.check import Misfit, check_of, cleaned, shown
from orchestrator.protocol.table import Order

A = TypeVar("A")


class WireError(ValueError):
    """An agent said something that is not in the protocol: one sentence, with the host and the field."""


def hello(host: str, message: Mapping[str, Any]) -> frames.Greeting:
    """Return what an agent says first."""
    if "hello" not in message:
        raise WireError(f"{host} began with {_kind(message)} and not with a hello")
    return cast("frames.Greeting", _checked(host, "a hello", frames.Hello, message["hello"]))


def frame(host: str, message: Mapping[str, Any], blob: bytes) -> frames.ReportFrame | frames.Reply:
    """Return a frame that may follow."""
    if "report" in message:
        if blob:
            raise WireError(f"{host} sent a report with {len(blob)} bytes that nobody asked for")
        return {"report": _checked(host, "a report", frames.Report, message["report"])}
    if "reply" in message:
        kind: type[Any] = frames.ErrorFrame if "error" in message else frames.OkFrame
        return cast("frames.Reply", _checked(host, "a reply", kind, message))
    raise WireError(f"{host} sent {_kind(message)}, which is neither report nor reply")


def answer(host: str, order: Order[A], ok: Mapping[str, Any], blob: bytes) -> A:
    """Return what an order was answered with: of its type, and with no more bytes than were asked for."""
    what = f"an answer to `{order.verb.name}`"
    room = order.fields.get("bytes_max", 0)
    if len(blob) > room:
        raise WireError(f"{host} sent {what} with {len(blob)} bytes, where {room} were asked for")
    return cast("A", _checked(host, what, order.verb.answer, ok))


def _checked(host: str, what: str, type_: Any, value: Any) -> Any:
    try:
        return check_of(type_)(value)
    except Misfit as e:
        raise WireError(f"{host} sent {what} that orch cannot use: {e}") from None


def _kind(message: Mapping[str, Any]) -> str:
    return f"a frame with {shown(next(iter(message)))}" if message else "an empty frame"


def last_line(text: str) -> str:
    """Return the last line that a host has printed, as a sentence may quote it; empty where there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return cleaned(lines[-1][:300]) if lines else ""

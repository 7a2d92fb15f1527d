"""The types of the frames that answer orders. What a reply contains depends on its order: `orders`."""

from typing import TypedDict, final

from orchestrator.protocol.bounds import Count, Name, RawObject, Text


class Error(TypedDict):
    """Why an order failed."""

    code: Name
    message: Text
    hint: Text | None
    """What a person can do about it."""


@final
class OkFrame(TypedDict):
    """Agent to coordinator: an order was carried out. The frames of some replies have a blob."""

    reply: Count
    """The order's id."""
    ok: RawObject
    """Its type depends on the order."""


@final
class ErrorFrame(TypedDict):
    """Agent to coordinator: an order failed."""

    reply: Count
    error: Error


Reply = OkFrame | ErrorFrame

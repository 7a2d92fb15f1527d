"""The one answer that each order gets."""

from __future__ import annotations

from orchestrator.both.hostdir import HostFault, fault_of
from orchestrator.protocol.channel import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.host.agent.streams import Output


MESSAGE_CHARS_MAX = 8 << 10
"""The limit of an error's message, below that of the protocol."""


def too_large(error: FrameError) -> HostFault:
    """Return the fault of a reply that is too long for a frame."""
    return HostFault("too-large", f"the answer does not fit in a frame: {error}")


class Reply:
    """The one answer to an order."""

    def __init__(self, output: Output, id: Any) -> None:
        self._output = output
        self._id = id

    def ok(
        self, value: Mapping[str, Any], blob: bytes | memoryview = b"", sent: Callable[[], None] | None = None
    ) -> None:
        """Reply that the order is done, with its result. `blob` must stay as it is until `sent` is called."""
        try:
            if self._id is not None:
                self._output.send({"reply": self._id, "ok": value}, blob, sent)
                return
        except FrameError as e:
            self.fault(too_large(e))
        if sent is not None:
            sent()

    def fault(self, fault: HostFault) -> None:
        """Reply that the order has failed, and why."""
        if self._id is not None:
            error = {**fault.to_json(), "message": fault.message[:MESSAGE_CHARS_MAX]}
            self._output.send({"reply": self._id, "error": error})

    def attempt(self, work: Callable[[], Mapping[str, Any] | None]) -> None:
        """Reply with the result of `work`, or with the fault that it raises. None: somebody replies later."""
        try:
            value = work()
        except Exception as e:
            self.fault(fault_of(e))
        else:
            if value is not None:
                self.ok(value)

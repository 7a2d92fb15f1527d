"""Reports what `transparent: true` changes for a script, once, on stderr and to the shim."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.task.link import Link


class Unsupported(RuntimeError):
    """The script does something that `transparent: true` does not support."""

    orch_kind = "unsupported"


class Reporter:
    """Reports each sentence once, on stderr and to the shim."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._messages: set[str] = set()
        self.refused: Unsupported | None = None
        """What ended the script."""

    def __call__(self, kind: str, message: str) -> None:
        if message in self._messages:
            return
        self._messages.add(message)
        self._link.say(f"transparent-{kind}", message)

    def unsupported(self, message: str) -> Unsupported:
        """Return the error to raise. The shim is told first, because the script may swallow the error."""
        self._link.send({"error": {"kind": "unsupported", "message": message}}, wait_s=1.0)
        self.refused = Unsupported(message)
        return self.refused

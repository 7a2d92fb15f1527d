"""What `transparent: true` did to a script is said once, on stderr and to the shim."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.runtime.link import Link


class Unsupported(RuntimeError):
    """The script does what `transparent: true` cannot do for it."""

    orch_kind = "unsupported"


class Said:
    """Tells, on stderr and to the shim, what was done; each sentence once."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._told: set[str] = set()

    def __call__(self, kind: str, message: str) -> None:
        if message in self._told:
            return
        self._told.add(message)
        self._link.say(f"transparent-{kind}", message)

    def unsupported(self, message: str) -> Unsupported:
        """The error to raise: the shim has heard the sentence before the script can swallow it."""
        self._link.send({"error": {"kind": "unsupported", "message": message}}, wait_s=1.0)
        return Unsupported(message)

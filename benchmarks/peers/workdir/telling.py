"""What a training script of the comparison tells: its pid, and each step with the time at which it was done.

It imports nothing but the standard library, since the peers' environment lacks orch.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

SAVE_EVERY = 50
SAVE_S = float(os.environ.get("PEERS_SAVE_S") or 0.0)


class Saves:
    """Says when to save: every 50 steps, or each PEERS_SAVE_S seconds."""

    def __init__(self) -> None:
        self._saved_at = time.monotonic()

    def due(self, number: int) -> bool:
        """Return whether to save after this step."""
        if not SAVE_S:
            return number % SAVE_EVERY == 0
        is_due = time.monotonic() >= self._saved_at + SAVE_S
        self._saved_at += SAVE_S * is_due
        return is_due


class Teller:
    """Writes what a worker does. Only the first worker tells its steps: the others are as far."""

    def __init__(self, state: str, rank: int) -> None:
        mine = Path(state) / f"pid.{rank}.new"
        mine.write_text(str(os.getpid()))
        mine.rename(Path(state) / f"pid.{rank}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(Path(state) / "steps", flags, 0o600) if rank == 0 else None

    def did(self, number: int) -> None:
        """Tell that a step is done."""
        if self._file is not None:
            os.write(
                self._file, f"{time.clock_gettime(time.CLOCK_BOOTTIME)} {number} {os.getpid()}\n".encode()
            )

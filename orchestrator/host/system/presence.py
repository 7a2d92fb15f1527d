"""Shows other machines that may share the home directory that this one lives: agents and shims do it.

`machine.<n>` in the host's directory says whose it is; `head/links/bootstrap.py` chooses the directory and writes it.
"""

from __future__ import annotations

import os
import time

EVERY_S = 5.0
"""A machine that has not been seen for six times as long counts as gone (`lives` in the bootstrap)."""

NAME = "machine."


def sign_of(host_dir: str) -> str | None:
    """Return the path of the file that says whose the directory is; None if there is none, as in a pod."""
    numbers = [name[len(NAME) :] for name in os.listdir(host_dir) if name.startswith(NAME)]
    newest = max((int(number) for number in numbers if number.isdigit()), default=None)
    return None if newest is None else os.path.join(host_dir, f"{NAME}{newest}")


class Presence:
    """The sign of life of one process."""

    def __init__(self, host_dir: str) -> None:
        self._sign = sign_of(host_dir)
        self._due_at = 0.0
        self._held: int | None = None

    def hold(self) -> None:
        """Hold the lock that other machines under this kernel look for, until this process ends."""
        import fcntl

        try:
            if self._sign is not None:
                self._held = os.open(self._sign, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(self._held, fcntl.LOCK_SH)
        except OSError:
            return  # a file system without locks: then the time of the file tells

    def show(self) -> bool:
        """Touch the file if that is due. Return False if the directory was taken: this machine was silent for long."""
        now = time.monotonic()
        if self._sign is None or now < self._due_at:
            return True
        self._due_at = now + EVERY_S
        try:
            os.utime(self._sign)
        except FileNotFoundError:
            return not os.path.isdir(os.path.dirname(self._sign))  # removed with all that was in it
        except OSError:
            return True  # the disk is read-only or hangs, which others see too
        return True

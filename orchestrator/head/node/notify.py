"""Notifies systemd that the service is ready, that it is alive, and that it ends. See sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping


class Notifier:
    """Notifies the manager that started this process, if there is one."""

    def __init__(self, path: str | None = None, watchdog_s: float | None = None) -> None:
        self._path = path
        self.watchdog_s = watchdog_s
        """The manager ends a service that has not called `alive` for so long. None: there is no such limit."""

    @staticmethod
    def from_environment(environ: MutableMapping[str, str]) -> Notifier:
        """Read and remove systemd's variables, so that no task can notify in the name of the service."""
        path = environ.pop("NOTIFY_SOCKET", None)
        wanted, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_meant = wanted.isdecimal() and int(wanted) > 0 and pid in ("", str(os.getpid()))
        return Notifier(path or None, int(wanted) / 1e6 if path and is_meant else None)

    def ready(self) -> None:
        """Notify that the service answers from now on."""
        self._send("READY=1")

    def alive(self) -> None:
        """Notify that the service is alive. This must happen once in `watchdog_s`."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Notify that the service ends because it was asked to."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if self._path is None:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        # A manager that does not listen ends or restarts us by its own rules; we could do nothing about it.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(text.encode(), socket.MSG_DONTWAIT, address)

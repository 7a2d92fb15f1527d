"""A ProxyCommand of a person's ssh_config: a program that connects to an sshd, in the place of a TCP connection."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading

from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.config import Hop
from orchestrator.head.reach.ssh.errors import one_line
from orchestrator.head.reach.transport import Tail

_END_S = 2.0
"""How long it has between SIGTERM and SIGKILL."""
_LAST_WORDS_S = 0.5


class ProxySocket(socket.socket):
    """Our end of the program's stdin and stdout, which are one socket. Closing it ends the program."""

    def __init__(self, command: str) -> None:
        """Start the command with a shell, as ssh does. Raises OSError where that cannot be started."""
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        self._command = command
        self._said = Tail()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        with theirs:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        # Without it, a full pipe would stop the program.
        threading.Thread(target=self._listen, name="proxy-command", daemon=True).start()

    def close(self) -> None:
        """Close our end, and end the program and what it has started."""
        super().close()
        if self._end(signal.SIGTERM):
            threading.Thread(target=self._end_late, name="proxy-command-end", daemon=True).start()

    def explained(self, host: HostPlan, hop: Hop, error: ConnectFailed) -> ConnectFailed:
        """Return the error of a connection by this program, with its last words if it failed by itself."""
        failed = self._ended.wait(_LAST_WORDS_S) and self._child.returncode > 0
        if not failed:
            return error
        said = one_line(self._said.text().strip().rpartition("\n")[2])
        return ConnectFailed(
            host.name,
            f"the ProxyCommand of ssh_config for {hop} ended with exit code {self._child.returncode}: {self._command}"
            + (f"; it said: {said}" if said else ""),
            hint="run it in the shell from which the coordinator was started; `proxy_jump: none` in the cluster spec "
            "connects directly",
        )

    def _listen(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as stderr:
            while data := os.read(stderr.fileno(), 4096):
                self._said.add(data)
        os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:  # until here its pid is its own
            self._child.wait()
        self._ended.set()

    def _end(self, number: signal.Signals) -> bool:
        """Signal the program and what it has started. Return whether it was still there."""
        with self._lock:
            if self._child.returncode is not None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)
            return True

    def _end_late(self) -> None:
        if not self._ended.wait(_END_S):
            self._end(signal.SIGKILL)

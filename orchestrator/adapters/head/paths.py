"""The paths of the head node's files: state, socket, journal, logs.

Every command imports this module, so it imports almost nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from orchestrator.core.errors import OrchestratorError

SOCKET_PATH_BYTES_MAX = 107
"""The size of `sun_path` on Linux, without the closing NUL."""


class Paths:
    """The head node's files. Only `ensure` creates anything; a reader does not need to call it."""

    def __init__(self, state_dir: str, runtime_dir: str) -> None:
        self.state_dir = os.path.abspath(state_dir)
        self.runtime_dir = os.path.abspath(runtime_dir)
        self.socket = os.path.join(self.runtime_dir, "coordinator.sock")
        # The lock is beside the journal and not beside the socket, since the journal must have one writer only.
        self.lock = os.path.join(self.state_dir, "coordinator.lock")
        self.journal = os.path.join(self.state_dir, "journal.db")
        self.coordinator_log = os.path.join(self.state_dir, "coordinator.log")
        self.known_hosts = os.path.join(self.state_dir, "known_hosts")
        self.runs = os.path.join(self.state_dir, "runs")

    @staticmethod
    def from_environment(environ: Mapping[str, str] | None = None) -> Paths:
        """Take $ORCH_STATE_DIR and $ORCH_RUNTIME_DIR, else orch/ in the XDG directories, else our own defaults."""
        env = os.environ if environ is None else environ
        # XDG says that a relative path in its variables is invalid and must be ignored. Ours may be relative.
        state = env.get("ORCH_STATE_DIR") or os.path.join(
            _absolute(env.get("XDG_STATE_HOME")) or os.path.expanduser("~/.local/state"), "orch"
        )
        runtime = env.get("ORCH_RUNTIME_DIR")
        if not runtime:
            xdg = _absolute(env.get("XDG_RUNTIME_DIR"))
            usable = xdg is not None and os.access(xdg, os.W_OK | os.X_OK)
            runtime = (
                os.path.join(xdg, "orch")
                if xdg and usable
                # tempfile.gettempdir() is not used, because importing it would cost every command 8 ms.
                else os.path.join(_absolute(env.get("TMPDIR")) or "/tmp", f"orch-{os.getuid()}")
            )
        return Paths(state, runtime)

    def run_dir(self, run_id: str) -> str:
        """Return the head's directory of one run. Raises ValueError for an id that would leave `runs`."""
        if not run_id or "/" in run_id or run_id in (".", ".."):
            raise ValueError(f"not a run id: {run_id!r}")
        return os.path.join(self.runs, run_id)

    def ensure(self) -> None:
        """Make both directories, with mode 0700.

        Raises:
            OrchestratorError: a directory cannot be made, or the socket's directory is not private.
        """
        self.check_socket_path()
        for path, variable in ((self.state_dir, "ORCH_STATE_DIR"), (self.runtime_dir, "ORCH_RUNTIME_DIR")):
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
                os.makedirs(self.runs, mode=0o700, exist_ok=True)
            except OSError as e:
                raise OrchestratorError(
                    f"cannot make the directory {path}: {e.strerror}",
                    hint=f"set ${variable} to one that you own",
                ) from e
        self.check_private()

    def check_private(self) -> None:
        """Raise OrchestratorError unless the socket's directory is ours alone.

        Under /tmp anybody may have made the directory first. Its owner could listen on the socket in our place, and
        receive the secrets of the next run.
        """
        found = os.lstat(self.runtime_dir)
        hint = "set $ORCH_RUNTIME_DIR to a directory that only you can enter"
        if not stat.S_ISDIR(found.st_mode):
            raise OrchestratorError(f"{self.runtime_dir} is not a directory", hint=hint)
        if found.st_uid != os.getuid():
            raise OrchestratorError(
                f"{self.runtime_dir} belongs to user {found.st_uid}, not to you ({os.getuid()})", hint=hint
            )
        if found.st_mode & 0o077:
            raise OrchestratorError(
                f"{self.runtime_dir} has mode {stat.S_IMODE(found.st_mode):04o}; others can enter it",
                hint=f"chmod 700 {self.runtime_dir}, or {hint}",
            )

    def check_socket_path(self) -> None:
        """Raise OrchestratorError where the socket's path is longer than the kernel allows."""
        length = len(os.fsencode(self.socket))
        if length > SOCKET_PATH_BYTES_MAX:
            raise OrchestratorError(
                f"the socket's path has {length} bytes and a Unix socket takes {SOCKET_PATH_BYTES_MAX}: "
                f"{self.socket}",
                hint="set $ORCH_RUNTIME_DIR to a shorter directory",
            )


def _absolute(path: str | None) -> str | None:
    return path if path and os.path.isabs(path) else None

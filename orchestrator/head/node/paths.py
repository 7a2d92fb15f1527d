"""The paths of the head node's files: state, socket, journal, logs.

Every command imports this module, so it imports almost nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from orchestrator.core.errors import OrchestratorError

SOCKET_PATH_BYTES_MAX = 107
"""The size of `sun_path` on Linux, without the closing NUL."""

_STATE, _RUNTIME = "ORCH_STATE_DIR", "ORCH_RUNTIME_DIR"

_LINKS_MAX = 40
"""The number of links that the kernel follows in one path."""


class Paths:
    """The head node's files. Only `ensure` creates anything; a reader calls `check` first."""

    def __init__(self, state_dir: str, runtime_dir: str, config_dir: str = "") -> None:
        self.state_dir = os.path.abspath(state_dir)
        self.runtime_dir = os.path.abspath(runtime_dir)
        self.socket = os.path.join(self.runtime_dir, "coordinator.sock")
        # The lock is beside the journal and not beside the socket, since the journal must have one writer only.
        self.lock = os.path.join(self.state_dir, "coordinator.lock")
        self.journal = os.path.join(self.state_dir, "journal.db")
        self.coordinator_log = os.path.join(self.state_dir, "coordinator.log")
        self.known_hosts = os.path.join(self.state_dir, "known_hosts")
        self.bundle = os.path.join(self.state_dir, "orch.pyz")
        self.drained = os.path.join(self.state_dir, "drained.json")
        self.job = os.path.join(self.state_dir, "job.json")
        self.runs = os.path.join(self.state_dir, "runs")
        self.wheels = os.path.join(self.state_dir, "wheels")
        self.notices = os.path.join(self.state_dir, "notices.json")
        # Empty: this process has no files of the user's own.
        self.notify = os.path.join(config_dir, "notify.yaml") if config_dir else ""

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
        config = _absolute(env.get("XDG_CONFIG_HOME")) or os.path.expanduser("~/.config")
        return Paths(state, runtime, os.path.join(config, "orch"))

    def run_dir(self, run_id: str) -> str:
        """Return the head's directory of one run. Raises ValueError for an id that would leave `runs`."""
        if not run_id or "/" in run_id or run_id in (".", ".."):
            raise ValueError(f"not a run id: {run_id!r}")
        return os.path.join(self.runs, run_id)

    def ensure(self) -> None:
        """Make the directories, with mode 0700.

        Raises:
            OrchestratorError: a directory cannot be made, or is not ours alone.
        """
        self.check_socket_path()
        for path, variable in self._private:
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
            except OSError as e:
                raise OrchestratorError(
                    f"cannot make the directory {path}: {e.strerror}",
                    hint=f"set ${variable} to one that you own",
                ) from e
            _check_private(path, variable)

    def check(self) -> None:
        """Raise OrchestratorError for a directory that exists and is not ours alone.

        Under /tmp anybody may have made a directory first. The owner of the socket's directory could listen on the
        socket in our place, and receive the secrets of the next run. The owner of the state's directory could say
        which host keys are known.
        """
        for path, variable in self._private:
            if os.path.lexists(path):
                _check_private(path, variable)

    @property
    def _private(self) -> Iterator[tuple[str, str]]:
        """Yield the directories that must be ours alone, with their variables; each one before those that lie in it."""
        yield self.state_dir, _STATE
        yield self.runtime_dir, _RUNTIME
        yield self.runs, _STATE
        yield os.path.join(self.state_dir, "secrets"), _STATE
        yield os.path.join(self.state_dir, "recipients"), _STATE

    def check_socket_path(self) -> None:
        """Raise OrchestratorError if the socket's path is longer than the kernel allows."""
        length = len(os.fsencode(self.socket))
        if length > SOCKET_PATH_BYTES_MAX:
            raise OrchestratorError(
                f"the socket's path has {length} bytes and a Unix socket takes {SOCKET_PATH_BYTES_MAX}: "
                f"{self.socket}",
                hint="set $ORCH_RUNTIME_DIR to a shorter directory",
            )


def _check_private(path: str, variable: str) -> None:
    """Raise OrchestratorError unless the directory is ours alone, and no other user can change where its path leads."""
    hint = f"set ${variable} to a directory that only you can enter"
    try:
        info = os.lstat(path) if variable == _RUNTIME else os.stat(path)
        if not stat.S_ISDIR(info.st_mode):
            raise OrchestratorError(f"{path} is not a directory", hint=hint)
        if info.st_uid != os.getuid():
            raise OrchestratorError(
                f"{path} belongs to user {info.st_uid}, not to you ({os.getuid()})", hint=hint
            )
        if info.st_mode & 0o077:
            raise OrchestratorError(
                f"{path} has mode {stat.S_IMODE(info.st_mode):04o}; others can enter it",
                hint=f"chmod 700 {path}, or {hint}",
            )
        for step in _steps(path):
            info = os.lstat(step)
            mode = stat.S_IMODE(info.st_mode)
            if stat.S_ISLNK(info.st_mode) and info.st_uid not in (0, os.getuid()):
                raise OrchestratorError(
                    f"{path} leads through {step}, a link of user {info.st_uid}", hint=hint
                )
            if stat.S_ISDIR(info.st_mode) and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise OrchestratorError(
                    f"{path} lies in {step}, where anybody may replace it (mode {mode:04o})",
                    hint=f"chmod o-w {step}, or {hint}",
                )
    except OSError as e:
        raise OrchestratorError(f"{path} cannot be checked: {e.strerror}", hint=hint) from e


def _steps(path: str) -> list[str]:
    """Return all directories and links that the kernel follows on the way to a path, and the path itself."""
    steps: list[str] = []
    at, left, links = "/", path.split("/")[::-1], 0
    while left:
        name = left.pop()
        if name in ("", "."):
            continue
        step = os.path.normpath(os.path.join(at, name))
        steps.append(step)
        if name != ".." and os.path.islink(step) and links < _LINKS_MAX:
            links += 1
            target = os.readlink(step)
            at = "/" if target.startswith("/") else at
            left += target.split("/")[::-1]
        else:
            at = step
    return steps


def _absolute(path: str | None) -> str | None:
    return path if path and os.path.isabs(path) else None

"""What the kernel knows about processes: their parents, whether they live, where they listen."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from tests.patience import comes

_STOP_S = 20.0


def parent(pid: int) -> int:
    """Return the pid of a process's parent; that of a task is its shim."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def listens_at(pid: int) -> list[int]:
    """Return the TCP ports on which a process listens, in its own network namespace."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            sockets.add(os.readlink(descriptor))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    listening = "0A"
    return [
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == listening and f"socket:[{row[9]}]" in sockets
    ]


def is_alive(pid: int) -> bool:
    """Return whether a process lives. A zombie does not: where PID 1 does not reap, an orphan's entry stays."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def freeze(pid: int) -> None:
    """Stop a process, and return once each of its threads is stopped or has ended.

    SIGSTOP returns before that, and on a busy machine the other threads still read and write.

    Raises:
        ProcessLookupError: there is no such process.
        AssertionError: a thread goes on, as where another process sends SIGCONT.
    """
    os.kill(pid, signal.SIGSTOP)
    stopped = comes(lambda: _thread_states(pid) <= {"T", "Z"}, _STOP_S, 0.002)
    assert stopped, f"threads of {pid} are not stopped: {sorted(_thread_states(pid))}"


def _thread_states(pid: int) -> set[str]:
    states = set()
    with contextlib.suppress(FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def agents(host_dir: str | Path) -> list[int]:
    """Return the pids of the agents of that host: processes of `python -I -c` that belong to no task."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            argv = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            environ = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        is_agent = b"-c" in argv and b"-I" in argv and f"ORCH_HOST_DIR={host_dir}\0".encode() in environ
        if is_agent and b"ORCH_RUN=" not in environ:
            found.append(int(entry))
    return found

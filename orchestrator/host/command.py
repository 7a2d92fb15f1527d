"""A person's command on a host (`orch exec`): its output goes to the head as it comes, and it ends with its channel.

It is no task: nothing of it is recorded, and it has no shim. The processes that it has started end with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

from orchestrator.both import durable, hostdir, process
from orchestrator.both.hostdir import HostFault
from orchestrator.host.shim import spawn
from orchestrator.protocol.channel import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.protocol.hello import BootRequest, Command

END_S = 2.0
"""How long it has between SIGTERM and SIGKILL."""

_KILL_S = 2.0
_POLL_S = 0.02
_READ_BYTES = 64 << 10


def main(host_dir: str, bundle: str, request: BootRequest) -> None:  # noqa: ARG001 (as the agent's)
    """Run the command of the request. Called by the bootstrap, in its process."""
    for number in (signal.SIGPIPE, signal.SIGHUP):  # the end of stdin says the same
        signal.signal(number, signal.SIG_IGN)
    process.become_subreaper()
    try:
        _send({"exit": _run(host_dir, request["command"]), "left": _end_all()})
    except HostFault as e:
        _send({"error": str(e)})
    finally:
        _end_all()
        os._exit(0)


def _run(host_dir: str, asked: Command) -> int:
    """Run it to its end, or until the head wants it to end, and return its exit code as a shell shows it."""
    env, directory = _place(host_dir, asked)
    me = os.getpid()
    try:
        child = subprocess.Popen(
            asked["argv"],
            env=env,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: process.die_with_parent(me),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise HostFault("no-command", f"{asked['argv'][0]} cannot be started: {reason}") from e
    assert child.stdout is not None
    assert child.stderr is not None
    streams = {child.stdout.fileno(): 1, child.stderr.fileno(): 2}
    while streams:
        # A process that it left in the background may hold the pipes for ever; the command itself has ended then.
        ended = child.poll() is not None
        ready, _, _ = select.select([0, *streams], [], [], 0 if ended else _POLL_S * 5)
        if 0 in ready or (ended and not ready):
            break
        for fd in ready:
            data = os.read(fd, _READ_BYTES)
            if data:
                _send({"stream": streams[fd]}, data)
            else:
                del streams[fd]
    while child.poll() is None and not select.select([0], [], [], _POLL_S)[0]:
        pass
    if child.poll() is None:
        _end_all()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _place(host_dir: str, asked: Command) -> tuple[dict[str, str], str]:
    """Return the environment and the working directory: of the login, or of the task. Never the task's secrets."""
    # The directory of the run's Python comes first: `python` is the one that trains.
    if asked["task"] is None:
        paths = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
        env = {**os.environ, "PATH": os.pathsep.join(paths)}
        env.pop("ORCH_LOGIN", None)
        return env, os.path.expanduser("~")
    directory = hostdir.generation_dir(host_dir, asked["run"], asked["task"], asked["generation"])
    start = durable.read_object(directory, "start.json")
    if start is None:
        raise HostFault("no-task", f"{asked['task']} was not started on this host, or its files were removed")
    return spawn.task_env(start, dict(os.environ), {}, asked["env"], directory), spawn.work_dir(start)


def _end_all() -> list[int]:
    """End the processes that the command started, and return the pids of those that survive."""
    kill_at = time.monotonic() + END_S
    asked: set[int] = set()
    while left := process.descendants(os.getpid()):
        late = time.monotonic() >= kill_at
        if time.monotonic() >= kill_at + _KILL_S:
            break
        for who in left:
            if late or who.pid not in asked:
                asked.add(who.pid)
                with contextlib.suppress(PermissionError):  # another user's, as by sudo; it is named
                    process.signal(who, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(_POLL_S)
    return [who.pid for who in left]


def _send(message: Mapping[str, object], blob: bytes = b"") -> None:
    """Send a frame. Where nobody reads any more, stdin says so too."""
    data = encode(message, blob)
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        return

"""The keeper: one process per host, started with the allocation, whose children are the commands of channels.

An engine (Slurm, Kubernetes) ends the processes of a channel with that channel. So a channel's own process, the relay,
only hands its stdin, stdout and stderr over, and the keeper starts the command with them. Agents, shims and tasks are
then descendants of the keeper: the coordinator and every channel may die, and they go on.

The engine's warning that the host will be taken away (SIGTERM, SIGUSR1) ends nothing here. What each signal means, and
how long before the end it comes, the engine says when it starts the keeper: that is written down for the agents
(`host/system/leaving`), which report it, and the coordinator decides. Each warning is told on stdout too, one JSON
object a line. The engine's SIGKILL follows when the time is up. As the first process of a pod the keeper ends by itself
once it was warned and nothing runs below it any more; and its own life is what a boot is elsewhere: when it ends, the
kernel ends all that it has started, and the next one has another boot id.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys

from orchestrator.both import private_socket
from orchestrator.both.process import BOOT_VARIABLE
from orchestrator.host.keeper import place
from orchestrator.host.system import leaving
from orchestrator.protocol.pod import POD_UID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Warned = tuple[float, str]
    """How many seconds before the end a signal comes, and what it says; 0 if unknown."""

REQUEST_BYTES_MAX = 64 << 10
_DESCRIPTORS = 3
_CANNOT_START = 126

WARNINGS = {signal.SIGTERM: "TERM", signal.SIGUSR1: "USR1"}
"""The signals by which an engine says that it takes the host away."""

_STEP_VARIABLES = (
    "SLURM_STEP",
    "SLURM_SRUN",
    "SLURM_LAUNCH",
    "SLURM_TASK_PID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "PMI",
)
"""What is true of the keeper's own step, and would mislead a library that looks for its launcher."""


class Keeper:
    """Listens, starts commands, and tells each channel how its command ended."""

    def __init__(
        self,
        listener: socket.socket,
        leaving_file: str = "",
        warnings: Mapping[str, Warned] | None = None,
        *,
        may_end: bool = False,
    ) -> None:
        """`may_end`: end once a warning was heard and nothing runs any more."""
        self._listener = listener
        self._leaving_file = leaving_file
        self._warnings = warnings or {}
        self._may_end = may_end
        self._warned = False
        self._relays: dict[int, socket.socket] = {}
        """The relays, by the pid of the command that each has asked for."""
        self._poll = select.poll()
        self._signals, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (*WARNINGS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def run(self) -> int:
        """Serve until the engine ends us."""
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._signals, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            if self._signals in ready and self._hear() and self._may_end and self._warned:
                return 0
            for pid, relay in self._relays.items():
                if relay.fileno() in ready:
                    # End a command whose channel was taken away. A relay says nothing more once it has asked.
                    # Slurm keeps the command's stdin open until its stdout is closed, and the command waits for the
                    # end of stdin. What the command has started for longer than its channel has a session of its own.
                    self._forget(relay)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGTERM)
            if self._listener.fileno() in ready:
                self._accept()

    def _hear(self) -> bool:
        """Handle the signals that came, and reap. Return whether nothing runs below us any more."""
        for number in set(os.read(self._signals, 4096)):
            if number in WARNINGS:
                self._warned = True
                # Say that the host is taken away: to whoever reads our stdout, and by a file to the agents here. The
                # agents learn only of signals that the engine has explained. Kubernetes explains none: it makes the
                # pod anew, and the coordinator sees that by itself.
                name = WARNINGS[signal.Signals(number)]
                if self._leaving_file and name in self._warnings:
                    in_s, why = self._warnings[name]
                    with contextlib.suppress(OSError):
                        leaving.write(self._leaving_file, why, in_s)
                announce({"leaving": name})
        # Reap commands, and, as the first process of a pod, all orphans
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            relay = self._relays.pop(pid, None)
            if relay is not None:
                code = os.waitstatus_to_exitcode(status)
                self._forget(relay)
                _answer(relay, {"exit": code if code >= 0 else None})
                relay.close()

    def _forget(self, relay: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(relay)

    def _accept(self) -> None:
        try:
            relay, _ = self._listener.accept()
        except OSError:
            return
        # A relay sends all at once. One that does not must not keep the others waiting.
        relay.settimeout(5.0)
        descriptors: list[int] = []
        try:
            command = _request(relay, descriptors)
            pid = _start(command, descriptors, self._leaving_file)
        except (OSError, ValueError) as e:
            _answer(relay, {"error": str(e)})
            relay.close()
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._relays[pid] = relay
        self._poll.register(relay, select.POLLIN)


def _request(relay: socket.socket, descriptors: list[int]) -> str:
    """Return the command of a request, and put its descriptors into the list. Raises OSError or ValueError."""
    if not place.is_ours(relay):
        raise ValueError("another user asks")
    room = socket.CMSG_SPACE(array.array("i", [0] * _DESCRIPTORS).itemsize * _DESCRIPTORS)
    data, ancillary, _, _ = relay.recvmsg(REQUEST_BYTES_MAX, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, sent in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received = array.array("i")
            received.frombytes(sent[: len(sent) - len(sent) % received.itemsize])
            descriptors += received
    message = json.loads(data)
    if len(descriptors) != _DESCRIPTORS or not isinstance(message, dict):
        raise ValueError("a request has a command and three descriptors")
    command = message.get("command")
    if not isinstance(command, str) or "\0" in command:
        raise ValueError("a request has a command and three descriptors")
    return command


def _start(command: str, descriptors: list[int], leaving_file: str = "") -> int:
    """Start the command with these as its stdin, stdout and stderr, in a session of its own, as sshd does."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_STEP_VARIABLES)}
    environ[leaving.VARIABLE] = leaving_file
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*WARNINGS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for target, source in enumerate(descriptors):
            os.dup2(source, target)
        os.chdir(os.path.expanduser("~") if os.path.isdir(os.path.expanduser("~")) else "/")
        os.execve("/bin/sh", ["/bin/sh", "-c", command], environ)
    finally:
        os._exit(_CANNOT_START)


def _answer(relay: socket.socket, message: dict[str, Any]) -> None:
    try:
        relay.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return  # the channel is gone; its command has ended too, and nobody asks


def announce(message: dict[str, Any]) -> None:
    """Write a line to stdout. Nobody may be left to read it."""
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except OSError:
        return


def main(argv: list[str]) -> int:
    """Keep this host for the allocation that is named. `argv`: its name, and what each warning means."""
    try:
        warnings = dict(map(_warned, argv[1:]))
        allocation = argv[0]
    except (IndexError, ValueError):
        sys.stderr.write("usage: keeper ALLOCATION [SIGNAL:SECONDS:WHY]...\n")
        return 2
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        path = place.path_of(allocation)
        leaving_file = place.path_of(allocation, place.LEAVING)
        if _answers(path):
            sys.stderr.write(f"another keeper listens at {path}\n")
            return 1
        # Remove the files that the keepers of earlier allocations left on this host: an engine ends them by SIGKILL.
        # The notice of this allocation stays: the host leaves, whichever of its keepers got the warning.
        directory, _, name = path.rpartition("/")
        ending = "@" + name.partition("@")[2]
        for other in os.listdir(directory):
            left = os.path.join(directory, other)
            if other.endswith(ending) and left != leaving_file and not _answers(left):
                os.unlink(left)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        private_socket.listen(listener, path, 64)
    except (OSError, ValueError) as e:
        sys.stderr.write(f"no keeper here: {e}\n")
        return 1
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    uid = os.environ.get(POD_UID)
    if uid:
        os.environ[BOOT_VARIABLE] = f"{uid}-{os.urandom(4).hex()}"
    keeper = Keeper(listener, leaving_file, warnings, may_end=bool(uid))
    announce({"ready": os.getpid(), "host": os.uname().nodename, "gpus": gpus})
    return keeper.run()


def _warned(word: str) -> tuple[str, Warned]:
    """Parse `USR1:120:the time limit is near`. Raises ValueError."""
    name, seconds, why = word.split(":", 2)
    if name not in WARNINGS.values() or not why:
        raise ValueError(word)
    return name, (max(0.0, float(seconds)), why)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True

"""The entry's side of the shim in this pod: starts it, sends its orders, and reads its reports and its log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256

from orchestrator.both import durable, hostdir
from orchestrator.both.hostdir import HostFault
from orchestrator.both.tree_digest import digest_of
from orchestrator.host.pod.settings import Unfit
from orchestrator.host.shim import record
from orchestrator.host.system import codestore, hostlog
from orchestrator.protocol import pod
from orchestrator.protocol.channel import Decoder, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from orchestrator.host.pod.settings import Settings
    from orchestrator.protocol.reports import Task


_EPOCH = 1
_LOG_BYTES = 1 << 16
_STREAMS = {b"o": 1, b"e": 2}


class ShimLink:
    """The connection to the shim of one generation."""

    def __init__(self, directory: str, generation: int) -> None:
        self.directory = directory
        self._generation = generation
        self.sock: socket.socket | None = None
        try:
            self.sock = record.connect(directory)
            self.sock.setblocking(False)
        except OSError:
            pass  # a task that cannot be executed ends at once: its exit record says why
        self._decoder = Decoder()
        self._ids = 0
        self._log_at = 0
        self.task: Task | None = None
        """The last report."""
        self.stacks: str | None = None
        self.refused: str | None = None
        """Why the shim refused an order."""

    def order(self, verb: str, **fields: Any) -> None:
        """Send an order. A shim that is gone needs none."""
        self._ids += 1
        message = {"order": verb, "id": self._ids, "epoch": _EPOCH, "generation": self._generation, **fields}
        if self.sock is not None:
            try:
                self.sock.sendall(encode(message))
            except OSError:
                self._gone()

    def hear(self) -> None:
        """Read what the shim has sent."""
        if self.sock is None:
            return
        try:
            data = self.sock.recv(1 << 16)
            frames = [message for message, _ in self._decoder.feed(data)]
        except BlockingIOError:
            return
        except (OSError, FrameError):
            data, frames = b"", []
        for message in frames:
            if isinstance(message.get("report"), dict):
                self.task = message["report"]
            elif "error" in message:
                self.refused = str(message["error"].get("message"))
            elif "stacks" in (message.get("ok") or {}):
                self.stacks = str(message["ok"]["stacks"])
        if not data:
            self._gone()

    def ended(self) -> Task | None:
        """Return the last TASK once the task has ended; None while it runs."""
        task = record.read_exit(self.directory)
        return task if task is not None or self.sock is not None else record.recover(self.directory)

    def relay(self) -> None:
        """Copy new lines of the task's log to our own output, which `kubectl logs` shows."""
        while True:
            start, data, _ = hostlog.read(self.directory, self._log_at, _LOG_BYTES)
            if not data:
                return
            self._log_at = start + len(data)
            for line in data.splitlines():
                _, stream, text = [*line.split(b" ", 2), b"", b""][:3]
                os.write(_STREAMS.get(stream, 1), text + b"\n")

    def _gone(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def start(settings: Settings, generation: int, code: str, env: dict[str, str], *, scratch: bool) -> ShimLink:
    """Start the shim with its task, and connect to it.

    Raises:
        Unfit: the shim did not start; the sentence is its own.
    """
    document, host_dir = settings.document, document_host_dir(settings)
    directory = hostdir.generation_dir(host_dir, settings.run, settings.task, generation)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    bundle = os.path.abspath(sys.argv[0])
    wish = {
        "run": settings.run,
        "epoch": _EPOCH,
        "generation": generation,
        "task": settings.task,
        "python": document["python"],
        "script": document["script"],
        "args": document.get("args", []),
        "env": env,
        "code": code,
        "ports": [settings.port(generation)] if settings.own["wiring"] else [],
        "hold": bool(document.get("runtime", True)),
        "log_max_bytes": 64 << 20,
        "scratch": scratch,
        "host_dir": host_dir,
        "bundle": bundle,
        "cgroup": False,  # the container is one
    }
    durable.write_json(os.path.join(directory, "start.json"), wish)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "utf8", bundle, "shim", directory],
        input=json.dumps(settings.secrets).encode() + b"\n",
        stdout=subprocess.PIPE,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": {"message": f"the shim ended with {done.returncode} and said nothing"}}
    if "error" in answer:
        raise Unfit(f"{settings.task} cannot be started: {answer['error']['message']}")
    return ShimLink(directory, generation)


def document_host_dir(settings: Settings) -> str:
    """Return the host directory, which has the working directory, the log and the exit record."""
    return str(settings.document.get("host_dir") or pod.HOST_DIR)


def place(host_dir: str, run: str, in_image: str | None, archive: str = pod.CODE) -> str:
    """Put the code where a shim looks for it, and return the tree's name.

    Raises:
        Unfit: there is no such archive or directory, or a file of it would leave its place.
    """
    return _linked(host_dir, run, in_image) if in_image else _unpacked(host_dir, run, archive)


def _linked(host_dir: str, run: str, directory: str) -> str:
    if not os.path.isdir(directory):
        raise Unfit(f"the image has no directory {directory}: check --code, and the image")
    digest = sha256(directory.encode()).hexdigest()
    tree = codestore.tree_dir(host_dir, run, digest)
    os.makedirs(os.path.dirname(tree), exist_ok=True)
    if not os.path.islink(tree):
        os.symlink(directory, tree)
    return digest


def _unpacked(host_dir: str, run: str, archive: str) -> str:
    import zipfile

    try:
        with zipfile.ZipFile(archive) as packed:
            entries = [(info, packed.read(info)) for info in packed.infolist()]
    except (OSError, zipfile.BadZipFile) as e:
        raise Unfit(f"{archive} cannot be read: {e}; create the ConfigMap again") from e
    try:
        files = codestore.check(
            [
                (info.filename, sha256(data).hexdigest(), info.external_attr >> 16, len(data))
                for info, data in entries
            ]
        )
    except HostFault as e:
        raise Unfit(f"{archive}: {e.message}") from e
    digest = digest_of(files)
    tree = codestore.tree_dir(host_dir, run, digest)
    if os.path.isdir(tree):
        return digest
    blobs = os.path.join(host_dir, "blobs")
    os.makedirs(blobs, mode=0o700, exist_ok=True)
    for (_, content, _, _), (_, data) in zip(files, entries, strict=True):
        durable.write(os.path.join(blobs, content), data, durable=False)
    codestore.build(host_dir, run, files)
    return digest

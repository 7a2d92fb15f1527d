"""Probes a host with the run's own Python: what is installed there, and whether the run can work.

`python -I <bundle> probe` reads a request as JSON from stdin and prints the facts as one JSON object. TensorFlow is
not imported; its version is read from its metadata, within milliseconds.
"""

from __future__ import annotations

import json
import os
import sys

_PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-intel"),
    "keras": ("keras",),
    "tf_keras": ("tf-keras", "tf_keras"),
    "numpy": ("numpy",),
}

DIRECTORY_S = 20.0
"""After this, a directory that has not answered counts as hanging."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.protocol.orders import Facts, OwnName


def main(argv: list[str]) -> int:
    """Read the request, print the facts, and exit."""
    del argv
    wish = json.loads(sys.stdin.read() or "{}")
    checkpoint_dir = wish.get("checkpoint_dir")
    why, share = (
        (None, None)
        if checkpoint_dir is None
        else within(DIRECTORY_S, lambda: _directory(checkpoint_dir, wish.get("run")))
    )
    from orchestrator.daemon.agent import gpus

    uuids = gpus.present()
    facts: Facts = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {name: _version(names) for name, names in _PACKAGES.items()},
        "checkpoint_writable": checkpoint_dir is None or why is None,
        "checkpoint_why": why,
        "checkpoint_share": share,
        "gpus": uuids,
        "gpus_in_use": gpus.in_use(uuids, wish.get("run")) if uuids else [],
        "own_name": own_name(os.uname().nodename),
        "disk_free_bytes": _free_bytes(wish.get("host_dir") or "."),
    }
    print(json.dumps(facts), flush=True)
    # An ordinary exit would wait for a thread that hangs in a directory.
    os._exit(0)


def _directory(directory: str, run: str | None) -> tuple[str | None, str | None]:
    """Return why the directory cannot be written; or None, and its token for the run."""
    from orchestrator.adapters.checkpoints import share

    why = why_not_writable(directory)
    if why is not None or run is None:
        return why, None
    try:
        return None, share.token(directory, run)
    except OSError as e:
        return f"{e.strerror}: {e.filename or directory}", None


def within(
    limit_s: float, look: Callable[[], tuple[str | None, str | None]]
) -> tuple[str | None, str | None]:
    """Return what `look` returns, or that the directory does not answer. A thread that hangs in it is abandoned."""
    import threading

    found: list[tuple[str | None, str | None]] = []
    thread = threading.Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else (f"it has not answered for {limit_s:.0f} s", None)


def why_not_writable(directory: str) -> str | None:
    """Try what a checkpoint needs: make, write, sync, rename, remove. Return why it fails; None if it works."""
    name = os.path.join(directory, f".orch-probe-{os.uname().nodename}-{os.getpid()}")
    try:
        os.makedirs(directory, exist_ok=True)
        with open(name, "wb") as file:
            file.write(b"orch")
            file.flush()
            os.fsync(file.fileno())
        os.rename(name, name + ".renamed")
        os.unlink(name + ".renamed")
    except OSError as e:
        return f"{e.strerror}: {e.filename or directory}"
    return None


def own_name(name: str) -> OwnName:
    """Return where a library listens that resolves the host's own name, as gloo does: the first address that binds."""
    import socket

    found: OwnName = {"name": name, "address": None, "why": None}
    try:
        addresses = socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)
    except OSError as e:
        return {**found, "why": e.strerror or str(e)}
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as listener:
                listener.bind(address)
        except OSError as e:
            found["why"] = f"it resolves to {address[0]}: {e.strerror}"
        else:
            return {"name": name, "address": str(address[0]), "why": None}
    return found


def _version(names: tuple[str, ...]) -> str | None:
    from importlib import metadata

    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _free_bytes(directory: str) -> int | None:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize

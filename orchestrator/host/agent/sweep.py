"""Cleans up on a host: kills the processes of a run that should be gone, and removes unused code.

It runs in a fork of the agent, since it waits for processes to die and for disks.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import durable, hostdir, process
from orchestrator.checkpoints import claims
from orchestrator.host.shim import record as shim_record
from orchestrator.host.shim import sweep as shim_sweep
from orchestrator.host.system import cgroup, codestore
from orchestrator.host.system.patience import within

BUNDLE_UNUSED_S = 30 * 86400.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.orders.tasks import Swept
    from orchestrator.protocol.reports import SweptBy


RELEASE_S = 5.0
"""How long a checkpoint directory may take to be released. One that hangs counts as free after a while."""

PORTS_S = 1.0
"""How long a sweep waits for ports. A shim that is ordered to stop holds its port until it has read the order."""

_AGAIN_S = 0.02


def sweep(
    host_dir: str,
    run: str,
    generation_max: int,
    ports: list[int],
    *,
    release: str | None = None,
    ends: bool = False,
) -> Swept:
    """Kill all processes of the run up to that generation. Return those that are left, and the ports still in use.

    Where none is left, the run gives up its claim on the checkpoint directory `release`; if it `ends`, nobody drives it
    any more, before anybody is told that it has ended.
    """
    groups, known = [], []
    by: SweptBy = "cgroup" if cgroup.usable() else "marker"
    for task, generation, directory in hostdir.generations(host_dir, run):
        if generation > generation_max:
            continue
        # In this order: a shim that records itself in between is alive.
        if not shim_record.has_begun(directory) or shim_record.shim_alive(directory):
            shim_record.mark(directory, shim_record.SWEPT)
        shim = durable.read_object(directory, "shim.json") or {}
        group = cgroup.find(cgroup.name_of(host_dir, run, task, generation), shim.get("cgroup"))
        if group is not None:
            groups.append(group)
        if shim.get("task"):
            known.append(process.Identity.from_json(shim["task"]))
            if not shim.get("cgroup"):
                by = "marker"  # that task had no control group, even if later ones have
    left = shim_sweep.sweep(host_dir, run, range(generation_max + 1), groups=groups, known=known)
    if not left:
        import contextlib

        with contextlib.suppress(OSError):  # a claim that cannot be released counts as old after a while
            if ends:
                claims.release(hostdir.run_dir(host_dir, run))
            if release is not None:
                within(RELEASE_S, lambda: claims.release_stamp(release, run, host_dir), None)
    return {"left": left, "ports_busy": _busy(ports), "by": by}


def tidy(host_dir: str, run: str, digest: str) -> None:
    """Remove, after a push, the run's trees that no living task uses, and the oldest ended runs of its name.

    Raises OSError where it is not known what a task uses: then nothing of that is removed.
    """
    used = {digest}
    for _, _, directory in hostdir.generations(host_dir, run):
        if shim_record.shim_alive(directory):
            used.add(str((durable.known_object(directory, "start.json") or {}).get("code")))
    codestore.keep_only(host_dir, run, used)
    for old in codestore.oldest_runs(host_dir, run):
        if not _lives(host_dir, old):
            codestore.forget(host_dir, old)
    codestore.remove_unused_blobs(host_dir)
    _remove_old_bundles(host_dir)


def _remove_old_bundles(host_dir: str) -> None:
    """Remove bundles that are unused for long. A living shim still imports from its own; agents touch theirs."""
    used = set()
    for run in os.listdir(os.path.join(host_dir, "runs")):
        if not run.startswith("."):
            for _, _, directory in hostdir.generations(host_dir, run):
                if shim_record.shim_alive(directory):
                    used.add((durable.known_object(directory, "start.json") or {}).get("bundle"))
    directory = os.path.join(host_dir, "bundle")
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        try:
            if path not in used and time.time() - os.stat(path).st_mtime > BUNDLE_UNUSED_S:
                os.unlink(path)
        except FileNotFoundError:
            continue


def _lives(host_dir: str, run: str) -> bool:
    """Return whether a task of the run lives, or has ended without an exit record."""
    return any(
        not os.path.exists(os.path.join(directory, "exit.json"))
        for _, _, directory in hostdir.generations(host_dir, run)
    )


def _busy(ports: list[int]) -> list[int]:
    """Return the ports, sorted, that are still in use after a short wait."""
    give_up_at = time.monotonic() + PORTS_S
    while True:
        busy = [port for port in sorted(set(ports)) if _taken(port)]
        if not busy or time.monotonic() >= give_up_at:
            return busy
        time.sleep(_AGAIN_S)


def _taken(port: int) -> bool:
    """Return whether a socket listens on a port. Lingering connections do not count: TensorFlow can bind anyway."""
    import socket

    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as e:
                import errno

                if e.errno == errno.EADDRINUSE:
                    return True
    return False

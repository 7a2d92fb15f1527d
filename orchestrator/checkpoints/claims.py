"""Claims: which coordinator drives a run on this host, and which run saves into a checkpoint directory.

    runs/<run_id>/owner.json          on a host, in the directory of each run
    <checkpoint dir>/.orch/owner.json   in a checkpoint directory, of the run that saves into it

In a run's directory, `agent` is the agent process that watches the run for its coordinator, and `looked_at` is when it
last marked that, in seconds since the host's boot. So it is known whether somebody drives the run, without locks,
which not every file system has. `released` means that the run has ended, and its coordinator needs it no more.
For a checkpoint directory, the times of the file and of the newest checkpoint tell how long ago somebody saved there,
by the clock of its file system.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import durable, process
from orchestrator.both.within import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.protocol.orders.driving import Claim, Claimed, Stamp

FILE = "owner.json"

DRIVEN_S = 900.0
"""A coordinator that watched a run this recently still owns it, since it may be restarting or cut off."""

RENEW_EVERY_S = 60.0
"""The minimum interval between renewals, so that a shared directory is not written at every heartbeat."""

_TEXTS = ("id", "head", "user", "run", "name")


def claimed_of(content: Mapping[str, Any] | None) -> Claimed | None:
    """Return the claim in the content of an `owner.json`. None: the file is missing, damaged, or of another kind."""
    if content is None or not all(isinstance(content.get(key), str) for key in _TEXTS):
        return None
    directory, since = content.get("checkpoint_dir"), content.get("since")
    if isinstance(since, bool) or not isinstance(since, int | float):
        return None
    return {
        "id": content["id"],
        "head": content["head"],
        "user": content["user"],
        "run": content["run"],
        "name": content["name"],
        "checkpoint_dir": directory if isinstance(directory, str) else None,
        "since": since,
    }


def _entry(before: Mapping[str, Any] | None, claim: Claim) -> dict[str, Any]:
    """Return the claim as stored, with the time since which this owner has had it, by what was stored before."""
    known = claimed_of(before)
    is_same = known is not None and (known["id"], known["run"]) == (claim["id"], claim["run"])
    return {**claim, "since": known["since"] if known is not None and is_same else time.time()}


# ---------------------------------------------------------------- a run's directory on a host


def write(run_dir: str, claim: Claim) -> None:
    """Write that this agent watches the run for the coordinator in `claim`. OSError: no directory, or a full disk."""
    path = os.path.join(run_dir, FILE)
    durable.write_json(path, {**_entry(durable.read_object(path), claim), **_mark()})


def renew(run_dir: str) -> None:
    """Mark that this agent still watches the run, unless another agent has taken it over. Raises OSError."""
    path = os.path.join(run_dir, FILE)
    content, mark = durable.read_object(path), _mark()
    if content is not None and content.get("agent") == mark["agent"]:
        durable.write_json(path, {**content, **mark}, durable=False)  # after a power cut, nobody watches it


def release(run_dir: str) -> None:
    """Record that nobody drives the run any more. Its last owner stays readable. Raises OSError."""
    path = os.path.join(run_dir, FILE)
    content = durable.read_object(path)
    if content is not None:
        durable.write_json(path, {**content, "agent": None, "released": True})


def read(run_dir: str) -> tuple[Claimed | None, bool, float | None]:
    """Return (the claim, whether an agent watches the run now, seconds since one did; None: nobody drives it)."""
    content = durable.read_object(run_dir, FILE)
    if content is None or content.get("released"):
        return claimed_of(content), False, None
    try:
        agent = process.Identity.from_json(content["agent"])
        looked_at = float(content["looked_at"])
    except (KeyError, TypeError, ValueError):
        return claimed_of(content), False, None
    if process.alive(agent):
        return claimed_of(content), True, 0.0
    # Before a reboot the clock was another one: then it was at least as long ago as the host has been up.
    ago_s = _up_s() - (looked_at if agent.boot_id == process.boot_id() else 0.0)
    return claimed_of(content), False, max(0.0, ago_s)


def _mark() -> dict[str, Any]:
    agent = process.identity(os.getpid())
    return {"agent": agent.to_json() if agent is not None else None, "looked_at": _up_s()}


def _up_s() -> float:
    """Return seconds since the boot, which no change of the wall clock moves."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# ---------------------------------------------------------------- a checkpoint directory


STAMP = f".orch/{FILE}"
"""The claim on a checkpoint directory."""


def stamp(tree: Tree, claim: Claim, host_dir: str) -> None:
    """Record which run saves into the directory, and from which host. Raises OSError."""
    place = {"host": os.uname().nodename, "place": _place(host_dir)}
    tree.write_json(STAMP, {**_entry(tree.read_object(STAMP), claim), **place}, mode=0o666)


def stamped(tree: Tree) -> Stamp | None:
    """Return the directory's owner, and the time since its last sign of life; None if no run saves into it."""
    content = tree.read_object(STAMP)
    claimed = claimed_of(content)
    if content is None or claimed is None:
        return None
    ago_s = max(0.0, _now(tree) - max(tree.stat(STAMP).st_mtime, _newest_save(tree)))
    host = str(content.get("host") or "")
    return {"claim": claimed, "host": host, "ago_s": ago_s, "driven": ago_s < DRIVEN_S}


def touch_stamp(root: str, run: str, host_dir: str) -> None:
    """Mark that the run still saves into the directory, from the host that has stamped it. Raises OSError."""
    with Tree(root) as tree:
        if _is_of(tree, run, host_dir) and _now(tree) - tree.stat(STAMP).st_mtime >= RENEW_EVERY_S:
            tree.touch(STAMP)


def release_stamp(root: str, run: str, host_dir: str) -> None:
    """Remove the claim of a run that has ended, on the host that has stamped the directory: its chief's. OSError."""
    with Tree(root) as tree:
        if _is_of(tree, run, host_dir):
            tree.remove(STAMP)


def _is_of(tree: Tree, run: str, host_dir: str) -> bool:
    content = tree.read_object(STAMP)
    return content is not None and content.get("run") == run and content.get("place") == _place(host_dir)


def _place(host_dir: str) -> list[str]:
    """Return what distinguishes this host, since its boot, from all others that see the same directory."""
    return [process.boot_id(), os.path.realpath(host_dir)]


def _now(tree: Tree) -> float:
    """Return the time by the clock of the file system, which may be another machine's."""
    probe = f"{STAMP}.{os.uname().nodename}.{os.getpid()}.now"
    try:
        tree.remove(probe)
        tree.create(probe, b"")
        try:
            tree.touch(probe)
            return tree.stat(probe).st_mtime
        finally:
            tree.remove(probe)
    except OSError:
        return time.time()


def _newest_save(tree: Tree) -> float:
    """Return when something was last saved: tasks train on, and save, while no coordinator is there."""
    names = [name for name in tree.folders() if name.startswith("gen-") and name[4:].isdigit()]
    if not names:
        return 0.0
    newest = max(names, key=lambda name: int(name[4:]))
    # A save replaces a file in orch/fit-000, and a survivor hands over into a directory below it
    own = [os.path.join(newest, name) for name in tree.folders(newest) if name == "orch"]
    fits = [os.path.join(folder, name) for folder in own for name in tree.folders(folder)]
    saved = [os.path.join(folder, name) for folder in (newest, *fits) for name in tree.names(folder)]
    times = [0.0]
    for path in (newest, *saved):
        try:
            times.append(tree.stat(path).st_mtime)
        except FileNotFoundError:
            continue  # scripts remove old checkpoints
    return max(times)

"""What this host remembers of runs, whoever began them, and its removal: for `orch recover` and `orch gc`.

    runs/<run_id>/record.json   the run as its coordinator saw it when a generation was started or released, or it ended
    runs/<run_id>/watched       locked by every agent that watches the run; its time is the last look of one

What is here needs a disk and answers of shims, so it runs in forks of the agent.
"""

from __future__ import annotations

import os
import time

from orchestrator.adapters import durable
from orchestrator.adapters.host import codestore, hostdir, process
from orchestrator.adapters.host.hostdir import HostFault
from orchestrator.daemon.agent import state as agent_state
from orchestrator.daemon.agent import sweep as agent_sweep
from orchestrator.daemon.shim import record as shim_record
from orchestrator.daemon.shim import sweep as shim_sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.protocol.frames import Left, Task
    from orchestrator.protocol.orders import KnownRun, KnownRuns, KnownTask, Nothing, Record

WATCHED = "watched"

_LOOK_EVERY_S = 60.0
"""Between two marks of the last look: a shared home directory is not written at every heartbeat."""

RECENT_S = 900.0
"""A living run that was watched so lately is somebody's whose coordinator is being restarted, or cut off."""

_RECORDS_BYTES = 1 << 20
"""Of runs of which nothing lives, in one answer: a frame holds 4 MiB, and a host remembers many of them."""

_SHIM_S = 2.0
_END_S = 5.0
_EVERY = 1 << 62


class Watched:
    """Shows to others on this host that an agent watches a run. The kernel takes it back when the agent ends."""

    def __init__(self, host_dir: str) -> None:
        self._host_dir = host_dir
        self._held: dict[str, tuple[int, float]] = {}

    def look(self, runs: Iterable[str]) -> None:
        """Show that these are watched, and no others."""
        now = time.monotonic()
        wanted = set(runs)
        for run in set(self._held) - wanted:
            os.close(self._held.pop(run)[0])
        for run in wanted:
            handle, looked_at = self._held.get(run, (-1, 0.0))
            if handle >= 0 and now - looked_at < _LOOK_EVERY_S:
                continue
            try:
                handle = handle if handle >= 0 else _lock_shared(self._host_dir, run)
                os.utime(handle)
                self._held[run] = (handle, now)
            except OSError:
                continue  # the run has no directory yet, or its disk is full: the next scan tries again


def _lock_shared(host_dir: str, run: str) -> int:
    import fcntl

    path = os.path.join(hostdir.run_dir(host_dir, run), WATCHED)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def watched(host_dir: str, run: str) -> tuple[bool, float | None]:
    """Return (whether an agent watches it now, seconds since one was seen to; None where none ever was)."""
    import fcntl

    path = os.path.join(hostdir.run_dir(host_dir, run), WATCHED)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False, None
    try:
        ago_s = max(0.0, time.time() - os.fstat(handle).st_mtime)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True, 0.0
    except OSError:
        return False, ago_s  # a file system without locks
    finally:
        os.close(handle)
    return False, ago_s


def keep(host_dir: str, run: str, record: Record) -> None:
    """Write down the run's record. Raises OSError where the disk refuses."""
    durable.write_json(os.path.join(hostdir.run_dir(host_dir, run), hostdir.RECORD), record)


def known(host_dir: str, *, records: bool) -> KnownRuns:
    """Return all that the host remembers, and living processes of runs that it does not remember."""
    processes = _marked(host_dir)
    runs = [run for run in sorted(codestore.run_names(host_dir)) if _can_be_told(run)]
    found = [_known(host_dir, run, processes.pop(run, [])) for run in runs]
    if records:
        _add_records(host_dir, found)
    forgotten = [_forgotten(run, pids) for run, pids in sorted(processes.items()) if _can_be_told(run)]
    return {"runs": [*found, *forgotten]}


def _can_be_told(run: str) -> bool:
    """Return whether the head accepts the name: one strange directory must not hide all runs of the host."""
    import re

    from orchestrator.protocol.limits import CONTROLS

    return hostdir.is_run_id(run) and not re.search(CONTROLS, run)


def _forgotten(run: str, processes: list[int]) -> KnownRun:
    return {
        "run": run,
        "directory": False,
        "epoch": 0,
        "watched": False,
        "watched_ago_s": None,
        "alive": True,
        "processes": processes,
        "bytes": 0,
        "age_s": None,
        "tasks": [],
        "record": None,
    }


def _add_records(host_dir: str, found: list[KnownRun]) -> None:
    """Add the records of all runs that live, and of the newest others as far as there is room."""
    room = _RECORDS_BYTES
    for one in sorted(found, key=lambda one: one["age_s"] or 0.0):
        directory = hostdir.run_dir(host_dir, one["run"])
        try:
            size = os.stat(os.path.join(directory, hostdir.RECORD)).st_size
        except OSError:
            continue
        if one["alive"] or size <= room:
            one["record"] = durable.read_object(directory, hostdir.RECORD)
            room -= 0 if one["alive"] else size


def _known(host_dir: str, run: str, processes: list[int]) -> KnownRun:
    from orchestrator.daemon.shim.report import CUTS, cut

    directory = hostdir.run_dir(host_dir, run)
    tasks = _tasks(host_dir, run)
    lives = bool(processes) or any(task["alive"] for task in tasks)
    if not lives:  # of many such runs one answer tells: how they ended, in a line each
        tasks = [{**cut(task, CUTS), "alive": False} for task in tasks]
    is_watched, ago_s = watched(host_dir, run)
    size, newest = _measure(directory)
    return {
        "run": run,
        "directory": True,
        "epoch": hostdir.epoch(host_dir, run),
        "watched": is_watched,
        "watched_ago_s": ago_s,
        "alive": lives,
        "processes": processes,
        "bytes": size,
        "age_s": max(0.0, time.time() - newest),
        "tasks": tasks,
        "record": None,
    }


def _tasks(host_dir: str, run: str) -> list[KnownTask]:
    """Return the newest generation of each task, and every older one that lives."""
    found: list[KnownTask] = []
    seen = set()
    for task, generation, directory in hostdir.generations(host_dir, run):
        alive = shim_record.shim_alive(directory)
        if task in seen and not alive:
            continue
        seen.add(task)
        told = shim_record.read_exit(directory) or (_report(directory) if alive else None)
        shown = agent_state.of(told, task, generation) or agent_state.unknown(task, generation)
        found.append({**shown, "alive": alive})
    return found


def _report(directory: str) -> Task | None:
    """Return what the shim says when somebody connects; None of one that is frozen."""
    from orchestrator.adapters.channel import Decoder, FrameError

    decoder = Decoder()
    try:
        with shim_record.connect(directory, timeout_s=_SHIM_S) as link:
            while data := link.recv(256 << 10):
                for message, _ in decoder.feed(data):
                    if isinstance(message.get("report"), dict):
                        task: Task = message["report"]
                        return task
    except (OSError, FrameError):
        return None
    return None


def _marked(host_dir: str) -> dict[str, list[int]]:
    """Return the processes of ours on this host by the run that they are marked with."""
    found: dict[str, list[int]] = {}
    for who, run in process.marked_runs(host_dir):
        found.setdefault(run, []).append(who.pid)
    return found


def _measure(directory: str) -> tuple[int, float]:
    """Return (bytes on the disk, time of the newest change)."""
    size, newest = 0, 0.0
    for place, _, names in os.walk(directory):
        for name in [".", *names]:
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            size += found.st_blocks * 512
            if name != WATCHED:
                newest = max(newest, found.st_mtime)
    return size, newest


def remove(host_dir: str, run: str, *, even_driven: bool) -> Nothing:
    """Kill what is left of a run, by marker and recorded identity, and remove what the host has of it.

    HostFault `driven` where an agent watches it, or watched it while it lives until a moment ago; `left` for
    what will not die.
    """
    is_watched, ago_s = watched(host_dir, run)
    lives = any(task["alive"] for task in _tasks(host_dir, run)) or run in _marked(host_dir)
    lately = lives and ago_s is not None and ago_s < RECENT_S
    if (is_watched or lately) and not even_driven:
        when = "now" if is_watched else f"{ago_s:.0f} s ago"
        raise HostFault("driven", f"{run} is driven by a coordinator (its agent was here {when})")
    directories = [directory for _, _, directory in hostdir.generations(host_dir, run)]
    left = agent_sweep.sweep(host_dir, run, _EVERY, [])["left"] + _end_shims(directories)
    if left:
        named = "; ".join(f"pid {one['pid']}: {one['why']}" for one in left)
        raise HostFault("left", f"could not be killed: {named}", "nothing was removed of this run")
    codestore.forget(host_dir, run)
    codestore.remove_unused_blobs(host_dir)
    return {}


def _end_shims(directories: list[str]) -> list[Left]:
    """Wait for the shims, which end when their record is written; kill those that do not. Returns what is left."""
    give_up_at = time.monotonic() + _END_S
    while True:
        living = [who for who in map(shim_record.shim_identity, directories) if who and process.alive(who)]
        if not living:
            return []
        if time.monotonic() >= give_up_at:
            break
        time.sleep(0.02)
    shim_sweep.kill(living)
    time.sleep(0.2)
    return shim_sweep.name_left(living)

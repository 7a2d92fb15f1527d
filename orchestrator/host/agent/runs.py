"""What this host remembers of runs, whoever began them, and its removal: for `orch recover` and `orch gc`.

    runs/<run_id>/record.json   the run as its coordinator saw it when a generation was started or released, or it ended
    runs/<run_id>/owner.json    who drives it (`checkpoints/claims.py`)

What is here needs a disk and answers of shims, so it runs in forks of the agent.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import durable, hostdir, process
from orchestrator.both.hostdir import HostFault
from orchestrator.both.within import Tree
from orchestrator.checkpoints import claims
from orchestrator.host.agent import state as agent_state
from orchestrator.host.agent import sweep as agent_sweep
from orchestrator.host.shim import record as shim_record
from orchestrator.host.shim import sweep as shim_sweep
from orchestrator.host.system import codestore, unkillable
from orchestrator.host.system.patience import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.protocol.orders.base import Nothing
    from orchestrator.protocol.orders.driving import Claim, KnownRun, KnownRuns, KnownTask, Record, Stamp
    from orchestrator.protocol.reports import Left, Task

_RECORDS_BYTES = 1 << 20
"""The most bytes of ended runs in one answer: a frame holds 4 MiB, and a host remembers many runs."""

DIRECTORY_S = 10.0
"""After this, a checkpoint directory that has not answered counts as hanging."""

_SHIM_S = 2.0
_END_S = 5.0
_EVERY = 1 << 62


class Watched:
    """Shows to others on this host which runs this agent watches, and for whom."""

    def __init__(self, host_dir: str) -> None:
        self._host_dir = host_dir
        self._looked_at: dict[str, float] = {}

    def rewrite(self, run: str) -> None:
        """Write the claim of a run anew at the next `renew`: another coordinator may have ordered to watch it."""
        self._looked_at.pop(run, None)

    def renew(self, watched: Mapping[str, Claim]) -> None:
        """Mark the claims of these runs, so that others see that this agent watches them."""
        now = time.monotonic()
        for run, claim in watched.items():
            looked_at = self._looked_at.get(run)
            if looked_at is not None and now - looked_at < claims.RENEW_EVERY_S:
                continue
            directory = hostdir.run_dir(self._host_dir, run)
            try:
                if looked_at is None:
                    claims.write(directory, claim)
                else:
                    claims.renew(directory)
            except OSError:
                continue  # the run has no directory yet, or its disk is full: the next scan tries again
            self._looked_at[run] = now

    def release(self, run: str) -> None:
        """Show that nobody drives the run any more."""
        if self._looked_at.pop(run, None) is not None:
            try:
                claims.release(hostdir.run_dir(self._host_dir, run))
            except OSError:
                return  # a full disk: it counts as driven until the claim is old


def keep(host_dir: str, run: str, record: Record) -> None:
    """Write down the run's record. Raises OSError if the disk refuses."""
    durable.write_json(os.path.join(hostdir.run_dir(host_dir, run), hostdir.RECORD), record)


def known(host_dir: str, *, records: bool, brief: bool = False, directory: str | None = None) -> KnownRuns:
    """Return the runs that the host remembers, those that only have living processes, and whose a directory is.

    Args:
        records: add the runs' records.
        brief: leave out sizes, and the tasks of runs without a living process.
        directory: a checkpoint directory.
    """
    processes = _marked(host_dir)
    runs = [run for run in sorted(codestore.run_names(host_dir)) if _has_valid_name(run)]
    remembered = [_known(host_dir, run, processes.pop(run, []), brief=brief) for run in runs]
    if records:
        _add_records(host_dir, remembered)
    forgotten = [_forgotten(run, pids) for run, pids in sorted(processes.items()) if _has_valid_name(run)]
    return {
        "runs": [*remembered, *forgotten],
        "checkpoint": _stamp(directory) if directory is not None else None,
    }


def _stamp(directory: str) -> Stamp | None:
    """Return whose the directory is. None also where it does not answer: the probe says what is wrong with it."""

    def stamped() -> Stamp | None:
        with Tree(directory) as tree:
            return claims.stamped(tree)

    try:
        return within(DIRECTORY_S, stamped, None)
    except OSError:
        return None


def _has_valid_name(run: str) -> bool:
    """Return whether the head accepts the name: one strange directory must not hide all runs of the host."""
    import re

    from orchestrator.protocol.limits import CONTROLS

    return hostdir.is_run_id(run) and not re.search(CONTROLS, run)


def _forgotten(run: str, processes: list[int]) -> KnownRun:
    return {
        "run": run,
        "directory": False,
        "epoch": 0,
        "claim": None,
        "watched": False,
        "watched_ago_s": None,
        "driven": False,
        "alive": True,
        "processes": processes,
        "bytes": 0,
        "age_s": None,
        "tasks": [],
        "record": None,
    }


def _add_records(host_dir: str, runs: list[KnownRun]) -> None:
    """Add the records of all runs that live, and of the newest others as far as there is room."""
    room = _RECORDS_BYTES
    for entry in sorted(runs, key=lambda entry: entry["age_s"] or 0.0):
        directory = hostdir.run_dir(host_dir, entry["run"])
        try:
            size = os.stat(os.path.join(directory, hostdir.RECORD)).st_size
        except OSError:
            continue
        if entry["alive"] or size <= room:
            entry["record"] = durable.read_object(directory, hostdir.RECORD)
            room -= 0 if entry["alive"] else size


def _known(host_dir: str, run: str, processes: list[int], *, brief: bool) -> KnownRun:
    from orchestrator.host.shim.report import CUTS, cut

    directory = hostdir.run_dir(host_dir, run)
    lives = bool(processes) or _lives(host_dir, run)
    tasks = [] if brief and not lives else _tasks(host_dir, run)
    if not lives:  # one answer lists many ended runs, so each of them is cut to a line on how it ended
        tasks = [{**cut(task, CUTS), "alive": False} for task in tasks]
    claim, is_watched, ago_s = claims.read(directory)
    size, newest = (0, None) if brief else _measure(directory)
    return {
        **_forgotten(run, processes),
        "directory": True,
        "epoch": hostdir.epoch(host_dir, run),
        "claim": claim,
        "watched": is_watched,
        "watched_ago_s": ago_s,
        "driven": ago_s is not None and ago_s < claims.DRIVEN_S,
        "alive": lives,
        "bytes": size,
        "age_s": max(0.0, time.time() - newest) if newest is not None else None,
        "tasks": tasks,
    }


def _lives(host_dir: str, run: str) -> bool:
    return any(shim_record.shim_alive(directory) for _, _, directory in hostdir.generations(host_dir, run))


def _tasks(host_dir: str, run: str) -> list[KnownTask]:
    """Return each task's generations as reports show them; of an ended task, back to the last that was released."""
    tasks: dict[tuple[str, int], KnownTask] = {}
    known: dict[tuple[str, int], agent_state.Known] = {}
    seen = set()
    for task, generation, directory in hostdir.generations(host_dir, run):
        alive = shim_record.shim_alive(directory)
        if task in seen and not alive:
            continue
        report = shim_record.read_exit(directory) or (_report(directory) if alive else None)
        shown = agent_state.own_report(report, task, generation) or agent_state.unknown(task, generation)
        known[task, generation] = agent_state.known(shown, ended=not alive)
        tasks[task, generation] = {**shown, "alive": alive}
        if known[task, generation].released:
            seen.add(task)
    return [tasks[key] for key in agent_state.shown(known)]


def _report(directory: str) -> Task | None:
    """Return what the shim says when somebody connects; None of one that is frozen."""
    from orchestrator.protocol.channel import Decoder, FrameError

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
    pids: dict[str, list[int]] = {}
    for mark in process.marks(host_dir):
        pids.setdefault(mark.run, []).append(mark.who.pid)
    return pids


def _measure(directory: str) -> tuple[int, float]:
    """Return (bytes on the disk, time of the newest change)."""
    size, newest = 0, 0.0
    for place, _, names in os.walk(directory):
        for name in [".", *names]:
            try:
                info = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            size += info.st_blocks * 512
            if name != claims.FILE:
                newest = max(newest, info.st_mtime)
    return size, newest


def remove(host_dir: str, run: str, *, owner: str, even_alive: bool) -> Nothing:
    """Kill a run's processes, by marker and recorded identity, and remove its files from this host.

    Args:
        owner: who asks.
        even_alive: a person has named this run, so it is removed in any case.

    Raises:
        HostFault: `driven` where the run is another owner's and lives or is driven, or where an agent watches it now;
            `left` where processes could not be killed.
    """
    claim, is_watched, ago_s = claims.read(hostdir.run_dir(host_dir, run))
    is_own = claim is not None and claim["id"] == owner
    lives = _lives(host_dir, run) or run in _marked(host_dir)
    is_driven = ago_s is not None and ago_s < claims.DRIVEN_S
    if not even_alive and (is_watched or (not is_own and (lives or is_driven))):
        whose = f"{claim['user']}@{claim['head']}" if claim is not None else "an unknown owner"
        what = "is driven now" if is_watched else "lives" if lives else f"was driven {ago_s or 0:.0f} s ago"
        raise HostFault("driven", f"{run} of {whose} {what}")
    directories = [directory for _, _, directory in hostdir.generations(host_dir, run)]
    left = agent_sweep.sweep(host_dir, run, _EVERY, [])["left"] + _end_shims(host_dir, run, directories)
    if left:
        named = "; ".join(f"pid {process['pid']}: {process['why']}" for process in left)
        raise HostFault("left", f"could not be killed: {named}", "nothing was removed of this run")
    codestore.forget(host_dir, run)
    codestore.remove_unused_blobs(host_dir)
    return {}


def _end_shims(host_dir: str, run: str, directories: list[str]) -> list[Left]:
    """Wait for the shims, which end when their record is written; kill those that do not. Return what is left."""
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
    unkillable.remember(host_dir, run, living)
    return shim_sweep.name_left(living)

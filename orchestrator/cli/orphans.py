"""Orphans: leftovers of unknown runs on hosts and in the state directory. For `orch gc`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.cli.session import Session
from orchestrator.core.errors import JournalError, Refused
from orchestrator.core.plan import HostPlan, Plan
from orchestrator.core.state.owner import Owner
from orchestrator.core.words import counted, size
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.records.checkpoint_store import Holding, holdings, root_of
from orchestrator.head.records.runlogs import RunLogs

if TYPE_CHECKING:
    from orchestrator.core.state.run import Run
    from orchestrator.head.journal.states import Contents, Unreadable

HERE = "(this machine)"
"""Shown as the host of items in our own state directory."""

KEPT = "kept"
"""The state of items that are removed only if the user names them."""

_NEW_S = 60.0

_GOING = ".removed"
"""The suffix of a directory whose removal has begun. No store has such a name."""


@dataclass(frozen=True, slots=True)
class Item:
    """What a run left in one place."""

    run: str
    host: str
    what: str
    state: str
    """`dead`; `alive`: it has processes, and no coordinator watches them; `driven`: a coordinator drives it or did so
    less than 15 minutes ago; `kept`: checkpoints from which the next `orch up` resumes."""
    bytes: int = 0
    age_s: float | None = None
    epoch: int = 0
    pids: tuple[int, ...] = ()
    owner: Owner | None = None
    """Who began or took over the run; None if unknown."""
    plan: HostPlan | None = None
    path: str = ""
    """The path, if the orphan is in our own state directory."""

    def to_json(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return {
            **{key: getattr(self, key) for key in ("run", "host", "what", "state", "bytes")},
            "age_s": None if self.age_s is None else round(self.age_s, 1),
            "pids": list(self.pids),
            "owner": str(self.owner) if self.owner is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Known:
    """The runs that the journal knows, and the ended ones that have left it. `there`: whether a journal exists."""

    contents: Contents
    archived: frozenset[str]
    there: bool

    def owns(self, item: Item) -> bool:
        """Return whether this head node's coordinator began the run, although it no longer knows it."""
        return self.there and item.owner is not None and item.owner.id == self.contents.owner_id

    @property
    def run_ids(self) -> frozenset[str]:
        """Return the ids of all runs, ended or not. The hosts keep the newest ended ones for their logs."""
        kept = {entry.run.run_id for entry in self.contents.kept}
        return self.archived | kept | {entry.run_id for entry in self.contents.unreadable}

    def is_orphan(self, run_id: str, even_alive: Collection[str]) -> bool:
        """Return whether hosts may remove a run: nobody knows it, or it cannot be read and a person has named it."""
        is_given_up = run_id in even_alive and run_id in {each.run_id for each in self.contents.unreadable}
        return is_given_up or run_id not in self.run_ids

    @property
    def hosts(self) -> list[HostPlan]:
        """Return the hosts of all runs: each once, as the newest run names it. An older one's Python may be gone."""
        hosts = [host for entry in self.contents.kept for host in entry.run.plan.hosts]
        return list(
            {replace(host.connection, python="", activate=None, spec=""): host for host in hosts}.values()
        )

    def may_be_of(self, root: str) -> list[Unreadable]:
        """Return the runs that cannot be read to which a checkpoint store may belong."""
        name = os.path.basename(root).rpartition("-")[0]
        return [entry for entry in self.contents.unreadable if entry.name == name]


def known(session: Session) -> Known:
    """Read the journal. Raises Refused if it cannot be read: its runs would look like orphans."""
    from orchestrator.head.journal import archive
    from orchestrator.head.journal.reading import read_runs

    path = session.paths.journal
    try:
        return Known(read_runs(path), frozenset(archive.run_ids(session.paths)), os.path.exists(path))
    except JournalError as e:
        raise Refused(f"cannot tell orphans from known runs: {e.message}", hint=e.hint) from e


def find_here(session: Session, plans: Iterable[Plan]) -> list[Item]:
    """Return the state directory's leftovers of unknown runs, and the checkpoints of ended runs.

    The journal is read last: a run that started while the hosts were queried is no orphan.

    Args:
        session: Its state directory is searched.
        plans: Of the specs that the user named. Their checkpoints are kept like those of a known run.
    """
    state_dir = session.paths.state_dir
    logs, stores, snapshots = RunLogs(state_dir).runs(), holdings(state_dir), Snapshots(state_dir)
    code = [
        here(session, run_id, "code", "dead", snapshots.record_of(run_id)) for run_id in snapshots.names()
    ]
    ours = known(session)
    if not ours.there:
        return []
    items = [
        here(session, run_id, "logs", "dead", session.paths.run_dir(run_id))
        for run_id in logs
        if run_id not in ours.run_ids
    ]
    # A run keeps its code a moment before the journal has it
    items += [item for item in code if item.run not in ours.run_ids and (item.age_s or 0.0) > _NEW_S]
    runs = _runs_by_store(state_dir, ours)
    named = {_root(state_dir, plan) for plan in plans}
    for store in stores:
        run, unread = runs.get(store.root), ours.may_be_of(store.root)
        if any(entry.ended is None for entry in unread):
            continue
        if run is None or run.phase.is_terminal:
            is_named = bool(unread) or store.root in named or store.run in ours.run_ids
            items.append(_store_item(session, store, run, is_named=is_named))
    return items


def code_line(session: Session, *, tidy: bool) -> str:
    """Return how much the code of runs takes on this machine; empty for nothing.

    With `tidy`, remove what no run needs.
    """
    ours, snapshots = known(session), Snapshots(session.paths.state_dir)
    if tidy and ours.there:
        ended = {entry.run.run_id for entry in ours.contents.kept if entry.run.phase.is_terminal}
        snapshots.tidy(set(snapshots.names()) - ended)
    names = snapshots.names()
    there = (
        f"The code of {counted(len(names), 'run')} takes {size(snapshots.bytes())} in {snapshots.directory}"
    )
    return f"{there}; `orch rm` removes it with its run" if names else ""


def look_in_jobs(session: Session) -> list[Item]:
    """Return the secrets that killed Slurm jobs have left."""
    if not os.path.isdir(os.path.join(session.paths.state_dir, "slurm")):
        return []
    from orchestrator.client.on_slurm import ended_with_secrets
    from orchestrator.head.reach.slurm import job

    top = session.paths.state_dir
    return [
        here(session, name, "secrets of a job that has ended", "dead", path)
        for name in ended_with_secrets(session)
        for path in job.secrets_in(job.directory(top, name))
    ]


def _runs_by_store(state_dir: str, ours: Known) -> dict[str, Run]:
    """Return the run of each checkpoint store: the active one, or else the newest."""
    runs: dict[str, Run] = {}
    for entry in sorted(ours.contents.kept, key=lambda entry: not entry.run.phase.is_terminal):
        root = _root(state_dir, entry.run.plan)
        if root is not None:
            runs[root] = entry.run
    return runs


def _root(state_dir: str, plan: Plan) -> str | None:
    if plan.checkpoint is None or plan.checkpoint.shared:
        return None
    return root_of(state_dir, plan.name, plan.checkpoint.dir)


def _store_item(session: Session, store: Holding, run: Run | None, *, is_named: bool) -> Item:
    """Return the item of a store. The next `orch up` of an ended run resumes from it, so it is kept by default."""
    name = os.path.basename(store.root)
    if store.count == 0:
        what, state = "an incomplete copy of a checkpoint", "dead"
    else:
        what = counted(store.count, "checkpoint")
        what += f" up to step {store.global_step}" if store.global_step is not None else ""
        state = KEPT if run is not None or is_named else "dead"
    if run is not None:
        what += f" of a {run.phase.value} run"
    return here(session, run.run_id if run is not None else store.run or name, what, state, store.root)


def here(session: Session, run_id: str, what: str, state: str, path: str) -> Item:
    """Return the item of a path on this machine, with its size and age."""
    bytes_there, newest = _measure(path)
    return Item(run_id, HERE, what, state, bytes_there, max(0.0, session.time() - newest), path=path)


def _measure(directory: str) -> tuple[int, float]:
    bytes_there, newest = 0, os.lstat(directory).st_mtime
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            bytes_there, newest = bytes_there + status.st_blocks * 512, max(newest, status.st_mtime)
    return bytes_there, newest


def remove_here(session: Session, item: Item) -> str | None:
    """Remove an item of the state directory. Return why that failed; None if it did not."""
    state_dir = session.paths.state_dir
    run = _runs_by_store(state_dir, known(session)).get(item.path)
    if run is not None and not run.phase.is_terminal:
        return f"{run.run_id} has started meanwhile and uses these checkpoints"
    going = f"{item.path}.{os.getpid()}{_GOING}"
    try:
        os.rename(item.path, going)  # atomic: a run that starts now finds all of it or nothing
        if os.path.isdir(going):
            shutil.rmtree(going)
        else:
            os.unlink(going)
    except OSError as e:
        return f"{e.filename}: {e.strerror}"
    return None

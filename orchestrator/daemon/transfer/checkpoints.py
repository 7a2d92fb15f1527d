"""Transfers of checkpoints for runs whose hosts share no directory.

The head pulls checkpoints while the run trains, and pushes them to the hosts that need them. Only a checkpoint that the
head holds counts as the run's: one that only the chief's host has would be lost with that host. A pull uses at most
half of the connection, one chunk at a time, and the agent's reports take precedence over its chunks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from orchestrator.adapters.checkpoints import safe
from orchestrator.adapters.head import disk
from orchestrator.adapters.head.checkpoint_store import CheckpointStore
from orchestrator.core import launch
from orchestrator.core.actions import SeedCheckpoint
from orchestrator.core.model import Problem, Run, Seed
from orchestrator.core.words import size
from orchestrator.daemon.connection import orders, wire
from orchestrator.daemon.connection.conversation import Answer, Asks, LinkDown, OrderRefused
from orchestrator.protocol.orders import Manifest
from orchestrator.protocol.table import CHUNK, RECEIVE, SNAPSHOT, Order

PULL_BYTES = 512 << 10
"""The size of one message, in either direction."""

DISK_TIMEOUT_S = 630.0
"""The timeout of orders that read or write a whole checkpoint on a host. It is above the agent's own deadline."""

ASK_TIMEOUT_S = 60.0
TELL_EVERY_S = 5.0
LINK_RETRY_S = 0.5
TRIES_MAX = 3

NOBODY = ""
"""Stands for the host of the newest generation where no host's own checkpoints are to be used."""

_NEVER = 1 << 62
"""A number above every generation."""

A = TypeVar("A")


class Abandoned(Exception):
    """The transfer was given up, because a newer generation is being seeded or the coordinator ends."""


class CheckpointTransfer:
    """Transfers the checkpoints of all runs. Its methods block, and are called from separate threads."""

    def __init__(self, state_dir: str, link: Callable[[Run, str], Asks | None]) -> None:
        self._state_dir = state_dir
        self._link = link
        self._seeding: dict[str, int] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Make all transfers give up."""
        self._closed.set()

    def abandon(self, run_id: str) -> None:
        """Give up the transfers of a run that has ended, so that they do not disturb the next run in that directory."""
        with self._guard:
            self._seeding[run_id] = _NEVER

    def store(self, run: Run) -> CheckpointStore:
        """Return the head's copies for that run's name and directory."""
        assert run.plan.checkpoint is not None
        return CheckpointStore(
            self._state_dir, run.plan.name, run.plan.checkpoint.dir, run.plan.checkpoint.keep
        )

    # -- a new generation ----------------------------------------------------------------------------------

    def seed(self, run: Run, action: SeedCheckpoint, tell: Callable[[str], None]) -> Seed:
        """Seed the chief's host, and push the same checkpoint to every host that needs it.

        Args:
            run: the run.
            action: which generation begins, on which host.
            tell: is called with a sentence about the progress every few seconds.

        Raises:
            LinkDown: a host was not connected for longer than a start may take.
            OrderRefused: a host refused an order.
            Abandoned: a newer generation is being seeded, or the coordinator ends.
        """
        generation = action.generation
        with self._guard:
            if self._seeding.get(run.run_id, 0) > generation:
                raise Abandoned
            self._seeding[run.run_id] = generation
        with self._lock(run):
            journey = _Journey(self, run, generation, tell)
            try:
                return self._seed(journey, run, action)
            finally:
                with self._guard:
                    if self._seeding.get(run.run_id) == generation:
                        del self._seeding[run.run_id]

    def _seed(self, journey: _Journey, run: Run, action: SeedCheckpoint) -> Seed:
        assert run.plan.checkpoint is not None
        store, generation, host = self.store(run), action.generation, action.host
        if run.from_scratch:
            store.go_back(None)
        newest, before, only = store.newest(), store.place(), None
        if newest is not None:
            journey.push(host, newest, store)
            if before not in (None, host):
                # The other checkpoints on that host may be outdated, and rollbacks were not recorded there.
                only = newest["digest"]
        order = orders.seed(run, action, run.plan.checkpoint, only=only)
        answer = journey.ask(host, order, timeout_s=DISK_TIMEOUT_S).ok
        copy = ""
        torn = bool(answer["rejected"])
        if newest is not None and torn and _is_before(answer["global_step"], newest["global_step"]):
            raise _damaged(store, host, generation, newest)
        if answer["source"] is not None:
            manifest = journey.snapshot(host, generation, None)
            if _is_before(manifest["global_step"], answer["global_step"]):
                raise _damaged(store, host, generation, newest)
            journey.pull(host, manifest, store, pace=0.0)
            for other in launch.hosts_with_scratch(run.placed):
                journey.push(other, manifest, store)
            copy = journey.copy_of(manifest)
        store.settle(host, generation)
        return wire.seeded(answer, generation, copy=copy)

    # -- while it trains -----------------------------------------------------------------------------------

    def bring(self, run: Run, generation: int, path: str) -> None:
        """Pull a checkpoint that reads whole.

        Raises LinkDown, OrderRefused or Abandoned. The next call continues where this one ended.
        """
        host = run.task(run.chief).host
        journey = _Journey(self, run, generation, lambda _: None, patient=False)
        manifest = journey.snapshot(host, generation, path)
        with self._lock(run):
            journey.pull(host, manifest, self.store(run), pace=1.0)

    # -- for journeys --------------------------------------------------------------------------------------

    def link(self, run: Run, host: str) -> Asks:
        """Return the link to a host. Raises LinkDown where there is none."""
        found = self._link(run, host)
        if found is None:
            raise LinkDown(f"{host} is not connected")
        return found

    def check(self, run: Run, generation: int) -> None:
        """Raise Abandoned where a newer generation is being seeded meanwhile."""
        if self._closed.is_set() or self._seeding.get(run.run_id, generation) > generation:
            raise Abandoned

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Abandoned where the coordinator ends."""
        if self._closed.wait(seconds):
            raise Abandoned

    def _lock(self, run: Run) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(self.store(run).root, threading.Lock())


class _Journey:
    """The transfers of one generation."""

    def __init__(
        self,
        checkpoints: CheckpointTransfer,
        run: Run,
        generation: int,
        tell: Callable[[str], None],
        *,
        patient: bool = True,
    ) -> None:
        assert run.plan.checkpoint is not None
        self._checkpoints = checkpoints
        self._run = run
        self._generation = generation
        self._tell = tell
        self._patient = patient
        self._directory = run.plan.checkpoint.dir
        self._told_at = time.monotonic()

    def ask(
        self, host: str, order: Order[A], blob: bytes = b"", *, timeout_s: float = ASK_TIMEOUT_S
    ) -> Answer[A]:
        """Ask a host. If the connection breaks, ask again, for as long as a start may take."""
        give_up_at = time.monotonic() + self._run.plan.timing.start_after_s
        while True:
            self._checkpoints.check(self._run, self._generation)
            try:
                return self._checkpoints.link(self._run, host).ask(order, blob, timeout_s=timeout_s)
            except LinkDown:
                if not self._patient or time.monotonic() > give_up_at:
                    raise
                self._checkpoints.pause(LINK_RETRY_S)

    def snapshot(self, host: str, generation: int, path: str | None) -> Manifest:
        """Make a snapshot of a generation's checkpoint, and return its manifest. Without `path`, take the newest."""
        order = SNAPSHOT(
            {
                **orders.of_run(self._run),
                "dir": self._directory,
                "generation": generation,
                "path": path,
                "python": self._run.plan.host(host).python,
            }
        )
        manifest = self.ask(host, order, timeout_s=DISK_TIMEOUT_S).ok
        try:
            safe.check(manifest)
        except ValueError as e:
            raise OrderRefused(Problem("snapshot", f"{host}: its snapshot cannot be taken: {e}", None)) from e
        return manifest

    def copy_of(self, manifest: Manifest) -> str:
        """Return the path of the snapshot on the hosts."""
        return os.path.join(self._directory, ".orch", "safe", manifest["digest"])

    def pull(self, host: str, manifest: Manifest, store: CheckpointStore, *, pace: float) -> None:
        """Pull the chunks that the head lacks. After each, rest for `pace` times as long as it took."""
        if not store.has(manifest):
            self._check_size(host, manifest)
            store.make_room(manifest)
            done = 0
            for name, whole, _, chunks in manifest["files"]:
                for number, chunk in enumerate(chunks):
                    start = number * manifest["piece_bytes"]
                    length = min(manifest["piece_bytes"], whole - start)
                    self._pull_chunk(host, manifest, store, (name, chunk, start, length), pace)
                    done += length
                    self._say(f"the checkpoint is pulled from {host}", done, manifest)
        store.add(manifest, host)

    def _check_size(self, host: str, manifest: Manifest) -> None:
        """Raise OrderRefused for a checkpoint that is larger than the run may have, as its chunks say."""
        assert self._run.plan.checkpoint is not None
        limit = self._run.plan.checkpoint.copy_bytes_max
        whole = sum(
            min(whole, len(chunks) * manifest["piece_bytes"]) for _, whole, _, chunks in manifest["files"]
        )
        if whole > limit:
            raise OrderRefused(
                Problem(
                    "copy-limit",
                    f"{host}: its checkpoint has {size(whole)}, and at most {size(limit)} are copied to the head node",
                    "raise `run.checkpoint.copy_limit` if that is right",
                    key="run.checkpoint.copy_limit",
                )
            )

    def _pull_chunk(
        self,
        host: str,
        manifest: Manifest,
        store: CheckpointStore,
        wanted: tuple[str, str, int, int],
        pace: float,
    ) -> None:
        name, chunk, start, length = wanted
        while (held := store.held_bytes(chunk)) is not None and held < length:
            order = CHUNK(
                {
                    **orders.of_run(self._run),
                    "dir": self._directory,
                    "digest": manifest["digest"],
                    "name": name,
                    "offset": start + held,
                    "bytes_max": min(PULL_BYTES, length - held),
                }
            )
            reserved = disk.why_reserved(store.root)
            if reserved is not None:
                raise OrderRefused(
                    Problem("head-disk", f"no checkpoint is copied to the head node: {reserved}", "free some")
                )
            began_at = time.monotonic()
            data = self.ask(host, order).blob
            if not data:
                raise OrderRefused(
                    Problem("went-away", f"{host}: {name} ends before its end", "it is tried again")
                )
            store.append(chunk, data)
            self._checkpoints.pause(pace * (time.monotonic() - began_at))
        if held is not None and not store.finish(chunk):
            raise OrderRefused(
                Problem(
                    "damaged", f"{host}: {name} came damaged", "it is tried again; see to the host's disk"
                )
            )

    def push(self, host: str, manifest: Manifest, store: CheckpointStore) -> None:
        """Push a snapshot to a host. Chunks that the host has are not sent."""
        order = RECEIVE({**orders.of_run(self._run), "dir": self._directory, "manifest": manifest})
        for _ in range(TRIES_MAX):
            missing = self.ask(host, order, timeout_s=DISK_TIMEOUT_S).ok["missing"]
            if not missing:
                return
            for number, chunk in enumerate(missing):
                self._push_chunk(host, store.path(chunk), chunk)
                self._say(
                    f"the checkpoint is pushed to {host}",
                    (number + 1) * manifest["piece_bytes"],
                    manifest,
                )
        raise OrderRefused(
            Problem(
                "push",
                f"{host}: the checkpoint does not arrive whole",
                "see to the host's disk and its space",
            )
        )

    def _push_chunk(self, host: str, path: str, chunk: str) -> None:
        with open(path, "rb") as file:
            offset, data = 0, file.read(PULL_BYTES)
            while True:
                following = file.read(PULL_BYTES)
                order = orders.blob(self._run, chunk, offset, last=not following, chunk=True)
                try:
                    self.ask(host, order, data)
                except OrderRefused as e:
                    if e.problem.code != "offset":
                        raise
                    return  # the agent of a new connection lacks the chunk's beginning, and will ask for it again
                if not following:
                    return
                offset, data = offset + len(data), following

    def _say(self, what: str, done: int, manifest: Manifest) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_EVERY_S:
            self._told_at = now
            whole = manifest["bytes"]
            self._tell(f"{what}: {size(min(done, whole))} of {size(whole)}")


def _is_before(step: int | None, other: int | None) -> bool:
    return other is not None and (step is None or step < other)


def _damaged(store: CheckpointStore, host: str, generation: int, newest: Manifest | None) -> OrderRefused:
    """Return the refusal of a generation that would go back behind the head's copy, since its host has damaged its own.

    The next generation is seeded with that copy alone, as on a host that is new to the run.
    """
    store.settle(NOBODY, generation)
    kept = f"; the head node has step {newest['global_step']}" if newest is not None else ""
    message = f"{host}: the newest checkpoint there does not read whole any more{kept}"
    return OrderRefused(
        Problem("damaged", message, "the next generation begins with the copy; see to its disk")
    )


def problem_of(error: Exception) -> Problem:
    """Return the error of a transfer as the problem of an order."""
    if isinstance(error, OrderRefused):
        return error.problem
    if isinstance(error, OSError):
        return Problem(
            "head-disk", f"the head node's copy cannot be written: {error.strerror or error}", None
        )
    return Problem("transfer", f"the checkpoint did not arrive: {error}", "it is tried again")


__all__ = ["Abandoned", "CheckpointTransfer", "problem_of"]

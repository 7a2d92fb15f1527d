"""The transfers of one generation's checkpoint between a host and the head node, part by part.

Several parts are under way at once, in their order. Parts that have arrived are kept when the connection breaks. `edge`
has refused any answer that is longer than what was asked for.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple, Protocol, TypeVar

from orchestrator.checkpoints import safe
from orchestrator.core.state.run import Run
from orchestrator.core.words import size
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import Answer, AsksAhead, LinkDown, OrderRefused, Pending, refused
from orchestrator.head.node import disk
from orchestrator.head.records.checkpoint_store import CheckpointStore
from orchestrator.protocol.orders.base import Nothing, Order
from orchestrator.protocol.orders.checkpoints import CHUNK, RECEIVE, SNAPSHOT, Manifest
from orchestrator.protocol.orders.hosts import BlobState
from orchestrator.protocol.paths import RelativePath

PULL_BYTES = 512 << 10
"""The size of one message, in either direction."""

AHEAD = 16
"""How many parts are under way at once, so that host, connection and head work at the same time, also while a host
writes a chunk. A heartbeat waits for one of them at most."""

DISK_TIMEOUT_S = 630.0
"""The timeout of orders that read or write a whole checkpoint on a host. It is above the agent's own deadline."""

ASK_TIMEOUT_S = 60.0
SHOW_EVERY_S = 5.0
LINK_RETRY_S = 0.5
TRIES_MAX = 3

A = TypeVar("A")


class Abandoned(Exception):
    """The transfer was given up, because a newer generation is being seeded or the coordinator ends."""


class Head(Protocol):
    """The part of CheckpointTransfer that partwise transfers use."""

    def link(self, run: Run, host: str) -> AsksAhead:
        """Return the link to a host. Raises LinkDown if there is none."""

    def check(self, run: Run, generation: int) -> None:
        """Raise Abandoned where a newer generation is being seeded meanwhile."""

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Abandoned where the coordinator ends."""


class PartwiseTransfer:
    """The transfers of one generation."""

    def __init__(
        self, head: Head, run: Run, generation: int, progress: Callable[[str], None], *, patient: bool = True
    ) -> None:
        assert run.plan.checkpoint is not None
        self._head = head
        self._run = run
        self._generation = generation
        self._progress = progress
        self._patient = patient
        self._directory = run.plan.checkpoint.dir
        self._shown_at = time.monotonic()

    def ask(
        self, host: str, order: Order[A], blob: bytes = b"", *, timeout_s: float = ASK_TIMEOUT_S
    ) -> Answer[A]:
        """Ask a host. If the connection breaks, ask again, for as long as a start may take."""
        give_up_at = time.monotonic() + self._run.plan.timing.start_after_s
        while True:
            self._head.check(self._run, self._generation)
            try:
                return self._head.link(self._run, host).ask(order, blob, timeout_s=timeout_s)
            except LinkDown:
                if not self._patient or time.monotonic() > give_up_at:
                    raise
                self._head.pause(LINK_RETRY_S)

    def snapshot(self, host: str, generation: int, path: str | None) -> Manifest:
        """Make a snapshot of a generation's checkpoint, and return its manifest. Without `path`: of the newest."""
        order = SNAPSHOT(
            {
                **orders.run_fields(self._run),
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
            raise refused("snapshot", f"{host}: its snapshot cannot be taken: {e}", None) from e
        return manifest

    def copy_of(self, manifest: Manifest) -> str:
        """Return the path of the snapshot on the hosts."""
        return os.path.join(self._directory, ".orch", "safe", manifest["digest"])

    def pull(self, host: str, manifest: Manifest, store: CheckpointStore, *, pace: float) -> None:
        """Pull the parts that the head lacks. After each few, rest for `pace` times as long as they took.

        Several are asked for at once, so that host, connection and head work at the same time. If the connection
        breaks, it goes on with what is still missing.
        """
        store.make_room(manifest)  # before all else: from now on nobody removes what is here of it
        if not store.has(manifest):
            assert self._run.plan.checkpoint is not None
            limit = self._run.plan.checkpoint.copy_bytes_max
            whole = sum(
                min(whole, len(chunks) * manifest["piece_bytes"]) for _, whole, _, chunks in manifest["files"]
            )
            if whole > limit:
                raise refused(
                    "copy-limit",
                    f"{host}: its checkpoint has {size(whole)}, and at most {size(limit)} are copied to the "
                    "head node",
                    "raise `run.checkpoint.copy_limit` if that is right",
                    key="run.checkpoint.copy_limit",
                )
            give_up_at = self._give_up_at()
            # Complete the chunks of which all parts had arrived when the coordinator died: no more parts will arrive
            for _, whole, _, chunks in manifest["files"]:
                for number, chunk in enumerate(chunks):
                    held = store.held_bytes(chunk)
                    if held is not None and held >= min(
                        manifest["piece_bytes"], whole - number * manifest["piece_bytes"]
                    ):
                        store.finish(chunk)
            while any(_parts(manifest, store)):
                with closing(store), _Finisher(host, store) as finisher:
                    try:
                        self._pull_parts(host, manifest, store, finisher, pace)
                    except LinkDown as e:
                        self._wait_for_link(give_up_at, e)
                    else:
                        give_up_at = self._give_up_at()
                    finisher.check(wait=True)
        store.add(manifest, host)

    def _pull_parts(
        self, host: str, manifest: Manifest, store: CheckpointStore, finisher: _Finisher, pace: float
    ) -> None:
        """Pull parts until none is missing, or a host gives fewer bytes than it was asked for. Raises LinkDown."""
        parts = _parts(manifest, store)
        while batch := list(itertools.islice(parts, AHEAD if pace else 1)):
            self._check_head(store)
            began_at = time.monotonic()
            under_way = deque(self._begin_part(host, manifest, part) for part in batch)
            while under_way:
                part, pending = under_way.popleft()
                data = pending.answer(ASK_TIMEOUT_S).blob
                if not self._take_part(host, store, finisher, part, data):
                    return
                self._say(f"the checkpoint is pulled from {host}", part.done + len(data), manifest)
                while not pace and len(under_way) < AHEAD and (following := next(parts, None)) is not None:
                    if following.is_first:
                        self._check_head(store)
                    under_way.append(self._begin_part(host, manifest, following))
            self._head.pause(pace * (time.monotonic() - began_at))

    def _begin_part(self, host: str, manifest: Manifest, part: _Part) -> tuple[_Part, Pending[Nothing]]:
        self._head.check(self._run, self._generation)
        order = CHUNK(
            {
                **orders.run_fields(self._run),
                "dir": self._directory,
                "digest": manifest["digest"],
                "name": part.name,
                "offset": part.offset,
                "bytes_max": part.bytes,
            }
        )
        return part, self._head.link(self._run, host).begin(order)

    def _take_part(
        self, host: str, store: CheckpointStore, finisher: _Finisher, part: _Part, data: bytes
    ) -> bool:
        """Keep a part that has arrived. Return whether it is complete, since the next part fits only then."""
        if not data:
            raise refused("went-away", f"{host}: {part.name} ends before its end", "it is tried again")
        store.append(part.chunk, data)
        if len(data) < part.bytes:
            return False
        if part.is_last:
            finisher.add(part)
        finisher.check()
        return True

    def _check_head(self, store: CheckpointStore) -> None:
        reserved = disk.why_reserved(store.root)
        if reserved is not None:
            raise refused("head-disk", f"no checkpoint is copied to the head node: {reserved}", "free some")

    def _give_up_at(self) -> float:
        return time.monotonic() + self._run.plan.timing.start_after_s

    def _wait_for_link(self, give_up_at: float, broken: LinkDown) -> None:
        """Wait a moment for the connection. Raises `broken` where that has lasted too long."""
        self._head.check(self._run, self._generation)
        if not self._patient or time.monotonic() > give_up_at:
            raise broken
        self._head.pause(LINK_RETRY_S)

    def push(self, host: str, manifest: Manifest, store: CheckpointStore) -> None:
        """Push a snapshot to a host. Chunks that the host has are not sent."""
        order = RECEIVE({**orders.run_fields(self._run), "dir": self._directory, "manifest": manifest})
        give_up_at, tries = self._give_up_at(), 0
        while tries < TRIES_MAX:
            missing = self.ask(host, order, timeout_s=DISK_TIMEOUT_S).ok["missing"]
            if not missing:
                return
            try:
                self._push_chunks(host, manifest, store, missing)
            except LinkDown as e:
                self._wait_for_link(give_up_at, e)
            else:
                give_up_at, tries = self._give_up_at(), tries + 1
        raise refused(
            "push", f"{host}: the checkpoint does not arrive whole", "see to the host's disk and its space"
        )

    def _push_chunks(
        self, host: str, manifest: Manifest, store: CheckpointStore, missing: Sequence[str]
    ) -> None:
        """Send chunks, several parts of them at once. Raises LinkDown."""
        under_way: deque[Pending[BlobState]] = deque()
        parts = _parts_of(store, missing)
        for done, chunk, offset, data, last in parts:
            self._head.check(self._run, self._generation)
            order = orders.blob(self._run, chunk, offset, last=last, chunk=True)
            under_way.append(self._head.link(self._run, host).begin(order, data))
            if len(under_way) > AHEAD and not self._was_taken(under_way.popleft()):
                return
            self._say(f"the checkpoint is pushed to {host}", done, manifest)
        while under_way and self._was_taken(under_way.popleft()):
            pass

    def _was_taken(self, pending: Pending[BlobState]) -> bool:
        """Return whether the host accepted a part. After a reconnect it may lack the chunk's beginning."""
        try:
            pending.answer(ASK_TIMEOUT_S)
        except OrderRefused as e:
            if e.problem.code != "offset":
                raise
            return False
        return True

    def _say(self, what: str, done: int, manifest: Manifest) -> None:
        now = time.monotonic()
        if now - self._shown_at >= SHOW_EVERY_S:
            self._shown_at = now
            whole = manifest["bytes"]
            self._progress(f"{what}: {size(min(done, whole))} of {size(whole)}")


class _Finisher:
    """Completes chunks in a thread, since their sums and the disk would hold up the transfer."""

    def __init__(self, host: str, store: CheckpointStore) -> None:
        self._host = host
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="carry-finish")
        self._under_way: deque[tuple[_Part, Future[bool]]] = deque()

    def add(self, part: _Part) -> None:
        """Complete a chunk, all of which is here."""
        self._under_way.append((part, self._thread.submit(self._store.finish, part.chunk)))

    def check(self, *, wait: bool = False) -> None:
        """Raise OrderRefused if a chunk is damaged, or OSError. If too many chunks wait, block."""
        while self._under_way and (wait or len(self._under_way) > AHEAD or self._under_way[0][1].done()):
            part, finished = self._under_way.popleft()
            if not finished.result():
                raise refused(
                    "damaged",
                    f"{self._host}: {part.name} came damaged",
                    "it is tried again; see to the host's disk",
                )

    def __enter__(self) -> _Finisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()


class _Part(NamedTuple):
    """A part of a chunk that the head lacks."""

    name: RelativePath
    chunk: str
    offset: int
    """In the file."""
    bytes: int
    is_first: bool
    """Whether it is the beginning of the chunk."""
    is_last: bool
    """Whether it completes the chunk."""
    done: int
    """How many bytes of the checkpoint are before it."""


def _parts(manifest: Manifest, store: CheckpointStore) -> Iterator[_Part]:
    """Yield the parts that the head lacks, in order. Its disk is checked when each chunk is reached."""
    asked: set[str] = set()
    done = 0
    for name, whole, _, chunks in manifest["files"]:
        for number, chunk in enumerate(chunks):
            start = number * manifest["piece_bytes"]
            length = min(manifest["piece_bytes"], whole - start)
            held = store.held_bytes(chunk) if chunk not in asked else None
            asked.add(chunk)
            while held is not None and held < length:
                size_bytes = min(PULL_BYTES, length - held)
                following = held + size_bytes
                yield _Part(
                    name, chunk, start + held, size_bytes, held == 0, following == length, done + held
                )
                held = following
            done += length


def _parts_of(store: CheckpointStore, chunks: Sequence[str]) -> Iterator[tuple[int, str, int, bytes, bool]]:
    """Yield (bytes before, chunk, offset in the chunk, data, whether it completes the chunk) for stored chunks."""
    done = 0
    for chunk in chunks:
        with open(store.path(chunk), "rb") as file:
            offset, data = 0, file.read(PULL_BYTES)
            while True:
                following = file.read(PULL_BYTES)
                yield done, chunk, offset, data, not following
                done += len(data)
                if not following:
                    break
                offset, data = offset + len(data), following

"""Transfers of checkpoints for runs whose hosts share no directory.

The head pulls checkpoints while the run trains, and pushes them to the hosts that need them. Only a checkpoint that the
head holds counts as the run's: one that only the chief's host has would be lost with that host. A pull uses at most
half of the connection, and the agent's reports take precedence over its chunks.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from orchestrator.core.actions import SeedCheckpoint
from orchestrator.core.launching import environment as launch
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.run import Problem, Run
from orchestrator.head.links import requests as orders
from orchestrator.head.links import wire
from orchestrator.head.links.conversation import AsksAhead, LinkDown, OrderRefused, refused
from orchestrator.head.records.checkpoint_store import CheckpointStore, Shared, root_of
from orchestrator.head.transfer.partwise import DISK_TIMEOUT_S, Abandoned, PartwiseTransfer
from orchestrator.protocol.orders.checkpoints import Manifest

NOBODY = ""
"""Recorded as the host of the newest generation where no host's own checkpoints may be used."""

_NEVER = 1 << 62
"""A number above every generation."""


class CheckpointTransfer:
    """Transfers the checkpoints of all runs. Its methods block, and are called from separate threads."""

    def __init__(self, state_dir: str, link: Callable[[Run, str], AsksAhead | None]) -> None:
        self._state_dir = state_dir
        self._link = link
        self._seeding: dict[str, int] = {}
        self._shared: WeakValueDictionary[str, Shared] = WeakValueDictionary()
        """By the directory of a store, while an object of that store is used."""
        self._guard = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Make all transfers give up."""
        self._closed.set()

    def abandon(self, run_id: str) -> None:
        """Give up the transfers of a run that has ended, so that they do not disturb the next run in that directory."""
        with self._guard:
            self._seeding[run_id] = _NEVER

    def forget(self, run_id: str) -> None:
        """Forget a run that the journal has dropped."""
        with self._guard:
            self._seeding.pop(run_id, None)

    def store(self, run: Run) -> CheckpointStore:
        """Return the head's copies for that run's name and directory."""
        checkpoint = run.plan.checkpoint
        assert checkpoint is not None
        place = self._state_dir, run.plan.name, checkpoint.dir
        with self._guard:
            shared = self._shared.setdefault(root_of(*place), Shared())
        return CheckpointStore(*place, checkpoint.keep, shared)

    @contextlib.contextmanager
    def _turn(self, run: Run) -> Iterator[CheckpointStore]:
        """Wait until no other transfer writes to the head's copies for that run, and return them."""
        store = self.store(run)
        with store.shared.turn:
            try:
                yield store
            finally:
                store.shared.coming = ()

    # -- a new generation ----------------------------------------------------------------------------------

    def seed(self, run: Run, action: SeedCheckpoint, progress: Callable[[str], None]) -> Seed:
        """Seed the chief's host, and push the same checkpoint to every host that needs it.

        Args:
            run: the run.
            action: which generation begins, on which host.
            progress: is called with a sentence about the progress every few seconds.

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
        with self._turn(run) as store:
            transfer = PartwiseTransfer(self, run, generation, progress)
            try:
                return self._seed(transfer, store, run, action)
            finally:
                with self._guard:
                    if self._seeding.get(run.run_id) == generation:
                        del self._seeding[run.run_id]

    def _seed(
        self, transfer: PartwiseTransfer, store: CheckpointStore, run: Run, action: SeedCheckpoint
    ) -> Seed:
        assert run.plan.checkpoint is not None
        generation, host = action.generation, action.host
        store.begin(generation)
        if run.from_scratch:
            store.go_back(None, generation - 1)
        store.pass_over(run.unrestorable, run.budget.passed_over)
        newest, before, only = store.newest(), store.place(), None
        if newest is not None:
            transfer.push(host, newest, store)
            if before not in (None, host):
                # The other checkpoints on that host may be outdated, and rollbacks were not recorded there.
                only = newest["digest"]
        order = orders.seed(run, action, run.plan.checkpoint, only=only)
        answer = transfer.ask(host, order, timeout_s=DISK_TIMEOUT_S).ok
        copy = ""
        torn = bool(answer["rejected"])
        if newest is not None and torn and _is_before(answer["global_step"], newest["global_step"]):
            raise _damaged(store, host, generation, newest)
        if answer["source"] is not None:
            manifest = transfer.snapshot(host, generation, None)
            if _is_before(manifest["global_step"], answer["global_step"]):
                raise _damaged(store, host, generation, newest)
            transfer.pull(host, manifest, store, pace=0.0)
            for other in launch.hosts_with_scratch(run.placed):
                transfer.push(other, manifest, store)
            copy = transfer.copy_of(manifest)
        store.settle(host, generation)
        return wire.seeded(answer, generation, copy=copy)

    # -- while it trains -----------------------------------------------------------------------------------

    def bring(self, run: Run, generation: int, path: str) -> None:
        """Pull a checkpoint that reads whole.

        Raises LinkDown, OrderRefused or Abandoned. The next call continues where this one ended.
        """
        host = run.task(run.chief).host
        transfer = PartwiseTransfer(self, run, generation, lambda _: None, patient=False)
        manifest = transfer.snapshot(host, generation, path)
        with self._turn(run) as store:
            transfer.pull(host, manifest, store, pace=1.0)

    # -- for partwise transfers --------------------------------------------------------------------------------------

    def link(self, run: Run, host: str) -> AsksAhead:
        """Return the link to a host. Raises LinkDown if there is none."""
        link = self._link(run, host)
        if link is None:
            raise LinkDown(f"{host} is not connected")
        return link

    def check(self, run: Run, generation: int) -> None:
        """Raise Abandoned where a newer generation is being seeded meanwhile."""
        if self._closed.is_set() or self._seeding.get(run.run_id, generation) > generation:
            raise Abandoned

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Abandoned where the coordinator ends."""
        if self._closed.wait(seconds):
            raise Abandoned


def _is_before(step: int | None, other: int | None) -> bool:
    return other is not None and (step is None or step < other)


def _damaged(store: CheckpointStore, host: str, generation: int, newest: Manifest | None) -> OrderRefused:
    """Return the error for a host whose newest checkpoints are damaged: the generation would begin before our copy.

    The next generation is seeded with that copy alone, as on a host that is new to the run.
    """
    store.settle(NOBODY, generation)
    kept = f"; the head node has step {newest['global_step']}" if newest is not None else ""
    message = f"{host}: the newest checkpoint there does not read whole any more{kept}"
    return refused("damaged", message, "the next generation begins with the copy; see to its disk")


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

"""Runs the transfers of checkpoints in threads, and posts their results as events: see `transfer/checkpoints.py`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from orchestrator.core.actions import SeedCheckpoint
from orchestrator.core.events import CheckpointSeeded, CheckpointVerified, Event, OrderFailed, SeedProgressed
from orchestrator.core.state.run import Run
from orchestrator.head.links.conversation import LinkDown, OrderRefused
from orchestrator.head.transfer.checkpoints import Abandoned, CheckpointTransfer, problem_of

log = logging.getLogger(__name__)

TRANSFERS_MAX = 256
"""How many transfers of all runs run at once. Each run has two at most, and a host that does not answer must not hold
up other runs. They have threads of their own, since a pull may take an hour."""

Key = tuple[str, str, int]


class TransferQueue:
    """The transfers under way. A transfer that is asked for again while it runs is not started twice."""

    def __init__(
        self,
        checkpoints: CheckpointTransfer,
        post: Callable[[str, Event], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.checkpoints = checkpoints
        self._post = post
        self._now = now
        self._under_way: set[Key] = set()
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """Give up the transfers under way. A later coordinator will continue them."""
        self.checkpoints.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def seed(self, run: Run, action: SeedCheckpoint) -> None:
        """Seed a generation. The result is posted as CheckpointSeeded or OrderFailed."""

        def progress(sentence: str) -> None:
            self._post(run.run_id, SeedProgressed(self._now(), action.generation, sentence))

        def work() -> Event:
            seed = self.checkpoints.seed(run, action, progress)
            return CheckpointSeeded(at=self._now(), seed=seed)

        self._begin(run, "seed", action.host, action.generation, work)

    def bring(self, run: Run, host: str, verified: CheckpointVerified) -> None:
        """Pull a verified checkpoint. Only then post that it is verified, or OrderFailed if the pull fails."""

        def work() -> Event:
            self.checkpoints.bring(run, verified.generation, verified.path)
            return verified

        self._begin(run, "verify", host, verified.generation, work)

    def _begin(self, run: Run, verb: str, host: str, generation: int, work: Callable[[], Event]) -> None:
        key = (run.run_id, verb, generation)
        with self._lock:
            if key in self._under_way:
                return
            self._under_way.add(key)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(TRANSFERS_MAX, thread_name_prefix="carry")
        self._threads.submit(self._do, run, key, host, work)

    def _do(self, run: Run, key: Key, host: str, work: Callable[[], Event]) -> None:
        _, verb, generation = key
        event: Event | None = None
        try:
            event = work()
        except Abandoned:
            log.info("%s: %s of generation %s is given up for a newer one", *key)
        except Exception as e:
            if not isinstance(e, (LinkDown, OrderRefused, OSError)):  # an unexpected error is a bug of ours
                log.exception("%s: %s of generation %s", *key)
            event = OrderFailed(self._now(), host, verb, generation, problem_of(e))
        finally:
            with self._lock:
                self._under_way.discard(key)
        if event is not None:
            self._post(run.run_id, event)

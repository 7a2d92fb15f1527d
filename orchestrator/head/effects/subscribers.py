"""Effects of changes of runs, which decide nothing. Each effect may fail without harm to the others.

They run in a thread of their own, in the order of the changes. An effect that fails is logged, shown by `orch
coordinator status`, and tried again until it succeeds; later calls of the same effect for the same run wait for it. No
decision waits for an effect, and nothing else depends on one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrator.core.state.run import Run
from orchestrator.core.words import duration

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""How long a failed effect waits until it is tried again."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One subscriber. Both calls may be repeated without harm."""

    name: str
    """For people: what did not happen, such as `remove its secrets`."""
    changed: Callable[[Run, Run], None] | None = None
    """Called with a run before and after its phase, generation or first cause has changed."""
    forgotten: Callable[[str], None] | None = None
    """Called with the id of a run that has left the journal and this process: what is kept of it in memory goes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An effect that did not happen yet."""

    name: str
    run_id: str
    calls: tuple[Callable[[], None], ...]
    """The one that failed, and those that were announced since, in their order."""
    error: str
    since_at: float
    tries: int

    def sentence(self, now: float) -> str:
        """Say what did not happen, why, and what follows."""
        prefix = f"{self.run_id}: " if self.run_id else ""
        return (
            f"{prefix}could not {self.name}: {self.error}; it is tried again every {RETRY_S:.0f} s, for "
            f"{duration(now - self.since_at)} now, and no run is touched by it"
        )


class Effects:
    """The subscribers and their thread. `changed` and `forget` may be called by any thread, and do not block."""

    def __init__(self, effects: Sequence[Effect], now: Callable[[], float] = time.monotonic) -> None:
        self._effects = tuple(effects)
        self._now = now
        self._waiting: queue.SimpleQueue[tuple[str, str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._failed: dict[tuple[str, str], Failure] = {}
        self._retry_at: float | None = None
        self._thread = threading.Thread(target=self._work, name="effects", daemon=True)

    def start(self) -> None:
        """Begin. What was announced before is done first."""
        self._thread.start()

    def close(self, *, wait_s: float) -> None:
        """Do the calls that wait, try the failed ones again, and end; wait for at most `wait_s`."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def changed(self, before: Run, after: Run) -> None:
        """Announce a change. A change of numbers alone is ignored."""
        if (before.phase, before.generation, before.first_cause) == (
            after.phase,
            after.generation,
            after.first_cause,
        ):
            return
        for effect in self._effects:
            if effect.changed is not None:
                self.post(effect.name, after.run_id, partial(effect.changed, before, after))

    def forget(self, run_ids: Collection[str]) -> None:
        """Announce runs that have left the journal."""
        for run_id in run_ids:
            for effect in self._effects:
                if effect.forgotten is not None:
                    self.post(effect.name, run_id, partial(effect.forgotten, run_id))

    def post(self, name: str, run_id: str, call: Callable[[], None]) -> None:
        """Announce a single effect."""
        self._waiting.put((name, run_id, call))

    def document(self) -> list[dict[str, Any]]:
        """Return what has failed and not happened yet, for `orch coordinator status`."""
        now = self._now()
        return [
            {
                "effect": failure.name,
                "run": failure.run_id,
                "error": failure.error,
                "age_s": round(now - failure.since_at, 1),
                "tries": failure.tries,
                "sentence": failure.sentence(now),
            }
            for failure in list(self._failed.values())
        ]

    # -- the thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            wait_s = None if self._retry_at is None else max(0.0, self._retry_at - self._now())
            try:
                announced = self._waiting.get(timeout=wait_s)
            except queue.Empty:
                self.try_again()
                continue
            if announced is None:
                self.try_again()
                return
            self._do(*announced)

    def try_again(self) -> None:
        """Try again what has failed."""
        self._retry_at = None
        for failure in list(self._failed.values()):
            self._do_all(failure.name, failure.run_id, failure.calls)

    def _do(self, name: str, run_id: str, call: Callable[[], None]) -> None:
        """Make the call, after those of the same effect and run that failed before."""
        known = self._failed.get((name, run_id))
        self._do_all(name, run_id, (*(known.calls if known is not None else ()), call))

    def _do_all(self, name: str, run_id: str, calls: tuple[Callable[[], None], ...]) -> None:
        for done, call in enumerate(calls):
            try:
                call()
            except Exception as e:
                known = self._failed.get((name, run_id))
                text = str(e) if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
                if known is None or known.error != text:
                    log.error("%s: could not %s; it is tried again", run_id, name, exc_info=e)
                since_at, tries = (self._now(), 0) if known is None else (known.since_at, known.tries)
                self._failed[name, run_id] = Failure(name, run_id, calls[done:], text, since_at, tries + 1)
                self._retry_at = self._retry_at or self._now() + RETRY_S
                return
        if self._failed.pop((name, run_id), None) is not None:
            log.info("%s: could %s at last", run_id, name)

"""Writes the history of the runs, in a thread of its own that samples their state once a second.

Every value of a chief's metrics comes past the state: nothing is decided by it, so the journal need not have it.

It only reads the state and posts no events, so a disk that hangs or is full holds up this thread alone.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.both import stretches
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.head.effects.lookout import Lookout
from orchestrator.head.records import history
from orchestrator.head.records.history import FILE, History
from orchestrator.protocol import measures, reports
from orchestrator.protocol.limits import STEP_MAX
from orchestrator.protocol.measures import Measure
from orchestrator.protocol.reports import Trail
from orchestrator.reporting.goodput import Moved

EVERY_S = 1.0
TASKS_EVERY_S = 10.0
FLUSH_EVERY_S = 5.0

_ENDED_MAX = 1000
_HEARD_MAX = 10_000

_COARSE = tuple(tier for tier in history.TIERS if tier >= TASKS_EVERY_S)
"""The tiers for measurements of all tasks and hosts, coarse because there may be hundreds of them."""


class _Seen:
    """What was sampled last for one run."""

    def __init__(self, path: str) -> None:
        self.history = History(path)
        self.heard_at: float | None = None
        self.position: tuple[int, int] | None = None
        self.measured: dict[str, tuple[int, int]] = {}
        """By metric: the generation and the step of the value that was added last."""
        self.followed: set[tuple[int, str]] = set()
        """The metrics, by generation, of which all values are told; shims of the version before tell the newest."""
        self.begun: dict[int, tuple[float, int]] = {}
        self.tasks_at = 0.0
        self.flushed_at = 0.0
        self.waits = False
        """Whether the run has returned to the queue: until it goes on, its history is written and closed."""


class Historian:
    """Samples the runs into their histories."""

    def __init__(
        self,
        runs: Callable[[], Mapping[str, Run]],
        run_dir: Callable[[str], str],
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._runs, self._run_dir, self._now, self._clock = runs, run_dir, now, clock
        self._seen: dict[str, _Seen] = {}
        self._ended: deque[Run] = deque(maxlen=_ENDED_MAX)
        self._heard: dict[tuple[str, str, int, str], tuple[float, Mapping[str, Trail]]] = {}
        """By run, task, generation and host: the newest trails that were heard of, and when. Links add to it."""
        self._lookout = Lookout(
            lambda: self.sample(ending=self._lookout.is_ending),
            EVERY_S,
            name="history",
            gap="the history has a gap",
        )

    def start(self) -> None:
        """Begin to sample."""
        self._lookout.start()

    def close(self) -> None:
        """Write what is left, and end. A disk that hangs is not waited for."""
        self._lookout.close(wait_s=2)

    def heard(self, run_id: str, host: str, tasks: Sequence[reports.Task]) -> None:
        """Keep what the tasks of a report say of all their values, for the next sample. It does not block."""
        for task in tasks:
            if (trails := task.get("stretches")) and len(self._heard) < _HEARD_MAX:
                self._heard[run_id, task["task"], task["generation"], host] = self._clock(), trails

    def ended(self, run: Run) -> None:
        """Keep the last state of a generation that ends: it is gone by the next sample. It does not block."""
        self._ended.append(run)

    def sample(self, *, ending: bool = False) -> None:
        """Sample all runs once. The history of a run that has ended, or waits again, is written and closed.

        Of a run that waits there is nothing to keep, and hundreds of open histories would take all file descriptors.
        """
        while self._ended:
            last = self._ended.popleft()
            if last.run_id in self._seen:
                self._sample(last, self._seen[last.run_id])
        runs = dict(self._runs())
        for run_id, run in runs.items():
            waits = run.phase is Phase.QUEUED
            if run_id not in self._seen:
                if waits or run.phase.is_terminal:
                    continue
                self._seen[run_id] = _Seen(os.path.join(self._run_dir(run_id), FILE))
            seen = self._seen[run_id]
            if waits and seen.waits and not ending:
                continue
            seen.waits = waits
            self._follow(run, seen)
            self._sample(run, seen)
            over = ending or run.phase.is_terminal
            if over or waits or self._now() - seen.flushed_at >= FLUSH_EVERY_S:
                seen.history.flush(self._clock())
                seen.flushed_at = self._now()
            if over or waits:
                seen.history.close()
            if over:
                del self._seen[run_id]
        for run_id in [run_id for run_id in self._seen if run_id not in runs]:
            self._seen.pop(run_id).history.close()
        for key in list(self._heard):  # of tasks that are no chief, or of runs that have ended
            whose = runs.get(key[0])
            if whose is None or key[0] not in self._seen or key[1] != str(whose.chief):
                self._heard.pop(key, None)

    def _follow(self, run: Run, seen: _Seen) -> None:
        """Add all values that the chief has told. Another host does not speak for it."""
        chief = run.task(run.chief)
        for key in [key for key in list(self._heard) if key[:2] == (run.run_id, str(run.chief))]:
            at, trails = self._heard.pop(key)
            for name, trail in trails.items() if key[2] <= run.generation and key[3] == chief.host else ():
                rows = [
                    row for row in (stretches.read(row, _is_step) for row in trail["rows"]) if row is not None
                ]
                seen.history.follow(at, key[2], name, trail["count"], rows)
                seen.followed.add((key[2], name))

    def _sample(self, run: Run, seen: _Seen) -> None:
        seen.history.watched(self._clock())
        chief = run.task(run.chief)
        if chief.heard_at is not None and chief.heard_at != seen.heard_at:
            seen.heard_at = chief.heard_at
            self._chief(run, chief, seen)
        if run.phase is Phase.RUNNING and self._now() - seen.tasks_at >= TASKS_EVERY_S:
            seen.tasks_at = self._now()
            self._tasks(run, seen)

    def _chief(self, run: Run, chief: Task, seen: _Seen) -> None:
        """Add the chief's pace, and the values of its newest step, each once."""
        progress, at = chief.progress, self._clock()
        step = progress.global_step
        if step is None or (run.phase not in (Phase.RUNNING, Phase.STOPPING) and not run.phase.is_terminal):
            return
        pace = progress.measured.get("steps_per_s")
        if pace is not None and chief.phase.may_live:
            seen.history.add(at, run.generation, step, "", {"steps_per_s": pace})
        for name, value in progress.metrics.items():
            key = run.generation, progress.metric_steps.get(name, step)
            if (run.generation, name) in seen.followed:
                continue
            # Reports repeat the values of earlier steps, such as a validation's.
            if seen.measured.get(name) != key:
                seen.measured[name] = key
                seen.history.add(at, *key, "", {name: value})
        if seen.position == (run.generation, step):
            return
        seen.position = (run.generation, step)
        seen.history.not_finite(at, run.generation, progress.nonfinite)
        resumed_from = run.seed.global_step or 0 if run.seed is not None else 0
        if step > resumed_from:
            moved_at = at - progress.step_age_s - progress.heartbeat_age_s
            first_at, first_step = seen.begun.setdefault(run.generation, (moved_at, step))
            began_at = (
                at - progress.began_age_s - progress.heartbeat_age_s
                if progress.began_age_s is not None
                else None
            )
            saved_s = (progress.saving.spent_s or 0.0) if progress.saving is not None else 0.0
            seen.history.moved(run.generation, Moved(first_at, moved_at, first_step, step, began_at, saved_s))

    def _tasks(self, run: Run, seen: _Seen) -> None:
        """Add what every task and host uses."""
        at, latest = self._clock(), self._now() - TASKS_EVERY_S
        for task in run.tasks:
            if task.heard_at is not None and task.heard_at >= latest and task.phase.may_live:
                progress = task.progress
                values = _kept(measures.TASK, progress.measured)
                seen.history.add(
                    at, run.generation, progress.global_step, str(task.id), values, tiers=_COARSE
                )
        for host in run.hosts:
            if host.heard_at is not None and host.heard_at >= latest:
                values = _kept(measures.HOST, host.measured)
                for gpu in host.gpu_loads:
                    of_gpu = _kept(measures.GPU, gpu.measured)
                    values |= {f"gpu{gpu.index}_{name}": value for name, value in of_gpu.items()}
                seen.history.add(
                    at, run.generation, run.global_step, f"host:{host.name}", values, tiers=_COARSE
                )


def _kept(rows: Mapping[str, Measure], measured: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(measured[name])
        for name, row in rows.items()
        if row.kept and row.is_number and name in measured
    }


def _is_step(value: float) -> bool:
    return 0 <= value <= STEP_MAX and value == int(value)

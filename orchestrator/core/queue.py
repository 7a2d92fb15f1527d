"""Chooses which of the runs that wait begin now: a pure function of all runs of one head node.

Within a priority, the first run to come is the first to begin. A run needs its GPUs and its checkpoint directory for
itself. It begins when no run holds any of them, and no earlier run waits for any of them. A later run goes first only
where it delays nobody: by its own `time_limit` it ends before the earlier one is expected to begin (backfill). Where
that is not known, since the run that holds the GPUs has no limit, no run goes first. A day of waiting counts as one
step of priority, so no stream of urgent runs keeps another one out for ever. An ended run holds its GPUs on a host that
gave no proof until that host is swept.

The thread that decides about all runs makes this decision and carries it out, so two decisions never read the same
state. What other users and head nodes hold is learned from the hosts once a run's turn has come. Then the run waits
again, has no turn for a while, and meanwhile later runs go first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from orchestrator.core import conflicts
from orchestrator.core.phases.stopping import END_S, unproven
from orchestrator.core.plan import Gpu
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Phase, Queued
from orchestrator.core.state.run import Run
from orchestrator.core.transitions import LEADS_TO
from orchestrator.core.words import duration, listed

STEP_OF_PRIORITY_S = 86400.0
"""How long one waits until that counts as one step of priority."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a run needs or holds for itself alone, and for how long; `inf` where it has no limit."""

    run_id: str
    needs: Mapping[object, str]
    """What it is to the queue, and in words."""
    lasts_s: float = inf
    others: str = ""
    """What is missing of that, as its hosts have said: somebody else holds it, or a host is not ready. Else empty."""


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """The turn of a run that waits."""

    ask: Ask
    begins_at: Instant
    """When it is expected to begin, at the latest; `inf` where nobody knows."""
    waits_for: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The runs of this head node that hold, or are before it at, what it needs, and what that is."""

    @property
    def has_come(self) -> bool:
        """Return whether the run begins now."""
        return not self.waits_for and not self.ask.others

    def sentence(self, now: Instant) -> str:
        """Return a sentence that says what the run waits for, and for how long."""
        if self.has_come:
            return "begins"
        what = listed([f"{run_id} ({listed(needs)})" for run_id, needs in self.waits_for])
        when = f"; expected to begin in {duration(self.begins_at - now)}" if self.begins_at < inf else ""
        others = f": {self.ask.others}" if self.ask.others else ""
        return f"waits in the queue{f' for {what}' if what else ''}{others}{when}"


def turns(runs: Iterable[Run], now: Instant) -> list[QueueTurn]:
    """Return the turns of all runs that wait, in their order."""
    waiting: list[tuple[Run, Queued]] = []
    held: list[tuple[Ask, Instant]] = []
    runs = list(runs)
    numbers = conflicts.gpu_numbers(runs)
    for run in runs:
        if isinstance(run.phase_state, Queued):
            waiting.append((run, run.phase_state))
        elif not run.phase.is_terminal:
            held.append((_ask(run, numbers), _ends_at(run)))
        elif hosts := unproven(run):  # something of it may live there, until that host is swept
            held.append((Ask(run.run_id, conflicts.needs(run.plan, run.placed, numbers, hosts)), inf))
    waiting.sort(key=lambda entry: (-_priority(entry[1], now), entry[1].since_at, entry[0].run_id))
    return reckon([_ask(run, numbers) for run, _ in waiting], held, now)


def reckon(waiting: Sequence[Ask], held: Sequence[tuple[Ask, Instant]], now: Instant) -> list[QueueTurn]:
    """Return the turns of the runs that wait, in their order. `held`: what is held, and until when at the latest."""
    taken = list(held)
    ahead: list[QueueTurn] = []
    turns: list[QueueTurn] = []
    for ask in waiting:
        holding = [(blocker, until) for blocker, until in taken if _shared(blocker, ask)]
        before = [turn for turn in ahead if _shared(turn.ask, ask) and not turn.ask.others]
        is_free = not holding and not ask.others
        if is_free and all(now + ask.lasts_s <= turn.begins_at < inf for turn in before):
            turns.append(QueueTurn(ask, now))
            taken.append((ask, now + ask.lasts_s))
            continue
        # A run that is over its limit may end at any moment, so no moment is promised.
        frees = [until if until > now else inf for _, until in holding] + [inf] * bool(ask.others)
        frees += [turn.begins_at + turn.ask.lasts_s for turn in before]
        blockers = [blocker for blocker, _ in holding] + [turn.ask for turn in before]
        waits_for = tuple((blocker.run_id, _shared(blocker, ask)) for blocker in blockers)
        ahead.append(QueueTurn(ask, max(frees), waits_for))
        turns.append(ahead[-1])
    return turns


WAY_AGAIN_S = 3600.0
"""How long nobody makes way for a run whose turn has come in vain."""


def ways(turns: Sequence[QueueTurn], runs: Mapping[str, Run], now: Instant) -> dict[str, str]:
    """Return which runs are to make way, each with the run that it makes way for, which has set `preempt`.

    Only a run that came from the queue and saves checkpoints can return to it, and only if it began with a lower
    priority than the other run has by now: a run that has waited for long is not driven out again. If another run holds
    a part of what is needed and does not make way, all stay. What other head nodes hold is not known before the hosts
    are asked, so making way may be in vain once, and then not again for a while.
    """
    asked: dict[str, str] = {}
    for turn in turns:
        waiting = runs[turn.ask.run_id]
        queued, plan = waiting.phase_state, waiting.plan.queue
        if not isinstance(queued, Queued) or plan is None or not plan.preempt:
            continue
        if queued.in_vain_at is not None and now - queued.in_vain_at < WAY_AGAIN_S:
            continue
        rank = _priority(queued, now)
        blockers = [runs[run_id] for run_id, _ in turn.waits_for]
        ends = [run for run in blockers if _ends_soon(run)]
        if all(run in ends or _makes_way(run, rank) for run in blockers):
            asked |= {run.run_id: waiting.run_id for run in blockers if run not in ends}
    return asked


def _ends_soon(run: Run) -> bool:
    if run.intent is not None and LEADS_TO[run.intent] is not Phase.BACKOFF:
        return True
    return run.planned_end is not None and run.planned_end.wanted_at is None


def _makes_way(run: Run, rank: int) -> bool:
    is_there = run.phase is not Phase.QUEUED and not run.phase.is_terminal
    can_return = run.plan.queue is not None and run.plan.checkpoint is not None
    return is_there and can_return and run.rank is not None and run.rank < rank


def rank(run: Run, now: Instant) -> int:
    """Return the present priority of a run that waits."""
    return _priority(run.within(Queued), now)


def _shared(holder: Ask, other: Ask) -> tuple[str, ...]:
    return tuple(words for need, words in other.needs.items() if need in holder.needs)


def _priority(queued: Queued, now: Instant) -> int:
    return queued.priority + int(max(0.0, now - queued.since_at) // STEP_OF_PRIORITY_S)


def _ask(run: Run, numbers: Mapping[tuple[str, Gpu], int]) -> Ask:
    limit_s = run.plan.time_limit_s
    waiting = run.phase_state
    others = ""
    if isinstance(waiting, Queued) and waiting.retry_at is not None:
        others = waiting.others or waiting.why
    needs = conflicts.needs(run.plan, run.placed, numbers)
    return Ask(run.run_id, needs, limit_s if limit_s is not None else inf, others)


def _ends_at(run: Run) -> Instant:
    """Return by when a run that trains will have ended; `inf` where that is not planned."""
    planned = run.planned_end
    return planned.at + run.plan.timing.kill_grace_s + END_S if planned is not None else inf

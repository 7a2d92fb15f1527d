"""Chooses which of the runs that wait begin now: a pure function of all runs of one head node.

Within a priority, the first run to come is the first to begin. A run needs its GPUs and its checkpoint directory for
itself. Which GPUs these are is chosen from what is free (`pool`); for a run that finds none, those of a place are held
back that is free the earliest, so that small runs do not keep a large gang waiting for ever. A run begins when no run
holds what it needs, and no earlier run waits for any of that. A later run goes first only where it delays nobody: by
its own `time_limit` it ends before the earlier one is expected to begin (backfill). Where that is not known, since the
run that holds the GPUs has no limit, no run goes first. A day of waiting counts as one step of priority, so no stream
of urgent runs keeps another one out for ever. An ended run holds its GPUs on a host that gave no proof until that host
is swept.

The thread that decides about all runs makes this decision and carries it out, so two decisions never read the same
state. What other users and head nodes hold is learned from the hosts. A run that only they keep waiting has no turn,
and meanwhile later runs go first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from orchestrator.core import conflicts
from orchestrator.core.conflicts import Holding
from orchestrator.core.events import HostLent
from orchestrator.core.hosts.pool_hosts import lacking, pool_replacement
from orchestrator.core.launching.placement import NoPlacement, in_words
from orchestrator.core.phases.stopping import END_S, to_prove, unproven
from orchestrator.core.plan import PRIORITIES, Plan, QueuePlan
from orchestrator.core.pool import (
    NOTHING,
    Held,
    Known,
    Machine,
    Placed,
    find,
    in_vain,
    machine,
    placed,
    same_hosts,
    sentence,
    unfit,
)
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Phase, Queued
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.transitions import LEADS_TO
from orchestrator.core.words import duration, listed

STEP_OF_PRIORITY_S = 86400.0
"""How long one waits until that counts as one step of priority."""


_NO_HOLDING = Holding({})


@dataclass(frozen=True, slots=True)
class Ask:
    """What a run needs or holds for itself alone, and for how long; `inf` where it has no limit."""

    run_id: str
    needs: Mapping[object, str]
    """What it is to the queue, and in words."""
    lasts_s: float = inf
    others: str = ""
    """What is missing of that, as its hosts have said: somebody else holds it, or a host is not ready. Else empty."""
    held: Holding = _NO_HOLDING
    """The same as hosts know it."""
    plan: Plan | None = None
    """Of a run that waits and whose place is to be chosen: the plan as it was submitted."""
    place: Placed | None = None
    """The place that was chosen."""


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """The turn of a run that waits."""

    ask: Ask
    begins_at: Instant
    """When it is expected to begin, at the latest; `inf` where nobody knows."""
    waits_for: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The runs of this head node that hold, or are before it at, what it needs, and what that is. Of those before it
    at one GPU, the first ones."""
    has_more: bool = False
    """Whether there are more of these."""

    @property
    def has_come(self) -> bool:
        """Return whether the run begins now."""
        return not self.waits_for and not self.ask.others

    def sentence(self, now: Instant) -> str:
        """Return a sentence that says what the run waits for, and for how long."""
        if self.has_come:
            return "begins"
        named = [f"{run_id} ({listed(needs)})" for run_id, needs in self.waits_for]
        what = f"{', '.join(named[:NAMED_MAX])} and more runs" if self.has_more else listed(named)
        when = f"; expected to begin in {duration(self.begins_at - now)}" if self.begins_at < inf else ""
        others = f": {self.ask.others}" if self.ask.others else ""
        return f"waits in the queue{f' for {what}' if what else ''}{others}{when}{self._place_in_words()}"

    def _place_in_words(self) -> str:
        """Return what a run needs whose place is still to be chosen, and where it would go, if that is held back."""
        if self.ask.plan is None:
            return ""
        hosts = [*dict.fromkeys(task.host for task in self.ask.place.tasks)] if self.ask.place else []
        more = [f"{len(hosts) - NAMED_MAX} more"] if len(hosts) > NAMED_MAX else []
        where = f"; would go to {listed([*hosts[:NAMED_MAX], *more])}" if hosts else ""
        return f"; needs {in_words(self.ask.plan.needs)}{where}"


def turns(runs: Iterable[Run], now: Instant, known: Known = NOTHING) -> list[QueueTurn]:
    """Return the turns of all runs that wait, in their order."""
    runs = tuple(runs)
    known = replace(known, numbers=conflicts.gpu_numbers(runs), visited=_visited(runs))
    waiting = [(run, run.phase_state) for run in runs if isinstance(run.phase_state, Queued)]
    held = list(_holding(runs, known))
    waiting.sort(key=lambda entry: (-_priority(entry[1], now), entry[1].since_at, entry[0].run_id))
    asks = [_ask(run, known) for run, _ in waiting]
    chooser = _Chooser(known, unfit(runs), now) if any(ask.plan is not None for ask in asks) else None
    return reckon(asks, held, now, chooser)


def _visited(runs: Iterable[Run]) -> Mapping[str, set[Machine]]:
    visited: defaultdict[str, set[Machine]] = defaultdict(set)
    for run in runs:
        if run.phase.is_terminal and run.generation:
            visited[run.plan.name].update(machine(run.plan.host(task.host)) for task in run.tasks)
    return visited


def _holding(runs: Iterable[Run], known: Known) -> Iterator[tuple[Ask, Instant]]:
    """Yield what runs hold, and until when at the latest."""
    for run in runs:
        if run.phase is Phase.QUEUED:
            continue
        if not run.phase.is_terminal:
            yield _ask(run, known), _ends_at(run)
        elif hosts := unproven(run):  # something of it may live there, until that host is swept
            left = conflicts.left_over(run.run_id, run.plan, run.placed, known.numbers, hosts)
            yield Ask(run.run_id, left.needs, held=left), inf


def pool_replacements(
    runs: Iterable[Run], now: Instant, known: Known = NOTHING
) -> list[tuple[str, HostLent]]:
    """Return which runs that lack a host are lent one, and which. They come before all that wait."""
    runs = tuple(runs)
    short = [(run, slot) for run in runs for slot in lacking(run, now)]
    if not short:
        return []
    known = replace(known, numbers=conflicts.gpu_numbers(runs))
    held = _held((ask for ask, _ in _holding(runs, known)), unfit(runs))
    lent: dict[tuple[str, str], HostLent] = {}
    for run, slot in short:
        host = pool_replacement(run, slot, held, known, now)
        if host is not None and (run.run_id, host.name) not in lent:
            lent[run.run_id, host.name] = HostLent(now, host, slot)
            held.add({host.address: dict.fromkeys(host.leases, f"a spare of {run.run_id}")}, [host.address])
    return [(run_id, event) for (run_id, _), event in lent.items()]


def _held(busy: Iterable[Ask], out: Mapping[Machine, str]) -> Held:
    held = Held()
    held.out = {**out}
    _add(held, busy)
    return held


def _add(held: Held, busy: Iterable[Ask]) -> None:
    for ask in busy:
        held.add(ask.held.users, ask.held.tasks, ask.held.memory)


NAMED_MAX = 6
"""How many of the runs that wait for a GPU before another one are named."""

RESERVED_MAX = 10
"""For how many runs that wait a place is held back. Others begin where they delay none of these."""


class _Chooser:
    """Chooses the places of runs that wait, among what the runs before them leave.

    Ten thousand that wait ask for much the same. So each need is looked at once, while its place is not taken.
    """

    def __init__(self, known: Known, out: Mapping[Machine, str], now: Instant) -> None:
        self._known, self._out, self._now = known, out, now
        self._running, self._all = _held((), out), _held((), out)
        """What is held by those that run or begin, and what is held back too."""
        self._begun = self._before = 0
        """How many of those have been added."""
        self._is_asked = False
        self._not_now: set[tuple[object, ...]] = set()
        """Needs for which nothing is free that is not held back: what is free becomes only less."""
        self._in_vain: set[tuple[object, ...]] = set()
        """Needs for which nothing is free at all."""
        self._later: dict[tuple[object, ...], Ask] = {}
        """By need: the place that is not free before others have ended or begun. Those of whom nothing is held back any
        more share that of the last one, without its checkpoint directory."""
        self._begin_now: set[object] = set()
        """What runs have that begin now."""
        self._needed: set[object] = set()
        """What is held, and what is held back."""

    def choose(
        self, ask: Ask, taken: Sequence[tuple[Ask, Instant]], ahead: Sequence[tuple[Ask, Instant]]
    ) -> Ask:
        """Return the request with a place: one that is free now, else the one that is free the earliest.

        Runs that ask alike share it, until it is `named`.
        """
        plan = ask.plan
        if plan is None or ask.others:  # whose turn is not to come yet needs no place
            return ask
        begun = [each for each, _ in taken[self._begun :]]
        before = [each for each, _ in ahead[self._before :]]
        if self._is_asked and begun:
            self._begin_now.update(key for each in begun for key in each.needs)
        self._begun, self._before, self._is_asked = len(taken), len(ahead), True
        _add(self._running, begun)
        _add(self._all, begun)
        _add(self._all, before)
        self._needed.update(*[each.needs for each in (*begun, *before)])
        if before and len(ahead) < RESERVED_MAX:
            self._later.clear()  # else two that ask alike would wait for the same place
        need = (same_hosts(plan), plan.needs, plan.strategy)
        later = self._later.get(need)
        if later is not None and self._begin_now.isdisjoint(later.held.needs):
            if later.place is not None and conflicts.saves_where(plan) in self._needed:
                return self._with(ask, plan, later.place)
            return replace(later, run_id=ask.run_id, lasts_s=ask.lasts_s, plan=plan)
        if need not in self._not_now:
            if isinstance(place := find(plan, self._all, self._known, self._now), Placed):
                return self._with(ask, plan, place)
            self._not_now.add(need)
        if ahead and need not in self._in_vain:
            if isinstance(place := find(plan, self._running, self._known, self._now), Placed):
                return self._remembered(need, plan, self._with(ask, plan, place))
            self._in_vain.add(need)
        if len(ahead) >= RESERVED_MAX:
            return replace(ask, others="others that wait are before it")
        return self._remembered(need, plan, self._with_earliest(ask, plan, [*taken, *ahead]))

    def _with_earliest(self, ask: Ask, plan: Plan, taken: Sequence[tuple[Ask, Instant]]) -> Ask:
        # Those that are held back for others count as taken too: else two that need a whole host wait for the same
        # one. The more of them have ended, the more is free: so the fewest ends are found by halving.
        ends = [each for each, _ in sorted(taken, key=lambda one: one[1] if one[1] > self._now else inf)]
        place = self._find(plan, [])
        if not isinstance(place, Placed):
            nobody = _held([], self._out)
            return replace(ask, others=sentence(in_vain(plan, nobody, self._known, self._now).items()))
        fewest, most = 1, len(ends)
        while fewest < most:
            middle = (fewest + most) // 2
            earlier = self._find(plan, ends[middle:])
            if isinstance(earlier, Placed):
                place, most = earlier, middle
            else:
                fewest = middle + 1
        return self._with(ask, plan, place)

    def _remembered(self, need: tuple[object, ...], plan: Plan, ask: Ask) -> Ask:
        own = conflicts.saves_where(plan)
        self._later[need] = replace(ask, needs={key: what for key, what in ask.needs.items() if key != own})
        return ask

    def named(self, ask: Ask) -> Ask:
        """Return a request that has the place for itself from now on, or has it held back."""
        return ask if ask.plan is None or ask.place is None else self._with(ask, ask.plan, ask.place)

    def _find(self, plan: Plan, busy: Iterable[Ask]) -> Placed | tuple[NoPlacement, ...]:
        return find(plan, _held(busy, self._out), self._known, self._now, tells=False)

    def _with(self, ask: Ask, plan: Plan, place: Placed) -> Ask:
        there = placed(plan, place)
        held = conflicts.holding(ask.run_id, there, there, self._known.numbers)
        return replace(ask, needs=held.needs, held=held, place=place)


class _Line:
    """The runs that wait for the same GPU, slot or directory, in their order."""

    __slots__ = ("begins_at", "frees_at", "has_more", "last_begins_at", "turns")

    def __init__(self) -> None:
        self.turns: list[QueueTurn] = []
        """The first of them."""
        self.has_more = False
        self.begins_at = inf
        """When the first of them to begin does."""
        self.last_begins_at = self.frees_at = -inf
        """When the last one begins, and when the last one has ended."""

    def add(self, turn: QueueTurn) -> None:
        """Let a run wait behind those that are there."""
        if len(self.turns) < NAMED_MAX:
            self.turns.append(turn)
        else:
            self.has_more = True
        self.begins_at = min(self.begins_at, turn.begins_at)
        self.last_begins_at = max(self.last_begins_at, turn.begins_at)
        self.frees_at = max(self.frees_at, turn.begins_at + turn.ask.lasts_s)


def reckon(
    waiting: Sequence[Ask],
    held: Sequence[tuple[Ask, Instant]],
    now: Instant,
    chooser: _Chooser | None = None,
) -> list[QueueTurn]:
    """Return the turns of the runs that wait, in their order. `held`: what is held, and until when at the latest."""
    taken, ahead = list(held), list[tuple[Ask, Instant]]()
    turns: list[QueueTurn] = []
    holders: dict[object, list[tuple[Ask, Instant]]] = {}
    lines: defaultdict[object, _Line] = defaultdict(_Line)
    alike: dict[tuple[object, ...], QueueTurn] = {}
    """By need, limit and reason: the turn of runs that ask alike, while nobody begins and nothing is held back."""
    for entry in taken:
        for need in entry[0].needs:
            holders.setdefault(need, []).append(entry)
    for asked in waiting:
        ask = chooser.choose(asked, taken, ahead) if chooser is not None else asked
        kind = (id(ask.needs), ask.lasts_s, ask.others)
        if kind in alike:
            turns.append(replace(alike[kind], ask=replace(ask, place=None)))
            continue
        holding = list({id(entry): entry for need in ask.needs for entry in holders.get(need, ())}.values())
        before = [lines[need] for need in ask.needs if need in lines]
        is_free, ends_at = not holding and not ask.others, now + ask.lasts_s
        if is_free and all(ends_at <= line.begins_at and line.last_begins_at < inf for line in before):
            ask = ask if chooser is None else chooser.named(ask)
            turns.append(QueueTurn(ask, now))
            taken.append((ask, ends_at))
            for need in ask.needs:
                holders.setdefault(need, []).append(taken[-1])
            alike.clear()
            continue
        # A run that is over its limit may end at any moment, so no moment is promised.
        frees = [until if until > now else inf for _, until in holding] + [inf] * bool(ask.others)
        frees += [line.frees_at for line in before]
        first = {id(turn): turn for line in before for turn in line.turns}
        blockers = [blocker for blocker, _ in holding] + [turn.ask for turn in first.values()]
        waits_for = tuple((blocker.run_id, _shared(blocker, ask)) for blocker in blockers)
        is_held_back = not ask.others and (ask.plan is None or len(ahead) < RESERVED_MAX)
        shown = ask if is_held_back else replace(ask, place=None)
        turn = QueueTurn(shown, max(frees), waits_for, any(line.has_more for line in before))
        turns.append(turn)
        if is_held_back:
            ask = ask if chooser is None else chooser.named(ask)
            ahead.append((ask, turn.begins_at + ask.lasts_s))
            for need in ask.needs:
                lines[need].add(turn)
            alike.clear()
        else:
            alike[kind] = turn
    return turns


def turn_of(plan: Plan, others: Iterable[Run], now: Instant, known: Known = NOTHING) -> tuple[QueueTurn, str]:
    """Return the turn of a run of this plan that would come last now, and who has what it needs and for how long."""
    others = tuple(others)
    last = new_run("", replace(plan, queue=QueuePlan(PRIORITIES[0])), epoch=0, at=now)
    turn = next(turn for turn in turns([*others, last], now, known) if not turn.ask.run_id)
    if turn.has_come or turn.ask.plan is None:
        return turn, ""
    active = [each for each in others if not each.phase.is_terminal and each.phase is not Phase.QUEUED]
    held = _held((_ask(each, known) for each in active), unfit(others))
    when = f"; expected to be free in {duration(turn.begins_at - now)}" if now < turn.begins_at < inf else ""
    return turn, sentence(in_vain(turn.ask.plan, held, known, now).items()) + when


WAY_AGAIN_S = 3600.0
"""How long nobody makes way for a run whose turn has come in vain."""


def ways(turns: Sequence[QueueTurn], runs: Mapping[str, Run], now: Instant) -> dict[str, str]:
    """Return which runs are to make way, each with the run that it makes way for, which has set `preempt`.

    Only a run that came from the queue and saves checkpoints can return to it, and only if it began with a lower
    priority than the other run has by now: a run that has waited for long is not driven out again. Nor may the proof be
    missing that nothing of it is left, of a host that is away. If another run holds a part of what is needed and does
    not make way, all stay. What other head nodes hold is not known before the hosts are asked, so making way may be in
    vain once, and then not again for a while.
    """
    asked: dict[str, str] = {}
    for turn in turns:
        waiting = runs[turn.ask.run_id]
        queued, plan = waiting.phase_state, waiting.plan.queue
        if not isinstance(queued, Queued) or plan is None or not plan.preempt or turn.ask.others:
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
    can_return &= run.has_no_process or all(run.host(h).link is Link.CONNECTED for h in to_prove(run))
    return is_there and can_return and run.rank is not None and run.rank < rank


def rank(run: Run, now: Instant) -> int:
    """Return the present priority of a run that waits."""
    return _priority(run.within(Queued), now)


def _shared(holder: Ask, other: Ask) -> tuple[str, ...]:
    return tuple(words for need, words in other.needs.items() if need in holder.needs)


def _priority(queued: Queued, now: Instant) -> int:
    return queued.priority + int(max(0.0, now - queued.since_at) // STEP_OF_PRIORITY_S)


def _ask(run: Run, known: Known) -> Ask:
    limit_s = run.plan.time_limit_s
    lasts_s = limit_s if limit_s is not None else inf
    waiting = run.phase_state
    others = ""
    if isinstance(waiting, Queued) and waiting.retry_at is not None:
        others = waiting.others or waiting.why
    if isinstance(waiting, Queued) and known.has_choice(run.submitted) and not run.generation:
        # Where others hold what it was to have, another place is chosen at once
        return Ask(run.run_id, {}, lasts_s, "" if waiting.others else others, plan=run.submitted)
    if isinstance(waiting, Queued) and run.generation and not others:
        # It has made way, and goes back to these hosts only
        hosts = map(run.plan.host, run.placed.hosts_used)
        others = next((f"{host.name} {why}" for host in hosts if (why := known.why_drained(host))), "")
    held = conflicts.holding(run.run_id, run.plan, run.placed, known.numbers)
    return Ask(run.run_id, held.needs, lasts_s, others, held)


def _ends_at(run: Run) -> Instant:
    """Return by when a run that trains will have ended; `inf` where that is not planned."""
    planned = run.planned_end
    return planned.at + run.plan.timing.kill_grace_s + END_S if planned is not None else inf

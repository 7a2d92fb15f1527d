"""What each second of a run was spent on: its spans, and its goodput, from its events alone.

Goodput is the time in which steps were trained that count, of all the time since the run was submitted. The rest is
badput, in classes that are disjoint and add up to the elapsed time:

    connect  until the first generation starts     lost     trained, and trained again after a restart
    start    processes start and join              stall    the position stood still
    warmup   from the release to the first step    stop     the tasks were being ended
    backoff  waiting for the next generation       room     waiting for room on the checkpoint's disk

Events say when a generation was released, and not when its first and last steps were. Where a history was kept it says
so (`Moved`); without it, a generation trains from its release to its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.core.notes import NoteKind as Kind


@dataclass(frozen=True, slots=True)
class Moved:
    """When a generation's chief made its first step, and its newest; and which they were."""

    first_at: float
    last_at: float
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the run, with its Unix time."""

    at: float
    kind: Kind
    generation: int
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when the run did what: a class of badput, or `training`."""

    state: str
    begin: float
    end: float


@dataclass(slots=True)
class Generation:
    """One generation, as its events tell it."""

    number: int
    spans: list[Span]
    resumed_from: int | None = None
    last_step: int | None = None
    kept_to: int | None = None
    """The step up to which its work counts: what the next one resumed from."""
    kept_fraction: float = 1.0
    at_risk: bool = False
    """Its newest work is saved nowhere yet."""


@dataclass(frozen=True, slots=True)
class Account:
    """A run's time. `value` is None until it has trained."""

    begin: float
    end: float
    is_final: bool
    value: float | None
    kept_s: float
    badput: Mapping[str, float]
    generations: Sequence[Generation]
    checkpoints: Sequence[tuple[float, int | None]]

    @property
    def elapsed_s(self) -> float:
        """Since the submission, to the end or to now."""
        return self.end - self.begin

    def as_data(self) -> dict[str, Any]:
        """Return it as status and history carry it."""
        return {
            "value": None if self.value is None else round(self.value, 4),
            "final": self.is_final,
            "elapsed_s": round(self.elapsed_s, 1),
            "kept_s": round(self.kept_s, 1),
            "badput": {name: round(spent, 1) for name, spent in self.badput.items()},
        }


CLASSES = ("connect", "start", "warmup", "lost", "stall", "stop", "backoff", "room")

_ENDS = (Kind.SUCCEEDED, Kind.FAILED, Kind.KILLED)
_BEGINS = {
    Kind.GENERATION: "start",
    Kind.RUNNING: "warmup",
    Kind.STALLED: "stall",
    Kind.MOVES_AGAIN: "training",
    Kind.STOPPING: "stop",
    Kind.BACKOFF: "backoff",
    Kind.WAITING_FOR_ROOM: "room",
    Kind.ROOM_AGAIN: "backoff",
}
"""What a run does from that event on."""

KINDS = frozenset({Kind.SUBMITTED, Kind.RESUMED, Kind.FROM_START, Kind.CHECKPOINT, *_BEGINS, *_ENDS})
"""The kinds that `account` reads; others change nothing."""


def account(
    events: Iterable[Event], *, now: float, moved: Mapping[int, Moved] | None = None
) -> Account | None:
    """Return how a run has spent its time, from its events in order; None where it has none.

    Args:
        events: those of the run.
        now: until when a run counts that has not ended.
        moved: by generation, when its position moved.
    """
    told = [event for event in events if event.kind in KINDS]
    if not told:
        return None
    ended = next((event for event in told if event.kind in _ENDS), None)
    end = ended.at if ended is not None else max(now, told[-1].at)
    generations = _generations(told, end)
    for generation in generations:
        going = ended is None and generation is generations[-1]
        _follow(generation, (moved or {}).get(generation.number), going=going)
    _judge(
        told, generations, succeeded=ended is not None and ended.kind is Kind.SUCCEEDED, going=ended is None
    )
    checkpoints = [(e.at, e.data.get("global_step")) for e in told if e.kind is Kind.CHECKPOINT]
    return _sum(told[0].at, end, ended is not None, generations, checkpoints)


def _generations(told: Sequence[Event], end: float) -> list[Generation]:
    """Cut the run's time at its events. The time before the first generation is in one of number 0."""
    made = [Generation(0, [])]
    state, since = "connect", told[0].at
    for event in told:
        follows = _BEGINS.get(event.kind)
        if event.kind in (Kind.RESUMED, Kind.FROM_START):
            made[-1].resumed_from = event.data.get("global_step") or 0
        at = min(max(event.at, since), end)
        if event.kind in _ENDS:
            break
        if follows is None or (
            follows in ("stall", "training") and state not in ("training", "warmup", "stall")
        ):
            continue
        if at > since:
            made[-1].spans.append(Span(state, since, at))
        if event.kind is Kind.GENERATION:
            made.append(Generation(event.generation, []))
        state, since = follows, at
    if end > since:
        made[-1].spans.append(Span(state, since, end))
    return made


def _follow(generation: Generation, moved: Moved | None, *, going: bool) -> None:
    """Cut the time between release and end where the first step was made, and the last."""
    if moved is not None:
        generation.last_step = moved.last_step
    cut: list[Span] = []
    for span in generation.spans:
        if span.state != "warmup":
            cut.append(span)
            continue
        first = span.begin if moved is None else min(max(moved.first_at, span.begin), span.end)
        last = span.end if moved is None or going else min(max(moved.last_at, first), span.end)
        named = (("warmup", span.begin, first), ("training", first, last), ("stop", last, span.end))
        cut += [Span(*each) for each in named if each[2] > each[1]]
    generation.spans = cut


def _judge(told: Sequence[Event], generations: Sequence[Generation], *, succeeded: bool, going: bool) -> None:
    """Say of each generation how much of its training counts: all up to the step that the next one resumed from."""
    lost = {e.generation: e.data.get("steps_lost") for e in told if e.kind in (Kind.RESUMED, Kind.FROM_START)}
    resumed = {
        e.generation: e.data.get("global_step") or 0
        for e in told
        if e.kind in (Kind.RESUMED, Kind.FROM_START)
    }
    trained = [g for g in generations if any(span.state == "training" for span in g.spans)]
    followers = [g.number for g in generations if g.number in resumed]
    for generation in trained:
        follower = next((number for number in followers if number > generation.number), None)
        if follower is not None:
            generation.kept_to = resumed[follower]
            if generation.last_step is None:
                generation.last_step = resumed[follower] + (lost[follower] or 0)
        elif succeeded:
            generation.kept_to = generation.last_step
            continue
        else:
            saved = [e.data.get("global_step") for e in told if e.kind is Kind.CHECKPOINT]
            known = [step for step in saved if step is not None]
            generation.kept_to = max([generation.resumed_from or 0, *known[-1:]])
            generation.at_risk = going
        generation.kept_fraction = 1.0 if generation.at_risk else _fraction(generation)


def _fraction(generation: Generation) -> float:
    """Return how much of its steps is not trained again."""
    begin, last, kept = generation.resumed_from or 0, generation.last_step, generation.kept_to
    if last is None or kept is None or last <= begin:
        return 1.0 if kept is None or last is None or kept >= last else 0.0
    return min(1.0, max(0.0, (kept - begin) / (last - begin)))


def _sum(
    begin: float,
    end: float,
    is_final: bool,
    generations: list[Generation],
    checkpoints: Sequence[tuple[float, int | None]],
) -> Account:
    badput = dict.fromkeys(CLASSES, 0.0)
    kept = trained = 0.0
    for generation in generations:
        for span in generation.spans:
            spent = span.end - span.begin
            if span.state == "training":
                trained += spent
                kept += spent * generation.kept_fraction
                badput["lost"] += spent * (1 - generation.kept_fraction)
            else:
                badput[span.state] += spent
        generation.spans = _with_lost(generation)
    value = kept / (end - begin) if trained and end > begin else None
    spent_on = {name: spent for name, spent in badput.items() if spent > 0}
    return Account(begin, end, is_final, value, kept, spent_on, generations, checkpoints)


def _with_lost(generation: Generation) -> list[Span]:
    """Return the spans, with the end of its training that is trained again as `lost`."""
    training = [span for span in generation.spans if span.state == "training"]
    left = sum(span.end - span.begin for span in training) * (1 - generation.kept_fraction)
    made: list[Span] = []
    for span in reversed(generation.spans):
        if span.state != "training" or left <= 0:
            made.append(span)
            continue
        cut = max(span.begin, span.end - left)
        left -= span.end - cut
        made.append(replace(span, state="lost", begin=cut))
        if cut > span.begin:
            made.append(replace(span, end=cut))
    return made[::-1]

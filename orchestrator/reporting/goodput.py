"""Accounts for each second of a run: computes its spans of time and its goodput from its events.

Goodput is the share of the time since submission in which steps were trained that were kept. The rest is badput, in
disjoint classes that add up to the elapsed time:

    connect  until the first generation starts      stall    the position stood still
    start    processes start and join               stop     from the last step until the tasks had ended
    restore  waiting for the checkpoint, reading it  backoff  waiting for the next generation
    warmup   from then to the first new step        host     waiting for a host to answer, or to be replaced
    lost     trained, and trained again             room     waiting for room on the checkpoint's disk
    save     saves paused the training              unseen   no coordinator ran, and no step shows what was done
    rescue   a survivor wrote its state             queue    in the queue, after it had made way

Events have the time of a generation's release, but not of its first and last steps. If there is a history, it has them
(`Moved`), with the time of the script's saves and the times in which a coordinator ran. Without it, a generation trains
from its release to its end. Steps that were made without a coordinator count as training, since the position shows them
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from orchestrator.core.notes import NoteKind as Kind


@dataclass(frozen=True, slots=True)
class Moved:
    """The first and the newest step of a generation's chief, with their times."""

    first_at: float
    last_at: float
    first_step: int
    last_step: int
    began_at: float | None = None
    """When the script began to train, after restoring; None if its runtime does not say."""
    saved_s: float = 0.0
    """How long its saves have paused the training."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the run, with Unix time."""

    at: float
    kind: Kind
    generation: int
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, and what the run did in it: a class of badput, or `training`."""

    state: str
    begin: float
    end: float


@dataclass(slots=True)
class Generation:
    """A generation, according to its events."""

    number: int
    spans: list[Span]
    resumed_from: int | None = None
    last_step: int | None = None
    kept_to: int | None = None
    """The step up to which its work counts: from which the next one resumed, or a later one that went back further."""
    kept_fraction: float = 1.0
    at_risk: bool = False
    """Whether its newest work is not saved yet."""
    is_resumed: bool = False
    """Whether it started from a checkpoint."""
    known_s: Mapping[str, float] = field(default_factory=dict)
    """Without a history: seconds from its release to the begin of training, and to its first step."""
    has_lost_host: bool = False
    saved_s: float = 0.0
    gpus: int | None = None
    """The number of its tasks' GPUs; None if the journal does not say."""


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
    lost_gpu_hours: float | None = None
    """The work that was trained again, in GPU hours; None if the number of GPUs is unknown."""

    @property
    def elapsed_s(self) -> float:
        """The time from the submission to the end or to now."""
        return self.end - self.begin

    def as_data(self) -> dict[str, Any]:
        """Return the JSON document for status and history."""
        return {
            "value": None if self.value is None else round(self.value, 4),
            "final": self.is_final,
            "elapsed_s": round(self.elapsed_s, 1),
            "kept_s": round(self.kept_s, 1),
            "badput": {name: round(spent, 1) for name, spent in self.badput.items()},
            "lost_gpu_hours": None if self.lost_gpu_hours is None else round(self.lost_gpu_hours, 3),
        }


CLASSES = (
    *("connect", "start", "restore", "warmup", "lost", "save"),
    *("stall", "stop", "backoff", "host", "room", "unseen", "rescue", "queue"),
)

UNSEEN_AFTER_S = 15.0
"""The history is written at intervals, so a gap in it counts only if it is longer than this."""

MOVES_EVERY_S = 3.0
"""A shorter standstill does not count, since positions are reported with heartbeats, and read every two seconds."""

_ENDS = (Kind.SUCCEEDED, Kind.FAILED, Kind.KILLED)
_BEGINS = {
    Kind.GENERATION: "start",
    Kind.RUNNING: "warmup",
    Kind.STALLED: "stall",
    Kind.MOVES_AGAIN: "training",
    Kind.STOPPING: "stop",
    Kind.BACKOFF: "backoff",
    Kind.WAITING_FOR_HOST: "host",
    Kind.WAITING_FOR_ROOM: "room",
    Kind.ROOM_AGAIN: "backoff",
    Kind.QUEUED: "queue",
}
"""What a run does after an event."""

_RELEASED = ("warmup", "training", "stall")
_RESUMES = (Kind.RESUMED, Kind.FROM_START, Kind.OWN_PLACE)

_TELLS = (Kind.SUBMITTED, Kind.CHECKPOINT, Kind.HOST_LOST, Kind.TRAINS_AGAIN, Kind.RESCUED)

KINDS = frozenset({*_TELLS, *_RESUMES, *_BEGINS, *_ENDS})
"""The kinds of events that `account` uses."""


def account(
    events: Iterable[Event],
    *,
    now: float,
    moved: Mapping[int, Moved] | None = None,
    watched: Sequence[tuple[float, float]] = (),
) -> Account | None:
    """Return how a run has spent its time, from its events in order; None if there are none.

    Args:
        events: of the run.
        now: the end of the account if the run has not ended.
        moved: the first and the newest steps, by generation.
        watched: the times in which a coordinator ran, in order; empty if they were not recorded.
    """
    # Of a run that has not trained, the time in the queue does not count.
    relevant = [e for e in events if e.kind in KINDS and (e.kind is not Kind.QUEUED or e.generation)]
    if not relevant:
        return None
    ended = next((event for event in relevant if event.kind in _ENDS), None)
    end = ended.at if ended is not None else max(now, relevant[-1].at)
    generations = _generations(relevant, end)
    for generation in generations:
        going = ended is None and generation is generations[-1]
        _follow(generation, (moved or {}).get(generation.number), going=going)
        # The spans, with unknown parts while no coordinator ran. Steps that were made then are known afterwards.
        # After the last report nothing is.
        spans = generation.spans
        gaps = [(before[1], after[0], False) for before, after in pairwise(watched)]
        gaps += [(watched[-1][1], end, True)] if watched else []
        for begin, until, is_open in gaps:
            if until - begin > UNSEEN_AFTER_S:
                spans = [part for span in spans for part in _hidden(span, begin, until, is_open=is_open)]
        generation.spans = spans
    # Find how much of each generation's training counts: all up to the step from which the next one resumed, or from
    # which a later one trained again. A generation that made no step trained nothing again.
    succeeded = ended is not None and ended.kind is Kind.SUCCEEDED
    going = ended is None
    lost = {e.generation: e.data.get("steps_lost") for e in relevant if e.kind in _RESUMES}
    resumed = {e.generation: e.data.get("global_step") or 0 for e in relevant if e.kind in _RESUMES}
    trained = [g for g in generations if any(span.state == "training" for span in g.spans)]
    followers = [
        (g.number, g.last_step is not None or bool(g.known_s)) for g in generations if g.number in resumed
    ]
    follower: int | None = None
    again_from = max(resumed.values(), default=0)
    saves = bool(resumed) or any(e.kind is Kind.CHECKPOINT for e in relevant)
    for generation in reversed(trained):
        while followers and followers[-1][0] > generation.number:
            follower, has_stepped = followers.pop()
            again_from = min(again_from, resumed[follower]) if has_stepped else again_from
        if follower is not None:
            generation.kept_to = min(resumed[follower], again_from)
            if generation.last_step is None:
                generation.last_step = resumed[follower] + (lost[follower] or 0)
        elif generation is not trained[-1] or (not saves and generation is not generations[-1]):
            # Without a checkpoint directory, no event says that the next generation begins at step 0.
            generation.kept_to = 0
        elif succeeded:
            generation.kept_to = generation.last_step
            continue
        else:
            saved = [e.data.get("global_step") for e in relevant if e.kind is Kind.CHECKPOINT]
            known = [step for step in saved if step is not None]
            generation.kept_to = max([generation.resumed_from or 0, *known[-1:]])
            generation.at_risk = going
        generation.kept_fraction = 1.0 if generation.at_risk else _fraction(generation)
    checkpoints = [(e.at, e.data.get("global_step")) for e in relevant if e.kind is Kind.CHECKPOINT]
    return _sum(relevant[0].at, end, ended is not None, generations, checkpoints)


def _generations(events: Sequence[Event], end: float) -> list[Generation]:
    """Split the run's time at its events. The time before the first generation belongs to generation 0."""
    made = [Generation(0, [])]
    state, since = "connect", events[0].at
    for event in events:
        at = min(max(event.at, since), end)
        # Facts about the generation from the event
        generation = made[-1]
        if event.kind in _RESUMES:
            generation.resumed_from = event.data.get("global_step") or 0
            generation.is_resumed = event.kind is not Kind.FROM_START
        elif event.kind is Kind.TRAINS_AGAIN:
            restored_s, rest_s = event.data.get("restored_s"), event.data.get("first_step_s")
            if rest_s is not None:
                generation.known_s = {"began": restored_s or 0.0, "first": (restored_s or 0.0) + rest_s}
        elif event.kind is Kind.HOST_LOST and state in _RELEASED:
            generation.has_lost_host = True
        if event.kind in _ENDS:
            break
        for begins, follows in _changes(event, state, since, at):
            if begins > since:
                made[-1].spans.append(Span(state, since, begins))
            state, since = follows, begins
        if event.kind is Kind.GENERATION:
            made.append(Generation(event.generation, [], gpus=event.data.get("gpus")))
    if end > since:
        made[-1].spans.append(Span(state, since, end))
    return made


def _changes(event: Event, state: str, since: float, at: float) -> list[tuple[float, str]]:
    """Return the changes in what the run does, with their times, that follow from an event."""
    if event.kind is Kind.HOST_LOST and state == "stop":
        return [(since, "host"), (at, "stop")]  # the run waited for that host
    if event.kind is Kind.RESCUED and state == "stop":
        return [(max(since, at - event.data.get("took_s", 0.0)), "rescue"), (at, "stop")]
    follows = _BEGINS.get(event.kind)
    if follows is None or (follows in ("stall", "training") and state not in _RELEASED):
        return []
    if event.kind is Kind.RUNNING and event.data.get("seeding_s"):
        return [(max(since, at - event.data["seeding_s"]), "restore"), (at, follows)]
    return [(at, follows)]


def _follow(generation: Generation, moved: Moved | None, *, going: bool) -> None:
    """Split the time between release and end at the first and the last step."""
    if moved is not None:
        generation.last_step, generation.saved_s = moved.last_step, moved.saved_s
    cut: list[Span] = []
    for span, after in zip(generation.spans, [*generation.spans[1:], None], strict=False):
        if span.state not in ("warmup", "training"):
            cut.append(span)
            continue
        began = first = span.begin
        last = span.end
        if span.state == "warmup":
            began, first = _first(generation, moved, span)
        if moved is not None and not going:
            last = min(max(moved.last_at, first), span.end)
        tail = "stall" if after is not None and after.state == "stall" else "stop"
        tail = "host" if generation.has_lost_host and tail == "stop" else tail
        if tail == "stop" and span.end - last <= MOVES_EVERY_S:
            last = span.end  # as far as known, it trained until it was stopped
        named = (
            *(("restore", span.begin, began), ("warmup", began, first)),
            *(("training", first, last), (tail, last, span.end)),
        )
        cut += [Span(*each) for each in named if each[2] > each[1]]
    generation.spans = cut


def _first(generation: Generation, moved: Moved | None, span: Span) -> tuple[float, float]:
    """Return when the script had restored its state, and when it made its first new step."""
    known, began = generation.known_s, span.begin
    first = span.begin + known.get("first", 0.0) if moved is None else moved.first_at
    first = min(max(first, span.begin), span.end)
    if generation.is_resumed:
        began = span.begin + known.get("began", 0.0)
        if moved is not None and moved.began_at is not None:
            began = moved.began_at
    return min(max(began, span.begin), first), first


def _hidden(span: Span, begin: float, end: float, *, is_open: bool) -> list[Span]:
    """Split a span at the times without a coordinator. Of a run in the queue no times with one are recorded."""
    begin, end = max(begin, span.begin), min(end, span.end)
    if begin >= end or span.state == "queue" or (span.state == "training" and not is_open):
        return [span]
    parts = (Span(span.state, span.begin, begin), Span("unseen", begin, end), Span(span.state, end, span.end))
    return [part for part in parts if part.end > part.begin]


def _fraction(generation: Generation) -> float:
    """Return the share of its steps that is not trained again."""
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
    gpu_s: float | None = 0.0
    for generation in generations:
        spent = sum(span.end - span.begin for span in generation.spans if span.state == "training")
        saved = min(generation.saved_s, spent)
        lost = spent * (1 - generation.kept_fraction)
        trained += spent
        kept += (spent - saved) * generation.kept_fraction
        badput["save"] += saved * generation.kept_fraction
        badput["lost"] += lost
        if lost > 0:
            gpu_s = None if gpu_s is None or generation.gpus is None else gpu_s + lost * generation.gpus
        for span in generation.spans:
            if span.state != "training":
                badput[span.state] += span.end - span.begin
        generation.spans = _with_lost(generation)
    value = kept / (end - begin) if trained and end > begin else None
    spent_on = {name: spent for name, spent in badput.items() if spent > 0}
    gpu_hours = None if gpu_s is None else gpu_s / 3600
    return Account(begin, end, is_final, value, kept, spent_on, generations, checkpoints, gpu_hours)


def _with_lost(generation: Generation) -> list[Span]:
    """Return the spans. The end of its training that is trained again is `lost`."""
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

"""The notices that people get about a run's events: for which events, how often, and their texts.

Pure: turns events of the journal into notices. Repeated ones are limited to one a minute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from orchestrator.core.notes import NoteKind, kind_of
from orchestrator.core.words import duration, plain


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of notices."""

    title: str
    command: str
    """What shows more, without the run's name."""
    level: str
    by_default: bool = True
    """Whether it is sent without `on`. Restarts and lost hosts are not: orch handles them, and they may be many."""


KINDS: Mapping[str, Row] = {
    "failed": Row("has failed", "orch why", "failure"),
    "restarted": Row("is restarted", "orch why", "warning", by_default=False),
    "stalled": Row("makes no progress", "orch stacks", "failure"),
    "nonfinite": Row("reports a metric that is no number", "orch ckpt ls", "failure"),
    "host-lost": Row("has lost a host", "orch status", "warning", by_default=False),
    "quarantined": Row("does without a host", "orch why", "warning"),
    "succeeded": Row("has succeeded", "orch status", "success"),
    "disk-full": Row("has no room on a disk", "orch why", "failure"),
}

NOTICES = tuple(KINDS)

BY_DEFAULT = tuple(kind for kind, row in KINDS.items() if row.by_default)

EVERY_S = 60.0
"""The minimum interval between notices of the same run and kind."""

ENDS = ("failed", "succeeded")
"""These are sent at once, with a summary of the notices that were held back."""

TEXT_MAX = 300
BODY_MAX = 4000


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the journal."""

    run_id: str
    name: str
    kind: str
    """The event's kind in the journal."""
    message: str
    time: str = ""
    task: str | None = None
    generation: int = 0
    cause: Mapping[str, Any] = field(default_factory=dict)
    """Its first cause, if it has one."""

    @property
    def notice(self) -> str:
        """Return the kind of notice for this event; empty if there is none."""
        kind = kind_of(self.kind)
        return kind.row.notice if kind is not None else ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice to send now, about the last of `count` events."""

    kind: str
    last: Happened
    count: int = 1
    over_s: float = 0.0
    """The time within which those events happened."""
    before: Mapping[str, int] = field(default_factory=dict)
    """For an ended run: the numbers of events, by kind, whose notices were held back."""


@dataclass(frozen=True, slots=True)
class Held:
    """For a run and a kind: when a notice was last sent, and the events since."""

    said_at: float
    count: int = 0
    last: Happened | None = None


Desk = Mapping[tuple[str, str], Held]
"""The notices that are held back, by run and kind."""

EMPTY: Desk = MappingProxyType({})


def throttle(desk: Desk, happened: Happened, now: float) -> tuple[Desk, Notice | None]:
    """Return the notice to send now; hold it back if one of its kind was sent less than a minute ago."""
    kind = happened.notice
    if not kind:
        return desk, None
    key = (happened.run_id, kind)
    held = desk.get(key)
    if kind in ENDS:
        mine = {k: h for k, h in desk.items() if k[0] == happened.run_id}
        before = {k[1]: h.count for k, h in mine.items() if h.count}
        rest = {k: h for k, h in desk.items() if k not in mine}
        return rest, Notice(kind, happened, before=before)
    if held is None or (not held.count and now - held.said_at >= EVERY_S):
        return {**desk, key: Held(now)}, Notice(kind, happened)
    return {**desk, key: replace(held, count=held.count + 1, last=happened)}, None


def due(desk: Desk, now: float) -> tuple[Desk, tuple[Notice, ...]]:
    """Return the notices that were held back for a minute; forget kinds that have not repeated."""
    left: dict[tuple[str, str], Held] = {}
    ready: list[Notice] = []
    for key, held in desk.items():
        if now - held.said_at < EVERY_S:
            left[key] = held
        elif held.last is not None:
            left[key] = Held(now)
            ready.append(Notice(key[1], held.last, held.count, now - held.said_at))
    return left, tuple(ready)


def title(notice: Notice) -> str:
    """Return the subject.

    >>> title(Notice("restarted", Happened("m-1", "m", "backoff", "…"), count=7, over_s=60))
    'orch: m is restarted (7 times in 1 min)'
    """
    times = f" ({notice.count} times in {duration(notice.over_s)})" if notice.count > 1 else ""
    whose = notice.last.name or "the head node"
    return f"orch: {whose} {KINDS[notice.kind].title}{times}"


def body(notice: Notice, *, lines: int, head: str) -> str:
    """Return the text: the sentence, the first cause, the last `lines` lines of its task, and a command for more."""
    last, cause = notice.last, notice.last.cause
    paragraphs = [inert(last.message, BODY_MAX // 4)]
    if notice.before:
        held = ", ".join(f"{kind} {count} times" for kind, count in notice.before.items())
        paragraphs.append(f"Shortly before: {held}.")
    paragraphs += _cause_paragraphs(cause, last.message)
    shown = [inert(str(line)) for line in cause.get("last_lines") or ()][-lines:] if lines else []
    if shown:
        whose = f" of {cause['task']}" if cause.get("task") else ""
        paragraphs.append("\n".join((f"Last lines{whose}:", *(f"  {line}" for line in shown))))
    if last.name:
        paragraphs.append(f"Look, on {head}: {KINDS[notice.kind].command} {last.name}")
    generation = f", generation {last.generation}" if last.generation else ""
    paragraphs.append(f"{last.run_id or head}{generation}, {last.time}")
    whole = "\n\n".join(paragraphs)
    return whole if len(whole) <= BODY_MAX else f"{whole[: BODY_MAX - 1]}…"


def _cause_paragraphs(cause: Mapping[str, Any], message: str) -> list[str]:
    """Return paragraphs about the first cause."""
    sentence, paragraphs = str(cause.get("sentence") or ""), []
    where = " on ".join(str(cause[key]) for key in ("task", "host") if cause.get(key))
    if sentence and sentence not in message:
        paragraphs.append(f"First cause: {inert(sentence)}")
    elif where and str(cause.get("task")) not in message:
        paragraphs.append(f"First cause: {where}")
    if cause.get("means"):
        paragraphs.append(f"It means: {inert(str(cause['means']))}")
    if cause.get("advice"):
        paragraphs.append(f"You can: {inert(str(cause['advice']))}")
    return paragraphs


_CALLS = re.compile(r"(@)(?=\w)|(<)(?=[!@#|])")


def inert(text: str, most: int = TEXT_MAX) -> str:
    """Make a host's text harmless for message services: no control characters, no mentions of people.

    >>> inert("\\x1b[31m@everyone").replace(chr(0x200b), "|"), inert("<!channel>").replace(chr(0x200b), "|")
    ('@|everyone', '<|!channel>')
    """
    safe = _CALLS.sub(lambda match: f"{match[0]}\u200b", plain(text))
    return safe if len(safe) <= most else f"{safe[: most - 1].rstrip()}…"


def head_notice(sentence: str, time: str) -> Notice:
    """Return the notice about the head node itself: its journal could not store an event."""
    happened = Happened("", "", NoteKind.CHECKPOINT_DISK_FULL.value, sentence, time)
    return Notice("disk-full", happened)

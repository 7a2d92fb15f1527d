"""The messages that people get about a run's events: about which events, how often, and in which words.

Pure: events of the journal go in, and come out as notices, at most one a minute of what repeats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from orchestrator.core.notes import NoteKind, kind_of
from orchestrator.core.words import duration, plain

NOTICES = (
    "failed",
    "restarted",
    "stalled",
    "nonfinite",
    "host-lost",
    "quarantined",
    "succeeded",
    "disk-full",
)
"""What one can be told of."""

BY_DEFAULT = ("failed", "stalled", "nonfinite", "quarantined", "succeeded", "disk-full")
"""Where `on` is left out. Orch deals with restarts and lost hosts by itself, and they may be many."""

EVERY_S = 60.0
"""At most one notice in so long of what repeats: of one run and one kind."""

ENDS = ("failed", "succeeded")
"""These wait for nothing, and tell what was held back before."""

TEXT_MAX = 300
BODY_MAX = 4000

_COMMANDS: Mapping[str, str] = {
    "failed": "orch why {name}",
    "restarted": "orch why {name}",
    "stalled": "orch stacks {name}",
    "nonfinite": "orch ckpt ls {name}",
    "host-lost": "orch status {name}",
    "quarantined": "orch why {name}",
    "succeeded": "orch status {name}",
    "disk-full": "orch why {name}",
}

_TITLE: Mapping[str, str] = {
    "failed": "has failed",
    "restarted": "is restarted",
    "stalled": "makes no progress",
    "nonfinite": "reports a metric that is no number",
    "host-lost": "has lost a host",
    "quarantined": "does without a host",
    "succeeded": "has succeeded",
    "disk-full": "has no room on a disk",
}

LEVELS: Mapping[str, str] = {
    "failed": "failure",
    "stalled": "failure",
    "nonfinite": "failure",
    "disk-full": "failure",
    "succeeded": "success",
}
"""How bad each kind is; `warning` for the others."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the journal."""

    run_id: str
    name: str
    kind: str
    """As the journal has it."""
    message: str
    time: str = ""
    task: str | None = None
    generation: int = 0
    cause: Mapping[str, Any] = field(default_factory=dict)
    """Its first cause, if it has one."""

    @property
    def notice(self) -> str:
        """Return the kind of notice for this event; empty where nobody is notified of it."""
        kind = kind_of(self.kind)
        return kind.row.notice if kind is not None else ""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to send now: about the last of `count` events."""

    kind: str
    last: Happened
    count: int = 1
    over_s: float = 0.0
    """Within how long those were."""
    before: Mapping[str, int] = field(default_factory=dict)
    """What else had happened to a run that has ended, and had not been said yet."""


@dataclass(frozen=True, slots=True)
class Held:
    """For one run and kind: when a notice was last sent, and what has happened since."""

    said_at: float
    count: int = 0
    last: Happened | None = None


Desk = Mapping[tuple[str, str], Held]
"""The messages that are held back, by run and kind."""

EMPTY: Desk = MappingProxyType({})


def throttle(desk: Desk, happened: Happened, now: float) -> tuple[Desk, Notice | None]:
    """Return the notice to send now; hold it back where one of its kind was sent less than a minute ago."""
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
    """Return a notice of each kind that was held back for a minute; forget kinds that have not repeated."""
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
    return f"orch: {whose} {_TITLE[notice.kind]}{times}"


def body(notice: Notice, *, lines: int, head: str) -> str:
    """Return the text: the sentence, the first cause, `lines` last lines of its task, and the command to look."""
    last, cause = notice.last, notice.last.cause
    paragraphs = [inert(last.message, BODY_MAX // 4)]
    if notice.before:
        held = ", ".join(f"{kind} {count} times" for kind, count in notice.before.items())
        paragraphs.append(f"Shortly before: {held}.")
    paragraphs += _of_cause(cause, last.message)
    shown = [inert(str(line)) for line in cause.get("last_lines") or ()][-lines:] if lines else []
    if shown:
        whose = f" of {cause['task']}" if cause.get("task") else ""
        paragraphs.append("\n".join((f"Last lines{whose}:", *(f"  {line}" for line in shown))))
    if last.name:
        paragraphs.append(f"Look, on {head}: {_COMMANDS[notice.kind].format(name=last.name)}")
    generation = f", generation {last.generation}" if last.generation else ""
    paragraphs.append(f"{last.run_id or head}{generation}, {last.time}")
    whole = "\n\n".join(paragraphs)
    return whole if len(whole) <= BODY_MAX else f"{whole[: BODY_MAX - 1]}…"


def _of_cause(cause: Mapping[str, Any], message: str) -> list[str]:
    """Return what the first cause adds to the sentence."""
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
    """Return a host's text made harmless for message services: no control characters, no mentions of people.

    >>> inert("\\x1b[31m@everyone").replace(chr(0x200b), "|"), inert("<!channel>").replace(chr(0x200b), "|")
    ('@|everyone', '<|!channel>')
    """
    safe = _CALLS.sub(lambda match: f"{match[0]}\u200b", plain(text))
    return safe if len(safe) <= most else f"{safe[: most - 1].rstrip()}…"


def of_head(sentence: str, time: str) -> Notice:
    """Return the notice about the head node itself: its journal could not store an event."""
    happened = Happened("", "", NoteKind.CHECKPOINT_DISK_FULL.value, sentence, time)
    return Notice("disk-full", happened)

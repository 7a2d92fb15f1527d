"""Format first causes as text. Pure functions, as in `render`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from orchestrator.both.repetition import excerpt
from orchestrator.cli.session import Paint
from orchestrator.cli.show import paragraphs, render
from orchestrator.cli.show.terminal import cut, fold, printable
from orchestrator.cli.show.times import shown
from orchestrator.client.choice import is_active
from orchestrator.core.words import counted, duration

Document = Mapping[str, Any]

_NAMED_MAX = 4
"""How many followers are named; the others are counted."""

_LABEL_WIDTH = 9

_NUMBER = re.compile(r"(?<![\w-])(?<![A-Za-z]:)(?:0x[0-9a-f]+|\d+)")
"""A number that is not a part of a name such as `worker:1` or `gpu-2`."""


def why(document: Document, paint: Paint, *, width: int | None = None) -> str:
    """Return the whole text of `orch why`. `width`: the terminal's columns; None leaves lines whole."""
    causes = document.get("first_causes") or []
    is_known = document.get("phase") is not None
    blocks = [render.headline(document, paint) if is_known else paint(render.title(document), "bold")]
    # Merge causes that follow each other and differ in numbers only: five such failures are shown once
    blocks += [
        "\n".join(paragraphs.indent(block(alike[-1], paint, width, again=alike[:-1])))
        for alike in [list(alike) for _, alike in groupby(causes, key=_likeness)]
    ]
    spent = goodput(document.get("time_use"))
    if spent:
        blocks += ["\n".join(paragraphs.indent(_wrapped("goodput", spent, paint, width)))]
    limited = render.bottleneck_line(document)
    if limited:
        blocks += ["\n".join(paragraphs.indent(fold(limited, width and width - 2, indent="  ")))]
    saving = document.get("saving")
    if saving and is_known and is_active(document):
        blocks += ["\n".join(paragraphs.indent(_wrapped("saves", saving["sentence"], paint, width)))]
    now = "\n".join(paragraphs.indent(_now(document, causes, paint, width)))
    if now:
        blocks.insert(1 if not causes else len(blocks), now)
    return "\n\n".join(blocks) if causes else "\n".join(blocks)


def goodput(account: Document | None) -> str:
    """Return which part of the run's time counts, and where the rest went, the largest part first.

    >>> goodput({"value": 0.91, "badput": {"start": 3.0, "lost": 12.0}})
    '91% of the time counts; lost 12 s, start 3 s'
    """
    if not account or account.get("value") is None:
        return ""
    badput = sorted((account.get("badput") or {}).items(), key=lambda each: -each[1])
    spent = ", ".join(f"{name} {duration(seconds)}" for name, seconds in badput if seconds >= 0.5)
    lost = render.gpu_hours(account)
    return (
        f"{account['value']:.0%} of the time counts"
        + (f"; {spent}" if spent else "")
        + lost.replace(",", ";")
    )


def _now(document: Document, causes: list[Any], paint: Paint, width: int | None) -> list[str]:
    """Return the run's current state, unless the newest cause shows it already."""
    phase, reason = document.get("phase"), str(document.get("reason") or "")
    if phase is None:
        return [] if causes else ["No failure is recorded"]
    begins_with = document.get("reason_begins_with")
    if begins_with == "global_step" and not document.get("reason_rest"):
        return [] if causes else ["No failure so far"]
    if causes:
        if begins_with == "first_cause":
            return []
        lines = _wrapped("now", reason, paint, width)
    else:
        healthy = {"RUNNING": "No failure so far; ", "SUCCEEDED": "No failure; "}
        lines = fold(healthy.get(str(phase), "") + reason, width and width - 2)
    return lines + _wrapped("hint", (document.get("problem") or {}).get("hint"), paint, width)


def _likeness(cause: Document) -> tuple[object, ...]:
    sentence = _NUMBER.sub("#", str(cause.get("sentence")))
    return cause.get("task"), cause.get("cause"), cause.get("exit_code"), cause.get("signal"), sentence


def block(
    cause: Document, paint: Paint, width: int | None = None, *, again: Sequence[Document] = ()
) -> list[str]:
    """Return a first cause: the sentence, the time, its meaning, the followers, orch's reaction, the advice, the log.

    `again`: the causes before it that are alike, which are only counted.
    """
    lines = [paint(line, "red", "bold") for line in fold(str(cause.get("sentence")), width and width - 2)]
    if again:
        times = f"{len(again) + 1} times in a row, the first time in generation {again[0].get('generation')}"
        lines += _wrapped("alike", times, paint, width)
    facts = []
    if cause.get("ended_time") is not None:
        facts.append(shown(cause["ended_time"]))
    facts.append(f"generation {cause.get('generation')}")
    facts.append(f"class {cause.get('cause')}")
    if cause.get("finding"):
        facts.append(f"finding {cause['finding']}")
    lines += _wrapped("when", ", ".join(facts), paint, width)
    lines += _wrapped("means", cause.get("means"), paint, width)
    followed = cause.get("followed") or []
    named = [_follower(follower) for follower in followed[:_NAMED_MAX]]
    if len(followed) > _NAMED_MAX:
        named.append(f"{len(followed) - _NAMED_MAX} more")
    parts = [", ".join(named)] if named else []
    if cause.get("stopped"):
        parts.append(f"{counted(cause['stopped'], 'task')} stopped by orch")
    lines += _wrapped("others", "; ".join(parts), paint, width)
    lines += _wrapped("then", cause.get("done"), paint, width)
    lines += _wrapped("cost", cause.get("cost"), paint, width)
    lines += _wrapped("hint", cause.get("advice"), paint, width)
    log = last_lines(cause, paint, width)
    return [*lines, *([""] if log else []), *log]


def last_lines(cause: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return the last log lines as `worker:1 | text`, cut to the terminal."""
    who = paint(f"{cause['task']} |", "dim") + " " if cause.get("task") else ""
    taken = len(f"{cause.get('task')} | ") + 2 if who else 2
    texts = [printable(line) for line in excerpt(cause.get("last_lines") or [])]
    return [f"{who}{cut(text, width and width - taken)}".rstrip() for text in texts]


def _follower(follower: Document) -> str:
    after = f" after {duration(follower['after_s'])}" if follower.get("after_s") is not None else ""
    return f"{follower.get('task')} on {follower.get('host')}{after}"


def _wrapped(label: str, text: object, paint: Paint, width: int | None) -> list[str]:
    """Return a labelled paragraph with a hanging indent; nothing for an empty text."""
    if not text:
        return []
    indent = " " * _LABEL_WIDTH
    first, *others = fold(indent + str(text), width and width - 2, indent=indent)
    return [paint(f"{label:<{_LABEL_WIDTH}}", "dim") + first.lstrip(), *others]

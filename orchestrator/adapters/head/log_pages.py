"""Pages of a run's logs: read backwards from a place, merged by time, filtered, and never more than was asked for.

A place is the offset in each task's copy: `worker:0/2/4812,worker:1/2/99`. So a page is found again however much was
written meanwhile, and what follows a place is what is new.
"""

from __future__ import annotations

import heapq
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.adapters.head.runlogs import LogLine, RunLogs, parse

LINES_MAX = 1000
BYTES_MAX = 8 << 20
"""How much of the logs one request reads; a filter that finds little says up to when it has looked."""

FILES_MAX = 400
"""The newest generations' are read."""

TEXT_CHARS_MAX = 4000

_BLOCK_BYTES = 1 << 16
_ERROR = re.compile(r"\b(error|critical|fatal|traceback|exception)\b|\w(Error|Exception)\b", re.IGNORECASE)
_WARNING = re.compile(r"\bwarn(ing)?\b|^W\d{4} ", re.IGNORECASE)

Place = dict[tuple[str, int], int]


@dataclass(slots=True)
class _Budget:
    left: int


@dataclass(frozen=True, slots=True)
class _Filter:
    text: str = ""
    level: str = ""

    def takes(self, line: LogLine) -> bool:
        if self.text and self.text.lower() not in line.text.lower():
            return False
        found = level_of(line.text)
        return not self.level or found == self.level or (self.level == "warning" and found == "error")


@dataclass(order=True, slots=True)
class _Found:
    """A line at its offset. Sorted newest first."""

    key: tuple[float, str, int, int]
    line: LogLine = field(compare=False)
    offset: int = field(compare=False)


def level_of(text: str) -> str:
    """Return `error`, `warning` or `info`, by the words of a line.

    >>> [level_of(text) for text in ("ValueError: no", "WARNING: old", "step 5")]
    ['error', 'warning', 'info']
    """
    if _ERROR.search(text):
        return "error"
    return "warning" if _WARNING.search(text) else "info"


def document(logs: RunLogs, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a run's logs. ValueError where the query is not understood.

    Query: `task` (several with commas), `generation`, `level`, `q` (a part of the text), `limit`, and `before` or
    `after`: a place that an earlier page has told. Without a place: the newest lines.
    """
    limit = min(int(query.get("limit") or 300), LINES_MAX)
    tasks = [task for task in (query.get("task") or "").split(",") if task] or None
    generation = int(query["generation"]) if query.get("generation") else None
    files = {
        (task, number): path
        for task, number, path in sorted(logs.files(run_id, tasks), key=lambda found: -found[1])[:FILES_MAX]
        if generation in (None, number)
    }
    wanted = _Filter(query.get("q") or "", query.get("level") or "")
    if query.get("after"):
        return _newer(files, _place(query["after"]), wanted, limit)
    return _older(files, _place(query.get("before") or ""), wanted, limit)


def _older(
    files: Mapping[tuple[str, int], str], before: Place, wanted: _Filter, limit: int
) -> dict[str, Any]:
    budget = _Budget(
        BYTES_MAX + len(files) * _BLOCK_BYTES
    )  # the first block of each is looked at in any case
    ends = {key: before.get(key, _whole(path)) for key, path in files.items()}
    parts = [_backwards(path, *key, ends[key], budget) for key, path in files.items()]
    begins, found, searched_to = dict(ends), list[_Found](), None
    is_all = True
    for each in heapq.merge(*parts):
        if len(found) >= limit or budget.left <= 0:
            is_all = False
            break
        begins[each.line.task, each.line.generation] = each.offset
        searched_to = each.line.time
        if wanted.takes(each.line):
            found.append(each)
    return {
        "schema": 1,
        "lines": [_told(each) for each in reversed(found)],
        "before": None if is_all and budget.left > 0 else _text(begins),
        "after": _text(ends),
        "searched_to": searched_to,
    }


def _newer(files: Mapping[tuple[str, int], str], after: Place, wanted: _Filter, limit: int) -> dict[str, Any]:
    """Return what was written since; of much, the newest, and how many lines were left out."""
    found: list[_Found] = []
    ends = dict(after)
    budget = _Budget(
        BYTES_MAX + len(files) * _BLOCK_BYTES
    )  # the first block of each is looked at in any case
    for key, path in files.items():
        ends[key] = end = _whole(path)
        begin = after.get(key, 0)
        lines = _backwards(path, *key, end, budget, begin=begin)
        found += [each for each in lines if wanted.takes(each.line)]
    found.sort()
    shown = found[:limit]
    return {
        "schema": 1,
        "lines": [_told(each) for each in reversed(shown)],
        "after": _text(ends),
        "skipped": len(found) - len(shown),
    }


def _told(each: _Found) -> dict[str, Any]:
    line = each.line
    return {
        "id": f"{line.task}/{line.generation}/{each.offset}",
        "time": line.time,
        "task": line.task,
        "generation": line.generation,
        "level": level_of(line.text),
        "stream": line.stream,
        "text": line.text[:TEXT_CHARS_MAX],
    }


def _whole(path: str) -> int:
    """Return the offset behind the last whole line."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        for at in range(size, 0, -_BLOCK_BYTES):
            file.seek(max(0, at - _BLOCK_BYTES))
            place = file.read(min(at, _BLOCK_BYTES)).rfind(b"\n")
            if place >= 0:
                return max(0, at - _BLOCK_BYTES) + place + 1
    return 0


def _backwards(
    path: str, task: str, generation: int, end: int, budget: _Budget, *, begin: int = 0
) -> Iterator[_Found]:
    """Yield the whole lines from byte `end` back to `begin`, the last one first."""
    rest, at, later = b"", end, 0.0
    with open(path, "rb") as file:
        while at > begin and budget.left > 0:
            start = max(begin, at - _BLOCK_BYTES)
            file.seek(start)
            data = file.read(at - start) + rest
            budget.left -= at - start
            # The first line of a block may have begun in the block before.
            cut = data.find(b"\n") + 1 if start > begin else 0
            rest, offset, at = data[:cut] if cut or start == begin else data, start + cut, start
            made: list[tuple[int, bytes]] = []
            for raw in data[cut:].split(b"\n")[:-1] if cut or start == begin else ():
                made.append((offset, raw))
                offset += len(raw) + 1
            for place, raw in reversed(made):
                line = parse(raw, task, generation, later)
                later = min(line.time, later or line.time)
                yield _Found((-later, task, generation, -place), line, place)


def _place(text: str) -> Place:
    place: Place = {}
    for part in text.split(",") if text else ():
        task, generation, offset = part.rsplit("/", 2)
        place[task, int(generation)] = max(0, int(offset))
    return place


def _text(place: Place) -> str:
    return ",".join(f"{task}/{generation}/{offset}" for (task, generation), offset in place.items())

"""Pages of a run's logs: read backwards from a place, merged by time, filtered, and of a limited size.

A place is the offset in each task's copy: `worker:0/2/4812,worker:1/2/99`. It stays valid while the logs grow, and the
lines after it are the new ones.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import chain, islice
from typing import Any

from orchestrator.head.records.log_file import LEVEL_OF_STREAM, LogLine, parse
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.reporting.log_level import Level, backwards, is_serious, is_within, parse_level

LINES_MAX = 1000
BYTES_MAX = 8 << 20
"""How much of the logs one request reads. The answer says up to which time they were searched."""

_SKIPS_PER_BLOCK = 64
"""So many blocks without the text that is looked for cost as much as one whose lines are read."""

FILES_MAX = 400
"""How many logs are read: those of the newest generations."""

TEXT_CHARS_MAX = 4000

SAME_S = 2.0
"""Equal lines of several tasks within this time count as the same line."""

_BLOCK_BYTES = 1 << 16
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?", re.IGNORECASE)

Place = dict[tuple[str, int], int]


@dataclass(slots=True)
class _Budget:
    left: int


@dataclass(order=True, slots=True)
class _Line:
    """A line at its offset, with its level. Sorted newest first."""

    key: tuple[float, str, int, int]
    line: LogLine = field(compare=False)
    offset: int = field(compare=False)
    level: Level = field(compare=False, default="info")


_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_STAMPS = re.compile(r"^\d+(?:\.\d+)? [oeg](?: |$)", re.MULTILINE)
_SPECIAL = re.compile(r"\\.|\[\]?[^\]]*\]|.?\{[^}]*\}|.?[*?]|[.^$+]", re.DOTALL)


def _surely_in(pattern: str) -> str:
    r"""Return the longest text that stands in whatever the pattern matches; empty if none is known.

    >>> _surely_in(r"loss=na?n at \d+ steps"), _surely_in("a|bcd"), _surely_in(r"\x41bcd"), _surely_in("[^]xyz]q")
    ('loss=n', '', '', '')
    """
    is_odd = set("|()") & set(pattern) or re.search(r"\\[xuUN0-9]|\[\^?\]", pattern)
    return "" if is_odd else max(_SPECIAL.split(pattern), key=len)


class _Filter:
    """Which lines are wanted. `may_be_in` tells quickly of a whole block that none of its lines is."""

    def __init__(self, text: str = "", *, is_pattern: bool = False, least: Level | None = None) -> None:
        """`least`: only lines of this level, or more serious ones. Raises ValueError for a wrong pattern."""
        self.least = least
        self._text = text.lower()
        try:
            self._pattern = re.compile(text, re.IGNORECASE) if is_pattern and text else None
        except (re.error, OverflowError, RecursionError) as e:
            raise ValueError(f"{text!r} is no regular expression: {e}") from e
        there = self._text if self._pattern is None else _surely_in(text).lower()
        # Bytes are compared without the case of ASCII letters only.
        self._bytes = there.encode() if there.isascii() else b""
        # What looks around a match, or gives nothing back, may fit a line and not the block that it stands in.
        is_odd = re.search(r"\(\?[^:]|\\[AZ]|[*+?}]\+", text)
        self._of_lines = (
            None if self._pattern is None or is_odd else re.compile(text, re.IGNORECASE | re.MULTILINE)
        )
        self._is_of_begins = "^" in text

    def may_be_in(self, block: bytes) -> bool:
        if self._bytes and b"\x1b" not in block:  # an escape may stand within the text that is looked for
            return self._bytes in block.lower()
        if not self._text or (self._pattern is not None and self._of_lines is None):
            return True
        text = _ESCAPE.sub("", block.decode("utf-8", "replace"))
        if self._of_lines is None:
            return self._text in text.lower()
        return self._of_lines.search(_STAMPS.sub("", text) if self._is_of_begins else text) is not None

    def is_in(self, text: str) -> bool:
        text = _ESCAPE.sub("", text) if "\x1b" in text else text
        if self._pattern is not None:
            return self._pattern.search(text) is not None
        return not self._text or self._text in text.lower()

    def takes(self, line: _Line) -> bool:
        return self.is_in(line.line.text) and (self.least is None or is_serious(line.level, self.least))


def document(logs: RunLogs, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a run's logs. Raises ValueError if the query is not understood.

    Query: `task` (several with commas), `generation`, `level` (the lowest), `q` (a part of the text), `regex` (`q` is a
    pattern), `differs` (only lines that few tasks have), `limit`, and one of `before`, `next` (the first lines after
    it) and `after` (the newest lines after it): a place from an earlier page; or `until`: a Unix time, or `at`: the id
    of a line, for the page that ends with its time, or with `hit` (`previous`, `next`) for the one line that fits
    before or after it. Without a place: the newest lines.
    """
    limit = min(int(query.get("limit") or 300), LINES_MAX)
    tasks = [task for task in (query.get("task") or "").split(",") if task] or None
    generation = int(query["generation"]) if query.get("generation") else None
    files = {
        (task, number): path
        for task, number, path in sorted(logs.files(run_id, tasks), key=lambda file: -file[1])[:FILES_MAX]
        if generation in (None, number)
    }
    least = parse_level(query["level"]) if query.get("level") else None
    wanted = _Filter(query.get("q") or "", is_pattern=bool(query.get("regex")), least=least)
    if query.get("after"):
        return _newer(files, _place(query["after"]), wanted, limit)
    if query.get("next"):
        return _next(files, _place(query["next"]), wanted, limit)
    place = _place(query.get("before") or "")
    until = _time_of(files, query["at"]) if query.get("at") else float(query.get("until") or 0.0)
    if until and not place:
        place = {key: _at_time(path, until) for key, path in files.items()}
    if query.get("hit"):
        if not query.get("at"):
            raise ValueError("`hit` is of the line that `at` names")
        # Lines of one instant stand in a page by their tasks, the last one first.
        own = _place(query["at"])
        earlier = {key: _at_time(path, until - 5e-7) for key, path in files.items() if key < min(own)}
        around = place | earlier | own
        if query["hit"] == "next":
            return _hit_after(files, around, own, wanted)
        return _older(files, around, wanted, 1, differs=False)
    return _older(files, place, wanted, limit, differs=bool(query.get("differs")))


def _older(
    files: Mapping[tuple[str, int], str], before: Place, wanted: _Filter, limit: int, *, differs: bool
) -> dict[str, Any]:
    # The first block of each is looked at in any case.
    budget = _Budget(BYTES_MAX + len(files) * _BLOCK_BYTES)
    ends = {key: before.get(key, _whole(path)) for key, path in files.items()}
    # Where neither levels nor other lines count, a block without the text is passed over.
    skips = wanted if wanted.least is None and not differs else None
    parts = [_levelled(_backwards(path, *key, ends[key], budget, skips=skips)) for key, path in files.items()]
    read = _Read(dict(ends), budget)
    lines = (each for each in read.through(heapq.merge(*parts)) if differs or wanted.takes(each))
    if differs:
        among = Counter(generation for _, generation in files)
        lines = (each for each in _odd(lines, among) if wanted.takes(each))
    page: list[_Line] = []
    for each in lines:
        page.append(each)
        if len(page) >= limit:
            read.enough = True
    return {
        "schema": 1,
        "lines": [_as_document(each) for each in reversed(page)],
        "before": None if read.is_all and budget.left > 0 else _text(read.begins),
        "after": _text(ends),
        "searched_to": read.searched_to,
    }


@dataclass(slots=True)
class _Read:
    """The progress of reading a page."""

    begins: Place
    budget: _Budget
    searched_to: float | None = None
    enough: bool = False
    """No further line is wanted."""
    is_all: bool = False

    def through(self, lines: Iterable[_Line]) -> Iterator[_Line]:
        """Yield the lines until there are enough, and remember the place of each."""
        for each in lines:
            # One line at least, so that the next page begins elsewhere: to tell a level may take more than a block.
            if self.enough or (self.budget.left <= 0 and self.searched_to is not None):
                return
            self.begins[each.line.task, each.line.generation] = each.offset
            self.searched_to = each.line.time
            yield each
        self.is_all = True


def _newer(files: Mapping[tuple[str, int], str], after: Place, wanted: _Filter, limit: int) -> dict[str, Any]:
    """Return the lines written since; if they are too many, the newest, and how many were left out."""
    ends = {**after, **{key: _whole(path) for key, path in files.items()}}
    # The first block of each is looked at in any case.
    budget = _Budget(BYTES_MAX + len(files) * _BLOCK_BYTES)
    lines = _between(files, after, ends, wanted, budget)
    shown = lines[:limit]
    return {
        "schema": 1,
        "lines": [_as_document(each) for each in reversed(shown)],
        "after": _text(ends),
        "skipped": len(lines) - len(shown),
    }


def _next(files: Mapping[tuple[str, int], str], after: Place, wanted: _Filter, limit: int) -> dict[str, Any]:
    """Return the first lines after a place, the place after them, and whether no line follows."""
    wholes = {key: _whole(path) for key, path in files.items()}
    begins = {key: after.get(key, 0) for key in files}
    lines: list[_Line] = []
    read, is_end = 0, False
    while not is_end and len(lines) < limit and read < BYTES_MAX:
        ends = _ahead(files, begins, wholes, limit)
        span = sum(ends[key] - begins[key] for key in files)
        lines = _between(files, begins, ends, wanted, _Budget(span + len(files) * _BLOCK_BYTES)) + lines
        begins, is_end, read = ends, ends == wholes, read + span
    return {
        "schema": 1,
        "lines": [_as_document(each) for each in reversed(lines)],
        "after": _text({**after, **begins}),
        "is_end": is_end,
    }


def _hit_after(
    files: Mapping[tuple[str, int], str], begins: Place, after: Place, wanted: _Filter
) -> dict[str, Any]:
    """Return the first line that fits behind a place, but not the one at `after`. It is looked for to the end."""
    found: list[_Line] = []
    for key, path in files.items():
        end = _whole(path)
        with open(path, "rb") as file:
            at = file.seek(begins.get(key, 0))
            if key in after:
                at += len(file.readline())
            hit = None
            while hit is None and at < end and (lines := file.readlines(_BLOCK_BYTES)):
                is_there = wanted.may_be_in(b"".join(lines))
                for raw in lines if is_there else ():
                    line = parse(raw.removesuffix(b"\n"), *key, 0.0)
                    if wanted.is_in(line.text) and at < end:
                        hit = _Line((line.time, *key, at), line, at)
                        break
                    at += len(raw)
                at += 0 if is_there else sum(map(len, lines))
            found += [hit] if hit is not None else []
    first = max(found, key=lambda each: (-each.line.time, each.line.task, each.line.generation), default=None)
    return {"schema": 1, "lines": [_as_document(first)] if first is not None else []}


def _ahead(files: Mapping[tuple[str, int], str], begins: Place, wholes: Place, limit: int) -> Place:
    """Return the place after the next `limit` lines of all files, by time; the end of a file that has no more."""
    ends = {key: min(begins[key], wholes[key]) for key in files}
    parts = [_forwards(path, key, ends[key], wholes[key]) for key, path in files.items()]
    return ends | {key: end for _, key, end in islice(heapq.merge(*parts), limit)}


def _forwards(
    path: str, key: tuple[str, int], at: int, whole: int
) -> Iterator[tuple[float, tuple[str, int], int]]:
    """Yield for each line its time, its file, and the offset after it."""
    time = 0.0
    with open(path, "rb") as file:
        file.seek(at)
        while at < whole and (raw := file.readline()):
            at += len(raw)
            time = parse(raw, "", 0, 0.0).time or time  # a line that a rotation has cut has none
            yield time, key, at


def _between(
    files: Mapping[tuple[str, int], str], begins: Place, ends: Place, wanted: _Filter, budget: _Budget
) -> list[_Line]:
    """Return the lines between two places that are wanted, the newest first."""
    lines: list[_Line] = []
    for key, path in files.items():
        begin = begins.get(key, 0)
        new = list(_backwards(path, *key, ends[key], budget, begin=begin))
        before: Iterator[_Line] = iter(())
        if new and is_within(new[-1].line.text):  # a traceback may have begun before
            before = _backwards(path, *key, begin, _Budget(4 * _BLOCK_BYTES))
        levelled = islice(_levelled(chain(new, before)), len(new))
        lines += [each for each in levelled if wanted.takes(each)]
    return sorted(lines)


def _as_document(each: _Line) -> dict[str, Any]:
    line = each.line
    return {
        "id": f"{line.task}/{line.generation}/{each.offset}",
        "time": line.time,
        "task": line.task,
        "generation": line.generation,
        "level": each.level,
        "stream": line.stream,
        "text": _shown(line.text),
        **({"cut": len(line.text) - TEXT_CHARS_MAX} if len(line.text) > TEXT_CHARS_MAX else {}),
    }


def _shown(text: str) -> str:
    """Return the shown part of a long line: its end if it was overwritten (by carriage returns), else its beginning.

    >>> _shown("1/9\\r2/9\\r3/9"), len(_shown("x" * 9000)), len(_shown("bar\\r" + "x" * 9000))
    ('1/9\\r2/9\\r3/9', 4000, 4000)
    """
    if len(text) <= TEXT_CHARS_MAX:
        return text
    return text[-TEXT_CHARS_MAX:] if "\r" in text[:-TEXT_CHARS_MAX] else text[:TEXT_CHARS_MAX]


def whole(logs: RunLogs, run_id: str, query: Mapping[str, str]) -> Iterator[str]:
    """Return all lines of `task` (of all tasks: merged by time) and `generation`, as text with their times in UTC."""
    tasks = [task for task in (query.get("task") or "").split(",") if task] or None
    generation = int(query["generation"]) if query.get("generation") else None
    lines = logs.read(run_id, tasks)
    return _parts(line for line in lines if generation in (None, line.generation))


def _parts(lines: Iterator[LogLine]) -> Iterator[str]:
    """Yield hundreds of lines at a time, since each part of a download is expensive."""
    for first in lines:
        some = [first, *islice(lines, 499)]
        yield "".join(f"{_utc(line.time)} {line.task}/{line.generation} {line.text}\n" for line in some)


def _utc(time: float) -> str:
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _time_of(files: Mapping[tuple[str, int], str], line: str) -> float:
    """Return the time of a line by its id; 0 if its log is not there."""
    ((key, offset),) = _place(line).items()
    if key not in files:
        return 0.0
    with open(files[key], "rb") as file:
        file.seek(offset)
        return parse(file.readline(), "", 0, 0.0).time


def _at_time(path: str, time: float) -> int:
    """Return the offset after the last line that is not later, by bisection, since times grow in a log."""
    low, high = 0, _whole(path)
    with open(path, "rb") as file:
        while low < high:
            middle = (low + high) // 2
            file.seek(max(low, middle - 1))
            if middle > low:
                file.readline()
            begin, raw = file.tell(), file.readline()
            # A line that a rotation has cut has no time: use the next line that has one.
            while begin < high and raw and not (at := parse(raw, "", 0, 0.0).time):
                begin, raw = file.tell(), file.readline()
            if begin >= high or not raw or at > time:
                high = middle
            else:
                low = begin + len(raw)
    return low


@dataclass(slots=True)
class _Same:
    """A line without its numbers, and the tasks that have it within SAME_S."""

    began: float
    tasks: set[str] = field(default_factory=set)


def _odd(lines: Iterable[_Line], among: Mapping[int, int]) -> Iterator[_Line]:
    """Yield the lines, newest first, that at most half of a generation's tasks (`among`) have within two seconds."""
    groups: dict[tuple[int, str], _Same] = {}
    held: deque[tuple[_Line, _Same]] = deque()

    def are_odd(odd: _Line, same: _Same) -> bool:
        return len(same.tasks) * 2 <= among.get(odd.line.generation, 1) or among[odd.line.generation] < 2

    for each in lines:
        key = each.line.generation, masked(each.line.text)
        same = groups.get(key)
        if same is None or same.began - each.line.time > SAME_S:
            same = groups[key] = _Same(each.line.time)
        same.tasks.add(each.line.task)
        held.append((each, same))
        while held and held[0][1].began - each.line.time > SAME_S:
            oldest = held.popleft()
            if are_odd(*oldest):
                yield oldest[0]
    yield from (line for line, same in held if are_odd(line, same))


def masked(text: str) -> str:
    """Return a line without its numbers, by which lines of several tasks are compared.

    >>> masked("loss 0.52 at 0x7f1a")
    'loss # at #'
    """
    return _NUMBERS.sub("#", text)


def _whole(path: str) -> int:
    """Return the offset after the last whole line."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        for at in range(size, 0, -_BLOCK_BYTES):
            file.seek(max(0, at - _BLOCK_BYTES))
            place = file.read(min(at, _BLOCK_BYTES)).rfind(b"\n")
            if place >= 0:
                return max(0, at - _BLOCK_BYTES) + place + 1
    return 0


def _backwards(
    path: str,
    task: str,
    generation: int,
    end: int,
    budget: _Budget,
    *,
    begin: int = 0,
    skips: _Filter | None = None,
) -> Iterator[_Line]:
    """Yield the whole lines from byte `end` back to `begin`, the last one first.

    `skips`: of a block in which no line can fit, only the first line, which says how far it was searched.
    """
    rest, at, later = b"", end, 0.0
    with open(path, "rb") as file:
        while at > begin and budget.left > 0:
            start = max(begin, at - _BLOCK_BYTES)
            file.seek(start)
            data = file.read(at - start) + rest
            is_skipped = skips is not None and not skips.may_be_in(data)
            budget.left -= (at - start) // (_SKIPS_PER_BLOCK if is_skipped else 1)
            # The first line of a block may have begun in the block before.
            cut = data.find(b"\n") + 1 if start > begin else 0
            rest, offset, at = data[:cut] if cut or start == begin else data, start + cut, start
            made: list[tuple[int, bytes]] = []
            if is_skipped and (cut or start == begin) and data.find(b"\n", cut) >= 0:
                made.append((offset, data[cut : data.find(b"\n", cut)]))
            for raw in data[cut:].split(b"\n")[:-1] if not made and (cut or start == begin) else ():
                made.append((offset, raw))
                offset += len(raw) + 1
            for place, raw in reversed(made):
                line = parse(raw, task, generation, later)
                later = min(line.time, later or line.time)
                yield _Line((-later, task, generation, -place), line, place)


def _levelled(lines: Iterable[_Line]) -> Iterator[_Line]:
    """Yield the lines of one log, the newest first, with their levels."""
    for each, level in backwards(lines, lambda entry: entry.line.text):
        each.level = LEVEL_OF_STREAM.get(each.line.stream, level)
        yield each


def _place(text: str) -> Place:
    place: Place = {}
    for part in text.split(",") if text else ():
        task, generation, offset = part.rsplit("/", 2)
        place[task, int(generation)] = max(0, int(offset))
    return place


def _text(place: Place) -> str:
    return ",".join(f"{task}/{generation}/{offset}" for (task, generation), offset in place.items())

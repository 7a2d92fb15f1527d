"""`python -m tests.mutants [PATH …] [--number N] [--seed SEED]`: mistakes are drawn, and the tests must find them.

A PATH is a room of the package, a folder or a file; without one all rooms are hunted. `--write` writes docs/mutants.md.
`--changed` draws only from the lines that differ from the commit of that page, and exits 1 where too few are found;
`--again` judges once more those that survived by that page.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.mutants import page
from tests.mutants.changes import changed_since, git
from tests.mutants.covering import Map
from tests.mutants.drawing import PRODUCT, Mistake, drawn, mistakes_of
from tests.mutants.hunting import JUDGED, Hunt, Mutant, Verdict
from tests.mutants.page import PAGE, Room

TESTS_S = 10.0
"""The tests of a mistake take no longer than this together, on the machine that made the map."""
ENOUGH = 0.85
"""So many of the mistakes in changed lines are found, or it fails."""
FEW = 10
"""With fewer than these nothing is said about the share."""


class Draw:
    """Draws mistakes of each room, until so many are judged."""

    def __init__(self, mistakes: dict[str, list[Mistake]], number: int, lines: Map, also: list[str]) -> None:
        self.rooms = {room: Room(possible=len(all_)) for room, all_ in mistakes.items()}
        self._number = number
        self._lines = lines
        self._also = also
        self._left = {room: iter(all_) for room, all_ in mistakes.items()}
        self._room_of: dict[str, str] = {}
        self._begun: Counter[str] = Counter()
        self._covered: dict[str, dict[int, set[str]]] = {}

    def mutants(self) -> Iterator[Mutant]:
        """Yield the next mistake of the room of which the fewest are judged or under way."""
        while self._left:
            room = min(self._left, key=lambda room: self._begun[room])
            mistake = next(self._left[room], None) if self._begun[room] < self._number else None
            if mistake is None:
                del self._left[room]
            elif tests := self.tests_of(mistake):
                self._begun[room] += 1
                self._room_of[str(mistake)] = room
                yield Mutant(str(mistake), mistake.file, mistake.tree, tests)
            else:
                self.rooms[room].not_run += 1

    def tests_of(self, mistake: Mistake) -> tuple[str, ...]:
        """Return the tests that run its line, those of its room first, and of these the quickest."""
        if mistake.file not in self._covered:
            self._covered[mistake.file] = self._lines.tests_of(PRODUCT / mistake.file)
        times = self._lines.times
        own = f"tests/unit/{mistake.room}/"
        tests = (
            test for test in self._covered[mistake.file].get(mistake.line, ()) if test.startswith("tests/")
        )
        taken, left_s = list(self._also), TESTS_S
        for test in sorted(tests, key=lambda test: (not test.startswith(own), times.get(test, 0.0), test)):
            if times.get(test, 0.0) <= left_s:
                left_s -= times.get(test, 0.0)
                taken += [test]
        return tuple(taken)

    def told(self, verdict: Verdict) -> None:
        """Take a verdict, and print it."""
        name = self._room_of[verdict.mutant.name]
        room = self.rooms[name]
        room.ends[verdict.end] += 1
        if verdict.end == "survives":
            room.survivors.append(verdict.mutant.name)
        if verdict.end not in JUDGED:
            self._begun[name] -= 1  # another is drawn in its place
        print(f"{verdict.took_s:5.1f} s  {verdict.end:9} {verdict.mutant.name}  {verdict.by}", flush=True)


def _drawn(paths: list[str], changed: dict[str, set[int]] | None, seed: str) -> dict[str, list[Mistake]]:
    """Return the mistakes of each path, or of each room, in the order of the draw; those of changed lines as one."""
    found: dict[str, list[Mistake]] = {}
    for path in sorted(PRODUCT.rglob("*.py")):
        file = path.relative_to(PRODUCT).as_posix()
        if changed is not None and file not in changed:
            continue
        for mistake in mistakes_of(path):
            if changed is not None and mistake.line in changed[file]:
                found.setdefault("changed lines", []).append(mistake)
            elif changed is None and (room := _room_of(file, paths)) is not None:
                found.setdefault(room, []).append(mistake)
    return {room: drawn(all_, seed) for room, all_ in found.items()}


_LINE = re.compile(r"^([^:]+):\d+ ")


def _surviving(rooms: dict[str, list[Mistake]]) -> dict[str, list[Mistake]]:
    """Return of them those that survived by docs/mutants.md, wherever their lines are by now."""
    listed = re.findall(r"^- (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = {_LINE.sub(r"\1 ", name) for name in listed}
    return {
        room: [each for each in all_ if _LINE.sub(r"\1 ", str(each)) in names] for room, all_ in rooms.items()
    }


def _room_of(file: str, paths: list[str]) -> str | None:
    if not paths:
        return file.partition("/")[0] if "/" in file else None
    return next((path for path in paths if file == path or file.startswith(path.rstrip("/") + "/")), None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--number", type=int, default=30, help="how many are judged of each room or path")
    parser.add_argument("--seed", default="1", help="another seed draws others")
    parser.add_argument(
        "--also", nargs="*", default=[], metavar="TEST", help="a test that the map does not know yet"
    )
    parser.add_argument(
        "--changed", action="store_true", help="only lines that changed since docs/mutants.md"
    )
    parser.add_argument("--again", action="store_true", help="only those that survived by docs/mutants.md")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no other after so long")
    parser.add_argument("--write", action="store_true", help="write docs/mutants.md")
    asked = parser.parse_args()
    lines = Map()
    if not lines.times:
        print(
            "which test runs which lines is not known here: `make mutants` measures it first", file=sys.stderr
        )
        return 2
    changed = changed_since(page.commit()) if asked.changed else None
    mistakes = _drawn(asked.paths, changed, asked.seed)
    if asked.again:
        mistakes = _surviving(mistakes)
    draw = Draw(mistakes, asked.number, lines, asked.also)
    # Another draw, of more, says which files of tests have to be collected.
    preview = Draw(mistakes, 2 * asked.number, lines, asked.also)
    files = sorted({test.partition("::")[0] for mutant in preview.mutants() for test in mutant.tests})
    hunt = Hunt(draw.mutants(), draw.told, seconds=asked.seconds)
    quiet = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-summary", "--no-header"]
    if files and pytest.main([*quiet, *files], plugins=[hunt]) not in (0, 5):
        return 2
    for name, room in draw.rooms.items():
        print(f"{name}: {room}")
        for survivor in room.survivors:
            print(f"  survives: {survivor}")
    for room in draw.rooms.values():
        room.seed, room.commit = asked.seed, git("rev-parse", "HEAD").strip()
    known = page.kept({} if asked.again else draw.rooms)
    if asked.write:
        PAGE.write_text(page.text(known, git("rev-parse", "HEAD").strip()), encoding="utf-8")
    poor = [room for room in draw.rooms.values() if room.judged >= FEW and room.score < ENOUGH]
    if asked.changed and poor:
        print(
            f"fewer than {ENOUGH:.0%} of the mistakes in changed lines are found: write tests for those that survive"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

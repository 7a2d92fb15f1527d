"""Mistakes that are drawn: which there are, that they are made in live code, and what counts as found."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from orchestrator.both import durable
from tests.mutants import page
from tests.mutants.__main__ import Draw
from tests.mutants.changes import lines_of
from tests.mutants.drawing import PRODUCT, ROOT, drawn, mistakes_in, mistakes_of
from tests.mutants.hunting import Mutant, Verdict, live_functions, make
from tests.mutants.page import Room

SOURCE = '''
def close(path, force=False, *, times=3):
    """Close."""
    if not path and force or times > 2:
        sync(path, force)
    value.at = now() - 5
    if path:
        raise ValueError("no")
    return "a" if force else "b"
'''


def test_each_kind_of_mistake_is_drawn() -> None:
    found = {(mistake.kind, mistake.was, mistake.becomes) for mistake in mistakes_in("x/y.py", SOURCE)}
    assert found >= {
        ("default changed", "force=False", "True"),
        ("default changed", "times=3", "4"),
        ("comparison", "times > 2", "times >= 2"),
        ("negation", "not path", "path"),
        ("negation", "not path and force", "not path or force"),
        ("negation", "if path:", "if not path:"),
        ("branch left out", "not path and force", "force"),
        ("branch left out", "if path:", "if False:"),
        ("branch left out", '"a" if force else "b"', "'b'"),
        ("branch left out", 'raise ValueError("no")', "pass"),
        ("argument swapped", "sync(path, force)", "sync(force, path)"),
        ("call left out", "sync(path, force)", "pass"),
        ("statement left out", "value.at = now() - 5", "pass"),
        ("constant changed", "5", "6"),
        ("constant changed", "now() - 5", "now() + 5"),
    }


def test_every_mistake_of_a_file_can_be_compiled_and_differs() -> None:
    file = PRODUCT / "both" / "durable.py"
    right = ast.dump(ast.parse(file.read_text()))
    mistakes = mistakes_of(file)
    assert len(mistakes) > 50
    for mistake in mistakes:
        tree = mistake.tree()
        compile(tree, "x", "exec")
        assert ast.dump(tree) != right, mistake


def test_the_draw_stays_when_other_functions_change_and_prefers_what_is_risky() -> None:
    before = [str(m).partition(" ")[2] for m in drawn(mistakes_in("x/y.py", SOURCE), "1")]
    after = drawn(mistakes_in("x/y.py", "def other(a): return a < 7\n" + SOURCE), "1")
    assert [str(m).partition(" ")[2] for m in after if m.function == "close"] == before
    assert before != [str(m).partition(" ")[2] for m in drawn(mistakes_in("x/y.py", SOURCE), "2")]
    calls = "\n".join(f"    {name}(a{n})" for n in range(200) for name in ("os.fsync", "print"))
    first = drawn(mistakes_in("x/y.py", f"def f():\n{calls}\n"), "1")[:100]
    assert Counter("sync" in m.was for m in first)[True] > 65


@pytest.fixture
def restored() -> Iterator[dict[FunctionType, tuple[Any, ...]]]:
    """Functions that get their code back."""
    kept: dict[FunctionType, tuple[Any, ...]] = {}
    yield kept
    for function, (code, defaults, kw_defaults) in kept.items():
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, kw_defaults


def test_a_mistake_is_made_in_the_live_functions(restored: dict[FunctionType, tuple[Any, ...]]) -> None:
    live = live_functions()
    for function in (f for (file, *_), all_ in live.items() if file == durable.__file__ for f in all_):
        restored[function] = (
            function.__code__,
            function.__defaults__,
            dict(function.__kwdefaults__ or {}) or None,
        )
    assert (durable.write.__kwdefaults__ or {})["durable"] is True
    of_write = (each for each in mistakes_of(PRODUCT / "both/durable.py") if each.function == "write")
    mistake = next(each for each in of_write if each.was == "durable=True")
    assert make(Mutant("m", mistake.file, mistake.tree, ()), live)
    assert (durable.write.__kwdefaults__ or {})["durable"] is False


TESTS = """
import time
from orchestrator.both import durable


def test_right(tmp_path):
    durable.write(str(tmp_path / "file"), b"x")
    assert (tmp_path / "file").read_bytes() == b"x"


def test_crashes(tmp_path):
    durable.write(str(tmp_path / "file"), b"x")
    (tmp_path / "file").read_bytes()
"""
HUNT = """
import ast, json, sys
import pytest
from tests.mutants import hunting
from tests.mutants.drawing import PRODUCT

hunting.FORK_S = 3
source = (PRODUCT / "both/durable.py").read_text()

def mutant(name, line, *tests):
    old = source[source.index("def write("):]
    start = old.index('\"\"\"', old.index('\"\"\"') + 3) + 3
    wrong = source.replace(old, old[:start] + "\\n    " + line + old[start:])
    return hunting.Mutant(name, "both/durable.py", lambda: ast.parse(wrong), tests)

mutants = [
    mutant("found", "data = b'y'", "test_x.py::test_right"),
    mutant("survives", "data = b'x'", "test_x.py::test_right"),
    mutant("crashes", "return", "test_x.py::test_crashes"),
    mutant("hangs", "while True: pass", "test_x.py::test_right"),
    mutant("cannot be made", "pass", "test_x.py::test_of_another_file"),
]
tell = lambda verdict: print("\\nVERDICT", json.dumps([verdict.mutant.name, verdict.end, verdict.by]))
hunt = hunting.Hunt(iter(mutants), tell)
pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "test_x.py"], plugins=[hunt])
"""


def test_what_counts_as_found(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    ran = subprocess.run(
        [sys.executable, "-c", HUNT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = [
        json.loads(line.removeprefix("VERDICT"))
        for line in ran.stdout.splitlines()
        if line.startswith("VERDICT")
    ]
    ends = {name: end for name, end, _ in said}
    assert ends == {name: name for name in ("found", "survives", "crashes", "hangs", "cannot be made")}, ran
    assert {name: by for name, _, by in said}["found"] == "test_x.py::test_right"


class Lines:
    """A map in which every line is run by these tests."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times

    def tests_of(self, _: Path) -> dict[int, set[str]]:
        return {number: set(self.times) for number in range(1, 1000)}


def test_tests_are_those_of_the_line_its_own_room_first_and_no_more_than_ten_seconds() -> None:
    lines = Lines(
        {
            "tests/unit/core/test_a.py::a": 0.1,
            "tests/unit/both/test_b.py::slow": 4.0,
            "tests/unit/both/test_b.py::quick": 1.0,
            "tests/unit/both/test_b.py::slowest": 8.0,
            "orchestrator/both/durable.py::a doctest": 0.0,
        }
    )
    mistakes = mistakes_of(PRODUCT / "both/durable.py")
    draw = Draw({"both": mistakes}, 2, lines, [])  # type: ignore[arg-type]
    assert draw.tests_of(mistakes[0]) == (
        "tests/unit/both/test_b.py::quick",
        "tests/unit/both/test_b.py::slow",
        "tests/unit/core/test_a.py::a",
    )  # fmt: skip


def test_another_is_drawn_in_the_place_of_one_that_only_crashes() -> None:
    lines = Lines({"tests/unit/both/test_b.py::quick": 1.0})
    draw = Draw({"both": mistakes_of(PRODUCT / "both/durable.py")}, 2, lines, [])  # type: ignore[arg-type]
    mutants = draw.mutants()
    ends = iter(["crashes", "found", "survives"])
    for mutant in mutants:
        draw.told(Verdict(mutant, next(ends)))
    room = draw.rooms["both"]
    assert (room.judged, room.score, len(room.survivors)) == (2, 0.5, 1)


def test_which_lines_a_diff_has_changed() -> None:
    diff = (
        "diff --git a/orchestrator/a.py b/orchestrator/a.py\n--- a/orchestrator/a.py\n+++ b/orchestrator/a.py\n"
        "@@ -3 +3,2 @@ def f():\n-x\n+y\n+z\n@@ -9,2 +10,0 @@\n-gone\n-gone\n@@ -20,0 +19 @@\n+new\n"
    )
    assert lines_of(diff) == {"a.py": {3, 4, 19}}


def test_the_page_has_a_row_for_each_room_and_names_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = {
        "core": Room(100, "7", "b" * 40, 5, Counter(found=9, survives=1, crashes=2), ["core/a.py:1 (f): x"])
    }
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results.json")
    page.kept({"core": Room(), "head": Room(possible=7)})
    text = page.text(page.kept({**rooms, "core/phases": Room()}), "a" * 40)
    assert "| `core` | 100 | 10 | 9 | **90%** | 2 | 5 | 7 | `bbbbbbbb` |\n| `head` | 7 |" in text
    assert "core/phases" not in text
    assert "**9 of 10 are found (90%).**" in text
    assert "- core/a.py:1 (f): x" in text
    monkeypatch.setattr(page, "PAGE", tmp_path / "mutants.md")
    assert page.commit() == "0" * 40
    page.PAGE.write_text(text)
    assert page.commit() == "a" * 40

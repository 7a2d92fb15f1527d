"""The slowest tests begin first in each process, and take turns in CI.

xdist shares what was collected in parts, one after another.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import SLOWEST, slowest_first, waiting_for_another


class Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def shared(items: list[Any], parts: int) -> list[list[str]]:
    """Return what each process gets, as `--dist worksteal` cuts it."""
    left, found = [item.nodeid for item in items], []
    for remaining in range(parts, 0, -1):
        size = len(left) // remaining
        found.append(left[:size])
        del left[:size]
    return found


@pytest.mark.parametrize("count", range(1, 23))
@pytest.mark.parametrize("slow", [0, 1, 4, 7, 22])
def test_each_process_begins_with_its_slow_ones_and_none_is_left_out(count: int, slow: int) -> None:
    names = [f"t{number}" for number in range(count)]
    slowest = [f"t{number}" for number in range(count - 1, -1, -1)][:slow]
    ordered = slowest_first([Item(name) for name in names], slowest, 4)  # type: ignore[misc]
    assert sorted(item.nodeid for item in ordered) == sorted(names)
    parts = shared(ordered, 4)
    for part in parts:
        mine = [name for name in slowest if name in part]
        assert part[: len(mine)] == mine, "the slowest first, then the others"
    begun = [part[0] for part in parts if part]
    assert set(slowest[: len(begun)]) & set(names) <= set(begun), "each of the slowest is somebody's first"
    rest = [item.nodeid for item in ordered if item.nodeid not in slowest]
    assert rest == [name for name in names if name not in slowest], "the others keep the order of their files"


def test_each_slow_test_has_its_turn_at_one_commit_of_three_and_each_file_at_all() -> None:
    many = [f"{file}::t{number}" for file in ("a", "b") for number in range(3)]
    names = [*many, "c::t0", "d::t0", "d::t1"]
    run = [set(names) - waiting_for_another(names, commit) for commit in ("f0", "f1", "f2")]
    assert sorted(name for of_turn in run for name in of_turn if name in many) == many
    assert all({name[0] for name in of_turn} == {"a", "b", "c", "d"} for of_turn in run), "none is unguarded"
    assert set().union(*run) == set(names)
    assert waiting_for_another(names, "") == set()
    assert len(waiting_for_another(SLOWEST.read_text().splitlines(), "0" * 40)) > 0


def test_the_names_are_those_of_tests() -> None:
    for name in SLOWEST.read_text().splitlines():
        path, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (SLOWEST.parents[1] / path).read_text(), name

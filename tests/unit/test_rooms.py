"""The rooms of the house: the first folder says on which machine a line runs, and what it may know.

Every import counts, also within functions and for types. A room that is not in the table is an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

import orchestrator
from tests.unit.test_imports import imports, module_of

PACKAGE = Path(orchestrator.__file__).parent

ROOMS: dict[str, set[str]] = {
    # decides
    "core": {"protocol"},
    # for people, and pure
    "reporting": {"core"},
    # the wire, and what head and hosts have in common
    "protocol": set(),
    "both": set(),
    "checkpoints": {"protocol", "both"},
    # the three machines: none of them is in the others' sets
    "head": {"core", "reporting", "protocol", "both", "checkpoints", "spec"},
    "host": {"protocol", "both", "checkpoints"},
    "task": {"protocol", "both"},
    # people's files
    "spec": {"core", "reporting", "protocol", "both"},
    # people and programs, on the head node
    "client": {"core", "reporting", "protocol", "both", "spec", "head"},
    "page": {"core", "reporting", "protocol", "client", "head"},
    "cli": {"core", "reporting", "protocol", "both", "spec", "head", "client", "page"},
    # doors: what scripts import, and what the archive on a host starts with
    "runtime": {"task"},
    "keras": {"task"},
    "bundle_main": {"host", "task", "checkpoints"},
}

ONLY_PYTHON = {
    "core",
    "reporting",
    "protocol",
    "both",
    "checkpoints",
    "host",
    "task",
    "runtime",
    "keras",
    "bundle_main",
}
"""Rooms that need nothing but Python: what they import of a library is there by chance, and asked for when needed."""

PURE = {"core", "reporting"}
TOUCHES = {"os", "time", "datetime", "random", "threading", "socket", "subprocess", "logging", "pathlib"}

ONE_ROOM = {"paramiko": "head.reach.ssh", "fabric": "head.reach.ssh"}
"""Libraries that only one room knows."""

OPTIONAL = {
    "scale and prove": (
        *("cli.commands.scale", "cli.commands.prove", "cli.trials", "task.trials"),
        *("reporting.scaling", "reporting.comparison"),
    ),
    "chaos": ("cli.commands.chaos", "cli.fault_recovery", "head.coordinator.chaos", "host.agent.faults"),
    "notify": (
        *("head.effects.messenger", "head.effects.recipient", "head.effects.delivery", "head.journal.news"),
        "cli.commands.notify",
    ),
    "import and init": ("spec.foreign", "cli.commands.import_", "cli.commands.init"),
    "kubernetes": (
        *("head.reach.kubernetes", "client.on_kubernetes", "spec.kubernetes"),
        *("host.pod", "cli.commands.export"),
    ),
    "slurm": ("head.reach.slurm", "client.on_slurm", "client.batch"),
    "transparent": ("task.transparent", "keras", "spec.transparent_script"),
    "top": ("cli.top", "cli.commands.top"),
}
"""Features without which all else can be imported: what is theirs is imported within functions, where it is wanted."""


def room(module: str) -> str:
    return module.split(".")[1]


def known(package: Path) -> dict[tuple[str, str], str]:
    """Return by (room, room that it imports): one import as an example."""
    return {
        (room(module), room(other)): f"{module} imports {other}"
        for module, others in imports(package).items()
        for other in others
        if "." in module and "." in other and room(module) != room(other)
    }


def test_each_room_knows_only_what_its_machine_may_know() -> None:
    assert {here for here, _ in known(PACKAGE)} <= ROOMS.keys()
    assert [example for (here, other), example in known(PACKAGE).items() if other not in ROOMS[here]] == []


def test_the_table_allows_no_more_than_is_used() -> None:
    used = known(PACKAGE).keys()
    rooms = {
        path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if path.name[0] not in "._"
    }
    assert ROOMS.keys() == rooms - {"py", "py.typed"}
    assert [
        (here, other) for here, others in ROOMS.items() for other in others if (here, other) not in used
    ] == []


def test_the_core_knows_of_the_protocol_only_what_hosts_measure() -> None:
    of_core = [
        others for module, others in imports(PACKAGE).items() if module.startswith("orchestrator.core.")
    ]
    known = {other for others in of_core for other in others if other.startswith("orchestrator.protocol.")}
    assert known == {"orchestrator.protocol.measures"}


def outside(path: Path) -> set[str]:
    """Return the libraries that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names - {"orchestrator"}


def files(rooms: Collection[str]) -> list[Path]:
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).with_suffix("").parts[0] in rooms
    ]


def at_import(path: Path) -> set[str]:
    """Return the libraries without which a file cannot be imported."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module.partition(".")[0])
    return names - {"orchestrator"}


def test_hosts_need_nothing_but_python() -> None:
    assert {
        str(path.relative_to(PACKAGE)): missing
        for path in files(ONLY_PYTHON)
        if (missing := at_import(path) - sys.stdlib_module_names - {"__future__"})
    } == {}


def test_what_decides_touches_nothing() -> None:
    assert {str(path): touched for path in files(PURE) if (touched := outside(path) & TOUCHES)} == {}


@pytest.mark.parametrize("library", ONE_ROOM)
def test_a_library_is_known_in_one_room(library: str) -> None:
    here = PACKAGE.joinpath(*ONE_ROOM[library].split("."))
    knowing = [path for path in PACKAGE.rglob("*.py") if library in outside(path)]
    assert knowing
    assert [str(path) for path in knowing if here not in path.parents] == []


def test_the_picture_of_the_rooms_has_them_all() -> None:
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text()
    picture = page.split("## Rooms")[1].split("| room |")[0]
    drawn = {
        word
        for line in picture.splitlines()
        if line.startswith("    ")
        for word in line[:18].split()
        if word.isalpha()
    }
    assert drawn == ROOMS.keys() - {"runtime", "keras", "bundle_main"}
    named = set(re.findall(r"`([a-z_]+/(?:[a-z_]+/)*[a-z_0-9]+\.py)", page))
    assert [path for path in named if not (PACKAGE / path).exists() and not path.startswith("tests/")] == []


@cache
def needed(path: Path) -> set[str]:
    """Return the modules of ours that a file needs to be imported."""
    return {
        name.removeprefix("orchestrator.")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    }


@pytest.mark.parametrize("feature", OPTIONAL)
def test_without_an_optional_feature_the_rest_can_be_imported(feature: str) -> None:
    def is_theirs(module: str) -> bool:
        return any(module == own or module.startswith(f"{own}.") for own in OPTIONAL[feature])

    rest = {module_of(path, PACKAGE).removeprefix("orchestrator."): path for path in files(ROOMS.keys())}
    assert len([module for module in rest if is_theirs(module)]) >= len(OPTIONAL[feature])
    lost = {
        module: [*filter(is_theirs, needed(path))] for module, path in rest.items() if not is_theirs(module)
    }
    assert {module: names for module, names in lost.items() if names} == {}

"""No file of the package imports another in a circle, and no folder; imports in functions and for types count too."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent


def module_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(package: Path) -> dict[str, set[str]]:
    """By module: the modules of the package that it imports, anywhere in the file."""
    files = {module_of(path, package): path for path in package.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        # `from package import module` names both; the package's own __init__ is meant only where it defines the name.
        found[module] = {
            name
            for name in names & files.keys()
            if not any(other.startswith(f"{name}.") for other in names & files.keys())
        } - {module}
    return found


def test_no_file_imports_another_in_a_circle() -> None:
    assert len(list(TopologicalSorter(imports(PACKAGE)).static_order())) > 100


def test_a_circle_is_found(tmp_path: Path) -> None:
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("def late():\n    from house import b\n    return b\n")
    (package / "b.py").write_text("TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from house.a import late\n")
    with pytest.raises(CycleError) as caught:
        TopologicalSorter(imports(package)).prepare()
    assert set(caught.value.args[1]) == {"house.a", "house.b"}


def folder(module: str, modules: Collection[str]) -> str:
    """Return the folder of a module; a folder's own __init__ lies in it."""
    is_folder = any(other.startswith(f"{module}.") for other in modules)
    return module if is_folder else module.rpartition(".")[0]


def folders(files: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return by folder: the folders that its files import, but for those that it lies in or that lie in it.

    A room and its own parts are one household: what they share stands in the room itself.
    """
    found: dict[str, set[str]] = {}
    for module, others in files.items():
        here = folder(module, files)
        there = {folder(other, files) for other in others}
        apart = {name for name in there if not f"{name}.".startswith(f"{here}.")}
        found.setdefault(here, set()).update(name for name in apart if not here.startswith(f"{name}."))
    return found


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the largest groups in which each reaches each of the others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        return seen

    ways = {name: reached(name) for name in graph}
    groups = {frozenset({name, *(other for other in ways[name] if name in ways[other])}) for name in graph}
    return {group for group in groups if len(group) > 1}


def test_no_folder_imports_another_in_a_circle() -> None:
    graph = folders(imports(PACKAGE))
    assert len(graph) > 30
    assert circles(graph) == set()


def test_a_circle_of_folders_is_found_though_no_file_is_in_one(tmp_path: Path) -> None:
    package = tmp_path / "house"
    for room in ("hall", "attic", "attic/chest", "cellar"):
        (package / room).mkdir(parents=True)
    texts = {
        "hall/a.py": "from house.attic.chest import b\n",
        "attic/chest/b.py": "from house.cellar import d\n",
        "attic/c.py": "from house.attic.chest import b\n",
        "cellar/d.py": "",
        "cellar/e.py": "def late():\n    from house.hall import a\n    return a\n",
    }
    for name, text in texts.items():
        (package / name).write_text(text)
    for path in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        (path / "__init__.py").write_text("")
    files = imports(package)
    TopologicalSorter(files).prepare()  # no file is in a circle
    assert circles(folders(files)) == {frozenset({"house.hall", "house.attic.chest", "house.cellar"})}

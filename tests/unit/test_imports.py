"""No file of the package imports another in a circle; imports within functions and for types count too."""

from __future__ import annotations

import ast
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

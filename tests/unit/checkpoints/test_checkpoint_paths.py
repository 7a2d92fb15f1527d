"""What lies below a checkpoint directory is reached through `both/within.py` alone: a path can be led elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator

ROOM = Path(orchestrator.__file__).parent / "checkpoints"

OF_OS = {"basename", "dirname", "join", "split", "abspath", "isabs", "normpath", "relpath", "samestat"}
"""The functions of `os.path` that look at text alone, or at what was looked at already."""

HARMLESS = {
    *("path", "environ", "getpid", "uname", "urandom", "cpu_count", "dup", "fdopen", "sep"),
    *("close", "fstat", "write", "preadv", "lseek", "ftruncate", "umask"),
}
"""The functions of `os` that take no path, but a descriptor or nothing."""

ALLOWED = {
    ("places.py", "os.makedirs"): "makes the checkpoint directory itself, by the path that a person gave",
    ("places.py", "os.path.exists"): "asks how much room there is where a directory would be",
    ("places.py", "os.statvfs"): "the same",
    ("claims.py", "os.path.realpath"): "names the host's own directory, which is ours alone",
    ("tensorflow_files.py", "os.symlink"): "in a private directory, to files that are open already",
}
"""What else is used, and why."""


def called(source: str) -> Iterator[str]:
    """Yield the names by which files may be reached: `open`, and those of `os`, `shutil`, `pathlib` and the like."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id == "open":
            yield "open"
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            of_path = name.startswith("os.path.") and name.count(".") == 2 and node.attr not in OF_OS
            of_os = name.startswith("os.") and name.count(".") == 1 and node.attr not in HARMLESS
            if of_path or (of_os and node.attr.islower()):
                yield name
        elif isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if alias.name in ("shutil", "pathlib", "glob", "io")
            )
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path", "shutil", "pathlib", "io"):
            yield node.module


def test_no_path_is_opened_by_its_name() -> None:
    found = {(path.name, name) for path in ROOM.glob("*.py") for name in called(path.read_text())}
    assert sorted(found - ALLOWED.keys()) == []
    assert sorted(ALLOWED.keys() - found) == [], "what is not used any more is not allowed any more"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("with open(path) as file: pass", "open"),
        ("os.rename(a, b)", "os.rename"),
        ("os.path.realpath(a)", "os.path.realpath"),
        ("list(map(os.path.isfile, names))", "os.path.isfile"),
        ("import shutil", "shutil"),
        ("def f():\n    from pathlib import Path", "pathlib"),
        ("with tree.reading(path) as file: pass", None),
        ("os.path.join(a, b)", None),
        ("os.O_RDONLY | os.close(3)", None),
    ],
)
def test_what_reaches_a_file_by_its_name_is_seen(line: str, name: str | None) -> None:
    assert list(called(line)) == ([name] if name else [])

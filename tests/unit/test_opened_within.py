"""What a host or a script may have put in the way is opened by descriptors, through `both/within.py` alone.

These modules reach directories that a person named, or in which a script writes. The rooms of `host/` that are not
named here open our own directories of mode 0700, and files of the kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent

STRICT = [*sorted((PACKAGE / "head" / "transfer").glob("*.py")), PACKAGE / "host" / "system" / "files.py"]

OF_OS = {
    *(
        "open",
        "rename",
        "replace",
        "link",
        "symlink",
        "unlink",
        "remove",
        "makedirs",
        "mkdir",
        "rmdir",
        "listdir",
    ),
    *("scandir", "stat", "chmod", "chown", "utime", "truncate", "readlink"),
}

ALLOWED = {
    ("head/transfer/outputs.py", "os.makedirs"): "the directory that the person named",
    ("head/transfer/tensorboard.py", "os.makedirs"): "a directory of ours, of mode 0700",
    ("head/transfer/partwise.py", "open"): "a chunk in the store of the head, by its digest",
}
"""With why it is not one that somebody else may have put a link into."""


def opens(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that reach a file by its path."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        room, _, verb = name.rpartition(".")
        handed = [
            arg
            for arg in node.args[:1]
            if isinstance(arg, ast.Call) and ast.unparse(arg.func).endswith("opened")
        ]
        if (
            (name == "open" and not handed)
            or (room == "os" and verb in OF_OS)
            or name in ("os.path.realpath", "Path")
            or room in ("shutil", "durable")
        ):
            yield name


def test_nothing_is_opened_by_a_path_that_another_may_have_changed() -> None:
    used = {
        (str(path.relative_to(PACKAGE)), name)
        for path in STRICT
        for name in opens(ast.parse(path.read_text()))
    }
    assert sorted(used) == sorted(ALLOWED)


@pytest.mark.parametrize(
    "source", ["open(path)", "os.rename(a, b)", "shutil.rmtree(a)", "durable.place(a, b)", "Path(a).unlink()"]
)
def test_what_opens_by_a_path_is_found(source: str) -> None:
    assert list(opens(ast.parse(source))) != []

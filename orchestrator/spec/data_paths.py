"""The data that a script reads by paths that its sources spell out."""

from __future__ import annotations

import ast
import os
import re

from orchestrator.both.script import followed
from orchestrator.spec.literals import assigned_once, literal, name_of

_READERS = frozenset(
    {
        *("open", "read_text", "load", "loadtxt", "genfromtxt", "memmap", "imread", "imread_collection"),
        *("read_csv", "read_table", "read_parquet", "read_json", "read_excel", "read_hdf", "read_pickle"),
        *("list_files", "TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CsvDataset"),
        *("make_csv_dataset", "image_dataset_from_directory", "text_dataset_from_directory"),
        *("audio_dataset_from_directory", "timeseries_dataset_from_directory", "flow_from_directory"),
        *("listdir", "scandir", "walk", "glob", "iglob", "rglob", "File", "ZipFile", "Path", "add_argument"),
    }
)
_IS_COMPUTED = re.compile(r"[*?\[{]")
_OF_THE_SYSTEM = ("/dev/", "/proc/", "/sys/", "/tmp/")
_FIRST_OF = {"open": 0, "File": 0}
_WRITES = re.compile(r"[wax]")


def data_paths(path: str, root: str = "") -> dict[str, str]:
    """Return what a script and the modules beside it read by a path, each with the `file:line` of its first use.

    Of a path that is computed in part, that is the directory above. Raises OSError.
    """
    found: dict[str, str] = {}
    folder = os.path.realpath(root or os.path.dirname(os.path.realpath(path)))
    for file, text, _ in followed(path, root):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        names = assigned_once(tree)
        for node in ast.walk(tree):
            call = name_of(node.func) if isinstance(node, ast.Call) else None
            if not isinstance(node, ast.Call) or call not in _READERS or _is_written(node, call):
                continue
            for place in filter(None, (_place(given, names) for given in _given(node, call))):
                found.setdefault(place, f"{os.path.relpath(os.path.realpath(file), folder)}:{node.lineno}")
    return found


def _given(node: ast.Call, call: str) -> list[ast.expr]:
    if call == "add_argument":  # --data /mnt/set by default
        return [each.value for each in node.keywords if each.arg == "default"]
    given = [
        *node.args[:1],
        *(each.value for each in node.keywords if each.arg in ("directory", "filenames")),
    ]
    return [
        part for each in given for part in (each.elts if isinstance(each, (ast.List, ast.Tuple)) else [each])
    ]


def _is_written(node: ast.Call, call: str) -> bool:
    modes = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "mode")]
    return call in _FIRST_OF and any(
        isinstance(mode, ast.Constant) and _WRITES.search(str(mode.value)) for mode in modes
    )


def _place(node: ast.expr, names: dict[str, ast.expr]) -> str | None:
    """Return the path that is read; None for one that is no absolute path, or of the system."""
    text = literal(node, names)
    if text is None or not text.startswith(("/", "~/")) or text.startswith(_OF_THE_SYSTEM):
        return None
    computed = _IS_COMPUTED.search(text)
    place = os.path.dirname(text[: computed.start()]) if computed else text.rstrip("/")
    return place if place not in ("", "/", "~") else None

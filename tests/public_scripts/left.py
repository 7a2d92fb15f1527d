"""The files that a script leaves, by what is in them: numbers may differ as two trainings do, all else may not."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.public_scripts.page import EQUAL

_TEXTS = (".csv", ".json", ".jsonl", ".log", ".tsv", ".txt")
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")


def names(work: Path) -> list[str]:
    """Return the names of the files in a working directory, without what lay beside the script."""
    found = (path.relative_to(work) for path in work.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not (work / path.parts[0]).is_symlink())


def compared(one: Path, other: Path) -> tuple[int, list[str]]:
    """Return how many files that both directories have could be compared, and the names of those that differ."""
    count, apart = 0, []
    for name in sorted({*names(one)} & {*names(other)}):
        a, b = content(one / name), content(other / name)
        if a is None or b is None:
            continue
        count += 1
        if not _alike(a, b):
            apart.append(name)
    return count, apart


def content(path: Path) -> list[Any] | None:
    """Return the words and the arrays of numbers in a file; None if this does not know its format."""
    if path.suffix == ".npy":
        return [np.load(path, allow_pickle=False)]
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return [each for name in sorted(arrays.files) for each in (name, arrays[name])]
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive, archive.open("model.weights.h5") as file:
            return list(_of_hdf5(file))
    if path.suffix == ".h5":
        return list(_of_hdf5(path))
    if path.suffix not in _TEXTS:
        return None
    text = path.read_text(errors="replace")
    return [_NUMBER.sub("#", text), *(np.array(float(each)) for each in _NUMBER.findall(text))]


def _of_hdf5(file: Any) -> Iterator[Any]:
    """Return the arrays in their order. Optimizers keep their state; the names of layers are counted by Keras."""
    import h5py

    found: list[Any] = []
    with h5py.File(file, "r") as opened:
        opened.visititems(lambda _, each: found.append(each[()]) if isinstance(each, h5py.Dataset) else None)
    yield from (np.asarray(each) for each in found)


def _alike(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str) or one.dtype.kind not in "biufc":
        return bool(np.all(one == other))
    if one.shape != other.shape:
        return False
    apart = np.abs(one.astype("float64") - other.astype("float64"))
    return bool(apart.max(initial=0.0) <= EQUAL * np.abs(one).max(initial=1e-3))

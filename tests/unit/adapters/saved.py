"""Checkpoints as scripts of several frameworks save them, written by hand to the formats that are published."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"


def npz(path: Path, step: int | None = None, **arrays: Any) -> Path:
    """Call `numpy.savez`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counted: dict[str, Any] = {} if step is None else {"global_step": np.int64(step)}
    np.savez(path, w=np.arange(2000.0), **counted, **arrays)
    return path


def torch(path: Path, step: int | None = None, what: object = None) -> Path:
    """Write the zip of `torch.save`: stored records below the name of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = what or {
        "model": "a persistent id stands here",
        **({} if step is None else {"global_step": step}),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(saved, protocol=2))
        archive.writestr(f"{path.stem}/byteorder", "little")
        archive.writestr(f"{path.stem}/data/0", bytes(range(256)) * 40)
        archive.writestr(f"{path.stem}/version", "3\n")
    return path


def safetensors(path: Path, step: int | None = None, **header: Any) -> Path:
    """Write a header as JSON after its length, and the tensors. `header` adds to it, or puts other entries in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"w": {"dtype": "F32", "shape": [500], "data_offsets": [0, 2000]}}
    metadata = {"__metadata__": {"format": "np", **({} if step is None else {"step": str(step)})}}
    text = json.dumps({**metadata, **tensors, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(2000))
    return path


def orbax(folder: Path, step: int) -> Path:
    """Copy a step of Orbax's CheckpointManager, as Orbax wrote it, under another step."""
    return Path(shutil.copytree(FIXTURES / "orbax" / "200", folder / str(step)))


def aged(directory: Path, age_s: float = 0.0) -> Path:
    """Give the files below a directory times of their own, a second apart, in the order of their names."""
    paths = sorted((path for path in directory.rglob("*") if path.is_file()), key=_by_number)
    for place, path in enumerate(paths):
        os.utime(path, (0, 1_700_000_000 - age_s + place))
    return directory


def _by_number(path: Path) -> list[tuple[int, str]]:
    words = "".join(letter if letter.isalnum() else " " for letter in str(path)).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size if size >= 0 else path.stat().st_size + size)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)

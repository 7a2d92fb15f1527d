"""What `torch.save` writes since torch 1.6: `.pt`, `.pth`, `.ckpt`; a zip with a pickle in it, which is never run."""

from __future__ import annotations

import os
import zipfile
from types import SimpleNamespace

from orchestrator.checkpoints import keras_archive
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.torn import Torn, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ZIP = b"PK"


def is_one(path: str) -> bool:
    """Return whether it begins as a file of torch does: others too save as `.ckpt`. So does one that is cut off."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(_ZIP))
    except OSError:
        return False
    return _ZIP.startswith(head)


def glance(path: str) -> None:
    """Look for the zip's directory, which is at its end. Torn."""
    if not os.path.getsize(path):
        raise Torn(f"{os.path.basename(path)} is empty")
    keras_archive.glance(path)


def peek(path: str) -> int | None:
    """Return the global step, without reading the tensors. Torn."""
    return _read_zip(path, whole=False)


def read(path: str) -> int | None:
    """Compare every record with its CRC-32. Return the global step. Torn."""
    return _read_zip(path, whole=True)


def has_checksums(path: str) -> bool:
    """Return whether every record has a CRC-32: torch can be told to leave them out."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(info.CRC for info in archive.infolist() if info.filename.endswith("/data.pkl"))
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
        return False


def _read_zip(path: str, *, whole: bool) -> int | None:
    with reading("zip"), zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        main = next((info for info in records if info.filename.endswith("/data.pkl")), None)
        if main is None:
            raise Torn("it has no data.pkl: torch did not write it to its end")
        # `torch.serialization.set_crc32_options(False)` leaves all of them out: then only sizes can be compared.
        if main.CRC == 0:
            del main.CRC
        else:
            for info in records if whole else ():
                with archive.open(info) as file:
                    keras_archive.to_end(file)
        with archive.open(main) as file:
            saved = _Saved()
            # This stream cannot tell its position, so only these two methods are passed on.
            saved.look_through(SimpleNamespace(read=file.read, readline=file.readline))
            return choose_step(saved.integers)


class _Saved:
    """What the opcodes of a pickle tell, without running it: integers, by the text before each."""

    def __init__(self) -> None:
        self.integers: dict[str, int] = {}

    def look_through(self, file: Any) -> None:
        """Read one pickle, to its end. Whatever a reader raises, where it has none."""
        import pickletools

        memo: dict[Any, Any] = {}
        before: Any = None
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            if name.endswith("PUT"):
                memo[argument] = before
                continue
            if name == "MEMOIZE":
                memo[len(memo)] = before
                continue
            value = memo.get(argument) if name.endswith("GET") else argument
            if ("INT" in name or "LONG" in name) and isinstance(before, str) and isinstance(value, int):
                self.integers.setdefault(before, value)
            before = value

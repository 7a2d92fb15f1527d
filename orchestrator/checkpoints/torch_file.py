"""What `torch.save` writes: `.pt`, `.pth`, `.ckpt`; a zip, or a row of pickles before torch 1.6. None is unpickled."""

from __future__ import annotations

import os
import zipfile
from types import SimpleNamespace

from orchestrator.checkpoints import keras_archive
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.torn import Torn, opened, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ZIP = b"PK"
_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of the old format: its magic number."""

_ITEM_BYTES = {
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "QInt32"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Char", "Byte", "Bool", "QInt8", "QUInt8"), 1),
    "ComplexDouble": 16,
}


def is_one(path: str) -> bool:
    """Return whether it begins as a file of torch does: others too save as `.ckpt`. So does one that is cut off."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(_PICKLE))
    except OSError:
        return False
    return head.startswith(_ZIP) or any(start.startswith(head) for start in (_ZIP, _PICKLE))


def glance(path: str) -> None:
    """Look for the zip's directory, which is at its end, or through the old format's pickles. Torn."""
    if _is_zip(path):
        keras_archive.glance(path)
    else:
        _read_pickles(path)


def peek(path: str) -> int | None:
    """Return the global step, without reading the tensors. Torn."""
    return _read_zip(path, whole=False) if _is_zip(path) else _read_pickles(path)


def read(path: str) -> int | None:
    """Compare every record of a zip with its CRC-32, of the old format the length. Return the global step. Torn."""
    return _read_zip(path, whole=True) if _is_zip(path) else _read_pickles(path)


def has_checksums(path: str) -> bool:
    """Return whether every record has a CRC-32: the old format has none, and torch can be told to leave them out."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(info.CRC for info in archive.infolist() if info.filename.endswith("/data.pkl"))
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
        return False


def _is_zip(path: str) -> bool:
    with opened(path) as file:
        head = file.read(len(_PICKLE))
    if not head:
        raise Torn(f"{os.path.basename(path)} is empty")
    return head.startswith(_ZIP)


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


def _read_pickles(path: str) -> int | None:
    """Look through the old format: magic number, version, system, object, names of the storages; then the storages."""
    with opened(path) as file:
        saved = _Saved()
        with reading("its pickle is cut off"):
            for what in (_Saved(), _Saved(), _Saved(), saved, _Saved()):
                what.look_through(file)
        start, end = file.tell(), file.seek(0, os.SEEK_END)
    needed = sum(8 + length for length in saved.storages.values())
    if end - start < needed:
        raise Torn(f"it is cut off: {end} of {start + needed} bytes")
    return choose_step(saved.integers)


class _Saved:
    """What the opcodes of a pickle tell, without running it: integers by the text before each, and storages' bytes."""

    def __init__(self) -> None:
        self.integers: dict[str, int] = {}
        self.storages: dict[str, int] = {}

    def look_through(self, file: Any) -> None:
        """Read one pickle, to its end. Whatever a reader raises, where it has none."""
        import pickletools

        memo: dict[Any, Any] = {}
        recent: list[Any] = [None] * 7
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            if name.endswith("PUT"):
                memo[argument] = recent[-1]
                continue
            if name == "MEMOIZE":
                memo[len(memo)] = recent[-1]
                continue
            value = memo.get(argument) if name.endswith("GET") else argument
            if name == "BINPERSID":
                self._storage(recent)
            elif ("INT" in name or "LONG" in name) and isinstance(recent[-1], str) and isinstance(value, int):
                self.integers.setdefault(recent[-1], value)
            recent = [*recent[1:], value]

    def _storage(self, recent: list[Any]) -> None:
        """Take the tuple before a persistent id: ("storage", its class, key, device, length, None)."""
        word, kind, key, _, length = recent[:5]
        item = _ITEM_BYTES.get(str(kind).rpartition(" ")[2].removesuffix("Storage"), 0)
        if word == "storage" and isinstance(length, int):
            self.storages[str(key)] = length * item

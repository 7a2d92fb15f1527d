"""The code of a run as it was pushed, kept beside its logs so that `orch diff` can compare with it.

One archive has the SHA-256 of all files, and the texts of short ones, so that changes can be shown line by line. If it
cannot be written, `orch diff` shows less.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.both import durable
from orchestrator.head.code import codetree

_NAME = "code.zip"
_LIST = "files.json"
_TEXTS = "texts/"

TEXT_BYTES_MAX = 256 << 10
"""The largest file whose text is kept."""

TEXTS_BYTES_MAX = 8 << 20
"""How much text is kept of one run, before it is compressed. Scripts are far below it."""


@dataclass(frozen=True, slots=True)
class Code:
    """A tree of code: its files by path, and their texts."""

    files: Mapping[str, tuple[str, int]]
    """By path, SHA-256 and mode."""
    text: Callable[[str], str | None]
    """Returns the text of a file; None if it is not kept: the file is long, or not text."""


def keep(directory: str, workdir: str, tree: Sequence[codetree.CodeFile]) -> None:
    """Keep the code that was pushed. A file that has changed since it was hashed has no text. Raises OSError."""
    path = os.path.join(directory, _NAME)
    if os.path.exists(path):
        return
    buffer, left = io.BytesIO(), TEXTS_BYTES_MAX
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_LIST, json.dumps({file.path: [file.sha256, file.mode] for file in tree}))
        for file in tree:
            if file.size > min(TEXT_BYTES_MAX, left):
                continue
            data = _data(os.path.join(workdir, file.path))
            if hashlib.sha256(data).hexdigest() == file.sha256 and _text(data) is not None:
                archive.writestr(_TEXTS + file.path, data)
                left -= len(data)
    durable.write(path, buffer.getvalue(), durable=False)


def remove(directory: str) -> None:
    """Forget the code of a run. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, _NAME))


def read(directory: str) -> Code | None:
    """Return the code that a run began with; None if unknown."""
    path = os.path.join(directory, _NAME)
    try:
        with zipfile.ZipFile(path) as archive:
            files = {
                str(name): (str(entry[0]), int(entry[1]))
                for name, entry in json.loads(archive.read(_LIST)).items()
            }
    except (OSError, ValueError, KeyError, LookupError, TypeError, AttributeError, zipfile.BadZipFile):
        return None

    def text(name: str) -> str | None:
        try:
            with zipfile.ZipFile(path) as archive:
                return _text(archive.read(_TEXTS + name))
        except (OSError, KeyError, zipfile.BadZipFile):
            return None

    return Code(files, text)


def of_workdir(workdir: str, tree: Sequence[codetree.CodeFile]) -> Code:
    """Return the code in a working directory, as it is now."""

    def text(name: str) -> str | None:
        data = _data(os.path.join(workdir, name))
        return _text(data) if len(data) <= TEXT_BYTES_MAX else None

    return Code({file.path: (file.sha256, file.mode) for file in tree}, text)


def _data(path: str) -> bytes:
    """Return at most TEXT_BYTES_MAX + 1 bytes of a file; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_BYTES_MAX + 1)
    except OSError:
        return b""


def _text(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None

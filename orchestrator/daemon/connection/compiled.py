"""The bundle compiled by the head, for hosts whose Python has the same byte code.

A host compiles what it gets as source in 0.2 s of its CPU. Most clusters have one version of Python, so the head does
that once instead of each host. A host with another version still gets sources alone.
"""

from __future__ import annotations

import hashlib
import io
import sys
import threading
import zlib
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from orchestrator.adapters import bundle
from orchestrator.daemon.connection.installer import compiled, precompile

if TYPE_CHECKING:
    from orchestrator.adapters.bundle import Archive

_COMPILING = threading.Lock()

_LEVEL = 4
"""Half of the time that the usual level takes, for 3 % more bytes."""


def compiled_for(magic: str, code: Archive) -> Archive | None:
    """Return the archive as it will lie on the host, compressed; None where the host's byte code (`magic`) differs.

    It is compressed as one stream: that is smaller than a compressed zip archive, and the host need not open one.
    """
    if magic != MAGIC_NUMBER.hex():
        return None
    with _COMPILING:  # many hosts ask at once
        return _compiled(code)


@cache
def _compiled(code: Archive) -> Archive:
    files, plain = dict(bundle.members()), io.BytesIO()
    precompile(code.data, plain, lambda name, source: _code(files.get(name), name, source))
    data = zlib.compress(plain.getvalue(), _LEVEL)
    return type(code)(hashlib.sha256(data).hexdigest(), data)


def _code(file: Path | None, name: str, source: bytes) -> CodeType:
    """Return the code that Python has compiled before, from that file: to compile all anew takes most of a second.

    What was compiled before counts by Python's own rule: it is of a file of this size and time.
    """
    kept = _kept(file, name) if file is not None and not sys.flags.optimize and _holds(file, source) else None
    return _in_file(kept, name) if kept is not None else compiled(name, source)


def _kept(file: Path, name: str) -> CodeType | None:
    module = name.removesuffix(".py").replace("/", ".")
    try:
        return SourceFileLoader(module, str(file)).get_code(module)
    except (OSError, EOFError, ValueError, TypeError, ImportError):  # a power cut or a full disk has torn it
        return None


def _holds(file: Path, source: bytes) -> bool:
    try:
        return file.read_bytes() == source
    except OSError:  # orch is just being installed anew
        return False


def _in_file(code: CodeType, name: str) -> CodeType:
    """Return the same code as if it had been compiled from a file of that name, as a host does it."""
    constants = (_in_file(each, name) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=name, co_consts=tuple(constants))

"""The bundle compiled by the head, for hosts whose Python has the same byte code.

A host compiles what it gets as source in 0.2 s of its CPU. Most clusters have one version of Python, so the head does
that once instead of each host. A host with another version still gets sources alone.
"""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from functools import cache
from importlib.util import MAGIC_NUMBER
from typing import TYPE_CHECKING

from orchestrator.daemon.connection.installer import precompile

if TYPE_CHECKING:
    from orchestrator.adapters.bundle import Archive

_COMPILING = threading.Lock()


def compiled_for(magic: str, code: Archive) -> Archive:
    """Return the archive with byte code where the host's is that of the head (`magic`, in hex), else as it is."""
    if magic != MAGIC_NUMBER.hex():
        return code
    with _COMPILING:  # many hosts ask at once
        return _compiled(code)


@cache
def _compiled(code: Archive) -> Archive:
    plain, packed = io.BytesIO(), io.BytesIO()
    precompile(code.data, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    data = packed.getvalue()
    return type(code)(hashlib.sha256(data).hexdigest(), data)

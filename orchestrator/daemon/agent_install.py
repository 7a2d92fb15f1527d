"""Runs on a host before anything of ours is there: writes the pushed bundle, precompiled by the host's Python.

Its source travels alone, only to a host that lacks the bundle, so it may import nothing of ours.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


def install(stream: BinaryIO, path: str, digest: str) -> None:
    """Reads `<bytes>\\n<zip>` from the stream and puts the precompiled archive to `path`, whole or not at all.

    ValueError where the content is not that of the digest; OSError where the host cannot hold it.
    """
    from hashlib import sha256

    data = stream.read(int(stream.readline()))
    if sha256(data).hexdigest() != digest:
        raise ValueError("the bundle arrived damaged")
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            _precompile(data, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _precompile(data: bytes, out: BinaryIO) -> None:
    """The same archive, not compressed, with a .pyc beside each .py.

    Unchecked by hash: nobody edits it in place, and a check would hash each source at each import.
    """
    import io
    import marshal
    import zipfile
    from importlib.util import MAGIC_NUMBER, source_hash

    with zipfile.ZipFile(io.BytesIO(data)) as pushed, zipfile.ZipFile(out, "w") as archive:
        for name in pushed.namelist():
            source = pushed.read(name)
            # Tracebacks name the file; a full path would only be the head's.
            code = compile(source, name, "exec", dont_inherit=True, optimize=0)
            header = MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source)
            archive.writestr(name, source)
            archive.writestr(name + "c", header + marshal.dumps(code))

"""Runs on a host before anything of ours is there: writes the pushed bundle, and compiles what came as source only.

Its source travels alone, only to a host that lacks the bundle, so it may import nothing of ours.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO


def install(stream: BinaryIO, path: str) -> None:
    """Read `<sha256> <bytes>\\n<zip>` from the stream and put the compiled archive to `path`, whole or not at all.

    In a fork: the compiler's memory would else stay with the agent for as long as it lives. ValueError where
    the content has another sum; OSError where the host cannot hold it.
    """
    import json

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        told: list[object] = ["value", 0, "the installer was interrupted", None]
        try:
            _install(stream, path)
            told = []
        except OSError as e:
            told = ["os", e.errno, e.strerror, e.filename or path]
        except Exception as e:
            told = ["value", 0, str(e), None]
        finally:
            os.write(writer, json.dumps(told).encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    failed = json.loads(text or b'["value", 0, "the installer was killed", null]')
    if failed and failed[0] == "os":
        raise OSError(*failed[1:])
    if failed:
        raise ValueError(failed[2])


def _install(stream: BinaryIO, path: str) -> None:
    from hashlib import sha256

    digest, size = stream.readline().split()
    data = stream.read(int(size))
    if sha256(data).hexdigest() != digest.decode("ascii"):
        raise ValueError("the bundle arrived damaged")
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            precompile(data, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def precompile(data: bytes, out: BinaryIO) -> None:
    """Write the same archive, not compressed, with a .pyc beside each .py. One that is there is taken as it is.

    Unchecked by hash: nobody edits it in place, and a check would hash each source at each import.
    """
    import io
    import marshal
    import zipfile
    from importlib.util import MAGIC_NUMBER, source_hash

    with zipfile.ZipFile(io.BytesIO(data)) as pushed, zipfile.ZipFile(out, "w") as archive:
        names = set(pushed.namelist())
        for name in pushed.namelist():
            source = pushed.read(name)
            archive.writestr(name, source)
            if not name.endswith(".py") or name + "c" in names:
                continue
            # Tracebacks name the file; a full path would only be the head's.
            code = compile(source, name, "exec", dont_inherit=True, optimize=0)
            header = MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source)
            archive.writestr(name + "c", header + marshal.dumps(code))

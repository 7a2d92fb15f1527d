"""Runs on a host before anything of ours is there: writes the pushed bundle, and compiles what came as source only.

Its source travels alone, only to a host that lacks the bundle, so it may import nothing of ours.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import BinaryIO


def install(stream: BinaryIO, path: str) -> None:
    """Read `<sha256> <bytes> <kind>\\n<bundle>` from the stream and put the compiled archive to `path`, or nothing.

    The bundle is a zip archive, compressed as a whole. If its kind is `source` and not `compiled`, it is compiled here.
    In a fork: the compiler's memory would else stay with the agent for as long as it lives. Raises ValueError if
    the content has another sum; OSError if the host cannot hold it.
    """
    import json

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        failure: list[object] = ["value", 0, "the installer was interrupted", None]
        try:
            _install(stream, path)
            failure = []
        except OSError as e:
            failure = ["os", e.errno, e.strerror, e.filename or path]
        except Exception as e:
            failure = ["value", 0, str(e), None]
        finally:
            os.write(writer, json.dumps(failure).encode())
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
    import zlib
    from hashlib import sha256

    digest, size, kind = stream.readline().split()
    data = stream.read(int(size))
    if sha256(data).hexdigest() != digest.decode("ascii"):
        raise ValueError("the bundle arrived damaged")
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            plain = zlib.decompress(data)
            if kind == b"compiled":
                file.write(plain)
            else:
                precompile(plain, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def compiled(name: str, source: bytes) -> CodeType:
    """Compile a file of the bundle. Tracebacks name the file; a full path would only be the head's."""
    code: CodeType = compile(source, name, "exec", dont_inherit=True, optimize=0)
    return code


def pyc_of(source: bytes, code: CodeType) -> bytes:
    """Return the content of a .pyc file that Python does not compare with the source: nobody edits it on a host."""
    import marshal
    from importlib.util import MAGIC_NUMBER, source_hash

    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + marshal.dumps(code)


def precompile(data: bytes, out: BinaryIO, code_of: Callable[[str, bytes], CodeType] = compiled) -> None:
    """Write the same archive, not compressed, with a .pyc beside each .py.

    The sources stay: the Python of a run may be another than the agent's, and AutoGraph reads the runtime's.
    """
    import io
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as pushed, zipfile.ZipFile(out, "w") as archive:
        for name in pushed.namelist():
            source = pushed.read(name)
            archive.writestr(name, source)
            if name.endswith(".py"):
                archive.writestr(name + "c", pyc_of(source, code_of(name, source)))

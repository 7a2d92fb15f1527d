"""The archives that the head pushes to hosts: our own code, and psutil where a host's platform equals the head's.

With our code goes the C library that checks the sums of TensorFlow's checkpoints, which needs no Python to fit.

An archive is named by the SHA-256 of its bytes, so looking for one file name tells whether a host has it. Both are
built from what is installed on the head, so head and hosts cannot differ in version. Building is reproducible: the
same sources give the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import threading
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.adapters.checkpoints.crc32c import LIBRARY
from orchestrator.adapters.host import hostdir

PACKAGE = Path(__file__).resolve().parent.parent

CONTENT = (
    "__init__.py",
    "keras.py",
    "daemon/__init__.py",
    "daemon/agent/*.py",
    "daemon/keeper/*.py",
    "daemon/pod/*.py",
    "daemon/shim/*.py",
    "adapters/__init__.py",
    "adapters/channel.py",
    "adapters/durable.py",
    "adapters/private_socket.py",
    "adapters/host/*.py",
    "adapters/checkpoints/*.py",
    "protocol/__init__.py",
    "protocol/limits.py",
    "protocol/pod.py",
    "runtime/**/*.py",
)
"""The files that hosts need, and no more: every byte is pushed, and each import searches the archive's names."""

MAIN = "bundle_main.py"
"""The file that becomes the archive's `__main__.py`."""

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive, and the SHA-256 of its bytes, which names it."""

    digest: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """The archives that `start_agent` may push. `psutil` is None where the head itself has no psutil."""

    code: Archive
    psutil: Archive | None
    platform: str
    """The platform that `psutil` was built for."""


_BUILDING = threading.Lock()


def load() -> Bundle:
    """Return the bundle of the installed package. It is built once per process, however many threads ask at once."""
    with _BUILDING:
        return _built()


@cache
def _built() -> Bundle:
    return Bundle(code=build(), psutil=build_psutil(), platform=hostdir.platform())


def members(package: Path = PACKAGE) -> list[tuple[str, Path]]:
    """List every file of the bundle as (name in the archive, file), sorted by name."""
    found = {"__main__.py": package / MAIN}
    for pattern in CONTENT:
        for file in package.glob(pattern):
            found[f"{package.name}/{file.relative_to(package).as_posix()}"] = file
    return sorted(found.items())


def build(package: Path = PACKAGE) -> Archive:
    """Build the archive of our own code. It holds sources: each host compiles them with its own Python."""
    files = members(package)
    if (library := crc32c_library()) is not None:
        files = sorted([*files, (f"{package.name}/adapters/checkpoints/{LIBRARY}", library)])
    return _zip([(name, file.read_bytes()) for name, file in files])


def crc32c_library() -> Path | None:
    """Return the C library in the wheel of google-crc32c; None where that was built without one."""
    found = importlib.util.find_spec("google_crc32c")
    if found is None or found.origin is None:
        return None
    libraries = Path(found.origin).parent.with_name("google_crc32c.libs")
    return next(iter(sorted(libraries.glob("libcrc32c*.so*"))), None)


def build_psutil() -> Archive | None:
    """Build the archive of the head's own psutil. Return None where the head has no psutil."""
    try:
        import psutil
    except ImportError:
        return None
    directory = Path(psutil.__file__).parent
    kept = []
    for file in sorted(directory.iterdir()):
        # The modules for other systems never load on a host of this platform, and make up half of the size.
        foreign = file.name.startswith(("_psaix", "_psbsd", "_psosx", "_pssunos", "_pswindows"))
        if file.suffix in (".py", ".so") and not foreign:
            kept.append((f"psutil/{file.name}", file.read_bytes()))
    return _zip(kept)


def _zip(files: list[tuple[str, bytes]]) -> Archive:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    data = buffer.getvalue()
    return Archive(hashlib.sha256(data).hexdigest(), data)

"""The archives that the head pushes to hosts: our own code, and psutil where a host's platform equals the head's.

The bundle also holds the C library that checks the sums of TensorFlow's checkpoints. It works with any Python.

Each archive is named by its SHA-256, so one file name shows whether a host has it. The archives are built from what is
installed on the head, so head and hosts cannot differ in version. The same sources give the same bytes. Most hosts have
all of it, so nothing is compressed before a host needs it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from orchestrator.both import hostdir
from orchestrator.checkpoints.crc32c import LIBRARY

P = ParamSpec("P")
T = TypeVar("T")

PACKAGE = Path(__file__).resolve().parents[2]

CONTENT = (
    "__init__.py",
    "keras.py",
    "runtime.py",
    "both/*.py",
    "checkpoints/*.py",
    "host/**/*.py",
    "protocol/__init__.py",
    "protocol/channel.py",
    "protocol/limits.py",
    "protocol/paths.py",
    "protocol/pod.py",
    "protocol/wired.py",
    "task/**/*.py",
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
    """What `start_agent` may push."""

    code: Archive
    """Our own code, not compressed."""
    psutil: str | None
    """The SHA-256 of psutil's files, which names them on hosts; None if the head itself has no psutil."""
    platform: str
    """The platform that psutil was built for."""


def once(make: Callable[P, T]) -> Callable[P, T]:
    """Make a value once per process and arguments, however many threads ask for it at once."""
    making, cached = threading.Lock(), cache(make)

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        with making:
            return cached(*args, **kwargs)  # type: ignore[arg-type]  # each is hashable

    return made


@once
def load() -> Bundle:
    """Return the bundle of the installed package."""
    return Bundle(build(), _digest_of(psutil_files()), hostdir.platform())


def members(package: Path = PACKAGE) -> list[tuple[str, Path]]:
    """List every file of the bundle as (name in the archive, file), sorted by name."""
    files = {"__main__.py": package / MAIN}
    for pattern in CONTENT:
        for file in package.glob(pattern):
            files[f"{package.name}/{file.relative_to(package).as_posix()}"] = file
    return sorted(files.items())


def build(package: Path = PACKAGE) -> Archive:
    """Build the archive of our own code. It holds sources: each host compiles them with its own Python."""
    data = zipped([(name, file.read_bytes()) for name, file in _files(package)], zipfile.ZIP_STORED)
    return Archive(hashlib.sha256(data).hexdigest(), data)


def packed() -> bytes:
    """Return the archive of our own code compressed, as a file that Python runs."""
    return zipped([(name, file.read_bytes()) for name, file in _files(PACKAGE)])


def _files(package: Path) -> list[tuple[str, Path]]:
    library = crc32c_library()
    added = [(f"{package.name}/checkpoints/{LIBRARY}", library)] if library is not None else []
    return sorted([*members(package), *added])


def crc32c_library() -> Path | None:
    """Return the C library in the wheel of google-crc32c; None if that was built without one."""
    spec = importlib.util.find_spec("google_crc32c")
    if spec is None or spec.origin is None:
        return None
    libraries = Path(spec.origin).parent.with_name("google_crc32c.libs")
    return next(iter(sorted(libraries.glob("libcrc32c*.so*"))), None)


def psutil_files() -> list[tuple[str, Path]]:
    """List the files of the head's own psutil as (name in the archive, file); none where the head has no psutil."""
    spec = importlib.util.find_spec("psutil")
    if spec is None or spec.origin is None:
        return []
    # The modules for other systems never load on a host of this platform, and make up half of the size.
    foreign = ("_psaix", "_psbsd", "_psosx", "_pssunos", "_pswindows")
    return [
        (f"psutil/{file.name}", file)
        for file in sorted(Path(spec.origin).parent.iterdir())
        if file.suffix in (".py", ".so") and not file.name.startswith(foreign)
    ]


def _digest_of(files: list[tuple[str, Path]]) -> str | None:
    total = hashlib.sha256()
    for name, file in files:
        content = file.read_bytes()
        total.update(b"%s %d\n" % (name.encode(), len(content)))
        total.update(content)
    return total.hexdigest() if files else None


def zipped(files: list[tuple[str, bytes]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive of these files, the same each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = compression
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()

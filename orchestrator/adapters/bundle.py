"""The archives that hosts get: ours, and psutil where a host's platform is the head's.

Named by the SHA-256 of their bytes, so that "is it there" is one look at a file name, and built from what is
installed here, so that head and hosts cannot differ in version. Zips are written the same way each time.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.adapters.host import hostdir

PACKAGE = Path(__file__).resolve().parent.parent

CONTENT = (
    "__init__.py",
    "keras.py",
    "daemon/__init__.py",
    "daemon/agent/*.py",
    "daemon/shim/*.py",
    "adapters/__init__.py",
    "adapters/channel.py",
    "adapters/host/*.py",
    "adapters/checkpoints/*.py",
    "runtime/**/*.py",
)
"""What hosts need, and no more: its size is pushed, its names are looked through at each import."""

MAIN = "bundle_main.py"
"""Becomes the archive's __main__."""

_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip, and its name: the SHA-256 of its bytes."""

    digest: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """What `start_agent` may push. `psutil` is None where the head has none to give."""

    code: Archive
    psutil: Archive | None
    platform: str
    """The platform whose psutil this is."""


@cache
def load() -> Bundle:
    """The bundle of the installed package; built once a process."""
    return Bundle(code=build(), psutil=build_psutil(), platform=hostdir.platform())


def members(package: Path = PACKAGE) -> list[tuple[str, Path]]:
    """(name in the archive, file) of all that the bundle holds, sorted by name."""
    found = {"__main__.py": package / MAIN}
    for pattern in CONTENT:
        for file in package.glob(pattern):
            found[f"{package.name}/{file.relative_to(package).as_posix()}"] = file
    return sorted(found.items())


def build(package: Path = PACKAGE) -> Archive:
    """Our own archive, as sources: each host compiles it with its own Python."""
    return _zip([(name, file.read_bytes()) for name, file in members(package)])


def build_psutil() -> Archive | None:
    """The head's own psutil; None where it has none."""
    try:
        import psutil
    except ImportError:
        return None
    directory = Path(psutil.__file__).parent
    kept = []
    for file in sorted(directory.iterdir()):
        # Other systems' modules never load on a host of this platform, and are half of the size.
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

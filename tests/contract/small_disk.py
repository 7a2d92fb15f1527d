"""A file system of a few megabytes, which can be filled and emptied again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A small file system, mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Fill it to the last byte."""
        with contextlib.suppress(OSError), open(self._ballast, "wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def empty(self) -> None:
        """Free the space again."""
        self._ballast.unlink()


@contextlib.contextmanager
def mounted(path: Path, *, megabytes: int = 1) -> Iterator[SmallDisk]:
    """Mount a small file system. Skip the test where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(path)], check=False
    )
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)

"""A cache for a value that is derived from files. It is derived again once one of them has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class FileCache(Generic[T]):
    """Caches the value that `make` derives. `make` returns the value and all the files that it depends on."""

    def __init__(self, make: Callable[[], tuple[T, tuple[Path, ...]]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[T, tuple[Path, ...], list[object]] | None = None

    def get(self) -> T:
        with self._lock:
            if self._made is None or _stamps(self._made[1]) != self._made[2]:
                value, sources = self._make()
                self._made = (value, sources, _stamps(sources))
            return self._made[0]


def _stamps(paths: tuple[Path, ...]) -> list[object]:
    stamps: list[object] = []
    for path in paths:
        try:
            status = path.stat()
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append(None)
    return stamps

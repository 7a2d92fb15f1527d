"""What the host reads and writes on its disks and its networks, in bytes a second, from the counters of the kernel."""

from __future__ import annotations

import os
import time

_SECTOR_BYTES = 512


class Traffic:
    """Measures from one call to the next. A partition, a RAID or a bridge is left out: its disk or card counts."""

    def __init__(self, *, proc: str = "/proc", sys: str = "/sys") -> None:
        self._proc, self._sys = proc, sys
        self._before: list[int | None] = [None] * 4
        self._at: float | None = None

    def sample(self, at: float | None = None) -> list[float | None]:
        """Return what is read from disks, written to them, comes in and goes out.

        Each is None at first, where a counter began anew, and if it is not known.

        `at` is the time of a monotonic clock.
        """
        now = time.monotonic() if at is None else at
        counted = [*self._disks(), *self._networks()]
        passed_s = 0.0 if self._at is None else now - self._at
        rates: list[float | None] = [
            None
            if before is None or after is None or after < before or passed_s <= 0
            else round((after - before) / passed_s)
            for before, after in zip(self._before, counted, strict=True)
        ]
        self._before, self._at = counted, now
        return rates

    def _disks(self) -> list[int | None]:
        rows = [line.split() for line in self._lines(f"{self._proc}/diskstats")]
        found = [row for row in rows if len(row) > 9 and self._is_device(f"block/{row[2]}")]
        return [sum(int(row[at]) for row in found) * _SECTOR_BYTES if found else None for at in (5, 9)]

    def _networks(self) -> list[int | None]:
        rows = [line.partition(":") for line in self._lines(f"{self._proc}/net/dev")]
        all_ = {name.strip(): rest.split() for name, colon, rest in rows if colon and name.strip() != "lo"}
        cards = [row for name, row in all_.items() if self._is_device(f"class/net/{name}")]
        found = cards or list(all_.values())  # a container has no card, but one end of a pair
        return [sum(int(row[at]) for row in found) if found else None for at in (0, 8)]

    def _is_device(self, path: str) -> bool:
        return os.path.exists(f"{self._sys}/{path}/device")

    def _lines(self, path: str) -> list[str]:
        try:
            with open(path) as file:
                return file.readlines()
        except OSError:
            return []

"""The kernel's log from a moment on: a GPU's error, or which process it has killed."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

KERNEL_LOG = "/dev/kmsg"


class KernelLog:
    """Reads the kernel's log from now on, or since the boot. It has no lines where we may not read it."""

    def __init__(self, path: str = KERNEL_LOG, *, since_boot: bool = False) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if not since_boot:
                os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            self._file = -1

    def lines(self, records_max: int = 200) -> Iterator[bytes]:
        """Yield the lines of the records since the last call."""
        for _ in range(records_max if self._file >= 0 else 0):
            try:
                record = os.read(self._file, 8192)
            except BrokenPipeError:  # records were overwritten before we came; the next one is there
                continue
            except OSError:  # nothing new
                return
            if not record:
                return
            yield from record.split(b"\n")

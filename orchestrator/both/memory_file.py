"""A file without a name, in memory: for what must be on no disk, or needs no place there."""

from __future__ import annotations

import os

_CLOEXEC = 1


def memory_file(about: str, content: bytes) -> int:
    """Return the descriptor of a new file in memory, to be read from its beginning. Raises OSError."""
    descriptor = _new(about)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _new(about: str) -> int:
    try:
        return os.memfd_create(about)
    except (AttributeError, OSError):
        pass  # a Python that was built for a C library of before 2.27, such as conda's, never has it
    descriptor = -1
    try:
        import ctypes

        descriptor = ctypes.CDLL(None).memfd_create(about.encode(), _CLOEXEC)
    except (ImportError, AttributeError, OSError):
        pass  # the C library of the host is as old, or cannot be called
    if descriptor < 0:
        import tempfile

        descriptor, path = tempfile.mkstemp(dir="/dev/shm")
        os.unlink(path)  # before anything is written
    return descriptor

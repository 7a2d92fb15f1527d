"""A directory that hangs like a shared one whose server is gone: whoever touches it waits in the kernel.

It is a FUSE file system that answers the first request and nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_MINOR_MAX = 31
_HEADER = struct.Struct("<IIQQIIII")
"""The fields are len, opcode, unique, nodeid, uid, gid, pid, padding."""


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[None]:
    """Mount the file system over `path` until the end. Skip the test where nothing can be mounted."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse to mount a directory that hangs")
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        _mount(device, path)
    except OSError as e:
        os.close(device)
        pytest.skip(f"no file system can be mounted here: {e}")
    answering = threading.Thread(target=_say_hello, args=(device,), daemon=True)
    answering.start()
    try:
        answering.join(10)
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
        os.close(device)  # waiting processes get an error


def _mount(device: int, path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"orch-test", str(path).encode(), b"fuse.orch-test", 0, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _say_hello(device: int) -> None:
    request = os.read(device, 1 << 20)
    _, _, unique, *_ = _HEADER.unpack_from(request)
    major, minor, readahead, _ = struct.unpack_from("<IIII", request, _HEADER.size)
    body = struct.pack("<IIIIHHIIHHI", major, min(minor, _MINOR_MAX), readahead, 0, 12, 9, 4096, 1, 0, 0, 0)
    body += bytes(64 - len(body))
    os.write(device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)

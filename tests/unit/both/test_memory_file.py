"""A file in memory, whatever the C library for which this Python was built."""

from __future__ import annotations

import os
import sys

import pytest

from orchestrator.both.memory_file import memory_file


@pytest.mark.parametrize("lacking", ["nothing", "os.memfd_create", "memfd_create"])
def test_it_has_no_name_and_is_not_inherited(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    if lacking != "nothing":
        monkeypatch.delattr(os, "memfd_create")
    if lacking == "memfd_create":
        monkeypatch.setitem(sys.modules, "ctypes", None)
    descriptor = memory_file("about", b"secret")
    try:
        found, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
        assert found.endswith(" (deleted)")
        assert found.startswith("/dev/shm/" if lacking == "memfd_create" else "/memfd:about")
        assert (status.st_nlink, os.read(descriptor, 100)) == (0, b"secret")
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_one_that_cannot_be_written_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    monkeypatch.setattr(os, "memfd_create", lambda _about: os.dup(reader))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        memory_file("about", b"secret")
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(reader)

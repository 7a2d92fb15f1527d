"""Work in processes of its own: how much of what it prints an agent keeps."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from orchestrator.host.agent import jobs as of_jobs
from orchestrator.host.agent.jobs import OUTPUT_BYTES_MAX, Jobs, Result, answer_of
from orchestrator.host.agent.streams import Loop


def test_of_a_program_that_prints_without_end_only_the_end_is_kept() -> None:
    loop, ended = Loop(), list[Result]()
    script = f"import sys; sys.stdout.write('x\\n' * {OUTPUT_BYTES_MAX}); print('{{\"answer\": 1}}')"
    Jobs(loop).program([sys.executable, "-c", script], ended.append, deadline_s=60.0)
    while not ended:
        loop.turn()
    assert len(ended[0].output) == OUTPUT_BYTES_MAX
    assert answer_of(ended[0], "it") == {"answer": 1}


def test_where_the_host_has_no_process_left_no_descriptor_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "fork")

    jobs, ended, before = Jobs(Loop()), list[Result](), os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        jobs.function(dict, ended.append, deadline_s=60.0)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert ended == []


@pytest.mark.parametrize("libc_has_it", [True, False])
def test_a_program_is_given_its_stdin_by_a_python_that_was_built_for_an_old_c_library(
    monkeypatch: pytest.MonkeyPatch, libc_has_it: bool
) -> None:
    """Conda's Pythons have no `os.memfd_create`, and on Amazon Linux 2 the C library has none either."""
    monkeypatch.delattr(os, "memfd_create")
    if not libc_has_it:
        monkeypatch.setitem(sys.modules, "ctypes", None)
    loop, ended, before = Loop(), list[Result](), os.listdir("/proc/self/fd")
    argv = [sys.executable, "-I", "-S", "-c", "import sys; print(sys.stdin.read())"]
    Jobs(loop).program(argv, ended.append, deadline_s=60.0, stdin=b'{"a": 1}')
    while not ended:
        loop.turn()
    assert answer_of(ended[0], "it") == {"a": 1}
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("argv", [["/bin/true"], ["/no/such/program"], ["a\0b"]])
def test_a_program_that_cannot_be_started_leaves_no_descriptor_open(
    monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    def refuse(_about: str, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "no file in memory")

    jobs, ended, before = Jobs(Loop()), list[Result](), os.listdir("/proc/self/fd")
    if argv == ["/bin/true"]:
        monkeypatch.setattr(of_jobs, "memory_file", refuse)
    with pytest.raises((OSError, ValueError)):
        jobs.program(argv, ended.append, deadline_s=60.0, stdin=b"{}", directory="/")
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert ended == []

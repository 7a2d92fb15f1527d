"""Work in processes of its own: how much of what it prints an agent keeps."""

from __future__ import annotations

import errno
import os
import sys

import pytest

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

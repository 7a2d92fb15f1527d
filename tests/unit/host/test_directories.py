"""The watch over the checkpoint directories: what a check that cannot be made, or hangs, says about them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from orchestrator.host.agent import directories as directories_module
from orchestrator.host.agent.directories import Directories
from orchestrator.host.agent.jobs import Jobs, Result
from orchestrator.host.agent.streams import Loop

RUN = "demo-20260101-1"
ANSWER = Result(0, b'{"free_bytes": 7, "missing": false}', False)
TIMED_OUT = Result(-9, b"", True)


class Host:
    """A host with a clock of its own, whose checks end when the test says so, or that has no process for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.has_no_process = False
        self.checks: list[Callable[[Result], None]] = []
        monkeypatch.setattr(directories_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.loop = Loop()
        self.directories = Directories(self.loop, cast("Jobs", self), "/home/u/.orch", every_s=0.0)

    def function(self, _work: object, done: Callable[[Result], None], *, deadline_s: float) -> None:
        """Take a job, as Jobs does."""
        assert deadline_s > 0
        if self.has_no_process:
            raise BlockingIOError(errno.EAGAIN, "fork")
        self.checks.append(done)

    def report(self) -> tuple[float, int | None]:
        """Let some time pass, and return what is reported then: the silence, and the free bytes."""
        self.now += 5.0
        sample = self.directories.report()[RUN]
        return sample["silent_s"], sample["free_bytes"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def test_a_directory_whose_first_check_found_no_process_is_checked_later(host: Host) -> None:
    host.has_no_process = True
    host.directories.watch(RUN, "/shared", None)  # an order goes on
    assert host.report() == (0.0, None), "nobody has asked the directory yet"
    host.loop.turn()
    host.has_no_process = False
    host.loop.turn()
    (check,) = host.checks
    assert host.report() == (5.0, None)
    check(ANSWER)
    assert host.report() == (0.0, 7)


@pytest.mark.parametrize(("result", "silences"), [(ANSWER, [0.0, 0.0, 0.0]), (TIMED_OUT, [10.0, 15.0, 20.0])])
def test_a_later_check_that_finds_no_process_changes_nothing(
    host: Host, result: Result, silences: list[float]
) -> None:
    host.directories.watch(RUN, "/shared", None)
    assert host.report() == (5.0, None)
    host.checks.pop()(result)
    found = [host.report()[0]]
    host.has_no_process = True
    host.loop.turn()  # the agent goes on
    found.append(host.report()[0])
    host.loop.turn()
    found.append(host.report()[0])
    assert found == silences
    host.has_no_process = False
    host.loop.turn()
    host.checks.pop()(ANSWER)
    assert host.report() == (0.0, 7)

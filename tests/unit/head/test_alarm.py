"""Alarms: they go off once, in order of their time, and not where the call was in time."""

from __future__ import annotations

import contextlib
import threading

import pytest

from orchestrator.head.reach import alarm as alarm_module
from orchestrator.head.reach.alarm import Alarms

LONG_S = 60.0
WAIT_S = 10.0


def test_what_lasts_too_long_is_told_once() -> None:
    rung = threading.Semaphore(0)
    with Alarms().after(0.001, lambda: rung.release()):
        assert rung.acquire(timeout=WAIT_S)
        assert not rung.acquire(timeout=0.02)


def test_what_returns_in_time_is_left_alone() -> None:
    alarms = Alarms()
    rung = threading.Event()
    with alarms.after(0.01, rung.set):
        pass
    later = threading.Event()
    with alarms.after(0.03, later.set):
        assert later.wait(WAIT_S)
    assert not rung.is_set()


def test_an_earlier_one_does_not_wait_for_a_later() -> None:
    alarms = Alarms()
    early, late = threading.Event(), threading.Event()
    with alarms.after(LONG_S, late.set), alarms.after(0.001, early.set):
        assert early.wait(WAIT_S)
    assert not late.is_set()


def test_one_that_blocks_does_not_hold_up_the_others() -> None:
    alarms = Alarms()
    release, second = threading.Event(), threading.Event()
    with alarms.after(0.001, release.wait), alarms.after(0.01, second.set):
        assert second.wait(WAIT_S)
        release.set()


def test_it_goes_on_after_a_pause() -> None:
    alarms = Alarms()
    for _ in range(3):
        rung = threading.Event()
        with alarms.after(0.001, rung.set):
            assert rung.wait(WAIT_S)


def test_one_for_which_the_machine_allows_no_thread_goes_off_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_module, "NO_THREAD_S", 0.01)
    alarms, rung, refused = Alarms(), threading.Event(), threading.Event()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "alarm":
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with alarms.after(0.001, rung.set):
            assert refused.wait(WAIT_S)
            assert not rung.is_set()
            patched.undo()
            assert rung.wait(WAIT_S)


def test_what_began_when_no_thread_could_be_had_is_told_once_another_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alarms, first, second = Alarms(), threading.Event(), threading.Event()

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with contextlib.ExitStack() as bodies:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            bodies.enter_context(alarms.after(0.001, first.set))  # must not raise: the call can be made
        bodies.enter_context(alarms.after(LONG_S, second.set))
        assert first.wait(WAIT_S)
    assert not second.is_set()

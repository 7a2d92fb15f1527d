"""One coordinator for one journal, and how the next takes it: real locks, a pretended coordinator, no waiting."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from orchestrator.core.errors import Refused, WaitTimedOut
from orchestrator.head.coordinator.succession import PATIENCE_S, take_lock, take_over
from orchestrator.head.node import holder
from orchestrator.head.node.paths import Paths
from tests.contract.fake_api import FakeApi

OLD = os.getpid()


class Wait:
    """A clock that moves in pauses only; `then` runs in each."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.clock = 0.0
        self._then = then

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self._then()

    def now(self) -> float:
        return self.clock


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(str(tmp_path / "state"), str(tmp_path / "run"))
    made.ensure()
    return made


def held_by(pid: int, paths: Paths) -> TextIO:
    lock = take_lock(paths)
    Path(paths.lock).write_text(f"{pid}\n")
    return lock


def test_the_old_one_is_asked_to_end_once_and_followed_when_it_has_let_go(paths: Paths) -> None:
    old = take_lock(paths)
    with FakeApi(Path(paths.socket)) as api:
        pauses = iter(range(9))
        wait = Wait(lambda: old.close() if next(pauses) == 7 else None)
        taken = take_over(paths, OLD, now=wait.now, pause=wait.pause)
        assert api.posted == [("/v1/stop", {})]
        api.join_close()
    assert holder.pid_in(paths.state_dir) == OLD
    with pytest.raises(Refused, match=f"pid {OLD}"):
        take_lock(paths, pause=lambda _: None)
    taken.close()


def test_one_that_died_before_it_could_be_asked_is_followed(paths: Paths) -> None:
    held_by(4, paths).close()
    take_over(paths, 4, pause=lambda _: pytest.fail("nobody has the journal")).close()


def test_one_that_has_closed_its_socket_already_is_waited_for(paths: Paths) -> None:
    old = held_by(4, paths)
    wait = Wait(old.close)
    take_over(paths, 4, now=wait.now, pause=wait.pause).close()
    assert wait.clock > 0
    assert holder.pid_in(paths.state_dir) == os.getpid()


def test_another_that_came_first_is_left_alone(paths: Paths) -> None:
    with FakeApi(Path(paths.socket)) as api, held_by(5, paths):
        with pytest.raises(Refused, match="pid 5"):
            take_over(paths, 4, pause=lambda _: None)
        assert api.posted == []


def test_the_wait_for_one_that_hangs_has_an_end(paths: Paths) -> None:
    wait = Wait(lambda: None)
    with (
        held_by(4, paths),
        pytest.raises(WaitTimedOut, match=r"pid 4\) was asked to end, and has not let go"),
    ):
        take_over(paths, 4, now=wait.now, pause=wait.pause)
    assert wait.clock >= PATIENCE_S


def test_who_only_looks_whether_it_is_free_does_not_keep_a_coordinator_from_it(paths: Paths) -> None:
    looking = take_lock(paths)
    assert not looking.closed
    taken = take_lock(paths, pause=lambda _: looking.close())
    assert looking.closed, "it was there first, and was waited for"
    taken.close()

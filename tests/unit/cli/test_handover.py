"""What a handover waits for, and what it says where the new coordinator goes away meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from orchestrator.cli.handover import (
    adopted,
    check_successor,
    end_coordinator,
    say_other_version,
    start_successor,
    wait_until_adopted,
)
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, Refused
from tests.contract.fake_api import FakeApi, run_document, task_document


@pytest.fixture
def session(tmp_path: Path) -> Session:
    environ = {"ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "run")}
    made = Session(StringIO(), StringIO(), environ)
    made.paths.ensure()
    return made


@pytest.fixture
def api(session: Session) -> Iterator[FakeApi]:
    with FakeApi(Path(session.paths.socket)) as fake:
        yield fake


def test_tasks_count_when_this_epoch_has_heard_of_them() -> None:
    silent = task_document(1, heartbeat_age_s=None)
    ended = task_document(1, phase="EXITED", heartbeat_age_s=None)
    waiting = task_document(1, phase="STARTING", pid=None, heartbeat_age_s=None)

    def told(*tasks: object, **changes: object) -> tuple[int, int, tuple[str, ...]]:
        run = run_document(tasks=list(tasks), **{"epoch": 3, **changes})
        return adopted({"runs": [run]}, 3)

    assert told(task_document(0), task_document(1)) == (2, 2, ())
    assert told(task_document(0), silent) == (1, 1, ("gpu-b",))
    assert told(task_document(0), ended) == (1, 1, ())
    assert told(task_document(0), waiting) == (1, 1, ()), "it has no process that could be lost"
    assert told(task_document(0), epoch=2) == (0, 0, ("gpu-a",)), "heard by the one before"
    assert told(task_document(0), phase="SUCCEEDED") == (0, 0, ())


def test_it_waits_for_all_and_says_how_long_it_took(session: Session, api: FakeApi) -> None:
    api.runs.append(run_document(epoch=3, tasks=[task_document(0, heartbeat_age_s=None)]))
    looks = []

    def later() -> None:
        looks.append(1)
        if len(looks) == 3:
            api.runs[0]["tasks"] = [task_document(0)]

    api.on_status = later
    old = {"pid": 1, "epoch": 2, "version": "0.0.9", "else": 7}
    before = {"mnist-20261120-1": 1}
    done = wait_until_adopted(session, old, {"pid": 2, "epoch": 3}, before, began=session.now(), timeout_s=60)
    assert (len(looks), done.tasks, done.hosts, done.restarts, done.waiting) == (3, 1, 1, 0, ())
    assert done.sentence.startswith("Adopted 1 task on 1 host in ")
    assert done.to_json()["previous"] == {"pid": 1, "epoch": 2, "version": "0.0.9"}


def test_a_host_that_stays_silent_is_named(session: Session, api: FakeApi) -> None:
    api.runs.append(run_document(epoch=3, tasks=[task_document(0), task_document(1, heartbeat_age_s=None)]))
    done = wait_until_adopted(session, None, {"epoch": 3}, {}, began=session.now(), timeout_s=0)
    assert done.waiting == ("gpu-b",)


def test_one_that_goes_away_is_told_with_the_end_of_its_log(session: Session) -> None:
    Path(session.paths.coordinator_log).write_text("InvariantViolated: here\n")
    with pytest.raises(CoordinatorUnreachable) as caught:
        wait_until_adopted(session, None, {"pid": 7, "epoch": 3}, {}, began=session.now(), timeout_s=60)
    assert str(caught.value).endswith(
        "(pid 7) stopped answering; the end of its log:\n  InvariantViolated: here"
    )
    assert "the tasks keep running" in str(caught.value.hint)


def test_one_with_another_journal_is_not_replaced(session: Session) -> None:
    with pytest.raises(Refused, match=r"journal is in /else/where.*\(pid 7\) is unchanged") as caught:
        check_successor(session, {"pid": 7, "state_dir": "/else/where"})
    assert caught.value.hint == "ORCH_STATE_DIR=/else/where orch coordinator restart"
    check_successor(session, {"pid": 7, "state_dir": session.paths.state_dir})


def test_the_same_version_and_one_that_does_not_say_need_no_word(session: Session) -> None:
    from orchestrator import __version__

    for coordinator in (None, {}, {"version": __version__}):
        say_other_version(session, coordinator)
    assert isinstance(session.err, StringIO)
    assert session.err.getvalue() == ""
    say_other_version(session, {"version": "9.9"})
    assert "the coordinator is orch 9.9" in session.err.getvalue()


OLD = {"pid": 4711}
FAILS = [sys.executable, "-c", "raise SystemExit('the disk is full')"]
TAKES_OVER = """
import os, socket, time
path = os.environ["ORCH_RUNTIME_DIR"] + "/coordinator.sock"
with socket.socket(socket.AF_UNIX) as s:
    s.connect(path)
    s.sendall(b"POST /v1/stop HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
    s.recv(65536)
while os.path.exists(path):
    time.sleep(0.01)
body = b'{"pid": %d}' % os.getpid()
with socket.socket(socket.AF_UNIX) as s:
    s.bind(path)
    s.listen()
    c, _ = s.accept()
    c.recv(65536)
    c.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    c.close()
"""


def test_the_successor_ends_the_old_one_and_not_this_command(session: Session, api: FakeApi) -> None:
    found = start_successor(session, OLD, command=[sys.executable, "-c", TAKES_OVER])
    api.join_close()
    assert found["pid"] != 4711
    assert api.posted == [("/v1/stop", {})]


def test_a_successor_that_could_not_begin_leaves_the_old_one_and_says_so(
    session: Session, api: FakeApi
) -> None:
    with pytest.raises(CoordinatorUnreachable) as caught:
        start_successor(session, OLD, command=FAILS)
    assert str(caught.value) == (
        "the old coordinator (pid 4711) keeps running; the new coordinator exited with code 1:\n  the disk is full"
    )
    assert api.posted == []


def test_that_the_end_was_asked_for_counts_and_not_whether_the_answer_came(
    session: Session, api: FakeApi
) -> None:
    api.raw = b""
    end_coordinator(session, 4711)
    assert api.posted == [("/v1/stop", {})]


def test_one_that_is_ending_goes_on_for_nobody(session: Session, api: FakeApi) -> None:
    looks = []
    api.ending = True

    class Passing(Session):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            if "the disk is full" in Path(self.paths.coordinator_log).read_text():
                looks.append(seconds)
            if len(looks) == 5:  # some after the successor's end
                raise Waited

    class Waited(Exception):
        pass

    with pytest.raises(Waited):
        start_successor(Passing(session.out, session.err, session.environ), OLD, command=FAILS)

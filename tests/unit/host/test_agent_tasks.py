"""An agent and its shims: no order is lost while one begins or ends, and one that begins is not called dead."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.both import durable, process
from orchestrator.both.hostdir import HostFault, generation_dir
from orchestrator.host.agent import start
from orchestrator.host.agent.jobs import Jobs, Result
from orchestrator.host.agent.reply import Reply
from orchestrator.host.agent.streams import Loop, Output
from orchestrator.host.agent.tasks import Link, Tasks
from orchestrator.host.shim import record
from orchestrator.protocol.channel import Decoder
from tests.patience import comes

RUN, TASK = "demo-20260101-1", "worker:0"
START = {"run": RUN, "task": TASK, "generation": 1}
STOP: Any = {"order": "stop", "id": 7, "generation": 1, "task": TASK, "grace_s": 0}
STACKS: Any = {"order": "stacks", "id": 8, "generation": 1, "task": TASK}


class Rig:
    """The tasks of an agent, with its loop; no job is run."""

    def __init__(self, host_dir: Path) -> None:
        self.directory = generation_dir(str(host_dir), RUN, TASK, 1)
        os.makedirs(self.directory)
        Path(self.directory, "start.json").touch()
        self.loop = Loop()
        self.said: list[Mapping[str, Any]] = []
        self.buried = 0
        self.tasks = Tasks(
            self.loop, cast("Jobs", self), str(host_dir), lambda: None, lambda said, _: self.said.append(said)
        )

    def function(self, _do: Callable[[], Any], _done: Callable[[Result], None], *, deadline_s: float) -> None:
        """Take a job, as Jobs does."""
        assert deadline_s > 0
        self.buried += 1

    @property
    def link(self) -> Link:
        return self.tasks.link(RUN, TASK, 1)

    def end(self) -> None:
        """Write the exit record, as the shim does before it ends."""
        record.write_failed_start(self.directory, START, "its end")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def shim_of(listener: socket.socket) -> socket.socket:
    listener.settimeout(15)
    return listener.accept()[0]


def test_an_order_that_overtakes_the_start_reaches_the_shim_once_it_listens(rig: Rig) -> None:
    rig.tasks.watch(RUN, 0.5, None)
    rig.tasks.forward(rig.link, STOP)
    rig.tasks.forward(rig.link, STACKS)
    orders: list[Any] = []
    end: bytes | None = None
    with record.listen(rig.directory) as listener:
        assert rig.link.socket is not None
        with shim_of(listener) as shim, contextlib.suppress(BlockingIOError):
            shim.setblocking(False)  # what was sent is there
            orders += [order for order, _ in Decoder().feed(shim.recv(1 << 16))]
            rig.tasks.watch(RUN, 2.0, None)
            orders += [order for order, _ in Decoder().feed(shim.recv(1 << 16))]
            rig.tasks.unwatch(RUN)
            end = shim.recv(1)
    assert end == b"", "nobody reads its reports any more"
    assert orders == [
        {"order": "watch", "heartbeat_s": 0.5},
        STOP,
        STACKS,
        {"order": "watch", "heartbeat_s": 2.0},
    ]


@pytest.mark.parametrize("when", ["before it began", "before it answered"])
def test_who_stops_what_has_just_ended_is_told_that_it_has(rig: Rig, when: str) -> None:
    if when == "before it began":
        for order in (STOP, STACKS):
            rig.tasks.forward(rig.link, order)
        rig.end()
        assert rig.link.ended
    else:
        with record.listen(rig.directory) as listener:
            for order in (STOP, STACKS):
                rig.tasks.forward(rig.link, order)
            shim_of(listener).close()
        rig.end()
        while not rig.link.ended:
            rig.loop.turn()
    assert [said.get("ok") for said in rig.said] == [{}, None]
    assert [said["reply"] for said in rig.said] == [7, 8]
    assert rig.said[1]["error"]["code"] == "gone"
    with pytest.raises(HostFault, match="has ended"):
        rig.tasks.forward(rig.link, STACKS)


def test_what_is_known_of_an_end_stays_when_its_record_has_gone(rig: Rig) -> None:
    rig.tasks.watch(RUN, 0.5, None)
    rig.end()
    assert rig.link.ended
    os.unlink(os.path.join(rig.directory, "exit.json"))
    os.utime(rig.directory, (0, 0))
    (task,) = rig.tasks.report(RUN)
    assert rig.link.ended
    assert task["exit"] is not None
    assert task["exit"]["cause"] == "start-failed"
    assert rig.buried == 0, "nothing is recovered of a task whose end is known"


def test_a_shim_that_begins_to_listen_is_found_by_the_next_look(rig: Rig) -> None:
    rig.tasks.watch(RUN, 0.5, None)
    with record.listen(rig.directory) as listener:
        assert select.select([listener], [], [], 0.0)[0] == []
        rig.tasks.scan()
        assert select.select([listener], [], [], 0.0)[0] == [listener]


class Starts:
    """The jobs of an agent whose start of a shim ends as a test says."""

    def __init__(self, rig: Rig, ends: OSError | Result) -> None:
        self.tasks, self.directory, self.ends = rig.tasks, rig.directory, ends
        self.lived: list[bool] = []

    def program(
        self,
        argv: list[str],
        done: Callable[[Result], None],
        *,
        deadline_s: float,
        stdin: bytes,
        keep: bool,
        given: dict[int, int],
    ) -> None:
        """Start a program, as Jobs does."""
        assert argv[1:] == ["-I", "-S", "-X", "utf8", "/bundle", "shim", self.directory, "6"]
        assert (json.loads(stdin), keep, given) == ({"TOKEN": "t"}, True, {6: 5})
        assert deadline_s >= 30.0
        self.lived.append(self.tasks.lives(RUN))
        if isinstance(self.ends, OSError):
            raise self.ends
        done(self.ends)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
        (Result(1, b"no answer", False), "gave no answer"),
    ],
)
@pytest.mark.fault(41)
def test_a_shim_whose_start_failed_counts_as_starting_no_more(
    rig: Rig, ends: OSError | Result, said: str
) -> None:
    """Or its task would never be called dead, and its run would wait for ever."""
    os.utime(rig.directory, (0, time.time() - 3600.0))
    jobs = Starts(rig, ends)
    host = SimpleNamespace(bundle="/bundle")
    context: Any = SimpleNamespace(tasks=rig.tasks, jobs=jobs, host=host)
    replies: list[Mapping[str, Any]] = []
    reply = Reply(cast("Output", SimpleNamespace(send=lambda said, *_: replies.append(said))), 7)
    order: Any = {**START, "secrets": {"TOKEN": "t"}}
    rig.tasks.watch(RUN, 0.5, None)
    try:
        start._start_shim(context, rig.directory, order, reply, [5])
    except HostFault as e:
        reply.fault(e)
    assert said in replies[0]["error"]["message"]
    assert jobs.lived == [True]
    assert not rig.tasks.lives(RUN)
    assert rig.link.recovering, "it is buried"


@pytest.mark.parametrize(("age_s", "is_dead"), [(0.0, False), (9.0, False), (11.0, True), (-3600.0, True)])
@pytest.mark.fault(41)
def test_a_shim_that_never_came_counts_as_dead_after_a_while_also_where_the_clock_was_set_back(
    rig: Rig, age_s: float, is_dead: bool
) -> None:
    os.utime(rig.directory, (0, time.time() - age_s))
    assert rig.link.recovering == is_dead
    assert rig.buried == is_dead
    assert rig.link.recovering == is_dead
    assert rig.buried == is_dead, "it is buried once"


@pytest.mark.fault(108)
@pytest.mark.parametrize("age_s", [11.0, 3600.0, -3600.0])
def test_a_shim_that_takes_long_to_start_is_not_dead_before_its_process_is(rig: Rig, age_s: float) -> None:
    """Whatever the load: the time alone says nothing, and a new agent knows nothing of the start."""
    os.utime(rig.directory, (0, time.time() - age_s))
    sleeper = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen([*sleeper, "shim", rig.directory]) as shim:
        try:
            # The kernel shows no arguments yet in the instant of the exec
            assert comes(lambda: Path(f"/proc/{shim.pid}/cmdline").read_bytes(), 5.0)
            found = record.recover(rig.directory)
        finally:
            shim.kill()
    assert found is None
    assert "exit.json" not in os.listdir(rig.directory)
    found = record.recover(rig.directory)
    assert found is not None
    assert found["exit"] is not None
    assert found["exit"]["cause"] == "shim-died"


@pytest.mark.fault(108)
def test_what_a_shim_printed_of_its_own_fault_is_told(rig: Rig) -> None:
    Path(rig.directory, "shim.err").write_text("Traceback (most recent call last):\n  …\nMemoryError\n\n")
    found = record.recover(rig.directory)
    assert found is not None
    assert found["exit"] is not None
    assert found["exit"]["last_lines"] == ["its shim: MemoryError"]


def test_a_repeated_start_waits_for_the_shim_that_the_first_one_starts(rig: Rig) -> None:
    """Each start order puts a start.json of its own there, before the shim of the first has recorded itself."""
    held = record.lock(rig.directory)
    try:
        durable.write_json(os.path.join(rig.directory, "start.json"), START)
        with pytest.raises(BlockingIOError):
            record.lock(rig.directory, wait=False)
        assert record.recover(rig.directory) is None, "a shim is starting, so none is buried"
    finally:
        os.close(held)
    os.close(record.lock(rig.directory, wait=False))


@pytest.mark.parametrize("meanwhile", ["it ended", "it began"])
def test_a_shim_that_ended_or_began_just_before_the_lock_is_not_buried(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    take = record.lock

    def late(directory: str, *, wait: bool = True) -> int:
        if meanwhile == "it ended":
            record.keep_room(directory)
            rig.end()
            assert "exit.room" not in os.listdir(directory)
        else:
            me = process.identity(os.getpid())
            assert me is not None
            durable.write_json(os.path.join(directory, "shim.json"), {"shim": me.to_json()})
        return take(directory, wait=wait)

    monkeypatch.setattr(record, "lock", late)
    found = record.recover(rig.directory)
    if meanwhile == "it ended":
        assert found is not None
        assert found["exit"] is not None
        assert found["exit"]["cause"] == "start-failed", "what it wrote itself"
    else:
        assert found is None

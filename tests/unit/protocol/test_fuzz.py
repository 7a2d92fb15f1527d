"""Whatever bytes a host sends, its link accepts them, or is dropped with a sentence. No other exception is raised.

Reports and replies that are accepted go through the core, and the run's state must survive the journal. Cases that were
found this way are plain tests at the end.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import decide
from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.events import Event, HostSwept, HostUp, StacksCollected, Submitted
from orchestrator.core.plan import HostPlan, TaskId
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.head.hosts import recovery
from orchestrator.head.journal.states import dump_run, read_run
from orchestrator.head.links import bootstrap, edge, wire
from orchestrator.head.links.conversation import Conversation, Reply
from orchestrator.head.links.crew import Crew
from orchestrator.head.links.edge import WireError
from orchestrator.head.links.link import HostLink, Pace, Watch
from orchestrator.head.links.query import Asker
from orchestrator.head.reach.transport import Channel, Receiver
from orchestrator.protocol.channel import Decoder, FrameError, encode
from orchestrator.protocol.hello import BootAnswer, Greeting, Hello
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.checkpoints import SEED, VERIFY
from orchestrator.protocol.orders.records import RUNS
from orchestrator.protocol.orders.tasks import STACKS, SWEEP
from orchestrator.protocol.reports import Report
from tests.contract.fake_agent import BUNDLE
from tests.lies import GONE, anything, changed, framed, news, places
from tests.protocol_orders import TABLE
from tests.protocol_values import fields, valid
from tests.unit.core.transcript import make_plan

HOST = HostPlan("gpu-b", transport="fake", address="gpu-b")
RUN = new_run("t-20260101-000000", make_plan(["gpu-b", "b"], checkpoint=True), epoch=1, at=0.0)
KNOWN = frozenset(task.id for task in RUN.plan.tasks)

quickly = settings(max_examples=150, deadline=None)


class Script:
    """A channel that gives what was written down, and then ends. `{mark}` is what the bootstrap waits for."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def write(self, data: bytes) -> None:
        head, _, rest = data.partition(b'"nonce": "')
        if head != data:
            self._data = self._data.replace(b"{mark}", rest[: rest.index(b'"')][::-1])

    def close(self) -> None:
        self._data = b""

    def feed(self, receive: Receiver) -> None:
        receive(self._data)
        receive(b"")

    def stderr_tail(self) -> str:
        return "KeyError: '\x1b[31m'"

    def exit_status(self) -> int | None:
        return None


class Listening:
    """What the coordinator does with what a link says, down to the journal's text of the run."""

    def __init__(self) -> None:
        self.run = self.step(RUN, Submitted(at=0.0))

    def step(self, run: Run, event: Event) -> Run:
        after, _, _ = decide.step(run, event)
        assert read_run(dump_run(after)) == after
        dump_run(after).encode()
        return after

    def happened(self, event: Event) -> None:
        self.run = self.step(self.run, event)

    def up(self, run_id: str, host: str, hello: Greeting) -> None:
        assert run_id == RUN.run_id
        self.happened(HostUp(1.0, host, hello["boot_id"], hello["warning"], wire.slowness(hello)))

    def down(self, run_id: str, host: str, problem: str) -> None:
        """Of the thread that connects, which finds its host away."""
        assert (run_id, host, problem) == (RUN.run_id, HOST.name, "gpu-b: is away")

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        raise AssertionError(run_id, host, problem)

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        assert link.host.name == host
        self.happened(wire.host_reported(host, run_id, report, at=2.0, unix_time=2.0, known=KNOWN))

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        raise AssertionError(run_id, host, problem)

    def replied(self, order: Order[Any], reply: Reply[Any]) -> None:
        """As the executor does, of the orders whose answers are events."""
        ok: Any = reply.ok
        if reply.error is not None:
            wire.problem(reply.error)
        elif order.verb is SWEEP:
            self.happened(HostSwept(3.0, HOST.name, wire.swept(ok)))
        elif order.verb is VERIFY:
            self.happened(wire.verified(ok, 1, at=3.0, began_at=2.0))
        elif order.verb is STACKS:
            self.happened(StacksCollected(3.0, 0, ((TaskId("worker", 0), ok["stacks"]),)))
        elif order.verb is SEED:
            wire.seeded(ok, 1)


class Away:
    """A transport whose hosts never answer: what connects stays out of the test."""

    def open(self, host: HostPlan, command: str) -> Channel:
        assert command == bootstrap.COMMAND
        raise ConnectFailed(host.name, "is away")

    def close(self, host: HostPlan) -> None:
        """Nothing is open."""


@pytest.fixture(scope="module")
def link() -> Iterator[HostLink]:
    made = HostLink(HOST, Away(), lambda: BUNDLE, Listening(), Pace(retry_s=(3600.0,)))
    made.attach(RUN.run_id, Watch(1, 2.0, 10.0))
    yield made
    made.close()


ORDERS: list[Order[Any]] = [
    Order(
        row,
        {
            "order": row.name,
            **({"bytes_max": 100} if row.name in ("log", "chunk", "file") else {}),
            **{
                name: value
                for name, value in (("dir", "/c"), ("generation", 1))
                if name in fields(row.request)
            },
        },
    )
    for row in TABLE
]


def hear(link: HostLink, data: bytes) -> str | None:
    """Return why the link is dropped for these bytes; None if it is not."""
    ears = Listening()
    link._listener = ears
    conversation = Conversation(HOST.name, Script(b""), valid(Hello), Crew())
    for order in ORDERS:
        conversation.send(order, on_reply=partial(ears.replied, order))
    decoder, why = Decoder(), None
    try:
        for at in range(0, len(data), 1000):
            link._receive(conversation, decoder.feed(data[at : at + 1000]))
    except FrameError as e:
        why = str(e)
    except WireError as e:
        why = str(e)
        assert why.startswith(HOST.name)
        assert why.isprintable()
    return why


# ---------------------------------------------------------------- what hosts may say

RUNNING: dict[str, Any] = {**valid(Report)["runs"]["t-20260101-000000"][0], "phase": "running", "exit": None}
FRAMES: list[dict[str, Any]] = [
    {"report": valid(Report)},
    {"report": {**valid(Report), "runs": {RUN.run_id: [RUNNING, {**RUNNING, "task": "worker:1"}]}}},
    *({"reply": number, "ok": valid(row.answer)} for number, row in enumerate(TABLE, start=1)),
    {"reply": 3, "error": {"code": "gone", "message": "it has ended", "hint": None}},
    {"hello": valid(Hello)},
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Draw a valid frame, and change it in one to three places."""
    message = draw(st.sampled_from(FRAMES))
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from([way for way in places(message) if way] or [()]))
        message = changed(message, way, draw(st.sampled_from(news(draw(anything)))))
        if message is GONE:
            message = {}
            break
    return framed(message, draw(st.sampled_from([b"", b"", b"bytes"])))


@quickly
@given(st.lists(mutated(), min_size=1, max_size=3))
@pytest.mark.fault(56)
def test_frames_that_are_almost_right(link: HostLink, frames: list[bytes]) -> None:
    hear(link, b"".join(frames))
    for frame in frames:
        why = hear(link, frame)
        heard = link._listener
        assert isinstance(heard, Listening)
        assert why is None or heard.run == Listening().run, "what is refused has changed the run"


@quickly
@given(
    st.dictionaries(st.sampled_from(["report", "reply", "ok", "error", "hello", "x"]), anything, max_size=3)
)
@pytest.mark.fault(56)
def test_frames_of_anything(link: HostLink, message: Mapping[str, Any]) -> None:
    hear(link, framed(message))


@quickly
@given(st.binary(max_size=200), st.sampled_from(FRAMES), st.integers(0, 5000), st.integers(0, 255))
@pytest.mark.fault(56)
def test_bytes_that_are_no_frames(
    link: HostLink, junk: bytes, message: Mapping[str, Any], at: int, byte: int
) -> None:
    hear(link, junk)
    data = bytearray(encode(message))
    data[at % len(data)] = byte
    hear(link, bytes(data) + junk)


@quickly
@given(st.sampled_from(FRAMES))
def test_the_frames_that_are_changed_here_are_right_as_they_are(
    link: HostLink, message: Mapping[str, Any]
) -> None:
    assert (hear(link, framed(message)) is None) is ("hello" not in message)


boot_lines = st.one_of(
    st.binary(max_size=60),
    anything.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b'{"ok": true}', b'{"need": true}', json.dumps(valid(BootAnswer)).encode()]),
)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Draw what a host sends, from the first byte of its login shell."""
    data = draw(st.sampled_from([b"orch-shell\n", b"Welcome!\norch-shell\n", b""]))
    for line in draw(st.lists(boot_lines, max_size=2)):
        data += b"\n{mark} " + line + b"\n"
    hello = draw(anything | st.just(valid(Hello)))
    return data + draw(st.binary(max_size=20) | st.just(framed({"hello": hello})))


@quickly
@given(conversations())
def test_an_agent_that_is_brought_up(data: bytes) -> None:
    why = HOST.name
    try:
        started = bootstrap.start_agent(Script(data), HOST, BUNDLE)
        assert started.hello["boot_id"] is not None
    except (HostError, WireError) as e:
        why = str(e)
    assert why.startswith(HOST.name)


class Scripted:
    """A transport to a host that says what was written down."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, host: HostPlan, command: str) -> Channel:
        assert (host.name, command) == (HOST.name, bootstrap.COMMAND)
        return Script(self._data)

    def close(self, host: HostPlan) -> None:
        """Nothing is open."""


@quickly
@given(
    mutated()
    | st.binary(max_size=50)
    | anything.map(lambda runs: framed({"reply": 0, "ok": {"runs": [runs]}}))
)
def test_questions_without_a_coordinator(data: bytes) -> None:
    begin = b'orch-shell\n\n{mark} {"ok": true}\n' + framed(
        {"hello": {**valid(Hello), "psutil_wanted": False}}
    )
    asker = Asker({"fake": Scripted(begin + data)}, lambda: BUNDLE)
    answer = asker._one(HOST, [RUNS({"records": True})], 5.0)
    assert (answer.problem is None) == bool(answer.replies)
    recovery._collect([answer], recovery.Trusted(), 1.0)


# ---------------------------------------------------------------- what was found


def reports(task: Mapping[str, Any]) -> bytes:
    return framed({"report": {**valid(Report), "runs": {RUN.run_id: [task]}}})


@pytest.mark.parametrize(
    "data",
    [
        framed({"reply": [1], "ok": {}}),  # no key of a dictionary
        framed({"reply": True, "ok": {}}),  # is 1 for a dictionary
        framed({"report": {"host": None, "runs": {}}}),
        framed({"reply": 1}),
        framed([]),
        reports({**RUNNING, "metrics": {"loss": float("nan")}}),
        reports({**RUNNING, "task": "worker:٣"}),  # a digit, as str.isdecimal has it
        reports({**RUNNING, "global_step": 10**400}),
        struct.pack(">II", 2, 0) + b"\xff\xfe",
        struct.pack(">II", 1 << 20, 0) + b"[" * (1 << 20),
        struct.pack(">II", 5000, 0) + b"9" * 5000,  # more digits than Python reads
    ],
    ids=range(11),
)  # fmt: skip
def test_what_was_once_another_exception_is_a_sentence(link: HostLink, data: bytes) -> None:
    assert hear(link, data) is not None


def test_half_a_character_never_reaches_a_file(link: HostLink) -> None:
    """JSON has a word for one half of a pair; neither SQLite nor a terminal takes it."""
    ears = Listening()
    link._listener = ears
    message = {
        "report": {
            **valid(Report),
            "runs": {RUN.run_id: [{**RUNNING, "said": [{"kind": "k", "message": "\ud800"}]}]},
        }
    }
    assert hear(link, framed(message)) is None
    (frame,) = [edge.frame(HOST.name, m, b) for m, b in Decoder().feed(framed(message))]
    assert "report" in frame
    assert frame["report"]["runs"][RUN.run_id][0]["said"][0]["message"] == r"\ud800"


def test_a_line_without_end_behind_the_mark_is_given_up() -> None:
    data = b"orch-shell\n\n{mark} " + b"x" * (3 << 20)
    with pytest.raises(HostError, match="prints without end"):
        bootstrap.start_agent(Script(data), HOST, BUNDLE)

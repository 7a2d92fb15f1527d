"""What a host can make the head keep: every text and list that it sends has a bound, and so has the rate of events."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.hosts.moderation import NOTES_MAX
from orchestrator.core.phases.host_reports import SAID_MAX
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Rescued
from orchestrator.core.state.host import Leaving, Unkillable
from orchestrator.core.state.run import Problem
from orchestrator.core.state.task import Progress
from orchestrator.head.links import wire
from orchestrator.protocol import reports
from orchestrator.protocol.bounds import Form, Length, Range
from orchestrator.protocol.check import check_of
from orchestrator.protocol.limits import LAST_LINE_CHARS_MAX, TEXT_CHARS_MAX
from orchestrator.protocol.paths import RelativePath
from tests.protocol_values import OF_FORM
from tests.unit.head.recording import RUN, Head

TYPES = [type_ for type_ in vars(reports).values() if is_typeddict(type_)]

W0 = TaskId("worker", 0)


def parts(hint: Any, bounds: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield each type within a field's type, with its bounds."""
    if hasattr(hint, "__metadata__"):
        yield from parts(hint.__origin__, hint.__metadata__)
        return
    yield hint, bounds
    for argument in get_args(hint):
        if not isinstance(argument, str):
            yield from parts(argument)


@pytest.mark.fault(57)
@pytest.mark.parametrize("type_", TYPES, ids=lambda type_: type_.__name__)
def test_every_text_list_and_object_of_a_report_has_a_bound_of_its_own(type_: Any) -> None:
    for name, hint in get_type_hints(type_, include_extras=True).items():
        for inner, bounds in parts(hint):
            holds_many = inner is str or get_origin(inner) in (list, dict)
            bounded = any(isinstance(bound, Length | Form) for bound in bounds)
            assert bounded or not holds_many, f"{type_.__name__}.{name}: {inner}"
            chars = [bound.max for bound in bounds if isinstance(bound, Length) and inner is str]
            most = TEXT_CHARS_MAX if (type_.__name__, name) == ("Left", "why") else LAST_LINE_CHARS_MAX
            assert all(each <= most for each in chars), f"{type_.__name__}.{name} may be a book"


def longest(hint: Any, bounds: dict[type, Any] | None = None) -> Any:
    """Return a value as long as its type lets it be, of a few entries."""
    bounds = bounds or {}
    if hasattr(hint, "__metadata__"):
        return longest(hint.__origin__, {type(bound): bound for bound in hint.__metadata__})
    if is_typeddict(hint):
        return {name: longest(inner) for name, inner in get_type_hints(hint, include_extras=True).items()}
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is RelativePath:  # its own check bounds it
        return "/".join(["x" * 200] * 20)
    if hint is str:
        return OF_FORM[bounds[Form].words] if Form in bounds else "\x1b" * bounds[Length].max
    if hint in (int, float):
        return hint(min(bounds[Range].high, 1e9) if Range in bounds else 1)
    if hint is bool:
        return True
    if origin is list:
        return [longest(arguments[0]) for _ in range(min(4, bounds[Length].max))]
    if origin is dict:
        return {longest(arguments[0]): longest(arguments[1])}
    if arguments and isinstance(arguments[0], str):
        return arguments[0]
    return longest(next(argument for argument in arguments if argument is not type(None)))


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name))
    elif isinstance(value, dict):
        yield from texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts(each)


@pytest.mark.fault(57)
def test_no_text_of_the_longest_report_is_long_once_it_is_an_event() -> None:
    """Control characters are written out on the way, which makes a text four times as long."""
    sent = check_of(reports.Report)(longest(reports.Report))
    known = [W0]
    event = wire.host_reported("a", OF_FORM["a run id"], sent, at=1.0, unix_time=1.0, known=known)
    assert event.tasks
    assert event.unkillable
    assert event.leaving is not None
    assert max(map(len, texts(event))) <= 4 * LAST_LINE_CHARS_MAX
    for text in (event.leaving.why, *(each.sentence for each in event.unkillable)):
        assert len(text) <= 4 * 600


Flood = Callable[[float, int], ev.Event]


def report(at: float, *tasks: ev.TaskReport, **changes: Any) -> ev.HostReported:
    mine = tasks or (ev.TaskReport(W0, 1, "running", pid=7, port=20000),)
    return ev.HostReported(at, "a", mine, **changes)


def task(at: float, generation: int = 1, phase: str = "running", **changes: Any) -> ev.HostReported:
    return report(at, ev.TaskReport(W0, generation, phase, pid=7, port=20000, **changes))


def refusal(number: int) -> Problem:
    return wire.problem({"code": "host-unfit", "message": f"{number} " + "x" * 16000, "hint": "y" * 16000})


FLOODS: dict[str, Flood] = {
    "it leaves a second sooner each time": lambda at, n: report(at, leaving=Leaving(f"{n} " * 9999, 1e6 - 2 * n)),
    "it leaves, with other words, sooner by half": lambda at, n: report(at, leaving=Leaving(str(n), 1e12 / 2**n)),
    "it leaves and stays": lambda at, n: report(at, leaving=Leaving("why", 900.0) if n % 2 else None),
    "other processes are unkillable": lambda at, n: report(
        at, unkillable=tuple(Unkillable(10 * n + i, "old", f"pid {n} " + "x" * 900) for i in range(4))
    ),
    "unkillable and not": lambda at, n: report(at, unkillable=(Unkillable(1, "old", "why"),) if n % 2 else ()),
    "its directory hangs and answers": lambda at, n: report(at, dir_silent_s=99.0 if n % 2 else 0.0),
    "its disk is full and is not": lambda at, n: report(at, dir_free_bytes=0 if n % 2 else 1 << 40),
    "other faults of GPUs": lambda at, n: report(at, gpu_faults=tuple((0, n * 9 % 9999 + i) for i in range(9))),
    "its GPU comes and goes": lambda at, n: report(at, gpu_faults=((0, None),) if n % 2 else ()),
    "tasks of ever newer generations": lambda at, n: task(at, generation=100 + n),
    "another pid each time": lambda at, n: report(at, ev.TaskReport(W0, 1, "running", pid=n + 1, port=20000 + n)),
    "the phase goes to and fro": lambda at, n: task(at, phase="ready" if n % 2 else "running"),
    "it knows the task, and then not": lambda at, n: task(at, phase="unknown" if n % 2 else "running"),
    "it says something else each time": lambda at, n: task(at, said=(("said", f"{n} words"),)),
    "other metrics are no numbers": lambda at, n: task(at, progress=Progress(nonfinite={f"m{n}": (n, "nan")})),
    "other words are measured": lambda at, n: task(at, progress=Progress(measured={"rescue": f"{n} " + "x" * 900})),
    "it has handed over another state": lambda at, n: task(at, progress=Progress(rescued=Rescued(n, 0.1))),
    "steps forth and back": lambda at, n: task(
        at, progress=Progress(global_step=n % 7, measured={"steps_per_s": float(n)})
    ),
    "an exit with other words": lambda at, n: task(
        at, phase="exited", exit=Exit(cause=Cause.SCRIPT, code=n % 255 + 1, at=at, last_lines=(f"{n}",))
    ),
    "another boot each time": lambda at, n: ev.HostUp(at, "a", f"boot-{n}", before="x" * 16000),
    "another warning each time": lambda at, n: ev.HostUp(at, "a", "boot", warning=f"{n} " + "x" * 16000),
    "it is slow each time": lambda at, n: ev.HostUp(at, "a", "boot", slow=f"it took {n} s"),
    "its connection breaks": lambda at, n: ev.HostDown(at, "a", f"{n}: gone"),
    "it refuses": lambda at, n: ev.HostRefused(at, "a", refusal(n)),
    "orders fail": lambda at, n: ev.OrderFailed(at, "a", "verify", 1, refusal(n)),
    "it floods": lambda at, n: ev.LimitReached(at, "a", f"{n} lines are dropped"),
    "its clock jumps": lambda at, n: ev.ClockDiffers(at, "a", f"{n} s ahead"),
}  # fmt: skip

PER_MINUTE = 2 * NOTES_MAX


@pytest.mark.fault(57)
@pytest.mark.parametrize("kind", FLOODS)
def test_a_host_that_says_something_else_five_times_a_second_causes_few_events(
    tmp_path: Path, kind: str
) -> None:
    head = Head(tmp_path / "journal.db")
    head.begin()
    head.hear(step=1)
    kept = [event["seq"] for event in head.journal.events(name=RUN)]
    for number in range(300):
        head.now += 0.2
        head.tell(FLOODS[kind](head.now, number))
        if number % 10 == 0:
            head.hear(step=number, hosts="b")
    told = [event for event in head.journal.events(name=RUN, limit=9999) if event["seq"] not in kept]
    head.end()
    of_a_task = SAID_MAX if kind == "it says something else each time" else 0
    assert len(told) <= PER_MINUTE + of_a_task, [event["message"][:60] for event in told][-20:]
    assert all(len(event["message"]) <= 3000 for event in told)


@pytest.mark.fault(57)
def test_the_limit_is_said_once_and_ends_with_its_minute(tmp_path: Path) -> None:
    head = Head(tmp_path / "journal.db")
    head.begin()
    for number in range(200):
        head.now += 0.2
        head.tell(ev.HostUp(head.now, "a", "boot", slow=f"it took {number} s"))
    (said,) = [event for event in head.journal.events(name=RUN) if event["kind"] == "limit-reached"]
    head.train(62)
    head.tell(ev.HostUp(head.now, "a", "boot", slow="the last word"))
    last = [event["message"] for event in head.journal.events(name=RUN) if event["kind"] == "slow"][-1]
    head.end()
    assert said["message"].startswith("a reports more changes than people can read")
    assert last.endswith("the last word")

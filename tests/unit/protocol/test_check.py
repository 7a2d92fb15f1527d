"""Every field of whatever a host may say is checked: made from the types, one wrong field at a time."""

from __future__ import annotations

import json
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from orchestrator.protocol import hello, replies, reports
from orchestrator.protocol.bounds import Exact, Length, Range
from orchestrator.protocol.check import Misfit, check_of, cleaned, cleaned_json, shown
from orchestrator.protocol.limits import COUNT_MAX
from orchestrator.protocol.paths import RelativePath
from tests.protocol_orders import TABLE
from tests.protocol_values import ASKED, valid, wrong

SAID = {
    "hello": hello.Hello,
    "report": reports.Report,
    "error": replies.ErrorFrame,
    "boot": hello.BootAnswer,
    **{row.name: row.answer for row in TABLE},
}
"""Everything that an agent says, by what it is."""


@pytest.mark.parametrize("what", SAID)
def test_what_fits_is_taken_as_it_is(what: str) -> None:
    value = valid(SAID[what])
    assert json.loads(json.dumps(check_of(SAID[what], ASKED)(value))) == value


@pytest.mark.parametrize(
    ("type_", "least", "most", "beyond"),
    [
        (int, -COUNT_MAX - 1, COUNT_MAX, (-COUNT_MAX - 2, COUNT_MAX + 1)),
        (float, -1e308, 1e308, (float("-inf"), float("inf"), float("nan"))),
    ],
)
def test_a_number_for_which_no_bounds_are_declared_has_those_of_what_is_kept(
    type_: type, least: float, most: float, beyond: tuple[float, ...]
) -> None:
    check = check_of(type_)
    assert (check(least), check(most)) == (least, most)
    for value in beyond:
        with pytest.raises(Misfit):
            check(value)


def test_a_number_for_which_bounds_are_declared_has_those() -> None:
    whole, part = check_of(Annotated[int, Range(-17, 4711)]), check_of(Annotated[float, Range(-1.7, 47.11)])
    assert [whole(-17), whole(4711), part(-1.7), part(47.11)] == [-17, 4711, -1.7, 47.11]
    for check, value in ((whole, -18), (whole, 4712), (part, -1.71), (part, 47.12)):
        with pytest.raises(Misfit, match="not from"):
            check(value)


WRONG = [(what, way, value) for what, type_ in SAID.items() for way, value in wrong(type_)]


def test_each_wrong_field_is_refused_with_the_way_to_it() -> None:
    assert len(WRONG) > 1500
    taken, unnamed = [], []
    for what, way, value in WRONG:
        try:
            check_of(SAID[what], ASKED)(value)
        except Misfit as e:
            if not str(e).startswith(way.removeprefix(".") or "it "):
                unnamed.append((what, way, str(e)))
        else:
            taken.append((what, way))
    assert (taken, unnamed) == ([], [])


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"global_step": "x"}, "runs.mnist-1[0].global_step is 'x', not a whole number"),
        ({"global_step": True}, "runs.mnist-1[0].global_step is true, not a whole number"),
        ({"pid": 10**30}, "runs.mnist-1[0].pid is a number of 100 bits, not from 0 to 2147483647"),
        ({"phase": "dancing"}, "runs.mnist-1[0].phase is 'dancing', none of starting, ready, running, exited, unknown"),
        ({"task": "wroker:0"}, "runs.mnist-1[0].task is 'wroker:0', not a task, such as worker:3"),
        ({"metrics": {"\x1b[31m": "x"}}, r"runs.mnist-1[0].metrics.\x1b[31m is 'x', not a number"),
        ({"metrics": {"loss": float("inf")}}, "runs.mnist-1[0].metrics.loss is inf, not from -1e+308 to 1e+308"),
        ({"said": [{"kind": "x"}]}, "runs.mnist-1[0].said[0].message is missing"),
        ({"error": {"kind": "x", "message": "m" * 2001}}, "runs.mnist-1[0].error.message has 2001 characters, and at"),
        ({"exit": []}, "runs.mnist-1[0].exit is a list of 0, not an object"),
        ({"port": "\x1b" * 500}, "runs.mnist-1[0].port is '" + r"\x1b" * 14 + r"\x1…, not a whole number"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_field_and_what_it_is(task: dict[str, Any], said: str) -> None:
    report = valid(reports.Report)
    report["runs"] = {"mnist-1": [{**valid(reports.Task), **task}]}
    with pytest.raises(Misfit) as caught:
        check_of(reports.Report)(report)
    assert str(caught.value).startswith(said)


def test_too_many_of_anything_are_refused() -> None:
    metrics = {f"m{number}": 1.0 for number in range(257)}
    with pytest.raises(Misfit, match=r"metrics has 257 entries, and at most 256 may be"):
        check_of(reports.Task)({**valid(reports.Task), "metrics": metrics})


def test_what_a_type_does_not_know_is_left_out() -> None:
    told = check_of(reports.Said)({"kind": "k", "message": "m", "more": {"deep": [1]}})
    assert told == {"kind": "k", "message": "m"}


class Partly(TypedDict):
    """Of a test."""

    must: int
    may: NotRequired[int]


def test_what_may_be_left_out_may_be() -> None:
    assert check_of(Partly)({"must": 1}) == {"must": 1}
    with pytest.raises(Misfit, match=r"^may is null, not a whole number"):
        check_of(Partly)({"must": 1, "may": None})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ümläut, 漢字, \U0001f600", "plain, ümläut, 漢字, \U0001f600"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x00\x08\r\x7f\x85\x9b", r"\x00\x08\x0d\x7f\x85\x9b"),
        ("abc\u202edef\u2066", r"abc\u202edef\u2066"),
        ("line\u2028line", r"line\u2028line"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_text(text: str, shown: str) -> None:
    assert cleaned(text) == shown
    assert check_of(reports.Said)({"kind": text, "message": text}) == {"kind": shown, "message": shown}
    assert check_of(dict[str, str])({text: text}) == {shown: shown}
    assert cleaned_json({text: [text, 5]}) == {shown: [shown, 5]}
    shown.encode()


def test_a_name_that_is_sent_back_is_not_changed_but_refused() -> None:
    check = check_of(Annotated[str, Length(10), Exact()])
    assert check("data set") == "data set"
    with pytest.raises(Misfit, match="control characters"):
        check("a\x1bb")


def test_a_name_of_a_file_may_hold_what_no_terminal_obeys() -> None:
    """A checkpoint with a tab or a hard space in its name could else not be sent to another host."""
    check = check_of(RelativePath)
    taken = []
    for path in ("a/b c", "a\tb", "a\nb", "a\u00a0b"):
        try:
            taken.append(check(path))
        except Misfit as e:
            taken.append(str(e))
    assert taken == ["a/b c", "a\tb", "a\nb", "a\u00a0b"]
    with pytest.raises(Misfit, match="control characters"):
        check("a\x1bb")


def test_json_of_others_is_bounded_in_depth() -> None:
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(Misfit, match="nested"):
        cleaned_json(deep)


@pytest.mark.parametrize(
    "number",
    [10**400, -(10**400), 1 << 63, float("nan"), float("inf")],
    ids=["huge", "minus huge", "65 bits", "NaN", "infinite"],
)
def test_a_number_that_nothing_could_keep_is_refused_wherever_it_is(number: float) -> None:
    """The journal keeps integers of 64 bits, and JSON has no others than finite numbers."""
    for holds in (number, [number], {"a": [{"b": number}]}):
        with pytest.raises(Misfit, match="which nothing could keep"):
            cleaned_json(holds)
    kept = {"a": [(1 << 63) - 1, 1.5]}
    assert cleaned_json(kept) == kept


def test_what_is_refused_is_shown_in_a_word() -> None:
    values = [{}, {"a": 1}, [1, 2], None, True]
    assert [shown(value) for value in values] == [
        "an empty object",
        "an object",
        "a list of 2",
        "null",
        "true",
    ]
    assert shown("x" * 58) == f"'{'x' * 58}'"
    assert shown("x" * 59) == f"'{'x' * 59}…", "of a longer one the beginning"

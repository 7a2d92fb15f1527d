"""First causes to text, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cli.session import Paint
from orchestrator.cli.show import causes, render, terminal
from tests.contract.fake_api import first_cause_document, run_document

PLAIN = Paint(on=False)
AT_90: dict[str, Any] = {
    "reason": "step 90",
    "global_step": 90,
    "reason_begins_with": "global_step",
    "reason_rest": "",
}
KILLED = first_cause_document(
    followers=6,
    followed=[{"task": f"worker:{n}", "host": "gpu-a", "after_s": 1.4} for n in (0, 2, 3, 4, 5, 6)],
)


def test_without_a_coordinator_no_phase_is_claimed() -> None:
    assert why(phase=None, reason=None, first_causes=[KILLED]).startswith("mnist-1\n\n  worker:1 on")


def why(width: int | None = None, **changes: object) -> str:
    document = {"phase": "RUNNING", "run_id": "mnist-1", "generation": 2, "reason": "step 90", **changes}
    return causes.why({"first_causes": [], **document}, PLAIN, width=width)


def test_what_it_cost_is_said_once_training_goes_on() -> None:
    cost = "9.1 s: detected in 0.1 s, ended in 0.2 s, started in 6.3 s, first new step in 2.5 s"
    shown = why(first_causes=[{**KILLED, "cost": cost}]).splitlines()
    then = next(n for n, line in enumerate(shown) if line.startswith("  then "))
    assert shown[then + 1] == f"  cost     {cost}"


def test_a_death_that_is_over() -> None:
    assert why(first_causes=[KILLED], reason="gpu-b unreachable for 26 s") == (
        "mnist-1  RUNNING  generation 2\n"
        "\n"
        "  worker:1 on gpu-b was killed by SIGKILL at step 57\n"
        "  when     generation 1, class signal\n"
        "  means    somebody or something on gpu-b ended it\n"
        "  others   worker:0 on gpu-a after 1.4 s, worker:2 on gpu-a after 1.4 s, worker:3 on gpu-a after 1.4 s, "
        "worker:4 on gpu-a after 1.4 s, 2 more; 1 task stopped by orch\n"
        "  then     generation 2 resumes from step 50; 7 steps are lost\n"
        "  hint     look there for a batch system\n"
        "\n"
        "  worker:1 | loss 0.4\n"
        "  worker:1 | loss 0.3\n"
        "\n"
        "  now      gpu-b unreachable for 26 s"
    )


def test_failures_alike_in_a_row_are_said_once_and_counted() -> None:
    several = [
        {**KILLED, "generation": n, "sentence": f"worker:1 on gpu-b was killed by SIGKILL at step {50 + n}"}
        for n in range(1, 6)
    ]
    other = {**KILLED, "generation": 6, "task": "worker:0", "sentence": "worker:0 on gpu-a ran out of memory"}
    shown = why(first_causes=[*several, other, {**several[0], "generation": 7}])
    assert shown.count("was killed by SIGKILL") == 2
    assert "at step 55\n  alike    5 times in a row, the first time in generation 1\n" in shown
    for generation in (5, 6, 7):
        assert f"generation {generation}, class" in shown


def test_failures_of_other_tasks_and_hosts_are_not_alike() -> None:
    one = {**KILLED, "task": None, "sentence": "worker:1 on gpu-1 did not join"}
    two = {**one, "sentence": "worker:1 on gpu-2 did not join"}
    three = {**one, "sentence": "worker:2 on gpu-2 did not join"}
    assert why(first_causes=[one, two, three]).count("did not join") == 3


def test_the_position_is_said_once() -> None:
    shown = why(first_causes=[KILLED], **AT_90)
    assert shown.startswith("mnist-1  RUNNING  generation 2, step 90\n")
    assert shown.endswith("worker:1 | loss 0.3")


def test_it_fits_the_terminal() -> None:
    long = {**KILLED, "last_lines": ["x" * 500], "advice": "word " * 60}
    assert max(map(len, why(80, first_causes=[long]).splitlines())) <= 80
    assert "x" * 500 in why(None, first_causes=[long])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (AT_90, "No failure so far"),
        ({"reason": "gpu-b unreachable for 26 s"}, "No failure so far; gpu-b unreachable for 26 s"),
        ({"phase": "SUCCEEDED", "reason": "worker:0 ended"}, "No failure; worker:0 ended"),
        ({"phase": "PENDING", "reason": "1/2 hosts are ready"}, "1/2 hosts are ready"),
        ({"phase": "FAILED", "reason": "gpu-b: no Python", "problem": {"hint": ""}}, "gpu-b: no Python"),
        ({"phase": "KILLED", "reason": "killed by the user"}, "killed by the user"),
        ({"phase": None, "reason": None}, "No failure is recorded"),
    ],
)
def test_nothing_went_wrong(changes: dict[str, object], expected: str) -> None:
    assert why(None, **changes).splitlines()[1:] == [f"  {expected}"]


def test_a_run_that_failed_of_something_else_in_the_end() -> None:
    problem = {"message": "gpu-b has another TensorFlow", "hint": "install the same"}
    shown = why(phase="FAILED", reason="gpu-b has another TensorFlow", problem=problem, first_causes=[KILLED])
    assert shown.endswith("  now      gpu-b has another TensorFlow\n  hint     install the same")


def test_what_the_reason_repeats_is_said_once() -> None:
    sentence = str(KILLED["sentence"])
    told: dict[str, Any] = {
        "phase": "BACKOFF",
        "reason": f"{sentence}; generation 2 starts in 3 s",
        "reason_begins_with": "first_cause",
        "reason_rest": "generation 2 starts in 3 s",
    }
    assert why(first_causes=[KILLED], **told).count(sentence) == 1
    shown = render.run(run_document(**told, first_cause=KILLED), PLAIN)
    assert f"  first cause: {sentence}; generation 2 resumes" in shown
    assert "\n  generation 2 starts in 3 s\n" in shown


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abcdef", None, "abcdef"),
        ("abcdef", 6, "abcdef"),
        ("abcdef", 4, "abc…"),
        ("\x1b[31mabcdef\x1b[0m", 4, "\x1b[31mabc\x1b[0m…"),
        ("\x1b[31mabc\x1b[0m", 4, "\x1b[31mabc\x1b[0m"),
    ],
)
def test_cut(text: str, width: int | None, expected: str) -> None:
    assert terminal.cut(text, width) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c", ["a b c"]),
        ("aaaa bbbb cccc", ["aaaa bbbb", "  cccc"]),
        ("\x1b[31maaaa\x1b[0m bbbb cccc", ["\x1b[31maaaa\x1b[0m bbbb", "  cccc"]),
        ("aaaaaaaaaaaaaaa b", ["aaaaaaaaaaaaaaa", "  b"]),
        ("aa  bb  cc  dd", ["aa  bb  cc", "  dd"]),
        ("", [""]),
    ],
)
def test_fold(text: str, expected: list[str]) -> None:
    assert terminal.fold(text, 10, indent="  ") == expected
    assert terminal.fold(text, None) == [text]


def test_what_a_doctor_would_have_found_has_its_id() -> None:
    cause = {"sentence": "worker:0 lost its peers", "generation": 1, "cause": "network"}
    plain = causes.block(cause, Paint(on=False))
    assert causes.block({**cause, "finding": None}, Paint(on=False)) == plain
    told = causes.block({**cause, "finding": "net.blocked"}, Paint(on=False))
    assert told[1] == "when     generation 1, class network, finding net.blocked"

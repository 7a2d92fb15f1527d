"""The head's copies of the logs: offsets of the host, gaps, merging by time, following."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.head.records.log_file import LogLine, parse
from orchestrator.head.records.runlogs import RunLogs, run_name

RUN = "mnist-20261120-1"


def line(time: float, text: str, stream: str = "o") -> bytes:
    return f"{time:.6f} {stream} {text}\n".encode()


def texts(lines: list[LogLine]) -> list[str]:
    return [f"{found.task} {found.text}" for found in lines]


@pytest.fixture
def logs(tmp_path: Path) -> RunLogs:
    return RunLogs(str(tmp_path))


def put(logs: RunLogs, task: str, generation: int, data: bytes) -> None:
    logs.append(RUN, task, generation, logs.end(RUN, task, generation), data)


def log_path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / RUN / "logs" / "worker-0.gen-000002.log"


def test_what_comes_twice_is_put_down_once(logs: RunLogs, tmp_path: Path) -> None:
    whole = line(1, "one") + line(2, "two")
    assert logs.end(RUN, "worker:0", 2) == 0
    assert logs.append(RUN, "worker:0", 2, 0, whole[:20]) == 20
    assert logs.append(RUN, "worker:0", 2, 0, whole[:15]) == 20
    assert logs.append(RUN, "worker:0", 2, 10, whole[10:]) == len(whole)
    assert logs.append(RUN, "worker:0", 2, 0, whole) == len(whole) == logs.end(RUN, "worker:0", 2)
    assert log_path(tmp_path).read_bytes() == whole
    assert log_path(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_gap_is_a_line_and_the_offsets_go_on_behind_it(logs: RunLogs, tmp_path: Path) -> None:
    logs.append(RUN, "worker:0", 2, 0, line(1, "one"))
    late = line(9, "nine")
    end = 5000 + len(late)
    assert logs.append(RUN, "worker:0", 2, 5000, late) == end == logs.end(RUN, "worker:0", 2)
    more = line(10, "ten")
    assert logs.append(RUN, "worker:0", 2, end, more) == end + len(more) == logs.end(RUN, "worker:0", 2)
    assert logs.append(RUN, "worker:0", 2, 5000, late) == end + len(more)  # doubled: nothing happens
    missing = 5000 - len(line(1, "one"))
    assert [(found.stream, found.text) for found in logs.read(RUN)] == [
        ("o", "one"),
        ("g", f"[{missing} bytes of this log were rotated away on the host before they were copied]"),
        ("o", "nine"),
        ("o", "ten"),
    ]


def test_a_gap_in_the_middle_of_a_line_starts_a_new_one(logs: RunLogs) -> None:
    head = line(1, "one") + b"2.000000 o tw"
    logs.append(RUN, "worker:0", 2, 0, head)
    logs.append(RUN, "worker:0", 2, 900, b"st of a cut line\n" + line(4, "four"))
    assert [(found.time, found.text) for found in logs.read(RUN)][1:] == [
        (2.0, "tw"),
        (4.0, f"[{900 - len(head)} bytes of this log were rotated away on the host before they were copied]"),
        (4.0, "st of a cut line"),
        (4.0, "four"),
    ]


def test_two_gaps_count_both(logs: RunLogs) -> None:
    for offset in (0, 1000, 2000):
        logs.append(RUN, "worker:0", 2, offset, line(offset, "x"))
    assert logs.end(RUN, "worker:0", 2) == 2000 + len(line(2000, "x"))


@pytest.mark.parametrize("written", range(0, 89, 8))
def test_a_writer_that_dies_in_a_gaps_line_leaves_nothing_wrong(
    logs: RunLogs, tmp_path: Path, written: int
) -> None:
    first, second = line(1, "one"), line(9, "nine")
    logs.append(RUN, "worker:0", 2, 0, first)
    logs.append(RUN, "worker:0", 2, 1000, second)
    gap_bytes = log_path(tmp_path).stat().st_size - len(first) - len(second)
    assert written < gap_bytes
    os.truncate(log_path(tmp_path), len(first) + written)
    assert logs.end(RUN, "worker:0", 2) == len(first)
    logs.append(RUN, "worker:0", 2, len(first), line(2, "two"))
    assert [found.text for found in logs.read(RUN)] == ["one", "two"]
    assert logs.end(RUN, "worker:0", 2) == len(first) + len(line(2, "two"))


def test_a_torn_gaps_file_is_a_gap_that_never_was(logs: RunLogs, tmp_path: Path) -> None:
    logs.append(RUN, "worker:0", 2, 0, line(1, "one"))
    log_path(tmp_path).with_suffix(".gaps").write_text("17 9")
    assert logs.end(RUN, "worker:0", 2) == len(line(1, "one"))


def test_tasks_and_generations_are_merged_by_time(logs: RunLogs) -> None:
    put(logs, "worker:0", 1, line(1, "a") + line(4, "d", "e"))
    put(logs, "worker:1", 1, line(2, "b") + line(3, "c"))
    put(logs, "worker:0", 2, line(6, "f"))
    put(logs, "worker:1", 2, line(5, "e"))
    lines = list(logs.read(RUN))
    assert "".join(found.text for found in lines) == "abcdef"
    assert lines[3] == LogLine(4.0, "worker:0", 1, "e", "d")
    assert texts(list(logs.read(RUN, ["worker:1"]))) == ["worker:1 b", "worker:1 c", "worker:1 e"]
    assert logs.tasks(RUN) == ["worker:0", "worker:1"]


@pytest.mark.parametrize(("tail", "expected"), [(0, ""), (1, "f"), (3, "def"), (99, "abcdef")])
def test_tail_counts_over_all_tasks(logs: RunLogs, tail: int, expected: str) -> None:
    put(logs, "worker:0", 1, line(1, "a") + line(4, "d") + line(5, "e"))
    put(logs, "worker:1", 1, line(2, "b") + line(3, "c") + line(6, "f"))
    assert "".join(found.text for found in logs.read(RUN, tail=tail)) == expected


def test_tail_of_a_log_longer_than_a_block(logs: RunLogs) -> None:
    put(logs, "worker:0", 1, b"".join(line(i, f"{i} {'x' * 500}") for i in range(1000)))
    assert [int(found.text.split()[0]) for found in logs.read(RUN, tail=300)] == list(range(700, 1000))


def test_since_leaves_out_what_was_before(logs: RunLogs) -> None:
    put(logs, "worker:0", 1, line(1, "a") + line(4, "d") + line(5, "e"))
    assert [found.text for found in logs.read(RUN, since=4)] == ["d", "e"]
    assert [found.text for found in logs.read(RUN, since=4, tail=1)] == ["e"]


def test_text_that_is_no_utf8_or_no_line_of_ours_is_shown(logs: RunLogs) -> None:
    put(logs, "worker:0", 1, b"1.000000 o caf\xe9\nnot ours\n2.000000 o\nx o y\n")
    assert [(found.time, found.text) for found in logs.read(RUN)] == [
        (1.0, "caf\ufffd"),
        (1.0, "not ours"),
        (2.0, ""),
        (2.0, "x o y"),
    ]


def script(*steps: Callable[[], object]) -> Callable[[], bool]:
    """Return a `pause` that does one step per call, and with the last step says that the run has ended."""
    left = list(steps)

    def pause() -> bool:
        left.pop(0)()
        return bool(left)

    return pause


@pytest.mark.parametrize("stamp", ["inf", "nan", "-1.0", "1e300", "9" * 13, "1_0"])
def test_a_time_that_cannot_be_shown_is_text(stamp: str) -> None:
    found = parse(f"{stamp} o x".encode(), "worker:0", 1, 5.0)
    assert (found.time, found.text) == (5.0, f"{stamp} o x")
    assert parse(b"1760000000.25 o x", "worker:0", 1, 5.0).time == 1760000000.25


def test_follow_shows_each_line_once_and_new_generations(logs: RunLogs) -> None:
    put(logs, "worker:0", 1, line(1, "a") + line(2, "b") + b"3.000000 o un")
    pause = script(
        lambda: put(logs, "worker:0", 1, b"finished\n" + b"4.000000 o half"),
        lambda: put(logs, "worker:1", 2, line(5, "new")),
        lambda: put(logs, "worker:1", 2, b"6.000000 o no newline"),
    )
    seen = [found.text for found in logs.follow(RUN, tail=1, pause=pause)]
    assert seen == ["b", "unfinished", "new", "half", "no newline"]


def test_follow_of_a_run_without_logs_waits_for_the_first(logs: RunLogs) -> None:
    pause = script(lambda: None, lambda: put(logs, "worker:0", 1, line(1, "a")))
    assert [found.text for found in logs.follow(RUN, pause=pause)] == ["a"]


def test_runs_are_found_by_name_id_or_age(logs: RunLogs, tmp_path: Path) -> None:
    for run_id in ("mnist-20261120-9", "mnist-20261120-10", "mnist-big-20261121-1"):
        (tmp_path / "runs" / run_id).mkdir(parents=True)
    assert logs.newest() == "mnist-big-20261121-1"
    assert logs.newest("mnist") == "mnist-20261120-10"
    assert logs.newest("mnist-20261120-9") == "mnist-20261120-9"
    assert logs.newest("other") is None
    assert run_name("mnist-big-20261121-1") == "mnist-big"


def test_the_newest_run_began_last_whichever_directory_was_changed_last(
    logs: RunLogs, tmp_path: Path
) -> None:
    """A tag, or a look at its page, changes the directory of an ended run."""
    newest_first = ["a-20260106-090000", "b-20260105-090000", "mine-today", "mine-of-today", "mine", "a-1-2"]
    for number, name in enumerate(newest_first):
        (tmp_path / "runs" / name).mkdir(parents=True)
        os.utime(tmp_path / "runs" / name, (number, number))
    assert logs.newest() == "a-20260106-090000"
    assert logs.newest("mine") == "mine"
    assert logs.newest("b") == "b-20260105-090000"
    assert logs.runs() == newest_first, "what a person put there comes last"


def test_no_run_at_all(logs: RunLogs) -> None:
    assert logs.newest() is None
    assert list(logs.read(RUN)) == []
    assert logs.first_cause(RUN) is None


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../x"])
@pytest.mark.fault(53)
def test_a_run_id_leads_nowhere_else(logs: RunLogs, run_id: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        logs.end(run_id, "worker:0", 1)


@pytest.mark.fault(53)
def test_a_task_leads_nowhere_else(logs: RunLogs) -> None:
    with pytest.raises(ValueError, match="not a task"):
        logs.append(RUN, "../../x:0", 1, 0, b"x")


def test_the_end_of_a_generation_comes_while_it_is_followed_and_once(logs: RunLogs) -> None:
    logs.append(RUN, "worker:0", 1, 0, b"1.000000 o a\n")
    died = {"generation": 1, "sentence": "worker:0 died", "done": ""}
    steps = iter(
        (
            lambda: logs.put_first_cause(RUN, died, now=2.0),
            lambda: logs.put_first_cause(RUN, {**died, "done": "restart"}, now=3.0),
            lambda: logs.put_first_cause(RUN, {**died, "done": "generation 2 resumes"}, now=4.0),
            lambda: logs.put_first_cause(RUN, None, now=5.0),
        )
    )

    def pause() -> bool:
        step = next(steps, None)
        if step is not None:
            step()
        return step is not None

    lines = [(line.time, line.task, line.text) for line in logs.follow(RUN, pause=pause)]
    assert lines == [(1.0, "worker:0", "a"), (2.0, "orch", "first cause: worker:0 died; restart")]
    assert logs.first_cause(RUN) is None
    assert [cause["done"] for cause in logs.first_causes(RUN)] == ["generation 2 resumes"]
    assert list(logs.follow(RUN, ["worker:0"], pause=lambda: False))[-1].task == "worker:0"

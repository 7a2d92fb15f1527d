"""Documents to text, to the letter."""

from __future__ import annotations

import pytest

from orchestrator.cli.session import Paint
from orchestrator.cli.show import render, task_table, terminal
from orchestrator.cli.show.log_lines import LogPainter
from orchestrator.cli.show.task_table import ended_tasks
from orchestrator.cli.show.troubles import telling, trouble_lines
from orchestrator.head.records.log_file import OWN, LogLine
from tests.contract.fake_api import event_document, run_document, task_document

PLAIN = Paint(on=False)
COLOUR = Paint(on=True)


def test_a_run_that_trains() -> None:
    assert render.run(run_document(), PLAIN) == (
        "mnist-20261120-1  RUNNING  generation 2, 1 restart, step 120, 3.4 steps/s, epoch 3, loss 0.31\n"
        "  step 120; all 2 tasks report\n"
        "  checkpoint: step 100, verified, 12 s old, /shared/mnist/gen-000002/ckpt-100\n"
        "\n"
        "  TASK      HOST   PHASE     PID  STEP  STEPS/S  CPU   MEMORY  HEARTBEAT\n"
        "  worker:0  gpu-a  RUNNING  4242   120      3.4  98%  1.2 GiB  0.4 s ago\n"
        "  worker:1  gpu-b  RUNNING  4243   120      3.4  98%  1.2 GiB  0.4 s ago"
    )


def test_what_limits_a_run_is_a_line_while_it_is_active() -> None:
    told = {"sentence": "input: 55% of the time", "remedy": "cache()", "age_s": 185.0}
    line = "\n  limited by input: 55% of the time (for 3 min 5 s): cache()\n"
    assert line in render.run(run_document(bottleneck=told), PLAIN)
    assert "limited" not in render.run(run_document(bottleneck=told, phase="SUCCEEDED"), PLAIN)


def test_what_is_written_and_not_yet_verified_is_said() -> None:
    saving = {"sentence": "every 240 steps", "saved_step": 100000}
    shown = render.run(run_document(saving=saving), PLAIN)
    assert "\n  saves: every 240 steps; step 100000 is written, and not verified yet\n" in shown
    shown = render.run(run_document(saving={**saving, "saved_step": 1}), PLAIN)
    assert "\n  saves: every 240 steps\n" in shown


def test_a_run_that_begins_shows_no_empty_columns() -> None:
    nothing = {"pid": None, "global_step": None, "steps_per_s": None, "cpu_percent": None, "rss_bytes": None}
    document = run_document(
        phase="PENDING",
        reason="1/2 hosts are ready; waiting for gpu-b (connecting)",
        generation=0,
        restarts=0,
        global_step=None,
        steps_per_s=None,
        training_epoch=None,
        metrics={},
        checkpoint=None,
        tasks=[task_document(n, phase="WAITING", heartbeat_age_s=None, **nothing) for n in (0, 1)],
        hosts=[
            {"host": "gpu-a", "link": "CONNECTED"},
            {"host": "gpu-b", "link": "UNREACHABLE", "heard_age_s": 93.0, "problem": "no route to host"},
        ],
        warnings=["no checkpoint directory"],
    )
    assert render.run(document, PLAIN) == (
        "mnist-20261120-1  PENDING\n"
        "  1/2 hosts are ready; waiting for gpu-b (connecting)\n"
        "\n"
        "  TASK      HOST   PHASE    PID  STEP\n"
        "  worker:0  gpu-a  WAITING    -     -\n"
        "  worker:1  gpu-b  WAITING    -     -\n"
        "\n"
        "  gpu-b unreachable for 1 min 33 s: no route to host\n"
        "  warning: no checkpoint directory"
    )


def failed_run() -> dict[str, object]:
    return run_document(
        phase="FAILED",
        reason="worker:1 on gpu-b was killed by the kernel: out of memory; given up: 5 failures",
        reason_begins_with="first_cause",
        reason_rest="given up: 5 failures",
        metrics={},
        training_epoch=None,
        checkpoint=None,
        problem={
            "message": "worker:1 on gpu-b was killed by the kernel: out of memory; given up: 5 failures",
            "hint": "give it memory",
        },
        first_cause={
            "task": "worker:1",
            "sentence": "worker:1 on gpu-b was killed by the kernel: out of memory",
            "means": "the host ran out of memory",
            "advice": "a smaller batch",
            "last_lines": ["1/9\r2/9 \x08\x08", "\x07bell"],
        },
        tasks=[
            task_document(0, phase="EXITED", exit_code=1, cause="follower"),
            task_document(1, phase="EXITED", exit_code=None, signal=9, cause="out of memory"),
        ],
    )


def test_a_run_that_has_failed() -> None:
    assert render.run(failed_run(), PLAIN) == (
        "mnist-20261120-1  FAILED  generation 2, 1 restart, step 120\n"
        "  first cause: worker:1 on gpu-b was killed by the kernel: out of memory\n"
        "  given up: 5 failures\n"
        "  worker:0 on gpu-a: exit code 1 (follower)\n"
        "  worker:1 on gpu-b: killed by SIGKILL (out of memory)\n"
        "\n"
        "  hint: give it memory\n"
        "  means: the host ran out of memory\n"
        "  hint: a smaller batch\n"
        "    worker:1 | 2/9\n"
        "    worker:1 | bell"
    )


def test_of_many_runs_the_active_ones_are_shown_in_full() -> None:
    runs = [run_document(run_id=f"mnist-20261119-{n}", phase="KILLED", metrics={}) for n in range(1, 8)]
    text = render.status({"runs": [*runs, run_document()]}, PLAIN)
    head, _, rest = text.partition("\n\nEnded runs:\n")
    assert head == render.run(run_document(), PLAIN)
    assert rest.splitlines() == [
        *(
            f"  mnist-20261119-{n}  KILLED  generation 2, 1 restart, step 120, epoch 3"
            for n in (7, 6, 5, 4, 3)
        ),
        "  and 2 more; `orch status NAME` shows one",
    ]


def test_of_many_runs_that_wait_the_first_are_shown_in_full() -> None:
    waiting = [run_document(run_id=f"w-20261119-{n}", phase="QUEUED") for n in range(1007)]
    text = render.status({"runs": [run_document(), *waiting]}, PLAIN)
    *shown, last = text.split("\n\nw-")[0:1] + text.split("\n\n")[-1:]
    assert shown == [render.run(run_document(), PLAIN)]
    assert (text.count("QUEUED"), "w-20261119-4" in text, "w-20261119-5" in text) == (5, True, False)
    assert last == "Runs that wait besides: 1,002; `orch queue` shows all in their order"
    assert "besides" not in render.status({"runs": waiting[:5]}, PLAIN)


def test_where_nothing_is_active_the_last_run_is_shown_in_full() -> None:
    text = render.status({"runs": [run_document(phase="KILLED"), failed_run()]}, PLAIN)
    assert text.startswith(render.run(failed_run(), PLAIN) + "\n\nEnded runs:\n  mnist-20261120-1  KILLED")


def test_colours_change_no_text() -> None:
    for document in (run_document(), failed_run()):
        painted = render.run(document, COLOUR)
        assert "\x1b[" in painted
        bare = painted
        for code in ("0", "1", "2", "31", "32", "33", "36", "32;1", "31;1"):
            bare = bare.replace(f"\x1b[{code}m", "")
        assert bare == render.run(document, PLAIN)


def test_progress_in_one_line() -> None:
    assert render.progress(run_document()) == (
        "RUNNING: step 120, 3.4 steps/s, epoch 3, loss 0.31 (worker:0 120, worker:1 120)"
    )
    assert render.progress(run_document(phase="BACKOFF", reason="again in 5 s")) == "BACKOFF: again in 5 s"


def test_an_event_names_its_task_once() -> None:
    died = event_document(1, "died", "worker:1 on gpu-b died", task="worker:1")
    assert render.event(died, PLAIN, utc=True) == "2026-11-20 12:00:01 UTC  died  worker:1 on gpu-b died"
    assert render.event({**died, "time": "?"}, PLAIN) == "died  worker:1 on gpu-b died"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("1/3\r2/3\r3/3 done\r", "3/3 done"),
        ("\x1b[31mred\x1b[0m\ttab", "\x1b[31mred\x1b[0m\ttab\x1b[0m"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b[2Jcleared\x1b[1;1H", "cleared"),
        ("", ""),
    ],
)
def test_what_a_log_line_may_do_to_the_terminal(raw: str, shown: str) -> None:
    assert terminal.printable(raw) == shown


def test_log_lines_are_aligned_by_their_tasks() -> None:
    painter = LogPainter(PLAIN, ("worker:0", "worker:10"))
    assert painter.line(LogLine(1.0, "worker:0", 1, "o", "a")) == "worker:0  | a"
    assert painter.line(LogLine(1.0, "worker:10", 1, "e", "")) == "worker:10 |"


def test_an_endless_line_is_cut_on_a_terminal_only() -> None:
    line = LogLine(1.0, "worker:0", 1, "e", "UNAVAILABLE: " + "x" * 2000)
    assert len(LogPainter(PLAIN, columns=80).line(line)) == len("worker:0 | ") + 240
    assert len(LogPainter(PLAIN, columns=200).line(line)) == len("worker:0 | ") + 400
    assert LogPainter(PLAIN).line(line).endswith("x" * 2000)


def test_a_line_of_ours_is_told_from_those_of_the_tasks() -> None:
    line = LogLine(1.0, "orch", 1, OWN, "first cause: so")
    assert LogPainter(PLAIN, ("worker:0",)).line(line) == "orch     | first cause: so"
    assert (
        LogPainter(COLOUR, ("worker:0",)).line(line)
        == "\x1b[31morch     |\x1b[0m \x1b[31;1mfirst cause: so\x1b[0m"
    )


def test_a_host_that_gets_no_tasks_is_said_with_the_reason_and_the_way_out() -> None:
    stuck = {"host": "gpu-b", "link": "CONNECTED", "state": "stuck", "reason": "pid 7", "hint": "reboot it"}
    assert "  gpu-b stuck: pid 7; reboot it\n" in render.run(run_document(hosts=[stuck]), PLAIN) + "\n"


def test_what_the_disk_of_a_host_did_not_take_of_a_log_is_said() -> None:
    tasks = [task_document(0), task_document(1, log_dropped_bytes=5 << 20)]
    assert (
        "  warning: 5.0 MiB of the log of worker:1 were lost: the disk of gpu-b could not take them"
        in render.run(run_document(tasks=tasks), PLAIN)
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["step 1", "Traceback (most recent call last):", "  File x", "E: y"], 1),
        (["Traceback (most recent call last):", "E: a", "Traceback (most recent call last):", "E: b"], 2),
        ([str(n) for n in range(20)], 12),
        (["one"], 0),
        ([], 0),
    ],
)
def test_of_the_last_lines_those_are_shown_that_tell(lines: list[str], expected: int) -> None:
    assert list(telling(lines)) == lines[expected:]


def test_sentences_are_folded_to_the_terminal_between_words() -> None:
    cause = {"sentence": "worker:0 on gpu-a failed: " + "word " * 40, "means": "m " * 60, "advice": "a " * 60}
    shown = render.outcome(
        run_document(phase="FAILED", reason="given up", first_cause=cause), PLAIN, width=60
    )
    assert max(map(len, shown.splitlines()[1:])) <= 60
    assert "\n    word word" in shown


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"phase": "WAITING"}, "not started"),
        ({"phase": "LOST", "cause": "host lost"}, "lost (host lost)"),
        ({"phase": "UNREACHABLE"}, "not known to have ended"),
        ({"phase": "EXITED", "exit_code": 0, "cause": "finished"}, "exit code 0"),
        ({"phase": "EXITED", "signal": 99}, "killed by signal 99"),
    ],
)
def test_how_a_task_of_an_ended_run_ended(changes: dict[str, object], text: str) -> None:
    shown = render.run(run_document(phase="FAILED", tasks=[task_document(0, **changes)]), PLAIN)
    assert f"  worker:0 on gpu-a: {text}\n" in shown + "\n"


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_a_run_fits_the_terminal(width: int) -> None:
    long = run_document(
        metrics={f"metric_{n}": 0.5 for n in range(9)},
        reason="word " * 40,
        checkpoint=None,
        warnings=["a warning " * 20],
        hosts=[{"host": "gpu-b", "link": "UNREACHABLE", "heard_age_s": 93.0, "problem": "no route " * 20}],
    )
    shown = render.status({"runs": [{**long, "phase": "FAILED"}, long]}, PLAIN, width=width)
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (None, "TASK HOST PHASE PID STEP STEPS/S CPU MEMORY GPU HEARTBEAT"),
        (80, "TASK HOST PHASE STEP STEPS/S CPU MEMORY GPU HEARTBEAT"),
        (60, "TASK HOST PHASE STEP STEPS/S GPU"),
        (40, "TASK HOST PHASE STEP"),
        (25, "TASK PHASE STEP"),
    ],
)
def test_a_narrow_terminal_does_without_what_matters_least(width: int | None, head: str) -> None:
    gpus = [{"index": 0, "utilization_percent": 97, "memory_used_bytes": 71 << 30}]
    document = run_document(
        hosts=[{"host": host, "link": "CONNECTED", "gpus": gpus} for host in ("gpu-a", "gpu-b")]
    )
    table = task_table.task_table(document, PLAIN, width)
    assert table[0].split() == head.split()
    assert ("97% 71 GiB" in table[1]) == ("GPU" in head)


def test_when_it_started_and_what_its_time_went_into() -> None:
    times = {"started_at": 0, "elapsed_s": 7500.0, "eta_s": 185.0, "goodput": 0.914}
    shown = render.run(run_document(steps_total=500, **times), PLAIN)
    assert "step 120 of 500, 3.4 steps/s" in shown
    assert ", 2 h 5 min; 3 min 5 s left; goodput 91%\n" in shown
    assert "left" not in render.times_line(run_document(phase="SUCCEEDED", **times))
    assert render.times_line(run_document(goodput=0.5)) == "goodput 50%"


def test_no_line_is_shown_twice() -> None:
    shown = render.run(run_document(warnings=["disk is slow", "disk is slow"], hints=["do that"]), PLAIN)
    assert shown.count("disk is slow") == 1
    assert shown.endswith("hint: do that")


def test_who_was_stopped_by_us_has_no_signal() -> None:
    task = task_document(0, phase="EXITED", exit_code=None, signal=9, cause="ordered")
    assert ended_tasks([task]) == ["worker:0 on gpu-a: stopped by orch"]


def test_the_table_of_a_problem_is_aligned_below_its_sentence() -> None:
    problem = {
        "message": "the hosts differ in keras",
        "table": [["host", "keras"], ["gpu-a", "3.15.1"], ["b", "-"]],
    }
    assert trouble_lines({"problem": problem}, PLAIN) == [
        "problem: the hosts differ in keras",
        "  host   keras",
        "  gpu-a  3.15.1",
        "  b      -",
    ]


def test_a_standby_has_a_line_where_there_is_one() -> None:
    waiting = {
        "state": "ready",
        "generation": 3,
        "memory_bytes": 800 << 20,
        "tasks": [{"task": "worker:0"}, {"task": "worker:1"}],
    }
    assert render.standby_line(waiting) == "standby: generation 3 is ready, 2 tasks, 800 MiB"
    both = {**waiting, "tasks": [*waiting["tasks"], {"task": "worker:1", "host": "spare"}]}  # type: ignore[misc]
    assert render.standby_line(both) == "standby: generation 3 is ready, 2 tasks, and 1 on spares, 800 MiB"
    assert render.standby_line({"state": "none", "generation": None, "tasks": []}) == ""
    assert render.standby_line(None) == "", "an older coordinator tells of none"

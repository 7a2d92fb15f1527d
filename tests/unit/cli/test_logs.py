"""`orch logs` and `why`: what tasks printed, and what went wrong first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from orchestrator.client.waiting import LAST_LINES_MAX_S
from orchestrator.core.events import Ticked
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.head.journal.journal import Journal
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import RUN, WHY, Desk
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan


def test_logs_need_no_coordinator(orch: Desk, logs: RunLogs) -> None:
    assert orch("logs") == 0
    assert orch.put_out == "worker:0 | loading\nworker:1 | also\nworker:0 | oops\n"
    assert orch.said == ""


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("mnist", "worker:1"), "worker:1 | also\n"),
        (("worker:1",), "worker:1 | also\n"),
        ((RUN, "--tail", "1"), "worker:0 | oops\n"),
        (("--since", "9s"), "worker:1 | also\nworker:0 | oops\n"),
        (("--since", "1970-01-01T00:16:34+00:00"), "worker:0 | oops\n"),
    ],
)
def test_logs_of_a_part(orch: Desk, logs: RunLogs, argv: tuple[str, ...], expected: str) -> None:
    assert orch("logs", *argv) == 0
    assert orch.put_out == expected


def test_logs_as_json(orch: Desk, logs: RunLogs) -> None:
    assert orch("logs", "--json", "--tail", "1") == 0
    assert json.loads(orch.put_out) == {
        "time": "1970-01-01T00:16:35.000000Z",
        "run": RUN,
        "task": "worker:0",
        "generation": 1,
        "stream": "stderr",
        "text": "oops",
    }


def test_the_first_cause_is_the_headline(orch: Desk, logs: RunLogs) -> None:
    cause = {"task": "worker:1", "generation": 1, "sentence": "worker:1 was killed", "last_lines": ["also"]}
    logs.put_first_cause(RUN, cause, now=993.0)
    assert orch("logs") == 0
    assert orch.said == "first cause: worker:1 was killed\n\n"
    assert "orch" not in orch.put_out  # not decided yet


def test_the_first_cause_stands_at_its_place_in_the_log_and_is_ours(orch: Desk, logs: RunLogs) -> None:
    cause = {"task": "worker:1", "generation": 1, "sentence": "worker:1 was killed", "done": "restart"}
    logs.put_first_cause(RUN, cause, now=993.0)
    assert orch("logs") == 0
    assert orch.put_out == (
        "worker:0 | loading\n"
        "worker:1 | also\n"
        "orch     | first cause: worker:1 was killed; restart\n"
        "worker:0 | oops\n"
    )
    orch.stdout.truncate(0)
    orch.stdout.seek(0)
    assert orch("logs", "--json", "--tail", "2") == 0
    own = json.loads(orch.put_out.splitlines()[0])
    assert (own["task"], own["stream"], own["time"]) == (None, "orch", "1970-01-01T00:16:33.000000Z")
    assert orch("logs", RUN, "worker:0") == 0


def test_logs_follow_waits_for_lines_that_are_on_their_way(orch: Desk, logs: RunLogs, api: FakeApi) -> None:
    late = b"999.000000 e the last word\n"
    here = logs.end(RUN, "worker:1", 1)
    task = {"task": "worker:1", "host": "gpu-b", "generation": 1, "log_bytes": here + len(late)}
    api.runs.append(run_document(phase="FAILED", tasks=[task]))

    def arrive() -> None:
        if orch.clock > 1.0:
            logs.append(RUN, "worker:1", 1, here, late)

    orch.on_pause = arrive
    assert orch("logs", "-f", "--tail", "0") == 0
    assert orch.put_out.endswith("worker:1 | the last word\n")
    assert orch.clock < 2.0


def test_logs_follow_does_not_wait_for_a_host_that_is_gone(orch: Desk, logs: RunLogs, api: FakeApi) -> None:
    tasks = [{"task": f"worker:{n}", "host": f"h{n}", "generation": 1, "log_bytes": 1 << 20} for n in (0, 1)]
    api.runs.append(run_document(phase="FAILED", tasks=tasks, hosts=[{"host": "h1", "link": "UNREACHABLE"}]))
    assert orch("logs", "-f") == 0
    assert orch.clock == pytest.approx(LAST_LINES_MAX_S, abs=0.1)  # h0 answers, and its lines do not come
    api.runs[0]["tasks"] = tasks[1:]
    before = orch.clock
    assert orch("logs", "-f") == 0
    assert orch.clock == before


def test_why_shows_the_last_end_or_all_of_them(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.first_causes += [WHY, {**WHY, "generation": 2, "sentence": "worker:0 was killed"}]
    assert orch("why", "mnist") == 0
    assert "worker:0 was killed" in orch.put_out
    assert "worker:1 was killed" not in orch.put_out
    assert orch("why", "--all") == 0
    assert "worker:1 was killed" in orch.put_out


def test_why_as_json(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.first_causes += [{**WHY, "generation": 0}, WHY]
    assert orch("why", "--json") == 0
    found = json.loads(orch.put_out)
    assert (found["schema"], found["run_id"], found["first_causes"]) == (1, RUN, [WHY])


@pytest.mark.parametrize("is_there", [True, False])
def test_why_of_an_unknown_run(orch: Desk, request: pytest.FixtureRequest, is_there: bool) -> None:
    if is_there:
        request.getfixturevalue("api").runs.append(run_document())
    assert orch("why", "nosuch") == 2
    assert "no run is named 'nosuch'" in orch.said


def test_why_works_without_a_coordinator(orch: Desk, logs: RunLogs) -> None:
    logs.put_first_cause(RUN, {**WHY, "generation": 1}, now=1.0)
    logs.put_first_cause(RUN, {**WHY, "generation": 2}, now=2.0)
    logs.put_first_cause(RUN, {**WHY, "generation": 2, "done": "generation 3 starts"}, now=3.0)
    assert orch("why", "--all") == 0
    assert orch.put_out.count("worker:1 was killed") == 1
    assert "alike    2 times in a row, the first time in generation 1" in orch.put_out
    assert "Coordinator not running; last recorded state" in orch.said


def test_why_says_without_a_coordinator_how_a_run_has_ended_of_which_nothing_failed(
    orch: Desk, logs: RunLogs
) -> None:
    assert logs.runs()
    sentence = "leave: the time limit of job 7 is near; saved at step 40"
    run = new_run(RUN, replace(make_plan(["a", "b"], checkpoint=True), name="mnist"), epoch=1, at=0.0)
    with closing(Journal(orch.paths.journal)) as journal:
        journal.commit(replace(in_phase(run, Phase.KILLED), reason=sentence), Ticked(1.0), [])
    assert orch("why") == 0
    assert f"KILLED\n  {sentence}\n" in orch.put_out


def test_logs_follow_ends_with_the_run(orch: Desk, logs: RunLogs, api: FakeApi) -> None:
    api.runs.append(run_document())

    def go_on() -> None:
        if api.runs[0]["phase"] == "SUCCEEDED":
            return
        logs.append(RUN, "worker:1", 1, logs.end(RUN, "worker:1", 1), b"999.000000 o new\n")
        api.runs[0]["phase"] = "SUCCEEDED"

    orch.on_pause = go_on
    assert orch("logs", "-f", "--tail", "1") == 0
    assert orch.put_out == "worker:0 | oops\nworker:1 | new\n"


def test_logs_follow_outlives_the_coordinator(orch: Desk, logs: RunLogs) -> None:
    pauses = iter(range(3))

    def three_times() -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    orch.on_pause = three_times
    assert orch("logs", "-f") == 130
    assert orch.said.count("no coordinator is running") == 1


@pytest.mark.parametrize(
    ("argv", "diagnostic"),
    [
        (("mnits",), "error: no run is named 'mnits'\nhint: did you mean 'mnist'?\n"),
        (
            ("mnist", "worker:7"),
            f"error: {RUN} has no log of worker:7\nhint: its tasks: worker:0, worker:1\n",
        ),
        (("mnist", "wroker"), "error: not a task: 'wroker'; a task reads like worker:3\n"),
        (("--since", "soon"), "error: --since 'soon' is neither a duration nor a time\n"),
        (("--tail", "-1"), "error: invalid value for '--tail': -1 is less than 0\n"),
    ],
)
def test_logs_of_what_is_not(orch: Desk, logs: RunLogs, argv: tuple[str, ...], diagnostic: str) -> None:
    assert orch("logs", *argv) == 2
    assert orch.said.startswith(diagnostic)


@pytest.fixture
def cet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def two(logs: RunLogs) -> RunLogs:
    """A second generation, on other hosts."""
    for task, host in (("worker:0", "gpu-a"), ("worker:1", "gpu-b")):
        logs.put_host(RUN, task, 1, host)
        logs.put_host(RUN, task, 2, "gpu-c")
    logs.append(RUN, "worker:0", 2, 0, b"997.000000 o step 7\n997.500000 e WARNING:root:slow\n")
    traceback = (
        b"997.900000 e Traceback (most recent call last):\n997.910000 e   x\n997.920000 e KeyError: 1\n"
    )
    logs.append(RUN, "worker:1", 2, 0, b"997.100000 o step 8\n" + traceback + b"998.000000 o step 9\n")
    return logs


@pytest.mark.usefixtures("cet")
def test_times_are_local_with_their_zone_or_utc(orch: Desk, logs: RunLogs) -> None:
    assert orch("logs", "worker:1", "-t") == 0
    assert orch("logs", "worker:1", "--timestamps", "--utc") == 0
    assert orch.put_out == (
        "1970-01-01 01:16:32.000 CET worker:1 | also\n1970-01-01 00:16:32.000 UTC worker:1 | also\n"
    )


@pytest.mark.usefixtures("cet")
@pytest.mark.parametrize(
    ("since", "count"),
    [
        (("01:16:33",), 1),  # local, and the desk's clock shows 01:16:40
        (("01:17",), 3),  # that was yesterday
        (("00:16:33", "--utc"), 1),
        (("1970-01-01T01:16:31",), 2),
        (("1970-01-01T00:16:31", "--utc"), 2),
    ],
)
def test_since_a_time_of_day_is_the_last_time_that_it_was(
    orch: Desk, logs: RunLogs, since: tuple[str, ...], count: int
) -> None:
    assert orch("logs", "--since", *since) == 0
    assert len(orch.put_out.splitlines()) == count


@pytest.mark.parametrize(
    ("argv", "texts"),
    [
        (("--grep", "step [78]"), ["step 7", "step 8"]),
        (("--grep", "step", "--tail", "1"), ["step 9"]),
        (("--task", "worker:1", "--generation", "1"), ["also"]),
        (("--task", "worker:1", "--task", "worker:0", "--generation", "1"), ["loading", "also", "oops"]),
        (("--host", "gpu-b"), ["also"]),
        (("--host", "gpu-a", "--host", "gpu-b"), ["loading", "also", "oops"]),
        (
            ("--level", "warning"),
            ["WARNING:root:slow", "Traceback (most recent call last):", "  x", "KeyError: 1"],
        ),
        (("--level", "error", "--grep", "Error"), ["KeyError: 1"]),
    ],
)
def test_logs_of_what_is_selected(orch: Desk, two: RunLogs, argv: tuple[str, ...], texts: list[str]) -> None:
    assert orch("logs", "--json", *argv) == 0
    assert [json.loads(line)["text"] for line in orch.put_out.splitlines()] == texts


def test_generations_are_separated(orch: Desk, two: RunLogs) -> None:
    assert orch("logs", "--grep", "oops|step") == 0
    assert orch.put_out == (
        "worker:0 | oops\n──── generation 2 ────\nworker:0 | step 7\nworker:1 | step 8\nworker:1 | step 9\n"
    )


def test_equal_lines_of_tasks_are_shown_once(orch: Desk, two: RunLogs) -> None:
    for n in (2, 3):
        lines = b"997.300000 o step 7\n997.350000 o loss 0.5\n997.400000 o step 8\n"
        two.append(RUN, f"worker:{n}", 2, 0, lines)
    assert orch("logs", "--fold", "--generation", "2", "--grep", "step|loss") == 0
    assert orch.put_out == "worker:0 ×4 | step 7\nworker:2 ×2 | loss 0.5\nworker:2 ×3 | step 8\n"
    assert orch("logs", "--fold", "--json") == 2


def test_what_is_folded_is_shown_while_the_run_is_followed(orch: Desk, two: RunLogs, api: FakeApi) -> None:
    api.runs.append(run_document())
    seen: list[str] = []

    def end() -> None:
        seen.append(orch.put_out)
        api.runs[0]["phase"] = "SUCCEEDED"

    orch.on_pause = end
    assert orch("logs", "-f", "--fold", "--grep", "step 7") == 0
    assert seen[0] == "worker:0 | step 7\n"  # the desk's clock is past what could still be equal


def test_a_run_without_output_says_why(orch: Desk, api: FakeApi, logs: RunLogs) -> None:
    new = run_document(name="new", run_id="new-20261120-1", phase="PENDING", generation=0, reason="wait")
    api.runs.append(new)
    assert orch("logs", "new") == 0
    assert orch.said == "new-20261120-1 has started no task yet: PENDING: wait\n"
    api.runs[-1].update(generation=1, phase="RUNNING", reason="released")
    assert orch("logs", "new") == 0
    assert orch.said.endswith("new-20261120-1 has no output yet: RUNNING: released\n")
    assert orch("logs", "mnist", "--grep", "nothing has this") == 0
    assert orch.said.endswith(f"{RUN}: no line is selected\n")
    assert orch.put_out == ""


def test_a_bad_expression_is_refused(orch: Desk, logs: RunLogs) -> None:
    assert orch("logs", "--grep", "Adam(") == 2
    assert "error: 'Adam(' is no regular expression" in orch.said
    assert "hint: for that very text: 'Adam\\('\n" in orch.said


def test_a_host_that_the_run_never_had_is_refused(orch: Desk, two: RunLogs) -> None:
    assert orch("logs", "--host", "gpu-x") == 2
    assert orch.said == f"error: {RUN} has no log of gpu-x\nhint: its hosts: gpu-a, gpu-b, gpu-c\n"


def test_logs_where_nothing_ever_ran(orch: Desk) -> None:
    assert orch("logs") == 1
    assert orch.said.startswith("error: there are no runs yet\n")

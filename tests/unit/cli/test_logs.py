"""`orch logs` and `why`: what tasks printed, and what went wrong first."""

from __future__ import annotations

import json

import pytest

from orchestrator.adapters.head.runlogs import RunLogs
from orchestrator.cli.watching import LAST_LINES_MAX_S
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import RUN, WHY, Desk


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
    ],
)
def test_logs_of_what_is_not(orch: Desk, logs: RunLogs, argv: tuple[str, ...], diagnostic: str) -> None:
    assert orch("logs", *argv) == 2
    assert orch.said.startswith(diagnostic)


def test_logs_where_nothing_ever_ran(orch: Desk) -> None:
    assert orch("logs") == 1
    assert orch.said.startswith("error: there are no runs yet\n")

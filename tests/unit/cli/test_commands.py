"""Commands that show: status, events, stacks, the coordinator, and what a file resolves to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.contract.fake_api import FakeApi, event_document, run_document
from tests.unit.cli.desk import RUN, SPEC, Desk


def test_status_json_is_the_coordinators_document(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    assert orch("status", "--json") == 0
    assert json.loads(orch.put_out) == {"schema": 1, "runs": [run_document()]}
    assert orch.said == ""


def test_status_of_one_run(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(name="other", run_id="other-20261120-1"), run_document()]
    assert orch("status", "mnist", "--json") == 0
    assert [found["name"] for found in json.loads(orch.put_out)["runs"]] == ["mnist"]


def test_status_of_a_name_takes_the_run_that_is_active(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(phase="FAILED"), run_document(run_id="mnist-20261120-2")]
    assert orch("status", "mnist", "--json") == 0
    assert orch("status", "mnist-20261120-1", "--json") == 0
    decoder, text = json.JSONDecoder(), orch.put_out
    first, end = decoder.raw_decode(text)
    second, _ = decoder.raw_decode(text, end + 1)
    assert [found["runs"][0]["run_id"] for found in (first, second)] == ["mnist-20261120-2", RUN]


@pytest.mark.parametrize(("name", "hint"), [("mnits", "did you mean 'mnist'?"), ("xyz", "known runs: mnist")])
def test_status_of_a_run_that_is_not(orch: Desk, api: FakeApi, name: str, hint: str) -> None:
    api.runs.append(run_document())
    assert orch("status", name) == 2
    assert orch.said == f"error: no run is named '{name}'\nhint: {hint}\n"


def test_status_without_runs(orch: Desk, api: FakeApi) -> None:
    assert orch("status") == 0
    assert orch.put_out == "No runs yet; `orch up FILE` starts one\n"


def test_watch_without_a_terminal_shows_it_once(orch: Desk, api: FakeApi) -> None:
    assert orch("status", "-w") == 0
    assert orch.put_out == "No runs yet; `orch up FILE` starts one\n"


def test_events(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.events += [
        event_document(1, "started", "generation 1 starts"),
        event_document(2, "task-died", "worker:1 was killed by signal 9", task="worker:1"),
    ]
    assert orch("events", "mnist", "--utc") == 0
    assert orch.put_out == (
        "2026-11-20 12:00:01 UTC  started  generation 1 starts\n"
        "2026-11-20 12:00:02 UTC  task-died  worker:1 was killed by signal 9\n"
    )


def test_events_are_told_in_local_time(orch: Desk, api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.runs.append(run_document())
    api.events.append(event_document(1, "started", "generation 1 starts"))
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    try:
        assert orch("events", "mnist") == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    assert orch.put_out == "2026-11-20 13:00:01 CET  started  generation 1 starts\n"


def test_events_as_json_lines(orch: Desk, api: FakeApi) -> None:
    api.events += [event_document(1, "a", "x"), event_document(2, "b", "y")]
    assert orch("events", "--json", "--after", "1") == 0
    assert [json.loads(line) for line in orch.put_out.splitlines()] == api.events[1:]


def test_events_follow_until_the_run_has_ended(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.events.append(event_document(1, "a", "x"))

    def end() -> None:
        api.runs[0]["phase"] = "SUCCEEDED"
        if len(api.events) == 1:
            api.events.append(event_document(2, "ended", "y"))

    looks = iter([lambda: None, lambda: None, end])
    api.on_status = lambda: next(looks, end)()
    assert orch("events", "mnist", "-f", "--json") == 0
    assert [json.loads(line)["seq"] for line in orch.put_out.splitlines()] == [1, 2]


def test_stacks(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.stacks = {"worker:0": "Thread 1\n  a.py:1\n", "worker:1": "Thread 1\n"}
    assert orch("stacks") == 0
    assert orch.put_out == "worker:0\nThread 1\n  a.py:1\n\nworker:1\nThread 1\n"


def test_stacks_of_one_task(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.stacks = {"worker:0": "Thread 1\n", "worker:1": "Thread 2\n"}
    assert orch("stacks", "mnist", "worker:1") == 0
    assert orch("stacks", "worker:0") == 0
    assert orch.put_out == "worker:1\nThread 2\nworker:0\nThread 1\n"
    assert orch("stacks", "worker:7") == 2
    assert orch.said.endswith("has no running task worker:7\nhint: its tasks: worker:0, worker:1\n")


def test_coordinator_status(orch: Desk, api: FakeApi) -> None:
    assert orch("coordinator", "status") == 0
    assert orch.put_out.startswith("pid         4711\nepoch       3\nversion     0.1.0\n")
    assert orch("coordinator", "start") == 0
    assert orch.said == "Coordinator already running (pid 4711)\n"


def test_coordinator_stop_waits_for_the_end(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    orch.on_pause = api.join_close
    assert orch("coordinator", "stop") == 0
    assert orch.said == (
        "Coordinator stopped (pid 4711)\n"
        f"warning: nobody restarts {RUN} after a failure until `orch coordinator start`\n"
    )


def test_coordinator_stop_twice(orch: Desk) -> None:
    assert orch("coordinator", "stop") == 0
    assert orch.said == "No coordinator is running\n"


def test_validate(orch: Desk, spec: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(SPEC.replace("hosts:", "hsots:"))
    assert orch("validate", spec) == 0
    assert orch.put_out == f"{spec}: ok\n"
    assert orch("validate", spec, str(tmp_path / "bad.yaml")) == 2
    assert "bad.yaml:3:1: " in orch.said


def test_plan_is_a_document_without_secrets(orch: Desk, spec: str) -> None:
    assert orch("plan", spec, "--json") == 0
    tasks = json.loads(orch.put_out)["tasks"]
    assert [task["task"] for task in tasks] == ["worker:0", "worker:1"]
    assert tasks[0]["tf_config"]["task"] == {"type": "worker", "index": 0}
    assert json.loads(tasks[1]["env"]["TF_CONFIG"])["cluster"]["worker"] == [t["address"] for t in tasks]


def test_a_dry_run_is_the_plan_and_starts_nothing(orch: Desk, spec: str) -> None:
    assert orch("plan", spec) == 0
    planned = orch.put_out
    assert orch("up", spec, "--dry-run") == 0
    assert orch.put_out == planned * 2
    assert not os.path.exists(orch.paths.coordinator_log)


def test_schema(orch: Desk) -> None:
    assert orch("schema") == 0
    assert "properties" in json.loads(orch.put_out)

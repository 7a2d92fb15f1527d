"""`orch up`: starts a run, and stays with it as long as it was asked to."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.waiting import AWAY_MAX_S, LEFT_MAX_S
from orchestrator.core.words import size
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi, event_document, run_document, task_document
from tests.unit.cli.desk import RUN, WHY, Desk, phases


def test_up_waits_until_it_trains(orch: Desk, api: FakeApi, spec: str) -> None:
    phases(api, {}, {"phase": "RENDEZVOUS"}, {"phase": "RUNNING"})
    api.events.append(event_document(1, "started", "generation 1 starts"))
    api.events.append(event_document(2, "started", "an older run's", run="mnist-20261119-1"))
    api.events += [event_document(number, "warning", f"the {number}th") for number in (3, 4, 5, 6)]
    api.events_max = 1  # of a large run there are more than one answer holds, and more than there are looks
    assert orch("up", spec) == 0
    pushed = size(sum(file.stat().st_size for file in Path(spec).parent.iterdir() if file.is_file()))
    assert orch.put_out == f"{RUN}\n"
    assert orch.said == (
        f"pushes 2 files ({pushed}) of {Path(spec).parent}\n"
        "warning: a fault costs everything since step 0: nothing is kept: give `checkpoint: {dir: …}` in the spec\n"
        "2026-11-20 12:00:01 UTC  started  generation 1 starts\n"
        "2026-11-20 12:00:03 UTC  warning  the 3th\n"
        "2026-11-20 12:00:04 UTC  warning  the 4th\n"
        "2026-11-20 12:00:05 UTC  warning  the 5th\n"
        "2026-11-20 12:00:06 UTC  warning  the 6th\n"
        f"{RUN} trains (step 120). Logs: orch logs -f mnist\n"
    )
    path, body = api.posted[0]
    assert (path, body["from_scratch"], body["plan"]["tasks"][1]["id"]) == (
        "/v1/runs",
        False,
        {"type": "worker", "index": 1},
    )


def test_up_waits_for_the_first_step_and_not_for_the_release(orch: Desk, api: FakeApi, spec: str) -> None:
    released = {"phase": "RUNNING", "global_step": 100, "has_stepped": False}
    phases(api, released, {**released, "phase": "STOPPING"}, {**released, "phase": "FAILED"})
    assert orch("up", spec) == 1, "a typo that fails a second after the release"
    assert "trains" not in orch.said


def test_up_waits_for_a_script_that_tells_nothing_for_some_time_only(
    orch: Desk, api: FakeApi, spec: str
) -> None:
    tasks = [{**task_document(0), "stage": "building"}, {**task_document(1), "stage": None}]
    untold = {"phase": "RUNNING", "global_step": None, "has_stepped": False, "tasks": tasks}
    connects = [{**tasks[0], "stage": "connecting"}, tasks[1]]
    phases(
        api,
        {**untold, "phase_age_s": 29.0},
        {**untold, "phase_age_s": 40.0, "tasks": connects},
        {**untold, "phase_age_s": 41.0},
    )
    assert orch("up", spec) == 0
    assert orch.said.endswith(
        f"{RUN} has run for 30 s; its script has reported no step. Logs: orch logs -f mnist\n"
    )
    assert api.runs[-1]["phase_age_s"] == 41.0, "one that connects is waited for"


def test_up_does_not_sleep_on_what_happens_while_it_looks(orch: Desk, api: FakeApi, spec: str) -> None:
    """The status is that of just before; the next look must not wait for yet another event."""

    def happens_after_the_status() -> None:
        if api.events:
            api.runs[-1]["phase"] = "RUNNING"
        else:
            api.events.append(event_document(1, "running", "training started"))

    api.on_status = happens_after_the_status
    assert orch("up", spec) == 0
    assert orch.clock == 0.0
    assert "training started" in orch.said


def test_up_says_what_is_left_out(orch: Desk, api: FakeApi, spec: str) -> None:
    phases(api, {"phase": "RUNNING"})
    Path(spec).with_name(".env").write_text("TOKEN=1")
    assert orch("up", spec) == 0
    assert "left out 1 file that looks like a secret: .env; name them in .orchignore with !" in orch.said


def test_up_of_too_much_names_the_largest_and_starts_nothing(orch: Desk, api: FakeApi, spec: str) -> None:
    with Path(spec).with_name("data.bin").open("wb") as file:
        file.truncate(300_000_000)
    assert orch("up", spec) == 2
    assert f"{spec}:8:12: run.workdir: {Path(spec).parent} holds 286 MiB in 3 files" in orch.said
    assert "the largest: data.bin (286 MiB), cluster.yaml" in orch.said
    assert "hint: name data and results in .orchignore" in orch.said
    assert api.posted == []
    Path(spec).write_text(Path(spec).read_text() + "  push_limit: 400MB\n")
    phases(api, {"phase": "RUNNING"})
    assert orch("up", spec) == 0


def test_up_of_what_runs_already_pushes_nothing_however_large_it_has_grown(
    orch: Desk, api: FakeApi, spec: str
) -> None:
    api.runs.append(run_document())
    with Path(spec).with_name("data.bin").open("wb") as file:
        file.truncate(300_000_000)
    assert orch("up", spec) == 0
    assert "pushes" not in orch.said


def test_up_detach(orch: Desk, api: FakeApi, spec: str) -> None:
    assert orch("up", spec, "--detach", "--json") == 0
    assert json.loads(orch.put_out) == {"run_id": RUN, "name": "mnist", "created": True}


def test_up_without_setup_imports_nothing_of_the_coordinator(
    orch: Desk, api: FakeApi, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "orchestrator.client.setting_up", None)  # an import of it raises
    assert orch("up", spec, "--detach") == 0
    Path(spec).with_name("needs.txt").write_text("numpy\n")
    Path(spec).write_text(f"{Path(spec).read_text()}setup: {{requirements: needs.txt}}\n")
    assert orch("up", spec, "--detach", "--restart") != 0, "with `setup:` it is needed"
    assert "orchestrator.client.setting_up" in orch.said


def test_up_of_what_runs_already(orch: Desk, api: FakeApi, spec: str) -> None:
    api.runs.append(run_document())
    api.events.append(event_document(1, "started", "long ago"))
    assert orch("up", spec) == 0
    assert orch.put_out == f"{RUN}\n"
    assert orch.said == (
        f"{RUN} is already running with this plan; whether its code has changed is not known\n"
        f"{RUN} trains (step 120). Logs: orch logs -f mnist\n"
    )


@pytest.mark.parametrize(("phase", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("KILLED", 1)])
def test_up_wait_ends_with_the_runs_own_outcome(
    orch: Desk, api: FakeApi, spec: str, phase: str, code: int
) -> None:
    phases(api, {"phase": "RUNNING"}, {}, {"phase": phase})
    assert orch("up", spec, "--wait") == code
    assert f"{RUN}  {phase}" in orch.said


def test_up_of_a_run_that_fails_says_why(orch: Desk, api: FakeApi, spec: str) -> None:
    cause = {"task": "worker:1", "sentence": "worker:1 on here exited with 1", "last_lines": ["Boom"]}
    problem = {"message": "here: no Python", "hint": "install it", "exit_code": 5}
    phases(api, {"phase": "FAILED", "first_cause": cause, "problem": problem})
    assert orch("up", spec) == 5
    for text in (
        "first cause: worker:1 on here exited with 1\n",
        "worker:1 | Boom\n",
        "problem: here: no Python",
    ):
        assert text in orch.said


def test_up_of_a_run_that_never_started_names_no_logs(orch: Desk, api: FakeApi, spec: str) -> None:
    problem = {"message": "here: no Python", "hint": "install it", "exit_code": 5}
    phases(api, {"phase": "FAILED", "generation": 0, "problem": problem})
    assert orch("up", spec) == 5
    assert "orch logs" not in orch.said


def test_up_wait_gives_up(orch: Desk, api: FakeApi, spec: str) -> None:
    assert orch("up", spec, "--wait", "--timeout", "3s") == 7
    assert f"error: {RUN} is still PENDING after 3 s: connecting\n" in orch.said


def test_up_follow_shows_the_logs_and_the_outcome(orch: Desk, api: FakeApi, spec: str, logs: RunLogs) -> None:
    phases(api, {"phase": "RUNNING"}, {"global_step": 130}, {"phase": "SUCCEEDED", "reason": "accuracy"})
    assert orch("up", spec, "--follow") == 0
    assert orch.put_out == f"{RUN}\nworker:0 | loading\nworker:1 | also\nworker:0 | oops\n"
    assert f"{RUN}  SUCCEEDED" in orch.said


def test_up_follow_shows_equal_lines_once_and_not_what_tensorflow_tells_of_itself(
    orch: Desk, api: FakeApi, spec: str, logs: RunLogs
) -> None:
    told = b"996.0 e I0000 00:00:1795863049.940103    7280 cpu_feature_guard.cc:227] This TensorFlow binary\n"
    before = {"worker:0": b"990.000000 o loading\n995.000000 e oops\n", "worker:1": b"992.000000 o also\n"}
    for task, text in before.items():
        logs.append(RUN, task, 1, len(text), told + b"996.5 o Epoch 1/3\n")
    phases(api, {"phase": "RUNNING"}, {"phase": "SUCCEEDED", "reason": "accuracy"})
    assert orch("up", spec, "--follow") == 0
    assert "I0000" not in orch.put_out
    assert orch.put_out.count("Epoch 1/3") == 1
    assert "worker:0 ×2 | Epoch 1/3\n" in orch.put_out


def test_up_follow_shows_only_lines_of_the_level_that_is_asked_for(
    orch: Desk, api: FakeApi, spec: str, logs: RunLogs
) -> None:
    logs.append(
        RUN, "worker:0", 1, len(b"990.000000 o loading\n995.000000 e oops\n"), b"996.0 e ERROR: it broke\n"
    )
    phases(api, {"phase": "RUNNING"}, {"phase": "SUCCEEDED", "reason": "accuracy"})
    assert orch("up", spec, "--follow", "--level", "error") == 0
    assert orch.put_out == f"{RUN}\nworker:0 | ERROR: it broke\n"
    assert orch("up", spec, "--level", "error") == 2
    assert "--level is for --follow" in orch.said


def test_up_follow_says_a_first_cause_once(orch: Desk, api: FakeApi, spec: str, logs: RunLogs) -> None:
    decided = {**WHY, "done": "restart at once"}
    phases(api, {"phase": "RUNNING"}, {"phase": "SUCCEEDED", "reason": "accuracy"})
    api.events += [
        event_document(1, "stopping", "it stops"),
        event_document(2, "backoff", "restart: worker:1 was killed", data={"first_cause": decided}),
    ]
    logs.put_first_cause(RUN, decided, now=996.0)
    assert orch("up", spec, "--follow") == 0
    assert orch.put_out.count("first cause: worker:1 was killed; restart at once") == 1
    assert "it stops" in orch.said
    assert "worker:1 was killed" not in orch.said


def test_what_follows_from_an_event_at_once_is_said_once(orch: Desk, api: FakeApi, spec: str) -> None:
    died, ends = "worker:1 on here was killed", "it cannot go on"
    phases(api, {"phase": "RUNNING"}, {"phase": "FAILED", "reason": ends})
    api.events += [
        event_document(1, "task-exited", died, task="worker:1"),
        event_document(2, "stopping", died, task="worker:1"),
        event_document(3, "task-exited", f"{died} too", task="worker:0"),
        event_document(4, "stopping", "another reason", task="worker:1"),
        event_document(5, "running", "on it goes"),
        event_document(6, "stopping", ends),
        event_document(7, "failed", ends),
        event_document(8, "of another version", "something else"),
    ]
    assert orch("up", spec, "--wait") == 1
    shown = [line.partition("2026-11-20 ")[2] for line in orch.said.splitlines() if "2026-11-20 " in line]
    assert [line.split("  ")[1] for line in shown] == [
        "task-exited",
        "task-exited",
        "stopping",
        "running",
        "stopping",
        "of another version",
    ]


def test_ctrl_c_in_follow_leaves_it_running(orch: Desk, api: FakeApi, spec: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    orch.on_pause = interrupt
    assert orch("up", spec, "--follow") == 0
    assert f"Detached; {RUN} keeps running. Reattach:\n" in orch.said
    assert "orch logs -f mnist\n  orch status mnist\n  orch kill mnist\n" in orch.said
    assert orch("up", spec, "--wait") == 130


def test_what_a_run_waits_for_is_said_once_and_its_time_once_a_minute(
    orch: Desk, api: FakeApi, spec: str
) -> None:
    def tell() -> None:
        waits = f"0/2 hosts are ready; waiting for gpu-b (unreachable, for {api_time():.0f} s)"
        api.runs[-1].update(phase="PENDING", reason=waits)

    def api_time() -> float:
        return orch.clock

    api.on_status = tell
    assert orch("up", spec, "--wait", "--timeout", "290s") == 7
    assert 4 <= orch.said.count("PENDING: 0/2 hosts are ready; waiting for gpu-b") <= 6


class Terminal(StringIO):
    """A stderr that a person sees."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", ["up", "kill"])
def test_on_a_terminal_what_a_run_waits_for_is_one_line_that_is_rewritten(
    orch: Desk, api: FakeApi, spec: str, command: str
) -> None:
    def tell() -> None:
        waits = f"0/2 hosts are ready; waiting for gpu-b (unreachable, for {orch.clock:.0f} s)"
        phase = "STOPPING" if command == "kill" else "PENDING"
        is_over = orch.clock > 100
        api.runs[-1].update(phase="KILLED" if is_over else phase, reason="ended" if is_over else waits)

    orch.err = orch.stderr = terminal = Terminal()
    api.on_status = tell
    if command == "up":
        assert orch("up", spec, "--wait") == 1
    else:
        api.runs = [run_document(phase="STOPPING", name="mnist")]
        orch("kill", "mnist", "--yes")
    lines = terminal.getvalue().split("\n")
    waits = [line for line in lines if "waiting for gpu-b" in line]
    assert len(waits) <= 2, waits
    assert max(line.count("\r\x1b[K") for line in waits) > 10, "it is shown again and again, in its place"
    last = terminal.getvalue().rpartition("\r\x1b[K")[2]
    assert "waiting for gpu-b" not in last, "it made room for what comes then"


def test_up_waits_for_a_coordinator_that_comes_back(orch: Desk, api: FakeApi, spec: str) -> None:
    phases(api, {"phase": "PENDING"})
    again: list[FakeApi] = []

    def restart() -> None:
        if not again:
            api.close()
            again.append(api)
        elif len(again) == 1:
            other = FakeApi(Path(orch.paths.socket))
            other.runs = [run_document(phase="SUCCEEDED", name="mnist")]
            again.append(other.__enter__())

    orch.on_pause = restart
    try:
        assert orch("up", spec, "--wait") == 0
    finally:
        for server in again[1:]:
            server.close()
    assert orch.said.count("the run continues without it") == 1
    assert "The coordinator answers again\n" in orch.said


def test_up_asks_a_busy_coordinator_again(orch: Desk, api: FakeApi, spec: str) -> None:
    phases(api, {"phase": "STARTING"}, {"phase": "STARTING"}, {"phase": "SUCCEEDED"})
    api.busy = 9
    orch.on_pause = lambda: setattr(orch, "clock", orch.clock + 20.0)  # it may be so for minutes
    assert orch("up", spec, "--wait") == 0
    assert orch.clock > AWAY_MAX_S
    assert orch.said.count("The coordinator is busy and has not answered yet; it is asked again\n") == 1
    assert orch.said.count("The coordinator answers again\n") == 1


def test_up_wait_says_what_happened_between_its_last_two_looks(orch: Desk, api: FakeApi, spec: str) -> None:
    """The events are asked for before the status, which may be later than they are."""

    def ends_after_the_events() -> None:
        api.runs[-1]["phase"] = "SUCCEEDED"
        api.events[:] = [event_document(1, "succeeded", "all tasks have ended well")]

    api.on_status = ends_after_the_events
    assert orch("up", spec, "--wait") == 0
    assert "all tasks have ended well" in orch.said


@pytest.mark.parametrize("directory", [None, "/here/outputs/mnist"])
def test_up_waits_for_what_is_fetched_and_a_moment_for_what_is_only_looked_for(
    orch: Desk, api: FakeApi, spec: str, directory: str | None
) -> None:
    outputs: dict[str, Any] = {"pending": True, "directory": directory, "tasks": [], "problems": []}
    phases(api, {"phase": "SUCCEEDED", "outputs": outputs})
    orch.on_pause = lambda: outputs.update(pending=orch.clock < 30.0)
    assert orch("up", spec, "--wait") == 0
    waited_s = LEFT_MAX_S if directory is None else 30.0
    assert waited_s <= orch.clock < waited_s + 1.0
    assert orch.said.count(f"Fetching `outputs` to {directory}\n") == (directory is not None)


def test_up_with_two_ways_to_stay(orch: Desk, spec: str) -> None:
    assert orch("up", spec, "--wait", "--detach") == 2


def test_up_of_a_file_that_is_not(orch: Desk, tmp_path: Path) -> None:
    assert orch("up", str(tmp_path / "none.yaml")) == 2
    assert "none.yaml" in orch.said


def test_one_task_is_shown_for_a_run_with_one(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(tasks=[task_document(0)]))
    assert orch("status") == 0
    assert "worker:0" in orch.put_out
    assert "worker:1" not in orch.put_out

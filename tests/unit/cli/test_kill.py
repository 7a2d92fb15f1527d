"""`orch kill`: ends runs, and what it says is left."""

from __future__ import annotations

import fcntl
import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.commands import kill
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import RUN, Desk, phases
from tests.unit.cli.pods import Pods
from tests.unit.head.recording import Head

PROVEN = {
    "hosts": {
        "gpu-a": {"left": [], "ports_busy": [], "by": "cgroup"},
        "gpu-b": {"left": [], "ports_busy": [], "by": "marker"},
    },
    "unreachable": [],
}


def kills(api: FakeApi, proof: dict[str, Any]) -> None:
    """Let a kill stop the run, and make it KILLED at the third status after that."""

    def kill(found: dict[str, Any]) -> None:
        found.update(phase="STOPPING", reason="2 tasks are asked to end")
        phases(api, {}, {}, {"phase": "KILLED", "proof": proof})

    api.on_kill = kill


def test_kill_proves_it(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    kills(api, PROVEN)
    assert orch("kill", "--yes") == 0
    assert orch.put_out == (
        f"{RUN}: KILLED\n"
        "  gpu-a: no leftover processes, ports free (checked by cgroup)\n"
        "  gpu-b: no leftover processes, ports free (checked by marker)\n"
        "  cgroup: each task's control group, which holds every process that it has started\n"
        "  marker: no control group can be made on the host: processes are found by ORCH_RUN in their environment, by "
        "recorded pid, and as children of the shim; a process that outlived its shim and has another environment or "
        "user would not be found\n"
    )
    assert orch.said == f"{RUN}: STOPPING: 2 tasks are asked to end\n"
    assert api.posted == [(f"/v1/runs/{RUN}/kill", {"force": False})]


def test_kill_names_the_host_that_did_not_answer(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    kills(api, {"hosts": {"gpu-a": {"left": [], "ports_busy": []}}, "unreachable": ["gpu-b"]})
    assert orch("kill", "mnist") == 4
    assert "  gpu-a: no leftover processes, ports free\n  gpu-b: unreachable, not checked" in orch.put_out
    assert "error: could not check gpu-b: no answer\n" in orch.said


def test_a_kill_that_is_repeated_names_the_host_that_was_not_checked(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(phase="KILLED", proof={"hosts": {}, "unreachable": ["gpu-b"]}))
    assert orch("kill", "mnist") == 4
    assert orch.said.startswith(f"{RUN} had already ended: KILLED\nerror: could not check gpu-b: no answer\n")
    assert api.posted == []


@pytest.mark.parametrize("left", ["pid 4242: D state", {"pid": 4242, "why": "D state"}])
def test_kill_names_what_cannot_be_killed(orch: Desk, api: FakeApi, left: object) -> None:
    api.runs.append(run_document())
    kills(api, {"hosts": {"gpu-a": {"left": [left], "ports_busy": [20001]}}, "unreachable": ["gpu-b"]})
    assert orch("kill", "--force", "mnist") == 6
    assert (
        "error: could not be killed: gpu-a pid 4242: D state; gpu-a ports still in use: 20001\n" in orch.said
    )
    assert api.posted == [(f"/v1/runs/{RUN}/kill", {"force": True})]


def test_kill_of_a_run_that_has_ended(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(phase="SUCCEEDED"))
    assert orch("kill", "mnist") == 0
    assert (orch.put_out, orch.said) == ("", f"{RUN} had already ended: SUCCEEDED\n")
    assert api.posted == []


def test_the_only_run_that_nobody_named_is_not_stopped_unasked(
    orch: Desk, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.runs.append(run_document())
    assert orch("kill") == 6
    assert "no NAME is given, and no terminal to ask on" in orch.said
    assert "`orch kill mnist`, or add --yes" in orch.said
    monkeypatch.setattr(kill, "is_interactive", lambda _: True)
    monkeypatch.setattr(kill, "confirm", lambda _session, _question: False)
    assert orch("kill") == 6
    assert "not confirmed; nothing was stopped" in orch.said
    assert api.posted == []
    asked: list[str] = []

    def agree(_session: object, question: str) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(kill, "confirm", agree)
    kills(api, PROVEN)
    assert orch("kill") == 0
    assert asked == [f"Stop {RUN}?"]


def test_kill_without_a_name_where_two_run(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(), run_document(name="big", run_id="big-20261120-1")]
    assert orch("kill") == 2
    assert orch.said == "error: 2 runs are active: mnist, big\nhint: name one: `orch kill mnist`\n"
    assert api.posted == []


def test_kill_all(orch: Desk, api: FakeApi) -> None:
    api.runs += [run_document(phase="FAILED"), run_document(name="big", run_id="big-20261120-1")]
    kills(api, PROVEN)
    assert orch("kill", "--all", "--json") == 0
    assert [found["run_id"] for found in json.loads(orch.put_out)["runs"]] == ["big-20261120-1"]
    assert orch("kill", "--all") == 0
    assert orch.said.endswith("No run is active\n")


HALTED = f"nothing is decided about {RUN} any more"


def refuses(api: FakeApi, run_id: str, message: str, *, code: str, exit_code: int) -> None:
    """Let the coordinator refuse what is asked of one run."""
    error = {"code": code, "message": message, "hint": f"it is about {run_id}", "exit_code": exit_code}
    api.refusals[run_id] = 409, {"error": error}


@pytest.mark.parametrize("words", [("--all",), ("mnist", "big")])
def test_a_run_whose_kill_is_refused_keeps_no_other_from_ending(
    words: tuple[str, ...], orch: Desk, api: FakeApi
) -> None:
    other = "big-20261120-1"
    api.runs += [run_document(), run_document(name="big", run_id=other)]
    refuses(api, RUN, HALTED, code="decisions-stopped", exit_code=6)
    kills(api, PROVEN)
    assert orch("kill", *words) == 6
    assert [path for path, _ in api.posted] == [f"/v1/runs/{run_id}/kill" for run_id in (RUN, other)]
    assert orch.put_out.startswith(f"{other}: KILLED\n")
    assert orch.said.startswith(f"warning: {RUN} is not being ended: {HALTED}\n")
    assert orch.said.endswith(f"error: not ended: {RUN}\nhint: it is about {RUN}\n")


def test_all_runs_whose_kill_is_refused_are_named(orch: Desk, api: FakeApi) -> None:
    other = "big-20261120-1"
    api.runs += [run_document(), run_document(name="big", run_id=other)]
    refuses(api, RUN, "busy", code="busy", exit_code=1)
    refuses(api, other, "nothing is decided", code="decisions-stopped", exit_code=6)
    assert orch("kill", "--all") == 1, "as the first refusal says"
    assert f"error: not ended: {RUN}, {other}\n" in orch.said
    assert "No run is active" not in orch.said


def test_the_refusal_of_the_only_run_is_the_error(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    refuses(api, RUN, HALTED, code="decisions-stopped", exit_code=6)
    assert orch("kill", "--all") == 6
    assert orch.said == f"error: {HALTED}\nhint: it is about {RUN}\n"


def test_kill_all_and_a_name(orch: Desk, api: FakeApi) -> None:
    assert orch("kill", "--all", "mnist") == 2


@pytest.mark.fault(90)
def test_a_kill_that_waits_long_says_so_again_and_again(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document())
    api.on_kill = lambda found: found.update(phase="STOPPING", reason="checking b for leftover processes")
    assert orch("kill", "mnist", "--timeout", "12s") == 7
    line = f"{RUN}: STOPPING: checking b for leftover processes"
    assert re.match(rf"{line}\n{line}, for 5(\.\d)? s so far\n{line}, for 10 s so far\n", orch.said)


def test_a_kill_that_takes_too_long(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(phase="STOPPING", reason="waits for gpu-b"))
    assert orch("kill", "mnist", "--timeout", "2s") == 7
    assert f"error: {RUN} is still STOPPING: waits for gpu-b\n" in orch.said


def test_pods_without_a_run_need_no_coordinator(orch: Desk, pods: Pods) -> None:
    pods.lend("waiting")
    assert orch("kill", "waiting") == 0
    assert orch.said == "waiting had no run yet; its pods are given back: deleted StatefulSet waiting\n"
    assert (pods.lent, pods.sets) == ([], [])


def test_a_run_of_the_name_of_pods_that_wait_is_killed_too(orch: Desk, api: FakeApi, pods: Pods) -> None:
    pods.lend("mnist")
    api.runs.append(run_document())
    kills(api, PROVEN)
    assert orch("kill", "mnist") == 0
    assert api.posted == [(f"/v1/runs/{RUN}/kill", {"force": False})]
    assert f"{RUN}: KILLED\n" in orch.put_out
    assert pods.lent == []


@pytest.mark.parametrize("words", [("t",), ("--all",), ("--yes",)])
def test_a_run_whose_coordinator_died_is_killed_by_a_new_one(
    words: tuple[str, ...], orch: Desk, pods: Pods
) -> None:
    head = Head(Path(orch.paths.journal))
    head.begin()
    head.train(10)
    head.end()
    pods.lend("t")
    begun: list[FakeApi] = []

    def begin() -> None:
        if not begun:
            begun.append(FakeApi(Path(orch.paths.socket)).__enter__())
            begun[0].runs.append(run_document(name="t", run_id="t-20260101-000000", phase="RUNNING"))
            kills(begun[0], PROVEN)

    orch.on_pause = begin
    try:
        # Another process has the journal already, so that none is started here
        with open(orch.paths.lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert orch("kill", *words) == 0
    finally:
        for server in begun:
            server.close()
    assert "Starting the coordinator" in orch.said
    assert "t-20260101-000000: KILLED" in orch.put_out


def test_nothing_is_started_to_kill_what_has_ended(orch: Desk) -> None:
    assert orch("kill", "t") == 3
    assert "error: no coordinator is running" in orch.said
    assert "Starting the coordinator" not in orch.said


def test_pods_that_wait_and_another_run(orch: Desk, api: FakeApi, pods: Pods) -> None:
    pods.lend("waiting")
    api.runs.append(run_document())
    kills(api, PROVEN)
    assert orch("kill", "waiting", "mnist") == 0
    assert api.posted == [(f"/v1/runs/{RUN}/kill", {"force": False})]
    assert pods.lent == []


@pytest.mark.parametrize("words", [("--all",), ("waiting", "mnist")])
def test_an_api_server_that_is_away_keeps_no_run_alive(
    words: tuple[str, ...], orch: Desk, api: FakeApi, pods: Pods
) -> None:
    pods.lend("waiting")
    pods.set(down=True)
    api.runs.append(run_document())
    kills(api, PROVEN)
    assert orch("kill", *words) == 3, "pods are still lent"
    assert "warning: the pods of waiting are not given back: kubectl (namespace lab): Unable to" in orch.said
    assert "error: kubectl (namespace lab): Unable to connect to the server" in orch.said
    assert api.posted == [(f"/v1/runs/{RUN}/kill", {"force": False})]
    assert f"{RUN}: KILLED\n" in orch.put_out
    assert pods.lent == ["waiting"]


def test_kill_all_and_a_name_gives_nothing_back(orch: Desk, pods: Pods) -> None:
    pods.lend("waiting")
    assert orch("kill", "--all", "waiting") == 2
    assert pods.lent == ["waiting"]


def fetching(directory: str | None = "/here/outputs/mnist") -> dict[str, Any]:
    return {"pending": True, "directory": directory, "tasks": [], "problems": []}


def test_pods_of_an_ended_run_stay_while_its_outputs_come(orch: Desk, api: FakeApi, pods: Pods) -> None:
    pods.lend("mnist", has_run=True)
    api.runs.append(run_document(phase="SUCCEEDED", outputs=fetching()))

    def on_pause() -> None:
        if orch.clock > 30.0:
            api.runs[-1]["outputs"]["pending"] = False
        else:
            assert pods.lent == ["mnist"]

    orch.on_pause = on_pause
    assert orch("kill", "mnist") == 0
    assert "Fetching `outputs` to /here/outputs/mnist: the pods of mnist are kept until then\n" in orch.said
    assert 45.0 <= orch.clock < 50.0, "then the coordinator has its time to give them back"
    assert pods.lent == []


def test_a_fetch_that_outlasts_the_patience_keeps_its_pods(orch: Desk, api: FakeApi, pods: Pods) -> None:
    pods.lend("mnist", has_run=True)
    api.runs.append(run_document(phase="SUCCEEDED", outputs=fetching()))
    assert orch("kill", "mnist", "--timeout", "20s") == 7
    assert "hint: the coordinator gives the pods back then" in orch.said
    assert pods.lent == ["mnist"]


def test_what_is_only_looked_for_keeps_no_pods(orch: Desk, api: FakeApi, pods: Pods) -> None:
    pods.lend("mnist", has_run=True)
    api.runs.append(run_document(phase="KILLED", outputs=fetching(None)))
    assert orch("kill", "mnist") == 0
    assert orch.clock < 20.0
    assert pods.lent == []

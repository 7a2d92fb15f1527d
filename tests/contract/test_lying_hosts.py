"""Hosts that lie: nothing of it reaches the journal, they are named, and other hosts and runs go on."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.plan import CheckpointPlan
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.head.hosts.recovery import EPOCH_BELIEVED_MAX, Trusted, search
from orchestrator.head.journal.states import dump_run
from orchestrator.head.links.query import Asker
from orchestrator.protocol.orders.records import KnownRun
from orchestrator.protocol.reports import Said, Task
from tests.contract.fake_agent import BUNDLE, FACTS, always, until
from tests.contract.test_api import Rig
from tests.protocol_values import valid
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eko\x00"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202eko\x00"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def submit_on_b(rig: Rig) -> str:
    """Begin a run that needs only host b."""
    plan = replace(
        make_plan(["b"], checkpoint=False), name="u", hosts=(rig.hosts.plans["b"],), workdir=str(rig.workdir)
    )
    document = json.loads(json.dumps(asdict(plan)))
    return str(rig.client.post("/v1/runs", {"plan": document, "secrets": {}})["run_id"])


def host(rig: Rig, name: str) -> dict[str, Any]:
    (run,) = rig.client.get("/v1/status", {"name": "t"})["runs"]
    (found,) = [one for one in run["hosts"] if one["host"] == name]
    return dict(found)


def running(task: str, **changes: Any) -> Task:
    told: dict[str, Any] = {"task": task, "generation": 1, "phase": "starting", "pid": 4242, **changes}
    return told  # type: ignore[return-value]


@pytest.mark.fault(56)
def test_row_56_a_host_that_lies_is_named_and_costs_nobody_else_anything(rig: Rig) -> None:
    run_id = rig.submit()["run_id"]
    other_id = submit_on_b(rig)
    liar, honest = rig.hosts.agents["a"], rig.hosts.agents["b"]
    until(lambda: rig.phase() == "RENDEZVOUS")
    for lies in (1, 2):
        liar.wait_order("watch", count=lies)
        liar.report({run_id: [running("worker:0", global_step=10**400)]})
    until(lambda: "misbehaves" in (host(rig, "a")["problem"] or ""))
    said = host(rig, "a")["problem"]
    assert f"a sent a report that orch cannot use: runs.{run_id}[0].global_step is a number of" in said
    honest.report({run_id: [running("worker:1")], other_id: [running("worker:0", pid=7)]})
    until(lambda: rig.client.get("/v1/status", {"name": "u"})["runs"][0]["tasks"][0]["pid"] == 7)
    assert host(rig, "b")["problem"] is None
    assert len(honest.connected_at) == 1
    rig.stop_coordinator()
    rig.start_coordinator()
    assert {run["name"] for run in rig.client.get("/v1/status")["runs"]} == {"t", "u"}
    until(lambda: rig.client.get("/v1/coordinator")["hosts"]["b"])


@pytest.mark.fault(80)
def test_row_80_what_a_host_reports_of_another_hosts_task_changes_nothing(rig: Rig) -> None:
    """The chief's exit with 0 would end the run, its generation would start another."""
    run_id = rig.submit()["run_id"]
    liar, honest = rig.hosts.agents["b"], rig.hosts.agents["a"]
    honest.wait_order("start")
    honest.report({run_id: [running("worker:0", pid=1)]})
    until(lambda: rig.status()["tasks"][0]["pid"] == 1)
    ended: dict[str, Any] = {"code": 0, "signal": None, "ago_s": 0.0, "cause": "script", "last_lines": []}
    liar.report({run_id: [running("worker:0", pid=666, phase="exited", exit=ended)]})
    liar.report({run_id: [running("worker:0", pid=667, global_step=9), running("worker:1", pid=2)]})
    liar.wait_order("stop")
    until(lambda: rig.status()["tasks"][1]["pid"] == 2)
    run = rig.status()
    assert (run["phase"], run["generation"], run["global_step"]) == ("RENDEZVOUS", 1, None)
    assert [task["pid"] for task in run["tasks"]] == [1, 2]
    assert "stop" not in honest.verbs()


@pytest.mark.fault(80)
def test_a_host_that_is_asked_by_recover_lifts_no_epoch_and_claims_no_task_of_others(rig: Rig) -> None:
    """Over the real wire: `orch recover` connects, and each host answers `runs`."""
    rig.stop_coordinator()
    plan = replace(make_plan(["a", "b"], checkpoint=False), hosts=tuple(rig.hosts.plans.values()))
    run = replace(new_run("t-20260101-000000", plan, epoch=4, at=0.0), generation=1, generation_last=1)
    run = in_phase(replace(run, tasks=tuple(replace(one, generation=1) for one in run.tasks)), Phase.RUNNING)
    record = {"epoch": 4, "written_at": 5.0, "revision": 1, "state": dump_run(run)}

    def known(*tasks: Task, **changes: Any) -> dict[str, Any]:
        told = [{**task, "phase": "running", "alive": True} for task in tasks]
        return {
            **valid(KnownRun),
            "run": run.run_id,
            "directory": True,
            "epoch": 4,
            "watched": False,
            "alive": True,
            "tasks": told,
            "record": record,
            **changes,
        }

    lie = known(running("worker:1", pid=2), running("worker:0", pid=9, generation=7), epoch=(1 << 63) - 1)
    rig.hosts.agents["a"].answers["runs"] = always({"runs": [known(running("worker:0", pid=1))]})
    rig.hosts.agents["b"].answers["runs"] = always({"runs": [lie]})
    asker = Asker({"fake": rig.hosts.transport}, lambda: BUNDLE)
    looked = search(asker, Trusted((plan,)), timeout_s=15.0, at=1000.0)
    adopted = looked.runs[run.run_id].run
    rig.start_coordinator()
    assert looked.epoch == EPOCH_BELIEVED_MAX
    assert adopted is not None
    assert [(task.host, task.pid, task.generation) for task in adopted.tasks] == [("a", 1, 1), ("b", 2, 1)]
    assert [host.fence for host in adopted.hosts] == [0, (1 << 63) - 1]


@pytest.mark.fault(60)
def test_row_60_no_text_of_a_host_acts_on_a_terminal(rig: Rig) -> None:
    liar = rig.hosts.agents["a"]
    liar.lies = {"warning": f"a warning {ESCAPE}"}
    liar.answers["probe"] = always({**FACTS, "python": f"3.11.2 {ESCAPE}"})
    liar.answers["stacks"] = always({"stacks": f"Thread 1 {ESCAPE}", "by": "runtime"})
    run_id = rig.submit()["run_id"]
    for agent in rig.hosts.agents.values():
        agent.wait_order("start")
    said: Said = {"kind": "k", "message": f"it said {ESCAPE}"}
    ended = {
        "code": 1,
        "signal": None,
        "ago_s": 0.0,
        "cause": "script",
        "last_lines": [f"the last line {ESCAPE}"],
    }
    dead = running("worker:0", phase="exited", said=[said], error=said, exit=ended)
    assert rig.client.post("/v1/runs/t/stacks")["stacks"]["worker:0"] == f"Thread 1 {SHOWN}"
    liar.report({run_id: [dead]})
    until(lambda: rig.client.get("/v1/runs/t/why")["first_causes"])
    answers = [rig.client.get(path) for path in ("/v1/status", "/v1/events", "/v1/runs/t/why")]
    texts = list(texts_of(answers))
    for wanted in ("a warning", "it said", "the last line"):
        assert any(f"{wanted} {SHOWN}" in text for text in texts), wanted
    assert [text for text in texts if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)] == []


def left_file(path: str, **changes: Any) -> dict[str, Any]:
    return {"task": "worker:0", "generation": 1, "place": "work", "path": path, "bytes": 4, **changes}


@pytest.mark.fault(56)
def test_what_a_host_says_that_a_task_left_reaches_no_other_place(rig: Rig, tmp_path: Path) -> None:
    rig.submit()
    liar = rig.hosts.agents["a"]
    until(lambda: rig.phase() == "RENDEZVOUS")
    liar.wait_order("start")
    digest = hashlib.sha256(b"good").hexdigest()
    paths = ["link/escaped", "model.keras"]
    told = [left_file(path) for path in paths] + [left_file("of.another", task="worker:1")]
    liar.answers["files"] = always({"files": told, "left_out": 0})
    liar.answers["digest"] = always({"sha256": digest, "bytes": 4})
    liar.answers["file"] = always(({}, b"good"))
    rig.hosts.agents["b"].answers["files"] = always({"files": [], "left_out": 0})
    listed = rig.client.post("/v1/runs/t/outputs", {})
    assert "of.another" not in [file["path"] for file in listed["files"]]
    directory = tmp_path / "fetched"
    (tmp_path / "elsewhere").mkdir()
    directory.mkdir()
    (directory / "link").symlink_to(tmp_path / "elsewhere")

    def fetch(file: dict[str, Any]) -> dict[str, Any]:
        return rig.client.post("/v1/runs/t/outputs/fetch", {"file": file, "directory": str(directory)})

    named = [{"host": "a", "to": path, **left_file(path)} for path in paths]
    for file in named[:-1]:
        with pytest.raises(OrchestratorError, match="a symbolic link is in its path"):
            fetch(file)
    assert fetch(named[-1])["state"] == "fetched"
    assert sorted(
        path.name for path in tmp_path.rglob("*") if path.is_file() and "state" not in path.parts
    ) == [
        "model.keras",
        "train.py",
    ]
    liar.answers["file"] = always(({}, b"good and more"))
    with pytest.raises(OrchestratorError, match="the connection to a broke"):
        fetch({**named[-1], "to": "again"})
    liar.answers["files"] = always({"files": [left_file("\x1b[2J")], "left_out": 0})
    shown = rig.client.post("/v1/runs/t/outputs", {})
    assert (shown["files"], list(shown["unreached"])) == ([], ["a"])


@pytest.mark.fault(101)
@pytest.mark.parametrize(
    "path",
    [
        "a.csv/../numpy.py",
        "../model.keras",
        "/etc/cron.d/x",
        "",
        "..",
        "a//b.csv",
        "./a.csv",
        "a.csv/",
        "a\0.csv",
    ],
)
def test_row_101_a_host_that_names_a_file_elsewhere_is_refused_and_named(
    rig: Rig, tmp_path: Path, path: str
) -> None:
    """The liar has a worker, and `../model.keras` in its directory would be the chief's."""
    rig.submit()
    liar, honest = rig.hosts.agents["b"], rig.hosts.agents["a"]
    honest.wait_order("start")
    for agent in (liar, honest):
        agent.answers["digest"] = always({"sha256": hashlib.sha256(b"good").hexdigest(), "bytes": 4})
        agent.answers["file"] = always(({}, b"good"))
    honest.answers["files"] = always({"files": [left_file("model.keras"), left_file("a.csv")], "left_out": 0})
    liar.answers["files"] = always({"files": [left_file(path, task="worker:1")], "left_out": 0})
    project = tmp_path / "project"
    listed = rig.client.post("/v1/runs/t/outputs", {"patterns": ["*"]})
    assert [file["to"] for file in listed["files"]] == ["a.csv", "model.keras"]
    assert list(listed["unreached"]) == ["b"]
    assert "b sent an answer to `files` that orch cannot use: files[0].path is" in listed["unreached"]["b"]
    forged = {"host": "b", **left_file(path, task="worker:1"), "to": path}
    with pytest.raises(OrchestratorError, match="must be an entry of the list"):
        rig.client.post("/v1/runs/t/outputs/fetch", {"file": forged, "directory": str(project)})
    for file in listed["files"]:
        rig.client.post("/v1/runs/t/outputs/fetch", {"file": file, "directory": str(project)})
    outside = {place.name for place in tmp_path.iterdir()} - {"state", "work"}
    assert (outside, {file.name for file in project.rglob("*")}) == ({"project"}, {"a.csv", "model.keras"})


SEEDED = "/shared/t/gen-000000/ckpt-5"


@pytest.mark.fault(103)
@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("path", "/home/b/.ssh"),
        ("path", "/shared/t"),
        ("path", "/shared/t/gen-000001/../../../home/b/.ssh"),
        ("path", "/shared/t/gen-000007"),
        ("path", "/shared/t/gen-000001/.ssh"),
        ("source", "/shared/other/ckpt"),
        ("rejected", "/shared/tt/gen-000001"),
    ],
)
def test_row_103_a_directory_that_was_not_asked_for_reaches_nobody(
    rig: Rig, caplog: pytest.LogCaptureFixture, field: str, place: str
) -> None:
    """The chief's host is asked to seed. The other hosts copy what it names into their tasks' directories."""
    liar, other = rig.hosts.agents["a"], rig.hosts.agents["b"]
    asked: list[dict[str, Any]] = []

    def seed(order: dict[str, Any], _blob: bytes) -> dict[str, Any]:
        asked.append(order)
        generation = f"{order['dir']}/gen-{order['generation']:06d}"
        truth = {"global_step": 5, "path": generation, "source": SEEDED, "rejected": []}
        lie = [{"path": place, "why": "torn"}] if field == "rejected" else place
        return truth if len(asked) > 1 else {**truth, field: lie}

    liar.answers["seed"] = seed
    rig.submit(checkpoint=asdict(CheckpointPlan("/shared/t", 3)))
    until(lambda: (rig.status()["seed"] or {}).get("source") == SEEDED)
    assert len(asked) == 2, "the lie was dropped, and the host asked again"
    assert "release" not in other.verbs()
    assert f"a sent an answer to `seed` that orch cannot use: {field}" in caplog.text


def texts_of(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for entry in value:
            yield from texts_of(entry)
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield key
            yield from texts_of(entry)

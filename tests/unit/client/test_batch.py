"""A job of Slurm that holds its own coordinator: what it keeps of what was submitted, and which nodes it trains on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from orchestrator.both import durable
from orchestrator.client import batch
from orchestrator.client.batch import Batch, placed
from orchestrator.core.causes import Cause
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.plan import HostPlan, Plan
from orchestrator.head.code import snapshots
from orchestrator.head.reach.slurm.job import BEGUN, SUBMITTED
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import phases
from tests.unit.core.transcript import make_plan

SRUN = """#!/bin/sh
case "$*" in *" keeper "*) echo '{"ready": true}';; esac
"""


class Job:
    """Makes the batch step of job 4711, beside a `scontrol` that says a state and notes what it is asked for."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._asked = place / "asked"
        self.left: list[dict[str, Any]] = []
        """Runs that the job before has left in the journal."""
        self.asked: list[str] = []
        """What its coordinator was asked to do."""
        self._made: list[Batch] = []

    def is_now(self, state: str, restarts: int = 0) -> None:
        program(
            self._place / "scontrol",
            f'#!/bin/sh\necho "$@" >> "{self._asked}"\n'
            'case "$*" in requeue*) ;; *hostnames*) echo n1;; *config) echo KillWait = 30 sec;;\n'
            f"*) echo JobId=4711 JobState={state} Restarts={restarts};; esac\n",
        )

    def batch(self, *, requeue: bool, state: str = "RUNNING", restarts: int = 0) -> Batch:
        self.is_now(state, restarts)
        plan = TypeAdapter(Plan).dump_python(make_plan(["a"], checkpoint=False), mode="json")
        wish: dict[str, Any] = {
            "token": "4f", "plan": plan, "secrets": {"TOKEN": "hush-hush"}, "requeue": requeue
        }  # fmt: skip
        durable.write_json(str(self._place / SUBMITTED), wish)
        self._made.append(Batch(str(self._place), "4f"))
        assert self._made[-1].wish == wish
        return self._made[-1]

    def run(self, monkeypatch: pytest.MonkeyPatch, *ends: dict[str, Any], **how: Any) -> int:
        """Let a job train on one node whose keeper is ready; each look at its run finds the next of `ends`."""
        program(self._place / "srun", SRUN)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
        monkeypatch.setattr(
            batch, "coordinator_command", lambda: ["sleep", "60"]
        )  # the API beside it answers
        monkeypatch.setattr(batch, "LINGER_S", 0.0)
        monkeypatch.setattr(batch, "_POLL_S", 0.01)
        started = self.batch(**{"requeue": True, **how})
        record = Path(snapshots.Snapshots(str(self._place)).record_of(snapshots.SUBMITTED))
        record.parent.mkdir(parents=True)
        record.write_text("{}")
        with FakeApi(Path(started.environment.paths.socket)) as api:
            api.runs += self.left
            api.on_kill = lambda run: run.update(phase="KILLED")
            api.on_status = lambda: phases(api, *ends) if len(api.runs) > len(self.left) else None
            code = started.run()
        self.asked = [path for path, _ in api.posted]
        return code

    def has_code(self) -> bool:
        return snapshots.SUBMITTED in snapshots.Snapshots(str(self._place)).names()

    def requeued(self) -> int:
        """Return how often Slurm was told to queue the job again."""
        return self._asked.read_text().split("\n").count("requeue 4711") if self._asked.exists() else 0

    def end(self) -> None:
        for made in self._made:
            shutil.rmtree(made.environment.paths.runtime_dir, ignore_errors=True)


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    for name in ("ORCH_STATE_DIR", "ORCH_RUNTIME_DIR", "ORCH_ALLOCATION"):
        monkeypatch.setenv(name, "")  # it sets them itself; they are put back
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    made = Job(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("requeue", [False, True])
def test_secrets_that_were_submitted_stay_only_where_the_job_may_be_queued_again(
    job: Job, tmp_path: Path, requeue: bool
) -> None:
    job.batch(requeue=requeue)
    assert (tmp_path / SUBMITTED).exists() is requeue


TAKEN = {"phase": "KILLED", "planned_end": Cause.HOST_LEAVES.value}


def test_a_job_whose_hosts_were_taken_away_is_queued_again(job: Job) -> None:
    assert job.batch(requeue=True).is_queued_again(TAKEN)
    assert job.requeued() == 1


@pytest.mark.parametrize(
    "ended",
    [
        {"phase": "KILLED", "planned_end": None},
        {"phase": "FAILED", "planned_end": Cause.HOST_LEAVES.value},
        {"phase": "SUCCEEDED", "planned_end": Cause.HOST_LEAVES.value},
        {"phase": "SUCCEEDED"},
    ],
)
def test_a_job_whose_run_ended_for_another_reason_is_not_queued_again(
    job: Job, ended: dict[str, str | None]
) -> None:
    assert not job.batch(requeue=True).is_queued_again(ended)
    assert job.requeued() == 0


def test_a_job_that_does_not_want_it_is_not_queued_again(job: Job) -> None:
    assert not job.batch(requeue=False).is_queued_again(TAKEN)
    assert job.requeued() == 0


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "REQUEUED"])
def test_a_job_that_was_cancelled_or_that_slurm_queues_again_itself_is_left_alone(
    job: Job, state: str
) -> None:
    assert not job.batch(requeue=True, state=state).is_queued_again(TAKEN)
    assert job.requeued() == 0


SUCCEEDED = {"phase": "SUCCEEDED", "reason": "all tasks finished"}


@pytest.mark.parametrize("requeue", [False, True])
def test_what_a_job_needs_no_more_when_it_is_over(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeue: bool
) -> None:
    assert job.run(monkeypatch, SUCCEEDED, requeue=requeue) == 0
    assert not (tmp_path / SUBMITTED).exists()
    assert not job.has_code()
    assert json.loads((tmp_path / BEGUN).read_text()) == {"allocation": "4711.0", "run_id": "t-20261120-1"}


def test_a_run_that_a_job_left_by_force_is_ended_first(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.left = [run_document(name="left")]
    assert job.run(monkeypatch, SUCCEEDED) == 0
    drained = "/v1/runs/mnist-20261120-1/drain"  # of each of its two hosts
    assert job.asked == [drained, drained, "/v1/runs/mnist-20261120-1/kill", "/v1/runs"]


@pytest.mark.parametrize(("state", "restarts"), [("COMPLETING", 1), ("PENDING", 1), ("REQUEUE_HOLD", 0)])
def test_a_job_that_slurm_itself_queues_again_finds_its_plan(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, restarts: int
) -> None:
    assert job.run(monkeypatch, {**TAKEN, "reason": "it leaves"}, state=state, restarts=restarts) == 1
    assert job.requeued() == 0
    assert (tmp_path / SUBMITTED).exists()
    assert job.has_code()


def test_a_controller_that_does_not_answer_removes_nothing_and_a_job_that_is_unknown_is_over(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = job.batch(requeue=True)
    program(tmp_path / "scontrol", "#!/bin/sh\nexit 1\n")
    assert not made.is_over()
    assert "what was submitted is kept" in capsys.readouterr().out
    program(tmp_path / "scontrol", "#!/bin/sh\necho 'Invalid job id specified' >&2\nexit 1\n")
    assert made.is_over()


def test_what_another_job_has_submitted_meanwhile_stays(job: Job, tmp_path: Path) -> None:
    made = job.batch(requeue=False)
    durable.write_json(str(tmp_path / SUBMITTED), {"token": "b0"})
    made.forget()
    assert (tmp_path / SUBMITTED).exists()


def test_a_job_begins_with_its_own_plan_only(job: Job, tmp_path: Path) -> None:
    durable.write_json(str(tmp_path / SUBMITTED), {"token": "b0", "requeue": False})
    with pytest.raises(OrchestratorError, match=r"job 4711 has no run.*is of a job that was submitted later"):
        Batch(str(tmp_path), "4f")
    assert (tmp_path / SUBMITTED).exists(), "the later job needs it"


def test_a_job_without_a_plan_says_so(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # pytest hears its signals
    assert batch.main([str(tmp_path), "4f"]) == 1
    assert (
        f"error: job 4711 has no run to begin: {tmp_path}/{SUBMITTED} is not there" in capsys.readouterr().out
    )


def test_the_job_stays_until_outputs_are_fetched(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def outputs(*, pending: bool, directory: str | None) -> dict[str, Any]:
        return SUCCEEDED | {"outputs": {"pending": pending, "directory": directory}}

    coming, there = (outputs(pending=pending, directory="/w/t-outputs") for pending in (True, False))
    assert job.run(monkeypatch, coming, coming, there) == 0
    assert capsys.readouterr().out.count("the job stays until its `outputs` are fetched") == 1
    [known] = json.loads((tmp_path / "status.json").read_text())["runs"]
    assert known["outputs"] == there["outputs"]
    assert not batch.is_being_fetched(outputs(pending=True, directory=None)), "nobody has asked for them"


def test_the_nodes_that_answered_train_and_the_last_ones_are_spares() -> None:
    plan = make_plan(["a", "b", "c"], checkpoint=False)
    hosts = (replace(plan.hosts[0], spare=True), *plan.hosts[1:])
    plan = replace(plan, hosts=hosts, tasks=tuple(task for task in plan.tasks if task.host != "a"))
    nodes = [HostPlan(name) for name in ("n1", "n2", "n3")]
    made = placed(plan, [nodes[2], nodes[1]], nodes, {})
    assert {host.name for host in made.hosts if host.spare} == {"n1"}
    assert [task.host for task in made.tasks] == ["n3", "n2"]

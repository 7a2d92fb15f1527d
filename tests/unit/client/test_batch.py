"""A job of Slurm that holds its own coordinator: what it keeps of what was submitted, and which nodes it trains on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import durable
from orchestrator.client.batch import Batch, placed
from orchestrator.core.causes import Cause
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.slurm.job import SUBMITTED
from tests.unit.core.transcript import make_plan


class Job:
    """Makes the batch step of job 4711, beside a `scontrol` that says a state and notes what it is asked for."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._asked = place / "asked"
        self._made: list[Batch] = []

    def batch(self, *, requeue: bool, state: str = "RUNNING") -> Batch:
        scontrol = self._place / "scontrol"
        scontrol.write_text(
            f'#!/bin/sh\necho "$@" >> "{self._asked}"\n'
            f'[ "$1" = requeue ] || echo JobId=4711 JobState={state} Restarts=0\n'
        )
        scontrol.chmod(0o755)
        wish: dict[str, Any] = {"secrets": {"TOKEN": "hush-hush"}, "requeue": requeue}
        durable.write_json(str(self._place / SUBMITTED), wish)
        self._made.append(Batch(str(self._place)))
        assert self._made[-1].wish == wish
        return self._made[-1]

    def requeued(self) -> int:
        """Return how often Slurm was told to queue the job again."""
        return self._asked.read_text().split("\n").count("requeue 4711") if self._asked.exists() else 0

    def end(self) -> None:
        for batch in self._made:
            shutil.rmtree(batch.environment.paths.runtime_dir, ignore_errors=True)


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


def test_the_nodes_that_answered_train_and_the_last_ones_are_spares() -> None:
    plan = make_plan(["a", "b", "c"], checkpoint=False)
    hosts = (replace(plan.hosts[0], spare=True), *plan.hosts[1:])
    plan = replace(plan, hosts=hosts, tasks=tuple(task for task in plan.tasks if task.host != "a"))
    nodes = [HostPlan(name) for name in ("n1", "n2", "n3")]
    made = placed(plan, [nodes[2], nodes[1]], nodes, {})
    assert {host.name for host in made.hosts if host.spare} == {"n1"}
    assert [task.host for task in made.tasks] == ["n3", "n2"]

"""A job of Slurm that holds its own coordinator: what it keeps of what was submitted, and which nodes it trains on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import durable
from orchestrator.client.batch import Batch, placed
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.slurm.job import SUBMITTED
from tests.unit.core.transcript import make_plan


@pytest.mark.parametrize("requeue", [False, True])
def test_secrets_that_were_submitted_stay_only_where_the_job_may_be_queued_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeue: bool
) -> None:
    for name in ("ORCH_STATE_DIR", "ORCH_RUNTIME_DIR", "ORCH_ALLOCATION"):
        monkeypatch.setenv(name, "")  # it sets them itself; they are put back
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    wish: dict[str, Any] = {"secrets": {"TOKEN": "hush-hush"}, "requeue": requeue}
    durable.write_json(str(tmp_path / SUBMITTED), wish)
    batch = Batch(str(tmp_path))
    try:
        assert batch.wish == wish
        assert (tmp_path / SUBMITTED).exists() is requeue
    finally:
        shutil.rmtree(batch.environment.paths.runtime_dir)


def test_the_nodes_that_answered_train_and_the_last_ones_are_spares() -> None:
    plan = make_plan(["a", "b", "c"], checkpoint=False)
    hosts = (replace(plan.hosts[0], spare=True), *plan.hosts[1:])
    plan = replace(plan, hosts=hosts, tasks=tuple(task for task in plan.tasks if task.host != "a"))
    nodes = [HostPlan(name) for name in ("n1", "n2", "n3")]
    made = placed(plan, [nodes[2], nodes[1]], nodes, {})
    assert {host.name for host in made.hosts if host.spare} == {"n1"}
    assert [task.host for task in made.tasks] == ["n3", "n2"]

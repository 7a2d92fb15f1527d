"""What a run that failed once leaves behind: its curves, its spans, its goodput, and its end ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cluster.cluster import Cluster, wait_until
from tests.contract.small_disk import mounted


def test_a_run_that_came_back_is_seen_afterwards(local_cluster: Cluster) -> None:
    steps = ["--steps", "300", "--pace", "0.03", "--fail-at", "90", "--fail-once", "--fail-task", "worker:1"]
    local_cluster.ok("up", local_cluster.spec(*steps))
    early = local_cluster.wait(lambda run: (run["global_step"] or 0) >= 20 and run["eta_s"] is not None)
    assert early["steps_total"] == 300
    assert 1 < early["eta_s"] < 60
    assert early["time_use"]["final"] is False
    run = local_cluster.wait_phase("SUCCEEDED")
    run_id = quote(run["run_id"])

    def get(what: str, **query: str) -> dict[str, Any]:
        return local_cluster.get(f"/v1/runs/{run_id}/{what}", **query)

    told = get("history")
    assert [one["generation"] for one in told["generations"]] == [0, 1, 2]
    spans = [span for one in told["generations"] for span in one["spans"]]
    assert spans[0][1] == 0
    assert spans[-1][2] == pytest.approx(run["elapsed_s"], abs=0.2)
    assert "training" in [state for state, *_ in spans]
    goodput = run["time_use"]
    assert run["goodput"] == goodput["value"]
    assert goodput["final"]
    assert 0 < goodput["value"] < 1
    assert goodput["kept_s"] + sum(goodput["badput"].values()) == pytest.approx(run["elapsed_s"], abs=1)
    assert {"task": "", "name": "loss"} in told["series"]

    def reached() -> float:
        return float(get("series", names="loss", x="step")["series"][-1]["x"][-1])

    wait_until(lambda: reached() == 300, "the last step is in the history")
    loss = get("series", names="loss", x="step")["series"]
    assert [line["generation"] for line in loss] == [1, 2]
    assert loss[-1]["y"][-1] == pytest.approx(1 / 300)
    lines = get("logs", level="error", task="worker:1")["lines"]
    assert any("the data ends at step 90" in line["text"] for line in lines)
    assert "of the time counts" in local_cluster.ok("why", "t")


def put_aside(cluster: Cluster, run_id: str) -> Path:
    return cluster.directory / "state" / "runs" / run_id / "history.db.damaged"


@pytest.mark.fault(70)
def test_row_70_a_damaged_history_loses_plots_and_no_run(local_cluster: Cluster) -> None:
    local_cluster.ok("up", local_cluster.spec("--steps", "400", "--pace", "0.03"))
    run = local_cluster.wait_step(50)
    damaged = put_aside(local_cluster, run["run_id"])
    history = damaged.with_suffix("")
    wait_until(history.exists, "the history is begun")
    local_cluster.kill_coordinator()
    for path in (history, *history.parent.glob("history.db-*")):
        path.write_bytes(b"this is no database" * 1000)
    local_cluster.ok("coordinator", "start")
    wait_until(damaged.exists, "the damaged history is put aside")
    run = local_cluster.wait_phase("SUCCEEDED")
    assert (run["restarts"], run["generation"]) == (0, 1)

    def reached() -> float:
        lines = local_cluster.get(f"/v1/runs/{quote(run['run_id'])}/series", names="loss", x="step")["series"]
        return float(lines[-1]["x"][-1]) if lines else 0.0

    wait_until(lambda: reached() == 400, "a new one has been begun, and the run's last step is in it")


@pytest.mark.fault(70)
def test_row_70_a_full_disk_loses_plots_and_no_run(local_cluster: Cluster) -> None:
    runs = local_cluster.directory / "state" / "runs"
    runs.parent.mkdir(mode=0o700)
    with mounted(runs, megabytes=4) as disk:
        runs.chmod(0o700)
        try:
            local_cluster.ok("up", local_cluster.spec("--steps", "300", "--pace", "0.02"))
            local_cluster.wait_step(50)
            disk.fill()
            run = local_cluster.wait_phase("SUCCEEDED")
            assert (run["restarts"], run["generation"], run["global_step"]) == (0, 1, 300)
            assert "SUCCEEDED" in local_cluster.ok("status", "t")
            local_cluster.ok("why", "t")
        finally:
            local_cluster.close()  # it keeps files open on that disk


@pytest.mark.tensorflow
@pytest.mark.timeout(180)
def test_single_steps_of_a_fast_fit_are_seen_and_on_nonfinite_stops_at_one(local_cluster: Cluster) -> None:
    """Its train_step says each step's own loss: a spike, and a NaN that none follows."""
    here = local_cluster
    spec = here.spec(tasks=1, script="fits_fast.py", checkpoint=False, on_nonfinite="stop")
    here.orch("up", spec, "--wait", timeout=150)
    run = here.run()
    assert (run["phase"], run["first_cause"]["cause"]) == ("FAILED", "nonfinite"), here.ok("why", "t")
    assert "loss is nan since step 700" in here.ok("why", "t")
    query = {"names": "loss", "x": "step", "from_step": "1", "to_step": "690", "buckets": "4000"}

    def series() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = here.get(f"/v1/runs/{quote(run['run_id'])}/series", **query)["series"]
        return found

    wait_until(lambda: bool(series()), "the history has been written")
    (loss,) = series()
    assert dict(zip(loss["x"], loss["y"], strict=True))[300] == 50.0

"""What a script leaves in its working directory, over real SSH hosts: said at the end, fetched, and never replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, lab_of

pytestmark = pytest.mark.lab

MODEL = bytes(range(256)) * 4096 * 3


def test_what_a_script_leaves_is_told_and_fetched_also_after_the_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    spec = cluster.spec(script="leaves_files.py", checkpoint=False, outputs=["model.keras"])
    done = cluster.orch("up", spec, "--wait")
    assert done.returncode == 0, done.stderr
    run = cluster.run()
    told = {left["task"]: left for left in run["outputs"]["tasks"]}
    assert (told["worker:0"]["files"], told["worker:0"]["fetched"]) == (3, 1)
    assert (told["worker:1"]["files"], told["worker:1"]["fetched"]) == (2, 0)
    by_itself = Path(run["outputs"]["directory"])
    assert by_itself == cluster.directory / "t-outputs" / run["run_id"]
    assert (by_itself / "model.keras").read_bytes() == MODEL
    assert f"1 of them in {by_itself}" in done.stderr
    assert "worker:1 left 2 files" in done.stderr
    assert "`orch fetch t`" in cluster.ok("status", "t")

    to = tmp_path / "fetched"
    answer = json.loads(cluster.ok("fetch", "t", "--to", str(to), "--json"))
    assert {file["to"]: file["state"] for file in answer["files"]} == dict.fromkeys(
        [
            "first.json",
            "model.keras",
            "plots/loss.csv",
            "worker-1/first.json",
            "worker-1/plots/loss.csv",
        ],
        "fetched",
    )
    assert sum(answer["left_out"].values()) == 2  # the links
    assert (to / "model.keras").read_bytes() == MODEL
    assert "worker:1" in (to / "worker-1/plots/loss.csv").read_text()

    (to / "plots/loss.csv").write_text("mine")
    refused = cluster.orch("fetch", "t", "*.csv", "--to", str(to))
    assert refused.returncode == 6
    assert "--force replaces them" in refused.stderr
    assert (to / "plots/loss.csv").read_text() == "mine"
    cluster.ok("fetch", "t", "*.csv", "--to", str(to), "--force")
    assert "worker:0" in (to / "plots/loss.csv").read_text()

    alone = tmp_path / "alone"
    cluster.ok("fetch", "t", "--task", "worker:1", "--to", str(alone))
    assert sorted(str(path.relative_to(alone)) for path in alone.rglob("*") if path.is_file()) == [
        "first.json",
        "plots/loss.csv",
    ]


@pytest.mark.fault(95)
def test_whatever_a_task_leaves_the_rest_is_listed_and_fetched(cluster: Cluster, tmp_path: Path) -> None:
    spec = cluster.spec(script="leaves_odd_files.py", checkpoint=False, outputs=["*.csv"])
    done = cluster.orch("up", spec, "--wait")
    assert done.returncode == 0, done.stderr
    directory = Path(cluster.run()["outputs"]["directory"])
    assert (directory / "worker-0/worker-1/out.csv").read_text() == "worker:0"
    assert (directory / "worker-1/out.csv").read_text() == "worker:1"
    rows = cluster.ok("fetch", "t", "--list").splitlines()
    assert [row.split()[0] for row in rows[1:]] == [
        r"a.csv\nmodel.keras",
        "sparse",
        "worker-0/worker-1/out.csv",
        "worker-1/out.csv",
    ]
    to = tmp_path / "fetched"
    fetched = cluster.orch("fetch", "t", "--to", str(to))
    assert fetched.returncode == 1
    assert "worker:0 says that this file has 4.0 TiB" in fetched.stderr
    assert {str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()} == {
        "a.csv\nmodel.keras",
        "worker-0/worker-1/out.csv",
        "worker-1/out.csv",
    }


def test_a_host_that_is_away_is_named_and_the_rest_is_fetched(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ok("up", cluster.spec(script="leaves_files.py", checkpoint=False), "--wait")
    away = lab_of(cluster).hosts[1]
    away.stop_sshd()
    try:
        done = cluster.orch("fetch", "t", "--to", str(tmp_path / "fetched"))
    finally:
        away.start_sshd()
    assert done.returncode == 4, done.stderr
    assert (tmp_path / "fetched/model.keras").read_bytes() == MODEL
    cluster.ok("fetch", "t", "--to", str(tmp_path / "fetched"))
    assert (tmp_path / "fetched/worker-1/first.json").is_file()

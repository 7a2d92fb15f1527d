"""The second experiment: what `orch up` begins after a run has ended, and that nothing of the first is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

STEPS = ("--steps", "30", "--save-every", "10")


def digests(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.fault(119)
def test_a_changed_run_trains_anew_and_an_unchanged_one_is_not_trained_twice(local_cluster: Cluster) -> None:
    orch = local_cluster
    first = orch.ok("up", orch.spec(*STEPS), "--wait").strip()
    again = orch.orch("up", orch.spec(*STEPS), "--wait")
    assert (again.returncode, again.stdout.strip()) == (0, first)
    assert f"{first} finished at step 30 with " in again.stderr
    assert "`--again` trains it once more, `--continue` goes on from it" in again.stderr
    saved = digests(orch.directory / "ckpt" / "gen-000001")
    assert saved

    changed = orch.orch("up", orch.spec(*STEPS, "--pace", "0.001"), "--wait")
    assert changed.returncode == 0, changed.stderr
    assert "a new training, from step 0" in changed.stderr
    assert "--pace 0.001" in changed.stderr
    assert changed.stdout.strip() != first
    log = orch.ok("logs", changed.stdout.strip())
    assert "starting at step 0" in log or "step 0" in log, log
    assert digests(orch.directory / "ckpt" / "gen-000001") == saved, "the first training is as it was"
    listed = json.loads(orch.ok("ckpt", "ls", "t", "--json"))["checkpoints"]
    assert {found["generation"] for found in listed} >= {1, 2}

    runs = json.loads(orch.ok("runs", "t", "--sort", "step", "--json"))["runs"]
    assert [(run["phase"], run["global_step"]) for run in runs] == [("SUCCEEDED", 30)] * 2
    changes = [change for run in runs for change in run["differs"]]
    assert changes == [{"key": "args", "old": None, "new": "--pace 0.001"}]

    more = orch.orch("up", orch.spec("--steps", "60", "--save-every", "10"), "--continue", "--wait")
    assert more.returncode == 0, more.stderr
    assert "goes on from step 30" in more.stderr
    assert int(orch.events(kind="resumed")[-1]["data"]["global_step"]) == 30
    once_more = orch.orch("up", orch.spec("--steps", "60", "--save-every", "10"), "--again", "--wait")
    assert once_more.returncode == 0, once_more.stderr
    assert "goes on" not in once_more.stderr


@pytest.mark.fault(119)
def test_a_killed_run_goes_on_and_says_from_where_and_what_has_changed(local_cluster: Cluster) -> None:
    orch = local_cluster
    orch.ok("up", orch.spec("--steps", "100000", "--save-every", "10"))
    orch.wait(lambda run: (run["checkpoint"] or {}).get("global_step", 0) >= 10)
    orch.ok("kill", "t")
    saved = orch.run()["checkpoint"]["global_step"]
    up = orch.orch("up", orch.spec("--steps", "5000", "--save-every", "10", "--pace", "0.001"))
    assert up.returncode == 0, up.stderr
    assert f"goes on from step {saved}: " in up.stderr
    assert "was killed" in up.stderr
    assert "--pace 0.001" in up.stderr
    assert int(orch.events(kind="resumed")[-1]["data"]["global_step"]) == saved
    orch.ok("kill", "t")

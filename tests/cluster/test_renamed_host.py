"""A host gets another name while a run trains on it: all commands know the run, and nothing begins beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.both import process
from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.conftest import MakeLab

pytestmark = pytest.mark.lab


@pytest.mark.timeout(600)
@pytest.mark.fault(109)
def test_row_109_every_command_knows_the_run_of_a_host_that_was_renamed(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    lab = make_lab(1)
    (host,) = lab.hosts
    host.own_name("gpu-a")
    host.chooses_its_directory()
    heads = [Cluster(tmp_path / name, lab) for name in ("one", "two")]
    for head in heads:
        head.directory.mkdir()
    one, two = heads
    try:
        spec = one.spec("--steps", "1000000", tasks=1, env=one.importing_quickly())
        run_id = one.ok("up", spec).strip()
        pid = one.run()["tasks"][0]["pid"]
        assert pid is not None
        host.rename("gpu-b")
        one.ok("coordinator", "stop")
        one.ok("coordinator", "start")
        wait_until(
            lambda: (one.shown() or {"hosts": [{}]})["hosts"][0].get("link") == "CONNECTED", "it is back"
        )
        step = one.run()["global_step"] or 0
        wait_until(lambda step=step: (one.run()["global_step"] or 0) > step, "it trains on")  # type: ignore[misc]
        run = one.run()
        assert (run["phase"], run["generation"], run["tasks"][0]["pid"]) == ("RUNNING", 1, pid)
        assert "No orphans found" in one.ok("gc")
        beside = two.orch("up", spec)
        assert (beside.returncode, run_id in beside.stderr) == (6, True), (beside.stdout, beside.stderr)
        cleaned = two.orch("gc", "--hosts", spec, "--yes")
        assert process.identity(pid) is not None, (cleaned.stdout, cleaned.stderr)
        looked = one.orch("doctor", spec)
        assert looked.returncode == 0, (looked.stdout, looked.stderr)
        one.ok("kill", "t")
        wait_until(lambda: process.identity(pid) is None, "the task has ended")
        assert one.run()["phase"] == "KILLED"
    finally:
        for head in heads:
            head.close()

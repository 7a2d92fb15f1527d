"""The coordinator's own life, with real processes on this machine: handed over, lost, and found again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import orchestrator
from orchestrator import __version__
from orchestrator.adapters.journal_format import VERSION
from tests.cluster.cluster import Cluster

PACKAGE = Path(orchestrator.__file__).parent
TIMING = {"heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "8s", "kill_grace": "5s"}


def test_a_newer_coordinator_takes_over_and_no_task_is_touched(local_cluster: Cluster) -> None:
    cluster = local_cluster
    older = cluster.directory / "older"
    shutil.copytree(PACKAGE, older / "orchestrator", ignore=shutil.ignore_patterns("__pycache__"))
    (older / "orchestrator" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    ours = cluster.env.get("PYTHONPATH", str(PACKAGE.parent))
    cluster.env["PYTHONPATH"] = str(older)
    cluster.ok("up", cluster.spec())
    before = cluster.wait_step(10)
    cluster.env["PYTHONPATH"] = ours
    looked = cluster.orch("status", "t")
    assert looked.stderr == (
        f"hint: the coordinator is orch 0.0.9 and this is orch {__version__}; "
        "`orch coordinator restart` hands over, and no task is touched\n"
    )
    done = json.loads(cluster.ok("coordinator", "restart", "--json"))
    assert (done["version"], done["previous"]["version"]) == (__version__, "0.0.9")
    assert done["epoch"] == done["previous"]["epoch"] + 1
    assert (done["tasks"], done["hosts"], done["restarts"], done["waiting"]) == (2, 1, 0, [])
    after = cluster.wait_step(before["global_step"] + 20)
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert (after["generation"], after["epoch"]) == (before["generation"], done["epoch"])
    assert cluster.orch("status", "t").stderr == ""


@pytest.mark.fault(39)
def test_who_could_not_read_the_journal_does_not_end_the_one_who_can(local_cluster: Cluster) -> None:
    cluster = local_cluster
    cluster.ok("coordinator", "start")
    pid = cluster.coordinator_pid
    with sqlite3.connect(cluster.directory / "state" / "journal.db") as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(VERSION + 1),))
    refused = cluster.orch("coordinator", "restart")
    assert refused.returncode == 6
    assert f"is of version {VERSION + 1}, written by orch {__version__}" in refused.stderr
    assert f"the coordinator that runs (pid {pid}) was not touched" in refused.stderr
    assert cluster.coordinator_pid == pid

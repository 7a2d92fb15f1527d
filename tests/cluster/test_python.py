"""The examples of docs/python.md, in their order, with a real coordinator and real tasks on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import orchestrator
from tests.cluster.cluster import Cluster

PAGE = Path(orchestrator.__file__).parent.parent / "docs" / "python.md"


def test_the_examples_of_the_page_run(
    local_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = local_cluster
    Path(cluster.spec("--steps", "60", name="digits")).rename(cluster.directory / "cluster.yaml")
    monkeypatch.chdir(cluster.directory)
    for name in ("ORCH_STATE_DIR", "ORCH_RUNTIME_DIR", "ORCH_HOST_DIR"):
        monkeypatch.setenv(name, cluster.env[name])
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for number, example in enumerate(examples, start=1):
        exec(compile(example, f"{PAGE.name}, example {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert len(examples) > 6
    assert re.search(r"^digits-\d{8}-\d+$", printed, re.MULTILINE)
    assert re.search(r"^RUNNING (step|no step yet|connecting)", printed, re.MULTILINE)
    assert re.search(r"^SUCCEEDED$", printed, re.MULTILINE)
    assert "no run is named 'no-such-run' known runs: digits 2" in printed
    run = names["run"]
    assert isinstance(run, orchestrator.Run)


def test_hosts_are_asked_themselves_and_one_that_is_away_is_named(local_cluster: Cluster) -> None:
    cluster = local_cluster
    cluster.ok("up", cluster.spec(tasks=2))
    [here] = json.loads(cluster.ok("hosts", "--json"))["hosts"]
    assert (here["host"], here["reachable"], here["state"]) == ("here", True, "ready")
    [run] = here["runs"]
    assert (run["run_id"], run["tasks"]) == (cluster.run()["run_id"], ["worker:0", "worker:1"])
    away = [{"name": "gpu-b", "address": "127.0.0.1", "port": 1}]
    asked = cluster.orch("hosts", cluster.spec(tasks=1, name="other", hosts=away))
    assert asked.returncode == 4
    assert "gpu-b  unreachable" in asked.stdout
    assert "gpu-b: " in asked.stdout.splitlines()[-2]
    cluster.kill_coordinator()
    [here] = json.loads(cluster.ok("hosts", "--json"))["hosts"]
    assert (here["reachable"], here["state"], here["runs"]) == (True, None, [run])
    cluster.ok("coordinator", "start")  # which ends the run, at the end of the test

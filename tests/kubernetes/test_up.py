"""`orch up --on k8s` as a person has it: a cluster of pods on this machine, a kubectl that speaks as kubectl does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster import Cluster, need_namespaces
from tests.kubernetes.kubectl import put

pytestmark = pytest.mark.lab

WORKDIR = Path(__file__).parent.parent / "cluster" / "workdir"


class Desk:
    """A machine with kubectl and orch."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.directory = directory
        self.state = directory / "state"
        (directory / "home").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORCH_", "KUBE"))}
        self.environ = {
            **kept,
            "PATH": cluster.path,
            "HOME": str(directory / "home"),
            "ORCH_STATE_DIR": str(self.state),
            "ORCH_RUNTIME_DIR": str(cluster.top / "rt"),
            "PYTHONPATH": str(Path(__file__).parent.parent.parent),
        }
        self.stderr = ""

    def spec(self, *args: str, pods: int = 2, spares: int = 0, **run: Any) -> str:
        """Write a spec with a task per pod, and return its path."""
        document = {
            "version": 1,
            "name": "t",
            "kubernetes": {"pods": pods, "spares": spares, "image": "mine:1"},
            "run": {
                "strategy": "multi_worker_mirrored",
                "script": "fake_trainer.py",
                "args": list(args),
                "workdir": str(WORKDIR),
                "python": sys.executable,
                "tasks": {"worker": {"replicas": pods}},
                "checkpoint": {"dir": str(self.directory / "ckpt")},
                "timing": {
                    "heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "6s", "kill_grace": "3s",
                },
                "restart": {"standby": "off"},
                **run,
            },
        }  # fmt: skip
        path = self.directory / "cluster.yaml"
        path.write_text(yaml.safe_dump(document))
        return str(path)

    def orch(self, *words: str, timeout_s: float = 60.0, code: int | None = 0) -> str:
        """Run a command, and return what it printed on stdout."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words],
            env=self.environ, cwd=self.directory, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        self.stderr = done.stderr
        assert code is None or done.returncode == code, (
            f"{words}: {done.returncode}\n{done.stderr}\n{self.log()}"
        )
        return done.stdout

    def run(self) -> dict[str, Any]:
        """Return the newest run, as `orch status --json` shows it."""
        return dict(json.loads(self.orch("status", "t", "--json"))["runs"][-1])

    def wait(self, happens: Callable[[dict[str, Any]], bool], seconds: float = 40.0) -> dict[str, Any]:
        """Wait until the run is as wanted."""
        deadline = time.monotonic() + seconds
        seen: dict[str, Any] = {}
        while time.monotonic() < deadline:
            seen = self.run()
            if happens(seen):
                return seen
            time.sleep(0.2)
        raise AssertionError(f"it does not come to that:\n{json.dumps(seen, indent=1)[:3000]}\n{self.log()}")

    def log(self) -> str:
        """Return the end of the coordinator's log, and what the keepers have said."""
        paths = [self.state / "coordinator.log", *sorted((self.cluster.top / "pods").glob("*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2500:]}" for path in paths if path.exists())

    def close(self) -> None:
        """End the coordinator."""
        self.orch("coordinator", "stop", code=None)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    need_namespaces()
    cluster = Cluster()
    made = Desk(tmp_path, cluster)
    yield made
    made.close()
    cluster.close()


def is_training(run: dict[str, Any]) -> bool:
    return run["phase"] == "RUNNING" and (run["global_step"] or 0) > 0


@pytest.mark.long
def test_a_run_in_pods_from_the_wish_to_the_last_object(desk: Desk) -> None:
    file = desk.spec("--steps", "120", pods=2)
    desk.orch("up", file, "--on", "k8s", "--wait", "--timeout", "50s")
    assert "experimental" in desk.stderr
    run = desk.run()
    assert run["phase"] == "SUCCEEDED"
    assert [task["host"] for task in run["tasks"]] == ["t-0", "t-1"]
    assert run["tasks"][0]["address"].startswith("t-0.t:")
    deadline = time.monotonic() + 15
    while desk.cluster.names() != ["PersistentVolumeClaim/t-checkpoints"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert desk.cluster.names() == ["PersistentVolumeClaim/t-checkpoints"], desk.log()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_killed_task_a_pod_made_anew_and_a_kill_that_leaves_nothing(desk: Desk) -> None:
    desk.orch("up", desk.spec("--pace", "0.05"), "--on", "k8s", "--timeout", "50s")
    first = desk.wait(is_training)
    keepers = [desk.cluster.keeper(name) for name in ("t-0", "t-1")]
    victim = next(task for task in first["tasks"] if task["host"] == "t-1")
    enter = desk.cluster.pod("t-1")["enter"]
    subprocess.run([*enter, "kill", "-KILL", str(victim["pid"])], check=True)
    second = desk.wait(lambda run: run["generation"] == 2 and is_training(run))
    assert second["restarts"] == 1
    assert [desk.cluster.keeper(name) for name in ("t-0", "t-1")] == keepers, (
        "restarts happen inside the pods"
    )
    before = desk.wait(lambda run: run["checkpoint"] is not None)["checkpoint"]["global_step"]
    desk.cluster.kill_pod("t-1")
    third = desk.wait(lambda run: run["generation"] == 3 and is_training(run))
    assert third["global_step"] > before
    events = [json.loads(line) for line in desk.orch("events", "t", "--json").splitlines()]
    kinds = [event["kind"] for event in events]
    assert "host-rebooted" in kinds, "a pod that was made anew under its name reads as a reboot"
    assert "cut-off" not in kinds
    desk.orch("kill", "t")
    assert desk.cluster.names() == ["PersistentVolumeClaim/t-checkpoints"], desk.log()
    deletes = [call for call in desk.cluster.calls() if " delete " in call]
    assert all("--raw=" in call for call in deletes), "by UID, and never by a name alone"


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_set_that_somebody_deletes_is_a_fact_and_ends_the_run(desk: Desk) -> None:
    timing = {
        "heartbeat": "0.5s",
        "unreachable_after": "15s",
        "lost_after": "60s",
    }  # nobody waits for silence
    desk.orch("up", desk.spec("--pace", "0.05", timing=timing), "--on", "k8s", "--timeout", "50s")
    desk.wait(is_training)
    desk.cluster.delete("StatefulSet", "t")
    for name in ("t-0", "t-1"):
        desk.cluster.kill_pod(name)
    ended = desk.wait(lambda run: run["phase"] == "FAILED")
    assert "the StatefulSet t in namespace lab was deleted" in ended["reason"]
    kinds = [json.loads(line)["kind"] for line in desk.orch("events", "t", "--json").splitlines()]
    assert "cut-off" not in kinds


def test_what_is_missing_or_forbidden_is_said_and_leaves_nothing(desk: Desk) -> None:
    """In one test, since each needs a command only."""
    cluster, file = desk.cluster, desk.spec()

    def refused(says: str, code: int) -> None:
        desk.orch("up", file, "--on", "k8s", "--timeout", "5s", code=code)
        assert says in desk.stderr
        assert cluster.names() == []

    desk.environ["PATH"] = "/nowhere"
    refused("there is no kubectl on this machine", 1)
    desk.environ["PATH"] = cluster.path
    cluster.set(current="")
    refused("kubectl has no current context", 1)
    cluster.set(current="lab", down=True)
    refused("Unable to connect to the server", 3)
    cluster.set(down=False, forbidden=["create pods"])
    refused("you may not exec into pods of namespace lab", 5)
    cluster.set(forbidden=["create statefulsets"])
    refused('cannot create resource "statefulsets"', 5)
    too_much = "[maximum memory usage per Container is 1Gi, but limit is 4Gi]"
    cluster.set(
        forbidden=[], refuses={"pods": f'Error from server (Forbidden): pods "t-x" is forbidden: {too_much}'}
    )
    refused("cluster.yaml:1:1: kubernetes: kubectl (namespace lab): Error from server (Forbidden): pods", 2)
    cluster.set(refuses={})
    why = "failed to resolve reference: docker.io/library/mine:1: not found"
    cluster.set(forbidden=[], image={"reason": "ErrImagePull", "message": why})
    refused("the image mine:1 cannot be pulled", 1)


def test_pods_that_wait_say_why_and_are_given_back_by_kill(desk: Desk) -> None:
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    desk.cluster.set(unschedulable={"t-1": why, "t-2": why})
    kept = {"name": "t-0", "uid": "0", "labels": {"app.kubernetes.io/name": "t"}, "deletionTimestamp": "x"}
    put(desk.cluster.top, {"kind": "Pod", "metadata": kept, "status": {}, "owner": "a node that is gone"})
    file = desk.spec()
    desk.orch("up", file, "--on", "k8s", "--timeout", "1s", code=7)
    assert f"waiting for pods: 0 of 2 pods run; t-1: Unschedulable: {why}" in desk.stderr
    made = desk.cluster.objects("StatefulSet")[0]["metadata"]["uid"]
    desk.orch("up", file, "--on", "k8s", "--timeout", "1s", code=7)
    assert "are there already" in desk.stderr
    assert desk.cluster.objects("StatefulSet")[0]["metadata"]["uid"] == made
    foreign = {"kind": "Service", "metadata": {"name": "other", "uid": "1", "labels": {}}}
    put(desk.cluster.top, foreign)
    desk.orch("kill", "t")
    assert desk.cluster.names() == ["Service/other"]
    assert "its pods are given back" in desk.stderr


def test_another_set_of_that_name_is_left_alone(desk: Desk) -> None:
    put(desk.cluster.top, {"kind": "Service", "metadata": {"name": "t", "uid": "1", "labels": {}}})
    desk.orch("up", desk.spec(), "--on", "k8s", "--timeout", "5s", code=6)
    assert 'services "t" already exists' in desk.stderr
    assert desk.cluster.names() == ["Service/t"]

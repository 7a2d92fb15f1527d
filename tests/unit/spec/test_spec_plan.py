"""What a spec resolves to."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.core.launching.environment import environment, runtime_options
from orchestrator.core.launching.placement import assigned, has_room
from orchestrator.core.plan import CheckpointPlan, HostPlan, RestartPolicy, TaskId, TaskPlan, Timing
from orchestrator.reporting.launch_document import document
from orchestrator.spec.models import ClusterSpec
from orchestrator.spec.plan import load_plan, plan_spec

FULL = """\
version: 1
name: mnist
hosts:
  - {name: gpu-a, gpus: 2}
  - {name: gpu-b, address: 10.0.0.12, gpus: [0, 3], data_address: 192.168.5.12, user: me, port: 2222,
     python: /opt/b/python, proxy_jump: none, identity_file: keys/b}
  - {name: gpu-c, gpus: 2, spare: true}
ssh: {user: ml, identity_file: ~/.ssh/id, known_hosts: ~/.ssh/known, proxy_jump: bastion, port: 22}
run:
  strategy: multi_worker_mirrored
  script: train.py
  args: ["--epochs", "3"]
  workdir: code
  push_limit: 1.5GB
  python: /opt/tf/bin/python
  env: {TF_CPP_MIN_LOG_LEVEL: "1"}
  tasks: {worker: {replicas: 2}}
  ports: 21000-21999
  checkpoint: {dir: /shared/mnist, keep: 4}
  restart: {without_progress_max: 2, backoff: 1, backoff_max: 1m, standby: on, rescue: 20s}
  timing: {heartbeat: 1s, unreachable_after: 4s, lost_after: 30s, stall_after: 5m, start_after: 1m, kill_grace: 3s}
  runtime: off
"""


def test_everything_that_a_spec_says_is_in_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ml")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "cluster.yaml").write_text(FULL)
    plan, secrets = load_plan(tmp_path / "cluster.yaml")
    known, key = "/home/ml/.ssh/known", "/home/ml/.ssh/id"
    assert secrets == {}
    assert plan.hosts == (
        HostPlan(
            "gpu-a", "ssh", "gpu-a", "gpu-a", "ml", 22, key, known, proxy_jump="bastion",
            python="/opt/tf/bin/python", gpus=(0, 1),
        ),
        HostPlan(
            "gpu-b", "ssh", "10.0.0.12", "192.168.5.12", "me", 2222, f"{tmp_path}/keys/b", known,
            proxy_jump="none", python="/opt/b/python", gpus=(0, 3),
        ),
        HostPlan(
            "gpu-c", "ssh", "gpu-c", "gpu-c", "ml", 22, key, known, proxy_jump="bastion",
            python="/opt/tf/bin/python", gpus=(0, 1), spare=True,
        ),
    )  # fmt: skip
    assert {host.spec for host in plan.hosts} == {str(tmp_path / "cluster.yaml")}
    assert plan.tasks == (
        TaskPlan(TaskId("worker", 0), "gpu-a", (0, 1), 0),
        TaskPlan(TaskId("worker", 1), "gpu-b", (0, 3), 0),
    )
    assert (plan.name, plan.strategy, plan.script) == ("mnist", "multi_worker_mirrored", "train.py")
    assert plan.args == ("--epochs", "3")
    assert (plan.workdir, plan.push_bytes_max) == (str(tmp_path / "code"), 1_500_000_000)
    assert plan.env == {"TF_CPP_MIN_LOG_LEVEL": "1"}
    assert plan.ports == (21000, 21999)
    assert plan.checkpoint == CheckpointPlan("/shared/mnist", 4)
    assert plan.restart == RestartPolicy(2, 1.0, 60.0, standby="on", rescue_s=20.0)
    assert plan.timing == Timing(1.0, 4.0, 30.0, 300.0, 60.0, 3.0)
    assert plan.runtime is False


MINIMAL = """\
version: 1
name: x
hosts: [{name: here, transport: local, slots: 2}]
run: {strategy: multi_worker_mirrored, script: train.py, tasks: {worker: {replicas: 2}}, checkpoint: {dir: ../ckpt}}
"""


def test_a_local_host_runs_what_orch_runs_and_its_checkpoints_are_beside_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "train.py").touch()
    (folder / "cluster.yaml").write_text(MINIMAL)
    plan, _ = load_plan(folder / "cluster.yaml")
    assert plan.hosts == (
        HostPlan("here", "local", "127.0.0.1", "127.0.0.1", python=sys.executable, slots=2),
    )
    assert plan.checkpoint == CheckpointPlan(str(tmp_path / "ckpt"), 3)
    assert plan.workdir == str(folder)
    assert plan.timing == Timing()
    assert plan.restart == RestartPolicy(standby="auto", rescue_s=600.0)
    assert [task.slot for task in plan.tasks] == [0, 1]


def test_the_memory_that_tasks_need_is_in_the_plan_and_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    asked = MINIMAL.replace("{replicas: 2}", "{replicas: 2, memory: 64GiB}")
    (tmp_path / "cluster.yaml").write_text(asked)
    plan, _ = load_plan(tmp_path / "cluster.yaml")
    assert [ask.memory_bytes for ask in plan.needs] == [64 << 30]
    assert document(plan)["needs"] == {"worker": "`memory` of 64 GiB"}
    (tmp_path / "cluster.yaml").write_text(MINIMAL)
    assert document(load_plan(tmp_path / "cluster.yaml")[0])["needs"] == {}
    (tmp_path / "cluster.yaml").write_text(asked.replace("64GiB", "lots"))
    with pytest.raises(SpecError, match=r"cluster.yaml:4:.*memory"):
        load_plan(tmp_path / "cluster.yaml")


def test_the_same_file_by_another_path_gives_the_same_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "cluster.yaml").write_text(MINIMAL)
    monkeypatch.chdir(tmp_path)
    assert load_plan("cluster.yaml") == load_plan(os.path.join(tmp_path, ".", "cluster.yaml"))


def test_a_spec_that_was_not_checked_and_finds_no_place_is_an_error(tmp_path: Path) -> None:
    spec = ClusterSpec.model_validate(
        {
            "version": 1,
            "name": "x",
            "hosts": [{"name": "a"}],
            "run": {
                "strategy": "multi_worker_mirrored",
                "script": "t.py",
                "tasks": {"worker": {"replicas": 2}},
            },
        }
    )
    with pytest.raises(SpecError, match=r"^run\.tasks\.worker: 2 tasks for 1 slot \(a 1\); "):
        plan_spec(spec, tmp_path)


@pytest.mark.parametrize(("fewest", "may_shrink"), [(1, {"worker": 1}), (2, {})])
def test_a_run_that_needs_all_its_tasks_cannot_shrink(fewest: int, may_shrink: dict[str, int]) -> None:
    tasks = {"worker": {"replicas": 2, "replicas_min": fewest}}
    run = {"strategy": "multi_worker_mirrored", "script": "t.py", "tasks": tasks}
    hosts = [{"name": "a", "slots": 2}]
    spec = ClusterSpec.model_validate({"version": 1, "name": "t", "hosts": hosts, "run": run})
    plan = plan_spec(spec, Path("/"))
    assert plan.replicas_min == may_shrink
    assert plan.options.replicas_planned == (2 if may_shrink else None), "what a script is told of it"


def test_unequal_hosts_are_split_into_workers_that_see_equally_many_gpus_each_its_own() -> None:
    tasks: dict[str, object] = {"worker": {"gpus": "split", "replicas_min": 2}}
    hosts = [
        {"name": "a", "gpus": 8},
        {"name": "b", "gpus": [2, 3, 6, 7]},
        {"name": "c", "gpus": 8, "spare": True},
    ]
    run = {"strategy": "multi_worker_mirrored", "script": "t.py", "tasks": tasks}
    spec = ClusterSpec.model_validate({"version": 1, "name": "t", "hosts": hosts, "run": run})
    plan = plan_spec(spec, Path("/"))
    seen = {
        str(task.id): environment(plan, "t-1", 1, task.id, 0, None)["CUDA_VISIBLE_DEVICES"]
        for task in plan.tasks
    }
    assert seen == {"worker:0": "0,1,2,3", "worker:1": "4,5,6,7", "worker:2": "2,3,6,7"}
    assert plan.replicas_min == {"worker": 2}
    moved = replace(plan, tasks=assigned(plan, {"a": "c", "b": None}))
    seen = {
        str(task.id): environment(moved, "t-1", 2, task.id, 1, None)["CUDA_VISIBLE_DEVICES"]
        for task in moved.tasks
    }
    assert seen == {"worker:0": "0,1,2,3", "worker:1": "4,5,6,7"}, "the spare holds both of what it replaces"
    assert has_room(plan, "a", "c")


def test_a_module_is_its_file_to_who_reads_and_its_name_to_who_runs_it(tmp_path: Path) -> None:
    (tmp_path / "code/pkg").mkdir(parents=True)
    (tmp_path / "code/pkg/__main__.py").touch()
    (tmp_path / "cluster.yaml").write_text(FULL.replace("script: train.py", "module: pkg"))
    plan, _ = load_plan(tmp_path / "cluster.yaml")
    assert (plan.script, plan.root) == ("pkg/__main__.py", str(tmp_path / "code"))
    assert plan.command == ("-m", "pkg", "--epochs", "3")
    task = document(plan)["tasks"][0]
    assert task["command"] == ["/opt/tf/bin/python", "-m", "pkg", "--epochs", "3"]


@pytest.mark.parametrize(
    ("written", "seconds", "steps"),
    [
        ("auto", None, None),
        ("10m", 600.0, None),
        ("90 s", 90.0, None),
        ("500 steps", None, 500),
        ("1step", None, 1),
    ],
)
def test_how_often_to_save_is_a_time_or_steps_or_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, seconds: float | None, steps: int | None
) -> None:
    monkeypatch.setenv("HOME", "/home/ml")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    text = FULL.replace("keep: 4", f"keep: 4, every: {written}").replace("runtime: off", "runtime: on")
    (tmp_path / "cluster.yaml").write_text(text)
    plan, _ = load_plan(tmp_path / "cluster.yaml")
    assert plan.checkpoint == CheckpointPlan("/shared/mnist", 4, every_s=seconds, every_steps=steps)
    told = json.loads(runtime_options(plan))
    assert (told.get("save_every_s"), told.get("save_every_steps")) == (seconds, steps)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("500", "must have a unit: 500s or 500 steps"),
        ("often", "must be auto, a time such as 10m, or a number of steps such as 500 steps; got 'often'"),
        ("10ms", "must be between 1s and 168h; got 10ms"),
        (
            "0 steps",
            "must be auto, a time such as 10m, or a number of steps such as 500 steps; got '0 steps'",
        ),
        ("[10m]", "must be auto, a time such as 10m, or a number of steps such as 500 steps"),
        (
            "10m}\n  runtime: off\n  env: {A: B",
            "needs the runtime, which is off: the script itself decides when to save",
        ),
    ],
)
def test_a_wrong_way_to_say_how_often_is_refused(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    text = FULL.replace("keep: 4", f"keep: 4, every: {written}").replace("  runtime: off\n", "", 1)
    (tmp_path / "cluster.yaml").write_text(text.replace('  env: {TF_CPP_MIN_LOG_LEVEL: "1"}\n', ""))
    with pytest.raises(SpecError, match=r"run\.checkpoint\.every: ") as caught:
        load_plan(tmp_path / "cluster.yaml")
    assert str(caught.value).endswith(said)

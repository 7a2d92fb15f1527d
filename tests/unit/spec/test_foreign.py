"""What other launchers are told becomes a cluster spec that loads, and says what the launcher said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.plan import Plan
from orchestrator.spec.foreign import inventory, mpi, tf_config
from orchestrator.spec.foreign.layout import Layout
from orchestrator.spec.foreign.write import cluster_yaml
from orchestrator.spec.plan import load_plan

COMMAND = ("python", "train.py", "--lr", "0.1", "--name", "a b: c")


def planned(tmp_path: Path, layout: Layout) -> Plan:
    """Write the spec, and load it as `orch up` does."""
    (tmp_path / "train.py").write_text("")
    file = tmp_path / "cluster.yaml"
    file.write_text(cluster_yaml(layout, "mnist"))
    plan, _ = load_plan(str(file))
    return plan


def nothing_to_read(_file: str) -> str:
    raise AssertionError("no file was named")


def test_horovodrun(tmp_path: Path) -> None:
    words = (
        "-np",
        "6",
        "-H",
        "server1:4,ml@10.0.0.2:4",
        "-p",
        "2222",
        "--verbose",
        "--start-timeout=60",
        *COMMAND,
    )
    layout = mpi.horovodrun(words, nothing_to_read)
    plan = planned(tmp_path, layout)
    assert (plan.strategy, len(plan.tasks), plan.script) == ("horovod", 6, "train.py")
    assert plan.args == ("--lr", "0.1", "--name", "a b: c")
    assert [(h.name, h.address, h.slots, h.user) for h in plan.hosts][1] == (
        "host-10-0-0-2",
        "10.0.0.2",
        4,
        "ml",
    )
    assert {h.port for h in plan.hosts} == {2222}
    assert any("--verbose, --start-timeout" in remark for remark in layout.remarks)


def test_horovodrun_on_this_machine_and_with_a_hostfile(tmp_path: Path) -> None:
    here = planned(tmp_path, mpi.horovodrun(("-np", "2", "python", "train.py"), nothing_to_read))
    assert [(h.transport, h.slots) for h in here.hosts] == [("local", 2)]
    words = ("--hostfile", "hosts.txt", "/opt/hvd/bin/python3", "-u", "train.py")
    layout = mpi.horovodrun(words, lambda file: {"hosts.txt": "a slots=2\nb slots=2\n"}[file])
    plan = planned(tmp_path, layout)
    assert ([h.name for h in plan.hosts], len(plan.tasks)) == (["a", "b"], 4)
    assert layout.training is not None
    assert layout.training.python == "/opt/hvd/bin/python3"


def test_a_hostfile_of_mpirun(tmp_path: Path) -> None:
    text = "# the lab\nserver1 slots=4 max_slots=8\nserver2:2\nserver1 slots=1\n"
    layout = mpi.hostfile(text, None, ("NCCL_DEBUG=INFO", *COMMAND))
    plan = planned(tmp_path, layout)
    assert [(h.name, h.slots) for h in plan.hosts] == [("server1", 5), ("server2", 2)]
    assert (len(plan.tasks), plan.env["NCCL_DEBUG"]) == (7, "INFO")


def test_a_tf_config(tmp_path: Path) -> None:
    cluster = {"chief": ["10.0.0.1:1"], "worker": ["10.0.0.1:2", "b.lab:2"], "ps": ["[fd00::7]:1"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    plan = planned(tmp_path, tf_config.tf_config(text, COMMAND))
    assert plan.strategy == "parameter_server"
    assert sorted(str(task.id) for task in plan.tasks) == ["chief:0", "ps:0", "worker:0", "worker:1"]
    assert [h.address for h in plan.hosts] == ["10.0.0.1", "b.lab", "fd00::7"]
    workers = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}})
    assert planned(tmp_path, tf_config.tf_config(workers, ())).strategy == "multi_worker_mirrored"


INI = """\
[gpus]
gpu-[01:02].lab ansible_user=ml ansible_port=2200
gpu-09 ansible_host=10.0.0.9   # the new one

[gpus:vars]
ansible_user=other

[web]
www

[all:children]
gpus
"""

YAML = """\
all:
  vars: {ansible_user: ml}
  children:
    gpus:
      hosts:
        gpu-[1:2]:
        gpu-9: {ansible_host: 10.0.0.9, ansible_port: 2200}
    web: {hosts: {www: }}
"""


def test_an_ansible_inventory_as_ini(tmp_path: Path) -> None:
    plan = planned(tmp_path, inventory.ansible(INI, "gpus", COMMAND))
    assert [(h.name, h.address) for h in plan.hosts] == [
        ("gpu-01", "gpu-01.lab"),
        ("gpu-02", "gpu-02.lab"),
        ("gpu-09", "10.0.0.9"),
    ]
    assert [(h.user, h.port) for h in plan.hosts][::2] == [("ml", 2200), ("other", None)]
    assert len(inventory.ansible(INI, None, ()).machines) == 4


def test_an_ansible_inventory_as_yaml(tmp_path: Path) -> None:
    plan = planned(tmp_path, inventory.ansible(YAML, "gpus", COMMAND))
    assert [(h.name, h.user) for h in plan.hosts] == [
        ("gpu-1", "ml"),
        ("gpu-2", "ml"),
        ("gpu-9", "ml"),
    ]
    assert plan.hosts[2].address == "10.0.0.9"


def test_a_ray_cluster_file(tmp_path: Path) -> None:
    text = "provider: {type: local, head_ip: 10.0.0.1, worker_ips: [10.0.0.2, gpu-c]}\nauth: {ssh_user: ml}\n"
    plan = planned(tmp_path, inventory.ray(text, COMMAND))
    assert [h.name for h in plan.hosts] == ["host-10-0-0-1", "host-10-0-0-2", "gpu-c"]
    assert {h.user for h in plan.hosts} == {"ml"}


def test_an_ssh_config(tmp_path: Path) -> None:
    text = "Host gpu-a gpu-b\n  HostName 10.0.0.1\nHost=gpu-c\nHost *.lab !x\nHost *\n  User ml\n"
    assert [h.name for h in planned(tmp_path, inventory.ssh_config(text, (), ())).hosts] == [
        "gpu-a",
        "gpu-b",
        "gpu-c",
    ]
    assert [h.name for h in inventory.ssh_config(text, ("gpu-c",), ()).machines] == ["gpu-c"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mpi.horovodrun(("-np", "9", "-H", "a:4", "python", "t.py"), nothing_to_read), "9 ranks do not fit"),
        (lambda: mpi.horovodrun(("-np",), nothing_to_read), "-np has no value"),
        (lambda: mpi.horovodrun(("-np", "x", "python", "t.py"), nothing_to_read), "'x' is no count"),
        (lambda: mpi.horovodrun(("-np", "1", "bash", "run.sh"), nothing_to_read), "starts no Python script"),
        (lambda: mpi.horovodrun(("-np", "1", "python", "-m", "train"), nothing_to_read), "starts no Python script"),
        (lambda: mpi.hostfile("# none\n", None, ()), "names no host"),
        (lambda: tf_config.tf_config("{", ()), "no JSON"),
        (lambda: tf_config.tf_config("[]", ()), "has no cluster"),
        (lambda: tf_config.tf_config('{"cluster": {"worker": ["a"]}}', ()), "'a' of worker is no host:port"),
        (lambda: tf_config.tf_config('{"cluster": {"boss": ["a:1"]}}', ()), "cluster.boss"),
        (lambda: inventory.ansible(INI, "nobody", ()), "no group 'nobody'; it has gpus, web"),
        (lambda: inventory.ray("provider: {type: aws}", ()), "names no machines"),
        (lambda: inventory.ray("a: [", ()), "is no YAML"),
        (lambda: inventory.ssh_config("Host a\n", ("b",), ()), "no Host b; it has a"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(UsageError, match=says):
        call()

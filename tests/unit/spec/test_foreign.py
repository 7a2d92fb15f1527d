"""What other launchers are told becomes a cluster spec that loads, and says what the launcher said."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.core.plan import Plan
from orchestrator.spec.foreign import ansible, inventory, mpi, tf_config
from orchestrator.spec.foreign.layout import Layout, Machine
from orchestrator.spec.foreign.write import cluster_yaml, hosts_yaml
from orchestrator.spec.load import load_spec
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
    here = planned(tmp_path, mpi.horovodrun(("-np", "2", "python", "-m", "train", "-v"), nothing_to_read))
    assert here.command == ("-m", "train", "-v")
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


def test_mpirun_as_horovods_texts_have_it(tmp_path: Path) -> None:
    line = "-np 6 -H server1:4,server2:2 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x PATH -mca pml ob1"
    layout = mpi.mpirun((*line.split(), "-mca", "btl", "^openib", *COMMAND), nothing_to_read)
    plan = planned(tmp_path, layout)
    assert (plan.strategy, len(plan.tasks), plan.env["NCCL_DEBUG"]) == ("horovod", 6, "INFO")
    assert plan.args == ("--lr", "0.1", "--name", "a b: c")
    assert any("-bind-to, -map-by, -mca" in remark for remark in layout.remarks)
    assert any("-x PATH passes" in remark for remark in layout.remarks)
    words = ("--hostfile", "hosts.txt", "train.py")
    assert len(planned(tmp_path, mpi.mpirun(words, lambda _: "[fd00::7]:2\nb slots=1\n")).tasks) == 3


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("GPU_Box.lab:1,gpu-b.lab:1", ["gpu-box", "gpu-b"]),
        ("gpu-a.lab:1,gpu-a.office:1", ["gpu-a", "gpu-a-office"]),
        ("gpu_a:1,gpu-a:1", ["gpu-a", "gpu-a-2"]),
        ("01:1,no:1", ["host-01", "no"]),
    ],
)
def test_hosts_whose_names_a_spec_does_not_take(tmp_path: Path, hosts: str, names: list[str]) -> None:
    plan = planned(tmp_path, mpi.horovodrun(("-H", hosts, "python", "train.py"), nothing_to_read))
    assert [host.name for host in plan.hosts] == names
    assert [host.address for host in plan.hosts] == [each.partition(":")[0] for each in hosts.split(",")]


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
    plan = planned(tmp_path, ansible.ansible(INI, "gpus", COMMAND))
    assert [(h.name, h.address) for h in plan.hosts] == [
        ("gpu-01", "gpu-01.lab"),
        ("gpu-02", "gpu-02.lab"),
        ("gpu-09", "10.0.0.9"),
    ]
    assert [(h.user, h.port) for h in plan.hosts][::2] == [("ml", 2200), ("other", None)]
    assert len(ansible.ansible(INI, None, ()).machines) == 4


def test_an_ansible_inventory_as_yaml(tmp_path: Path) -> None:
    plan = planned(tmp_path, ansible.ansible(YAML, "gpus", COMMAND))
    assert [(h.name, h.user) for h in plan.hosts] == [
        ("gpu-1", "ml"),
        ("gpu-2", "ml"),
        ("gpu-9", "ml"),
    ]
    assert plan.hosts[2].address == "10.0.0.9"


NESTED = """\
# all that we have
localhost ansible_connection=local
[gpus:children]
big
small
[big]
gpu-1:2222 ansible_host=10.0.0.1
[small]
gpu-2 ansible_ssh_private_key_file=~/.ssh/lab
[gpus:vars]
ansible_user=ml
[small:vars]
ansible_user=mini
"""
NESTED_YAML = """\
# all
gpus:
  vars: {ansible_user: ml}
  children: {big: {hosts: {gpu-1: }}, small: {hosts: {gpu-2: }}}
"""


def test_groups_of_groups_and_a_host_that_is_this_one(tmp_path: Path) -> None:
    layout = ansible.ansible(NESTED, "gpus", ())
    found = [(h.name, h.user, h.port) for h in planned(tmp_path, layout).hosts]
    assert found == [("gpu-1", "ml", 2222), ("gpu-2", "mini", None)]
    assert [m.identity_file for m in layout.machines] == [None, "~/.ssh/lab"]
    every = cluster_yaml(ansible.ansible(NESTED, None, ()), "t")
    assert "name: localhost, transport: local}" in every
    assert "add its `data_address`" in every
    assert [m.user for m in ansible.ansible(NESTED_YAML, "gpus", ()).machines] == ["ml", "ml"]


@pytest.mark.parametrize(
    ("name", "hosts"),
    [
        ("g[01:06:2]", ["g01", "g03", "g05"]),
        ("g[a:c]", ["ga", "gb", "gc"]),
        ("r[1:2]-[a:b].lab", ["r1-a", "r1-b", "r2-a", "r2-b"]),
        ("g[1:3:5]", ["g1"]),
    ],
)
def test_ranges_as_ansible_has_them(name: str, hosts: list[str]) -> None:
    assert [m.name for m in ansible.ansible(f"\ufeff[gpus]\n{name}\n", "gpus", ()).machines] == hosts
    assert [
        m.name for m in ansible.ansible(f"\ufeffall: {{hosts: {{'{name}': }}}}\n", None, ()).machines
    ] == hosts


@pytest.mark.parametrize("name", ["g[3:1]", "g[a:3]", "g[1:3:0]", "g[0:99999]"])
def test_what_is_no_range_is_said(name: str) -> None:
    with pytest.raises(UsageError, match="is no range of hosts"):
        ansible.ansible(f"[gpus]\n{name}\n", "gpus", ())


def test_the_key_the_bastion_and_the_files_beside_an_inventory(tmp_path: Path) -> None:
    files = {
        ("group_vars", "all"): "---\nansible_user: 'CORP\\ml'\nansible_private_key_file: '~/my keys/id'\n",
        ("group_vars", "gpus"): "ansible_ssh_common_args: '-o ProxyJump=ml@gate:2222'\nansible_port: 23\n",
        ("host_vars", "b"): "ansible_host: 10.0.0.2\nansible_port: 24\n",
        ("group_vars", "web"): "---\n",
    }
    text = "[gpus]\na\nb ansible_port=22\n[web]\nc ansible_ssh_common_args='-J far -o Compression=yes'\n"
    layout = ansible.ansible(
        text, None, (), lambda kind, of: [files[kind, of]] if (kind, of) in files else []
    )
    hosts = planned(tmp_path, layout).hosts
    assert [(h.name, h.address, h.user, h.port, h.proxy_jump) for h in hosts] == [
        ("a", "a", "CORP\\ml", 23, "ml@gate:2222"),
        ("b", "10.0.0.2", "CORP\\ml", 24, "ml@gate:2222"),
        ("c", "c", "CORP\\ml", None, "far"),
    ]
    assert {h.identity_file for h in hosts} == {str(Path("~/my keys/id").expanduser())}
    assert "ansible_ssh_common_args is left out but for its bastion" in layout.remarks[0]


VAULT = "$ANSIBLE_VAULT;1.1;AES256\n6162\n"


@pytest.mark.parametrize(
    ("text", "vars_", "user", "port", "remark"),
    [
        ("[g]\na\n[all:vars]\nansible_user=CORP\\ml\n", "", "CORP\\ml", None, ""),
        ("[g]\na\n[g:vars]\nmotd=it's ours\nansible_user = 'ml'\n", "", "ml", None, ""),
        ("[g]\na ansible_user=CORP\\\\ml\n", "", "CORP\\ml", None, ""),
        ("[g]  # ours\na:2200 # first\n", "", None, 2200, ""),
        ("[g]\n[a:a]:2200\n", "", None, 2200, ""),
        ("[g]\na ansible_user=ml\na ansible_port=23\n", "", "ml", 23, ""),
        ("[g]\na\n", VAULT, None, None, "group_vars/all is left out: it is encrypted"),
        ("[g]\na\n", "ansible_user: !unsafe ml\nansible_become_pass: !vault |\n  " + VAULT[:26], "ml", None, ""),
        ("[g]\na\n", "ansible_user: !vault |\n  " + VAULT[:26], None, None, "ansible_user of all is left out: it is"),
        ("[g]\na ansible_host='{{ ip }}'\n", "", None, None, "ansible_host of a is left out: it is a template"),
        ("all:\n  vars: {x: !vault v}\n  hosts: {a: {ansible_port: 23}}\n", "", None, 23, ""),
    ],
)  # fmt: skip
def test_what_ansible_takes_as_it_is_and_what_only_ansible_can_read(
    text: str, vars_: str, user: str | None, port: int | None, remark: str
) -> None:
    layout = ansible.ansible(
        text, None, (), lambda kind, of: [vars_] if (kind, of) == ("group_vars", "all") else []
    )
    (machine,) = layout.machines
    assert (machine.name, machine.address, machine.user, machine.port) == ("a", None, user, port)
    assert [each for each in layout.remarks if "left out" in each and each.startswith(remark)] == list(
        layout.remarks[:-1]
    )
    assert len(layout.remarks) == 1 + bool(remark)


def test_an_inventory_that_is_encrypted_is_refused_and_hosts_of_ipv6_are_no_ranges() -> None:
    with pytest.raises(UsageError, match="the inventory is encrypted"):
        ansible.ansible(VAULT, None, ())
    text = "[g]\n[2001:db8::1]:2200\nfe80::1\n"
    assert [(m.address, m.port) for m in ansible.ansible(text, None, ()).machines] == [
        ("2001:db8::1", 2200),
        ("fe80::1", None),
    ]


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
        (lambda: mpi.horovodrun(("-np", "1", "python", "-m"), nothing_to_read), "starts no Python script"),
        (lambda: mpi.hostfile("# none\n", None, ()), "names no host"),
        (lambda: tf_config.tf_config("{", ()), "no JSON"),
        (lambda: tf_config.tf_config("[]", ()), "has no cluster"),
        (lambda: tf_config.tf_config('{"cluster": {"worker": ["a"]}}', ()), "'a' of worker is no host:port"),
        (lambda: tf_config.tf_config('{"cluster": {"boss": ["a:1"]}}', ()), "cluster.boss"),
        (lambda: mpi.mpirun(("-H",), nothing_to_read), "mpirun's -H has no value"),
        (lambda: mpi.mpirun(("-np", "2", "-H", "a:0", "t.py"), nothing_to_read), "'0' is no count"),
        (lambda: mpi.mpirun(("-np", "2", "-H", "a", "t.py"), nothing_to_read), "2 ranks do not fit: the hosts have 1"),
        (lambda: mpi.hostfile("a slots=four\n", None, ()), "line 1 of the hostfile: 'four' is no count"),
        (lambda: ansible.ansible("[a]\nb user='x\n", None, ()), "line 2 of the inventory: no closing quotation"),
        (lambda: ansible.ansible("[a:b]\n", None, ()), r"line 1 of the inventory: .* is no \[group\]"),
        (lambda: ansible.ansible("[a]\nb ansible_port=ssh\n", None, ()), "host b: 'ssh' is no port"),
        (lambda: ansible.ansible("[a:children]\nb\n[b:children]\na\n", "a", ()), "names no hosts|child of itself"),
        (lambda: ansible.ansible("all: {hosts: [a, b]}\n", None, ()), "hosts of 'all' is no mapping"),
        (lambda: ansible.ansible("[a]\nb[9:1]\n", None, ()), "is no range"),
        (lambda: inventory.ray("provider: {type: local, worker_ips: a}", ()), "`worker_ips` .* is no list"),
        (lambda: inventory.ray("provider: local", ()), "`provider` of Ray's cluster file is no mapping"),
        (lambda: inventory.ssh_config("Host *\n", (), ()), "ssh_config names no hosts"),
        (lambda: tf_config.tf_config('{"cluster": {"worker": []}}', ()), "cluster.worker is no list"),
        (lambda: ansible.ansible(INI, "nobody", ()), "no group 'nobody'; it has gpus, web"),
        (lambda: inventory.ray("provider: {type: aws}", ()), "names no machines"),
        (lambda: inventory.ray("a: [", ()), "is no YAML"),
        (lambda: inventory.ssh_config("Host a\n", ("b",), ()), "no Host b; it has a"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(UsageError, match=says):
        call()


def diamond(levels: int) -> str:
    """Return an inventory in which each level has two groups, and both contain both of the next."""
    lines = ["[g0a]", "a", "[g0b]", "b"]
    for level in range(1, levels):
        for side in "ab":
            lines += [f"[g{level}{side}:children]", f"g{level - 1}a", f"g{level - 1}b"]
    return "\n".join(lines)


ALIASES = "x0: &x0 {a: {}}\n" + "".join(
    f"x{n}: &x{n} {{children: {{p: *x{n - 1}, q: *x{n - 1}, r: *x{n - 1}}}}}\n" for n in range(1, 30)
)

BOMBS = {
    "a diamond of groups": ("ansible", diamond(60), "2 hosts"),
    "two million hosts in ranges": (
        "ansible",
        "".join(f"h{n}-[0:9999]\n" for n in range(200)),
        "line 6 of the inventory: more than 50000 hosts",
    ),
    "two million hosts in YAML": (
        "ansible",
        "all:\n  hosts:\n" + "".join(f"    h{n}-[0:9999]:\n" for n in range(200)),
        "the inventory's group 'all': more than 50000 hosts",
    ),
    "more hosts than a spec may have": ("ansible", "h[0:9999]\n", "10000 hosts, and at most 2000"),
    "a range of huge numbers": ("ansible", f"h[0:{'9' * 9000}]\n", "line 1 of the inventory: .* no range"),
    "a huge port": ("ansible", f"h ansible_port={'9' * 9000}\n", "is no port"),
    "variables of many hosts": (
        "ansible",
        f"h[0:9999] {' '.join(f'k{n}=v' for n in range(9000))}\n",
        "10000 hosts, and at most",
    ),
    "a chain of groups": (
        "ansible",
        "".join(f"[g{n}:children]\ng{n + 1}\n" for n in range(5000)),
        "group 'g64' is nested more than 64 deep",
    ),
    "many groups over many hosts": (
        "ansible",
        "[g0]\nh[0:9999]\n" + "".join(f"[g{n}:children]\ng{n - 1}\n" for n in range(1, 40)),
        "more than 50000 hosts in all groups together",
    ),
    "nested aliases": ("ansible", ALIASES, "line 9 of the inventory: more than 50000 values"),
    "aliases in Ray's file": ("ray", ALIASES, "line 9 of Ray's cluster file: more than"),
    "YAML that contains itself": (
        "ansible",
        "all: &all\n  children:\n    below: *all\n",
        r"line 3 of the inventory: \*all is a part of itself",
    ),
    "deep YAML": ("ansible", "all: " + "[" * 100_000, "line 1 of the inventory: nested more than 64 deep"),
    "a million values": ("ray", "worker_ips: [" + "a, " * 150_000 + "]", "line 1 of Ray's cluster file: more than"),
    "deep JSON": ("tf_config", '{"cluster":\n' + "[" * 100_000, "TF_CONFIG, line 2, column 64: nested more than 64"),
    "deep JSON of objects": ("tf_config", '{"a":' * 100_000, "TF_CONFIG, line 1, column 321: nested more than"),
    "a large file": ("ansible", "h\n" * 300_000, "cannot read .*: it has more than 512 kB"),
    "an endless file": ("ansible", None, "cannot read /dev/zero: it has more than 512 kB"),
}  # fmt: skip

MEASURED = """
import sys, time
from orchestrator.cli.commands.import_ import _read
from orchestrator.core.errors import UsageError
from orchestrator.spec.foreign import ansible, inventory, tf_config
from orchestrator.spec.foreign.write import cluster_yaml, hosts_yaml
from orchestrator.spec.load import load_spec
read = {
    "ansible": lambda text: ansible.ansible(text, None, ()),
    "ray": lambda text: inventory.ray(text, ()),
    "tf_config": lambda text: tf_config.tf_config(text, ()),
}[sys.argv[1]]
began_s = time.process_time()
try:
    layout = read(_read(sys.argv[2]))
    cluster_yaml(layout, "t")
    print(len(layout.machines), "hosts")
except UsageError as error:
    print(error.message)
used_s = time.process_time() - began_s
print(used_s, open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.fault(50)
@pytest.mark.parametrize("case", BOMBS)
def test_what_is_to_be_imported_costs_less_than_a_second_and_200_mb(tmp_path: Path, case: str) -> None:
    reader, text, says = BOMBS[case]
    file = "/dev/zero" if text is None else str(tmp_path / "file")
    if text is not None:
        Path(file).write_text(text)
    spent_s = 9.0
    for _ in range(3):  # a core that is shared is slower than the file is costly: the best one counts
        run = subprocess.run(
            [sys.executable, "-P", "-c", MEASURED, reader, file],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        told, numbers = run.stdout.rstrip("\n").split("\n")
        seconds, kilobytes = numbers.split()
        spent_s = min(spent_s, float(seconds))
        assert re.search(says, told), told[:300]
        assert int(kilobytes) < 200 << 10
        if spent_s < 1.0:
            break
    assert spent_s < 1.0
    assert len(told) < 500


def test_two_groups_may_share_a_child_and_the_nearest_variables_win(tmp_path: Path) -> None:
    text = (
        "[leaf]\na\nb ansible_user=own\n[left:children]\nleaf\n[right:children]\nleaf\n[top:children]\nleft\nright\n"
        "[top:vars]\nansible_user=top\nansible_port=2201\n[left:vars]\nansible_user=left\n"
    )
    machines = {machine.name: machine for machine in ansible.ansible(text, "top", ()).machines}
    assert {name: (m.user, m.port) for name, m in machines.items()} == {
        "a": ("left", 2201),
        "b": ("own", 2201),
    }
    aliased = "all:\n  vars: &v {ansible_user: ml}\n  children:\n    x: {vars: *v, hosts: {a: , b: }}\n"
    assert [m.user for m in ansible.ansible(aliased, "x", ()).machines] == ["ml", "ml"]


def test_hosts_may_stand_in_an_inventory_that_the_spec_names(tmp_path: Path) -> None:
    machines = (
        Machine("gpu-a", address="10.0.0.1", gpus=2, user="ml"),
        Machine("gpu-b", gpus=(0, 3), slots=2),
    )
    layout = Layout("x", machines, "multi_worker_mirrored", {"worker": 2}, checkpoint="/mnt/t", gpus_each=2)
    apart = replace(layout, inventory="lab/hosts.yaml")
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/hosts.yaml").write_text(hosts_yaml(apart))
    (tmp_path / "one.yaml").write_text(cluster_yaml(layout, "t"))
    (tmp_path / "two.yaml").write_text(cluster_yaml(apart, "t"))
    (tmp_path / "train.py").write_text("")
    one, two = (load_spec(tmp_path / name) for name in ("one.yaml", "two.yaml"))
    assert one.hosts == two.hosts
    assert two.inventory == str(tmp_path / "lab/hosts.yaml")
    assert "10.0.0.1" not in (tmp_path / "two.yaml").read_text()

"""Every kind of bad cluster.yaml, with the exact text that its author reads."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.spec.load import load_spec

GOOD = """\
version: 1
name: mnist
hosts:
  - {name: gpu-a, address: 10.0.0.11, gpus: 4}
  - {name: gpu-b, address: 10.0.0.12, gpus: 4}
run:
  strategy: multi_worker_mirrored
  script: train.py
  tasks: {worker: {replicas: 2}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def diagnostics(folder: Path, content: str | bytes) -> list[str]:
    """Return the diagnostics of a cluster.yaml, without the file's name."""
    file = folder / "cluster.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        load_spec(file)
    except SpecError as error:
        lines = error.message.splitlines()
        assert all(line.startswith(f"{file}:") for line in lines)
        return [line.removeprefix(f"{file}:").replace(str(folder), "FOLDER") for line in lines]
    return []


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def run(more: str) -> str:
    """Return the good spec with more lines under `run`; they begin in line 10, column 3."""
    return GOOD + "".join(f"  {line}\n" for line in more.splitlines())


def host_b(keys: str) -> str:
    """Return the good spec with another second host; its keys begin in line 5, column 6."""
    return changed("{name: gpu-b, address: 10.0.0.12, gpus: 4}", "{" + keys + "}")


def test_a_good_file_has_no_complaints(folder: Path) -> None:
    assert diagnostics(folder, GOOD) == []
    assert diagnostics(folder, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()) == []


MISSING_REST = [
    "1:1: hosts: is missing: the machines",
    "1:1: name: is missing: the run's name",
    "1:1: run: is missing: what is trained, and how",
]

YAML = {
    "empty": (b"", ["1:1: yaml: the file is empty; it needs at least hosts and run"]),
    "comment only": (b"# none\n", ["1:1: yaml: the file is empty; it needs at least hosts and run"]),
    "a list": (b"- 1\n", ["1:1: cluster spec: must be a mapping (lines of key: value), and this is a list"]),
    "null": (b"---\n", ["2:1: cluster spec: must be a mapping (lines of key: value), and this is nothing"]),
    "not utf-8": (b"version: 1\nname: caf\xe9\n", ["2:10: file: is not UTF-8: byte 0xe9"]),
    "utf-16": ("version: 1".encode("utf-16-le"), ["1:2: yaml: the character U+0000 must not be here"]),
    "control character": (b"name: a\x07b\n", ["1:8: yaml: the character U+0007 must not be here"]),
    "bidi": ("name: a\u202eb\n".encode(), ["1:8: yaml: the character U+202E must not be here"]),
    "tab": (b"version: 1\nrun:\n\tscript: x\n", ["3:1: yaml: a tab; YAML is indented with spaces"]),
    "tab after spaces": (b"run:\n  \tscript: x\n", ["2:3: yaml: a tab; YAML is indented with spaces"]),
    "two documents": (
        b"version: 1\n---\nversion: 1\n",
        [*MISSING_REST, "2:1: yaml: a second document starts here; a file holds one cluster"],
    ),
    "deep": (b"[" * 500_000, ["1:18: yaml: more than 16 levels; a cluster spec is never that large"]),
    "wide": (
        b"[" + b"a," * 500_000,
        ["1:40000: yaml: more than 20000 values; a cluster spec is never that large"],
    ),
    "open quotes": (b'version: 1\nname: "abc\nrun: 1\n', ["2:7: yaml: these quotes are never closed"]),
    "open list": (b"a: [1, 2\nb: 3\n", ["2:2: yaml: the list [ ] is not closed, or a comma is missing"]),
    "at sign": (b"name: @x\n", ["1:7: yaml: a value cannot start with @; put it in quotes"]),
    "two colons": (
        b"name: a: b\n",
        ["1:8: yaml: a `: ` where none can be; check the indentation, or put the value in quotes"],
    ),
    "indentation": (
        b"a:\n  b: 1\n c: 2\n",
        ["3:2: yaml: the indentation differs from that of the lines above"],
    ),
    "neither key nor item": (
        b"version: 1\nname\nrun: 1\n",
        ["2:1: yaml: this line is neither `key: value` nor a list item; check the indentation"],
    ),
}


@pytest.mark.parametrize("case", YAML)
@pytest.mark.fault(50)
def test_what_is_not_yaml_is_said_with_its_place(folder: Path, case: str) -> None:
    content, expected = YAML[case]
    assert diagnostics(folder, content) == expected


@pytest.mark.fault(50)
def test_aliases_and_tags_are_refused_where_they_stand(folder: Path) -> None:
    bomb = changed("version: 1", "version: !!int 1").replace("gpus: 4", "gpus: &a 4", 1)
    assert diagnostics(folder, bomb.replace("gpus: 4", "gpus: *a")) == [
        "1:10: version: tags (!name) are not read here; leave it out",
        "4:45: hosts[0].gpus: anchors (&name) are not read here; write the value out",
        "5:45: hosts[1].gpus: aliases (*name) are not read here; write the value out",
    ]


VALUES = {
    "duplicate key": (GOOD + "name: again\n", ["10:1: name: given twice; the first is in line 2"]),
    "unknown key": (changed("gpus", "gpu"), ["4:39: hosts[0].gpu: unknown key; did you mean `gpus`?"]),
    "unknown key far from all": (
        GOOD + "zzz: 1\n",
        ["10:1: zzz: unknown key; known here are version, name, hosts, slurm, kubernetes, ssh, run"],
    ),
    "key of another place": (
        GOOD + "heartbeat: 1s\n",
        ["10:1: heartbeat: unknown key here; it belongs to timing"],
    ),
    "key that is a list": (GOOD + "? [a]\n: 1\n", ["10:3: cluster spec: a key must be plain text"]),
    "key on": (
        GOOD.replace("name: mnist", "on: mnist\nname: mnist"),
        [
            "2:1: on: unknown key here; it belongs to notify",
            '2:1: on: without quotes, YAML reads the key on as true; write "on"',
        ],
    ),
    "norway": (
        changed("mnist", "no"),
        ["2:7: name: must be text, and without quotes YAML reads this as false; put it in quotes"],
    ),
    "octal": (
        changed("mnist", "0123"),
        [
            "2:7: name: a number with a leading zero is read as octal by some; drop the zero, or put it in quotes"
        ],
    ),
    "name is a number": (
        changed("mnist", "123"),
        ["2:7: name: must be text, and without quotes YAML reads this as a number; put it in quotes"],
    ),
    "name": (
        changed("mnist", "Mnist-"),
        [
            "2:7: name: must be 1 to 63 lower-case letters, digits and dashes, with no dash at either end; "
            "got 'Mnist-'"
        ],
    ),
    "version": (changed("version: 1", "version: 2"), ["1:10: version: this orch reads version 1; got 2"]),
    "version is missing": (
        changed("version: 1\n", ""),
        ["1:1: version: is missing; write version: 1"],
    ),
    "script is missing": (
        changed("  script: train.py\n", ""),
        ["6:1: run.script: is missing: the training script, relative to workdir"],
    ),
    "no hosts": (
        changed(GOOD[GOOD.index("hosts") : GOOD.index("run")], "hosts: []\n"),
        ["3:1: hosts: there is none; list at least one host with its name"],
    ),
    "hosts is a mapping": (
        changed(GOOD[GOOD.index("hosts") : GOOD.index("run")], "hosts: {gpu-a: 4}\n"),
        ["3:1: hosts: must be a list, and this is a mapping"],
    ),
    "run is empty": (
        GOOD[: GOOD.index("run")] + "run:\n",
        ["6:1: run: must be a mapping (lines of key: value), and this is nothing"],
    ),
    "port 65536": (
        host_b("name: gpu-b, port: 65536, gpus: 4"),
        ["5:25: hosts[1].port: must be at most 65535; got 65536"],
    ),
    "port is text": (
        host_b("name: gpu-b, port: ssh, gpus: 4"),
        ["5:25: hosts[1].port: must be a whole number; got 'ssh'"],
    ),
    "slots 0": (
        host_b("name: gpu-b, slots: 0, gpus: 4"),
        ["5:26: hosts[1].slots: must be at least 1; got 0"],
    ),
    "spare": (
        host_b("name: gpu-b, spare: maybe, gpus: 4"),
        ["5:26: hosts[1].spare: must be true or false; got 'maybe'"],
    ),
    "transport": (
        host_b("name: gpu-b, transport: shh, gpus: 4"),
        ["5:30: hosts[1].transport: must be one of ssh, local; got 'shh'; did you mean `ssh`?"],
    ),
    "gpus": (
        host_b("name: gpu-b, gpus: many"),
        [
            "5:25: hosts[1].gpus: must be a count of GPUs (0 to 128) or a list of their numbers, such as [0, 1, 3]; "
            "got 'many'"
        ],
    ),
    "gpu twice": (host_b("name: gpu-b, gpus: [0, 1, 1, 2]"), ["5:19: hosts[1].gpus: lists a GPU twice"]),
    "strategy": (
        changed("multi_worker_mirrored", "multi_worker_miror"),
        [
            "7:13: run.strategy: must be one of multi_worker_mirrored, parameter_server, processes, horovod, mirrored, "
            "central_storage, tpu, single; got 'multi_worker_miror'; "
            "did you mean `multi_worker_mirrored`?"
        ],
    ),
    "task type": (
        changed("worker: {replicas: 2}", "wroker: {replicas: 2}"),
        [
            "9:11: run.tasks.wroker: must be one of chief, worker, ps, evaluator; got 'wroker'; "
            "did you mean `worker`?"
        ],
    ),
    "replicas": (
        changed("replicas: 2", "replicas: 0"),
        ["9:30: run.tasks.worker.replicas: must be at least 1; got 0"],
    ),
    "args": (
        run('args: ["--epochs", 3, yes]'),
        [
            "10:22: run.args[1]: must be text, and without quotes YAML reads this as a number; put it in quotes",
            "10:25: run.args[2]: must be text, and without quotes YAML reads this as true; put it in quotes",
        ],
    ),
    "args is text": (run("args: --epochs 3"), ["10:9: run.args: must be a list, and this is text"]),
    "ports": (
        run("ports: 20000"),
        ["10:10: run.ports: must be a range of ports such as 20000-20999; got 20000"],
    ),
    "ports too high": (
        run("ports: 65000-65536"),
        ["10:10: run.ports: ports go from 1024 (below it they need root) to 65535; got 65000-65536"],
    ),
    "ports upside down": (
        run("ports: 20999-20000"),
        ["10:10: run.ports: the first port is above the last; did you mean 20000-20999?"],
    ),
    "size": (
        run("push_limit: a lot"),
        [
            "10:15: run.push_limit: must be a size: a number with kB, MB, GB, KiB, MiB or GiB, such as 500MB or "
            "1.5GB; got 'a lot'"
        ],
    ),
    "size out of bounds": (
        run("push_limit: 0"),
        ["10:15: run.push_limit: must be between 1B and 10TB; got 0B"],
    ),
    "duration": (
        run("timing: {kill_grace: soon}"),
        [
            "10:24: run.timing.kill_grace: must be a duration: a number with ms, s, m, h or d, such as "
            "500ms, 5s or 1.5m; got 'soon'"
        ],
    ),
    "duration out of bounds": (
        run("timing: {heartbeat: 1ms}"),
        ["10:23: run.timing.heartbeat: must be between 100ms and 1m; got 1ms"],
    ),
    "runtime": (run("runtime: maybe"), ["10:12: run.runtime: must be on or off; got 'maybe'"]),
}


@pytest.mark.parametrize("case", VALUES)
@pytest.mark.fault(55)
def test_a_wrong_value_is_said_with_its_place_and_the_way_out(folder: Path, case: str) -> None:
    content, expected = VALUES[case]
    assert diagnostics(folder, content) == expected


RELATIONS = {
    "same name": (
        host_b("name: gpu-a, address: 10.0.0.12, gpus: 4"),
        ["5:12: hosts[1].name: hosts[0] has this name already"],
    ),
    "same address": (
        host_b("name: gpu-b, address: 10.0.0.11, port: 22, gpus: 4"),
        [
            "5:28: hosts[1].address: the same machine as hosts[0]: address 10.0.0.11, port 22; "
            "give one host more `slots`"
        ],
    ),
    "an address with a port": (
        host_b("name: gpu-b, address: 'ml-b:2222', gpus: 4"),
        [
            "5:28: hosts[1].address: must be a host name or an IP address without a port; got 'ml-b:2222'; "
            "write `address: ml-b` and `port: 2222`"
        ],
    ),
    "an IPv6 address with a port": (
        host_b("name: gpu-b, address: '[fd00::7]:2222', gpus: 4"),
        [
            "5:28: hosts[1].address: must be a host name or an IP address without a port; got '[fd00::7]:2222'; "
            "write `address: fd00::7` and `port: 2222`"
        ],
    ),
    "a data address with a port": (
        host_b("name: gpu-b, data_address: 'ml-b:2222', gpus: 4"),
        [
            "5:33: hosts[1].data_address: must be a host name or an IP address without a port; got 'ml-b:2222'; "
            "the tasks' ports are those of `run.ports`"
        ],
    ),
    "an IPv6 address": (host_b("name: gpu-b, address: 'fd00::7', data_address: '[fd00::8]', gpus: 4"), []),
    "same address, another port": (host_b("name: gpu-b, address: 10.0.0.11, port: 23, gpus: 4"), []),
    "more tasks than slots": (
        changed("replicas: 2", "replicas: 3"),
        [
            "9:30: run.tasks.worker.replicas: 3 tasks for 2 slots (gpu-a 1, gpu-b 1); "
            "a host holds one task unless its `slots` says more, and a spare holds none"
        ],
    ),
    "only spares": (
        GOOD.replace("gpus: 4}", "gpus: 4, spare: true}"),
        [
            "9:30: run.tasks.worker.replicas: 2 tasks for 0 slots (every host is a spare); "
            "a host holds one task unless its `slots` says more, and a spare holds none"
        ],
    ),
    "more GPUs than any host has": (
        changed("replicas: 2", "replicas: 2, gpus: 8"),
        [
            "9:39: run.tasks.worker.gpus: each worker wants 8 GPUs, and no host has that many "
            "(the most is 4, on gpu-a)"
        ],
    ),
    "more GPUs than a host has left": (
        host_b("name: gpu-b, gpus: 2").replace("replicas: 2", "replicas: 2, gpus: 3"),
        [
            "9:39: run.tasks.worker.gpus: only 1 of 2 workers with 3 GPUs each find room: "
            "gpu-b has 1 slot and 2 GPUs left"
        ],
    ),
    "unequal GPUs": (
        host_b("name: gpu-b, gpus: 2"),
        [
            "9:11: run.tasks.worker.gpus: mirrored tasks need equal GPU counts: worker:0 on gpu-a would have 4, "
            "and worker:1 on gpu-b 2; write `gpus: split` without `replicas` for 3 tasks of 2 GPUs (no GPU is idle), "
            "or `gpus: 2` for every task"
        ],
    ),
    "split and a number of tasks": (
        changed("replicas: 2", "replicas: 2, gpus: split"),
        [
            "9:30: run.tasks.worker.replicas: leave it out: by `gpus: split` the hosts' GPUs say how many there are"
        ],
    ),
    "split under another strategy": (
        changed("replicas: 2", "gpus: split").replace("multi_worker_mirrored", "processes"),
        ["9:26: run.tasks.worker.gpus: split is for multi_worker_mirrored; the strategy is processes"],
    ),
    "GPUs of a chief beside split workers": (
        changed("worker: {replicas: 2}", "chief: {gpus: 1}, worker: {gpus: split}"),
        ["9:25: run.tasks.chief.gpus: leave it out: by `gpus: split` the chief gets as many as each worker"],
    ),
    "split for an evaluator": (
        changed("worker: {replicas: 2}", "chief: {}, evaluator: {gpus: split}"),
        [
            "9:40: run.tasks.evaluator.gpus: split is written for worker; a chief gets as many GPUs as each worker "
            "then"
        ],
    ),
    "split of no GPU": (
        host_b("name: gpu-b").replace("gpus: 4", "slots: 1").replace("replicas: 2", "gpus: split"),
        ["9:26: run.tasks.worker.gpus: `gpus: split` divides the GPUs of the hosts, and no host has any"],
    ),
    "split into fewer tasks than must be left": (
        changed("replicas: 2", "replicas_min: 3, gpus: split"),
        [
            "9:34: run.tasks.worker.replicas_min: replicas_min (3) must not be above the 2 workers that "
            "`gpus: split` makes"
        ],
    ),
    "a number of GPUs that is none": (
        changed("replicas: 2", "replicas: 2, gpus: half"),
        ["9:39: run.tasks.worker.gpus: must be a number of GPUs (0 to 128), or split; got 'half'"],
    ),
    "a task type that the strategy has not": (
        changed("replicas: 2}}", "replicas: 1}, ps: {replicas: 1}}"),
        ["9:34: run.tasks.ps: multi_worker_mirrored has no ps; it has chief, worker, evaluator"],
    ),
    "evaluator alone": (
        changed("worker: {replicas: 2}", "evaluator: {replicas: 1}"),
        ["9:3: run.tasks: multi_worker_mirrored needs a chief or a worker"],
    ),
    "two chiefs": (
        changed("worker: {replicas: 2}", "chief: {replicas: 2}"),
        ["9:29: run.tasks.chief.replicas: TensorFlow takes one chief; got 2"],
    ),
    "few ports": (
        run("ports: 20000-20000"),
        [
            "10:10: run.ports: 1 ports are too few; 2 are needed: two for each task of the fullest machine, "
            "as every generation takes new ones"
        ],
    ),
    "heartbeat against the default": (
        run("timing: {heartbeat: 5s}"),
        [
            "10:23: run.timing.heartbeat: unreachable_after (10s, the default) must be at least three times "
            "heartbeat (5s): two heartbeats may be lost on the way"
        ],
    ),
    "lost before unreachable": (
        run("timing: {unreachable_after: 2m, lost_after: 2m}"),
        [
            "10:47: run.timing.lost_after: lost_after (2m) must be more than unreachable_after (2m): "
            "SSH trouble alone is not a lost host"
        ],
    ),
    "backoff": (
        run("restart: {backoff: 10m}"),
        ["10:22: run.restart.backoff: backoff (10m) must not be above backoff_max (5m, the default)"],
    ),
    "local host with an address": (
        host_b("name: gpu-b, transport: local, gpus: 4, data_address: 10.0.0.1, user: ml"),
        ["5:76: hosts[1].user: a local host is used without SSH; leave it out"],
    ),
    "local among others": (
        host_b("name: gpu-b, transport: local, gpus: 4"),
        [
            "5:30: hosts[1].transport: the other hosts cannot reach 127.0.0.1; "
            "add data_address: this machine's address for them"
        ],
    ),
    "relative checkpoint over SSH": (
        run("checkpoint: {dir: ~/ckpt}"),
        [
            "10:21: run.checkpoint.dir: must be an absolute path: it is a directory of the hosts, the same on each"
        ],
    ),
    "workdir is missing": (
        run("workdir: nowhere"),
        ["10:12: run.workdir: no such directory: FOLDER/nowhere"],
    ),
    "script is missing": (
        changed("train.py", "trian.py"),
        ["8:11: run.script: no such file in workdir (FOLDER): trian.py"],
    ),
    "script is outside": (
        changed("train.py", "../train.py"),
        [
            "8:11: run.script: must be a path inside workdir, such as train.py or src/train.py; got '../train.py'"
        ],
    ),
    "ps without chief": (
        changed("multi_worker_mirrored", "parameter_server"),
        ["9:3: run.tasks: parameter_server needs a chief", "9:3: run.tasks: parameter_server needs a ps"],
    ),
    "a type that the strategy does not know": (
        changed("worker: {replicas: 2}", "worker: {replicas: 1}, ps: {replicas: 1}"),
        ["9:34: run.tasks.ps: multi_worker_mirrored has no ps; it has chief, worker, evaluator"],
    ),
    "mirrored is one task": (
        changed("multi_worker_mirrored", "mirrored"),
        [
            "9:30: run.tasks.worker.replicas: mirrored is one task with all its devices; got 2 replicas; "
            "did you mean multi_worker_mirrored?"
        ],
    ),
    "transparent with processes": (
        changed("multi_worker_mirrored", "processes") + "  transparent: true\n",
        [
            "10:16: run.transparent: works with multi_worker_mirrored, mirrored, central_storage; "
            "the strategy is processes"
        ],
    ),
    "an evaluator beside an ordinary script": (
        changed("{worker: {replicas: 2}}", "{worker: {}, evaluator: {}}") + "  transparent: true\n",
        [
            "9:23: run.tasks.evaluator: an ordinary script knows nothing of evaluating: with `transparent: true` it "
            "would train there too; leave the evaluator out"
        ],
    ),
    "Keras 3 and Keras 2": (
        run("keras: 3\nenv: {TF_USE_LEGACY_KERAS: '1'}"),
        ["10:10: run.keras: 3, and env has TF_USE_LEGACY_KERAS, which chooses Keras 2; keep one"],
    ),
    "CPUs instead of the GPUs that are there": (
        run("replicas_on_cpu: 2"),
        [
            "10:20: run.replicas_on_cpu: is for tasks without GPUs, and worker:0 on gpu-a has 4, which would idle; "
            "leave it out"
        ],
    ),
    "packs that are none": (
        GOOD + "  bytes_per_pack: 0\n",
        ["10:19: run.bytes_per_pack: must be between 1B and 1TB; got 0B"],
    ),
    "horovod as if it were TensorFlow's": (
        changed("multi_worker_mirrored", "horovod").replace(
            "worker: {replicas: 2}", "worker: {gpus: 1}, chief: {}"
        )
        + "  transparent: true\n  communication: nccl\n  keras: 3\n  runtime: off\n  tpu: v4\n",
        [
            "9:30: run.tasks.chief: horovod has no chief; it has worker",
            "10:16: run.transparent: needs the runtime, which is off",
            "10:16: run.transparent: works with multi_worker_mirrored, mirrored, central_storage; "
            "the strategy is horovod",
            "11:18: run.communication: is for multi_worker_mirrored; the strategy is horovod",
            "12:10: run.keras: horovod trains with Keras 2 only; got 3",
            "13:12: run.runtime: horovod needs the runtime; it cannot be off",
            "14:8: run.tpu: is for tpu; the strategy is horovod",
        ],
    ),
    "a rank with two GPUs": (
        changed("multi_worker_mirrored", "horovod"),
        [
            "9:11: run.tasks.worker.gpus: a rank uses one GPU, and worker:0 on gpu-a would have 4; "
            "write `gpus: 1`, and a host's GPUs as its `slots`"
        ],
    ),
    "a TPU without a name": (
        changed("multi_worker_mirrored", "tpu").replace("worker: {replicas: 2}", "worker: {replicas: 1}"),
        [
            "7:13: run.strategy: tpu needs `tpu:`, the TPU's name, grpc://address:port, or `local` on a TPU VM",
        ],
    ),
    "two tasks for one TPU": (
        changed("multi_worker_mirrored", "tpu") + "  tpu: local\n",
        ["9:30: run.tasks.worker.replicas: tpu is one task with all its devices; got 2 replicas"],
    ),
    "a name that is none of a TPU": (
        changed("multi_worker_mirrored", "tpu").replace("replicas: 2", "replicas: 1") + "  tpu: -x\n",
        ["10:8: run.tpu: must be the name of a TPU, grpc://address:port, or local; got '-x'"],
    ),
    "a batch for a script that sets its own": (
        run("batch: global"),
        ["10:10: run.batch: is for transparent scripts; any other script sets its own batch"],
    ),
    "communication of another strategy": (
        changed("multi_worker_mirrored", "processes") + "  communication: ring\n",
        ["10:18: run.communication: is for multi_worker_mirrored; the strategy is processes"],
    ),
    "more at the least than there are": (
        changed("{replicas: 2}", "{replicas: 2, replicas_min: 3}"),
        [
            "9:47: run.tasks.worker.replicas_min: replicas_min (3) must not be above replicas (2)",
        ],
    ),
    "fewer of one process": (
        changed("multi_worker_mirrored", "mirrored").replace("{replicas: 2}", "{replicas_min: 1}"),
        [
            "9:34: run.tasks.worker.replicas_min: mirrored cannot go on with fewer worker tasks; replicas_min is for "
            "multi_worker_mirrored (worker), parameter_server (worker), processes (worker), horovod (worker)"
        ],
    ),
    "nothing that may shrink": (
        run("on_shrink: hold_batch"),
        [
            "10:14: run.on_shrink: nothing may shrink: give the tasks a replicas_min below their replicas",
        ],
    ),
    "a batch that is not shared": (
        changed("multi_worker_mirrored", "mirrored").replace("  tasks: {worker: {replicas: 2}}\n", "")
        + "  on_shrink: hold_batch\n",
        [
            "9:14: run.on_shrink: is for strategies whose replicas share a batch and may be fewer: "
            "multi_worker_mirrored, processes, horovod",
        ],
    ),
    "a learning rate of Keras 2": (
        changed("{replicas: 2}", "{replicas: 2, replicas_min: 1}")
        + "  transparent: true\n  keras: 2\n  on_shrink: scale_lr\n",
        [
            "12:14: run.on_shrink: scale_lr of a transparent script needs Keras 3; hold_batch works with both",
        ],
    ),
    "fewer evaluators": (
        changed("{replicas: 2}}", "{replicas: 1}, evaluator: {replicas_min: 1}}"),
        [
            "9:60: run.tasks.evaluator.replicas_min: multi_worker_mirrored cannot go on with fewer evaluator tasks; "
            "replicas_min is for multi_worker_mirrored (worker), parameter_server (worker), processes (worker), "
            "horovod (worker)"
        ],
    ),
    "script is absolute": (
        changed("train.py", "/etc/passwd"),
        [
            "8:11: run.script: must be a path inside workdir, such as train.py or src/train.py; got '/etc/passwd'"
        ],
    ),
}


@pytest.mark.parametrize("case", RELATIONS)
@pytest.mark.fault(55)
def test_what_cannot_go_together_is_said_at_the_closest_place(folder: Path, case: str) -> None:
    content, expected = RELATIONS[case]
    assert diagnostics(folder, content) == expected


def test_a_script_that_is_a_symlink_out_of_the_tree_is_refused(folder: Path) -> None:
    (folder / "out.py").symlink_to(sys.executable)
    assert diagnostics(folder, changed("train.py", "out.py")) == [
        "8:11: run.script: out.py is a symlink that leaves workdir (FOLDER); it would not be pushed"
    ]
    (folder / "in.py").symlink_to("train.py")
    assert diagnostics(folder, changed("train.py", "in.py")) == []


def test_checkpoints_of_a_local_run_are_relative_to_the_file_and_outside_workdir(folder: Path) -> None:
    local = GOOD[: GOOD.index("hosts")] + "hosts: [{name: here, transport: local, slots: 2}]\n"
    local += GOOD[GOOD.index("run") :]
    assert diagnostics(folder, local + "  checkpoint: {dir: ../ckpt}\n") == []
    assert diagnostics(folder, local + "  checkpoint: {dir: ckpt}\n") == [
        "8:21: run.checkpoint.dir: lies inside workdir, and would be pushed with the code; "
        "choose a directory outside it"
    ]
    twice = local.replace("}]", "}, {name: too, transport: local}]")
    assert diagnostics(folder, twice) == [
        "3:74: hosts[1].transport: the same machine as hosts[0]: this machine; give one host more `slots`"
    ]


@pytest.mark.fault(55)
def test_everything_is_told_at_once_in_the_order_of_the_file(folder: Path) -> None:
    bad = GOOD.replace("gpu-b", "gpu-a").replace("10.0.0.12", "10.0.0.12, port: 65536")
    bad = bad.replace("replicas: 2", "replicas: 3").replace("script: train.py", "scrip: train.py")
    bad += "  timing: {heartbeat: 5s, stall_after: soon}\n  env: {1A: x, ORCH_RUN: y, B: 7}\n"
    assert diagnostics(folder, bad) == [
        "5:12: hosts[1].name: hosts[0] has this name already",
        "5:45: hosts[1].port: must be at most 65535; got 65536",
        "6:1: run.script: is missing: the training script, relative to workdir",
        "8:3: run.scrip: unknown key; did you mean `script`?",
        "9:30: run.tasks.worker.replicas: 3 tasks for 2 slots (gpu-a 1, gpu-a 1); "
        "a host holds one task unless its `slots` says more, and a spare holds none",
        "10:23: run.timing.heartbeat: unreachable_after (10s, the default) must be at least three times "
        "heartbeat (5s): two heartbeats may be lost on the way",
        "10:40: run.timing.stall_after: must be a duration: a number with ms, s, m, h or d, such as "
        "500ms, 5s or 1.5m; got 'soon'",
        "11:9: run.env: not a name for an environment variable: letters, digits and _ only, "
        "not beginning with a digit",
        "11:16: run.env.ORCH_RUN: ORCH_RUN is set by orch for each task, and cannot be set here",
        "11:32: run.env.B: must be text, and without quotes YAML reads this as a number; put it in quotes",
    ]


SHELLS = ("; touch x", "$(id)", "`id`", "a'b", 'a"b', "a\nb", "-oProxyCommand=x", "a b", "a\x1b[2J", "é", "")


@pytest.mark.parametrize("key", ["address", "data_address", "user", "proxy_jump", "python", "name"])
@pytest.mark.parametrize("text", SHELLS)
@pytest.mark.fault(48)
def test_options_and_shell_are_refused_in_what_reaches_ssh(folder: Path, key: str, text: str) -> None:
    name = "" if key == "name" else "name: gpu-b, "
    written = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\x1b", "\\e")
    found = diagnostics(folder, host_b(f'{name}gpus: 4, {key}: "{written}"'))
    assert len(found) == 1
    assert f" hosts[1].{key}: must be " in found[0]
    assert found[0].isprintable()


@pytest.mark.parametrize("key", ["identity_file", "known_hosts"])
@pytest.mark.parametrize("text", ["-F/dev/null", "a\\nb", "a\\0b", ""])
@pytest.mark.fault(48)
def test_paths_are_neither_options_nor_control_characters(folder: Path, key: str, text: str) -> None:
    what = "private key" if key == "identity_file" else "known_hosts file"
    assert diagnostics(folder, GOOD + f'ssh: {{{key}: "{text}"}}\n') == [
        f"10:{9 + len(key)}: ssh.{key}: must be the path of a {what}, "
        "without control characters and not beginning with a dash"
    ]


@pytest.mark.parametrize("python", ["python3", "/opt/tf-2.21/bin/python3.11", "pypy3"])
def test_ordinary_pythons_are_taken(folder: Path, python: str) -> None:
    assert diagnostics(folder, run(f"python: {python}")) == []


@pytest.mark.fault(48)
def test_arguments_may_hold_anything_but_nul(folder: Path) -> None:
    assert diagnostics(folder, run('args: ["; touch x", \'$(id)\', "a\\nb", --x]')) == []
    assert diagnostics(folder, run('args: ["a\\0b"]')) == [
        "10:10: run.args[0]: must not hold a NUL character"
    ]


@pytest.mark.parametrize("name", ["ORCH_RUN", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"])
def test_our_own_names_are_refused_in_the_environment(folder: Path, name: str) -> None:
    assert diagnostics(folder, run(f"env: {{{name}: x}}")) == [
        f"10:9: run.env.{name}: {name} is set by orch for each task, and cannot be set here"
    ]


def test_a_thousand_mistakes_are_counted_not_listed(folder: Path) -> None:
    found = diagnostics(folder, GOOD + "".join(f"x{number}: 1\n" for number in range(1000)))
    assert len(found) == 51
    assert (
        found[0] == "10:1: x0: unknown key; known here are version, name, hosts, slurm, kubernetes, ssh, run"
    )
    assert found[-1] == "60:1: and 950 more diagnostics"


def test_what_is_no_file_is_not_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    for name, said in (
        ("none.yaml", "cannot be read: No such file or directory"),
        (".", "is a directory"),
        ("pipe.yaml", "is not a regular file"),
    ):
        with pytest.raises(SpecError) as caught:
            load_spec(folder / name)
        assert caught.value.message == f"{folder / name}:1:1: file: {said}"
        assert caught.value.exit_code == 2


BOMBS = {
    "large": None,
    "aliases": b"a: &a [x]\n" + b"".join(b"k%d: [*a, *a, *a, *a]\n" % i for i in range(4000)),
    "keys": b"".join(b"hosst%d: 1\n" % i for i in range(19_000)),
    "long key": b"k" * 900_000 + b": 1\n",
    "hosts": b"hosts:\n" + b"".join(b" - {name: h%d, gpu: 1}\n" % i for i in range(8000)),
    "digits": b"version: " + b"9" * 900_000,
    "dashes": b"- " * 400_000,
    "replicas": GOOD.replace("replicas: 2", "replicas: 999999999").encode(),
    "gpus": GOOD.replace("gpus: 4", "gpus: 999999999").encode(),
}


@pytest.mark.parametrize("case", BOMBS)
@pytest.mark.fault(50)
def test_a_bomb_costs_less_than_a_second_and_200_mb(folder: Path, case: str) -> None:
    file = folder / "bomb.yaml"
    content = BOMBS[case]
    if content is None:
        file.touch()
        os.truncate(file, 100 * 1024 * 1024)
    else:
        file.write_bytes(content)
    code = (
        "import sys, time\n"
        "from orchestrator.core.errors import SpecError\n"
        "from orchestrator.spec.load import load_spec\n"
        "began_s = time.process_time()\n"
        "try: load_spec(sys.argv[1])\n"
        "except SpecError as error: print(error.message.splitlines()[0], file=sys.stderr)\n"
        # Of the file alone: to load Python and the models is no less work for a good one.
        "used_s = time.process_time() - began_s\n"
        # Not ru_maxrss: that begins with the size of the process that forked, which is the tests'.
        "status = open('/proc/self/status').read()\n"
        "print(used_s, status.split('VmHWM:')[1].split()[0])\n"
    )
    cpu_s = math.inf
    for _ in range(
        4
    ):  # a core that is shared with others is slower than the file is costly: the best one counts
        done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
        assert done.stderr.startswith(f"{file}:")
        once_s, rss_kb = (float(word) for word in done.stdout.split())
        cpu_s = min(cpu_s, once_s)
        if cpu_s < 1.0:
            break
    assert cpu_s < 1.0
    assert rss_kb < 200 * 1024

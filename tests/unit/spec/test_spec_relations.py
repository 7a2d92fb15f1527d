"""Every pair of values in a cluster.yaml that cannot go together, with the exact text that its author reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.spec.good_spec import GOOD, changed, diagnostics, host_b, run

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
    "an address with an empty part": (
        host_b("name: gpu-b, address: 'a..b', gpus: 4"),
        ["5:28: hosts[1].address: must be a host name or an IP address; got 'a..b'"],
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
    "a rank under a strategy that gives it": (
        run("env: {RANK: '0', HOROVOD_RANK: '0'}").replace("multi_worker_mirrored", "processes"),
        [
            "10:15: run.env.RANK: RANK is set by orch for each task of `strategy: processes`, and cannot be set here"
        ],
    ),
    "a rank under a strategy that gives none": (run("env: {RANK: '0', WORLD_SIZE: '1'}"), []),
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
    "a proof of what no one process trains": (
        run("prove: off"),
        [
            "10:10: run.prove: is for transparent scripts; nothing says what one process would train of any other",
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


NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
NO_PYTHON = {
    "train.ipynb": (
        NOTEBOOK.encode(),
        "is a notebook, which Python would read as one value and run none of its cells; "
        "`jupyter nbconvert --to script train.ipynb` makes a script of it",
    ),
    "notebook.py": (
        NOTEBOOK.encode(),
        "is a notebook, which Python would read as one value and run none of its cells; "
        "`jupyter nbconvert --to script notebook.py` makes a script of it",
    ),
    "model.json": (b'{"class_name": "Model"}', "is JSON, and not a Python script; name the .py file"),
    "run.sh": (
        b"python train.py\n",
        "is a shell script; name the Python script that it starts, with `args` and `env` of the spec",
    ),
    "start": (
        b"#!/usr/bin/env bash\nset -e\npython train.py\n",
        "is a shell script; name the Python script that it starts, with `args` and `env` of the spec",
    ),
    "saved.keras": (
        b"PK\x03\x04\0\0",
        "is a binary file, and not the source of a Python script; name the .py file",
    ),
    "notes.txt": (b"train for 3 epochs\n", "is not a Python script; name the .py file"),
}


@pytest.mark.parametrize("name", NO_PYTHON)
def test_a_script_that_is_no_python_is_refused_with_the_way_out(folder: Path, name: str) -> None:
    content, expected = NO_PYTHON[name]
    (folder / name).write_bytes(content)
    assert diagnostics(folder, changed("train.py", name)) == [f"8:11: run.script: {name} {expected}"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train", "#!/usr/bin/env python3\nprint(1)\n"),
        ("both", '#!/bin/sh\n""":"\nexec python3 "$0"\n"""\nprint(1)\n'),
        ("newer.py", "type X[T] = in the grammar of a later Python\n"),
        ("empty.py", ""),
        ("list.py", "[print(1)]\n"),
    ],
)
def test_a_script_that_a_host_may_run_is_taken(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    assert diagnostics(folder, changed("train.py", name)) == []


def test_without_the_runtime_python_runs_its_own_archives(folder: Path) -> None:
    (folder / "app.pyz").write_bytes(b"PK\x03\x04\0\0")
    assert (
        diagnostics(folder, changed("train.py", "app.pyz").replace("  tasks:", "  runtime: off\n  tasks:"))
        == []
    )


def test_without_the_runtime_the_script_decides_when_it_saves(folder: Path) -> None:
    off = changed("  tasks:", "  runtime: off\n  tasks:")
    assert diagnostics(folder, off + "  checkpoint: {dir: /shared/t}\n") == []
    (said,) = diagnostics(folder, off + "  checkpoint: {dir: /shared/t, every: 5m}\n")
    assert "run.checkpoint.every: needs the runtime, which is off" in said


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


MODULES = {
    "module: pkg.train": None,
    "module: runs": None,
    "module: train": None,
    "module: pkg": "pkg is a package without a __main__.py; name one of its modules: pkg.other, pkg.train",
    "module: pkg.trian": "no module pkg.trian in workdir (FOLDER): there is no pkg/trian.py",
    "module: pkg/train.py": "must be a module as `python -m` takes it, such as pkg.train (a file is named by "
    "`script`); got 'pkg/train.py'",
    "module: pkg.train\n  script: train.py": "stands beside `script`; leave one of the two out",
    "script: pkg.train": "no such file in workdir (FOLDER): pkg.train; `module: pkg.train` runs a module",
    "script: pkg/train.py": "pkg/train.py:2 imports from its own package, and a script lies in none; write "
    "`module: pkg.train` in the place of `script`",
    "workdir: pkg\n  script: train.py": "train.py:2 imports from its own package, and a script lies in none; write "
    "`module: pkg.train` in the place of `script`, and as `workdir` what lies 1 folder above",
    "script: pkg/other.py": None,
}


@pytest.mark.parametrize("written", MODULES)
def test_a_module_is_named_as_python_takes_it(folder: Path, written: str) -> None:
    for name in ("pkg", "runs"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    (folder / "runs/__main__.py").touch()
    (folder / "pkg/train.py").write_text("import os\nfrom .model import build\n")
    (folder / "pkg/other.py").write_text("__package__ = 'pkg'\nfrom .model import build\n")
    said = MODULES[written]
    place = f"{8 + written.startswith('workdir')}:11: run.{'module' if written[0] == 'm' else 'script'}: "
    assert diagnostics(folder, changed("script: train.py", written)) == ([place + said] if said else [])

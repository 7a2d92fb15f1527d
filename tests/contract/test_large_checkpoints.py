"""Checkpoints of gigabytes: verified at the speed of memory, and in little of it. With --long only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from orchestrator.head.code import bundle
from tests.unit.checkpoints.saved import tensor_bundle

pytestmark = pytest.mark.timeout(300)

GB = 1_000_000_000
TENSOR_BYTES = 125_000_000
CPU_S_PER_GB = 3.0
"""With the C library 0.9, and 2.3 on a busy machine; NumPy alone took 5."""
MEMORY_BYTES = 160 << 20


class Looked(NamedTuple):
    """What a command of the hosts' archive said, and what it took."""

    answer: dict[str, Any]
    cpu_s: float
    resident_bytes: int


RUN_AND_MEASURE = """
import json, os, resource, subprocess, sys
ran = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([json.loads(ran.stdout), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""


def asked(archive: Path, verb: str, directory: Path) -> Looked:
    """Run the archive as an agent does."""
    command = [
        sys.executable,
        "-I",
        str(archive),
        "checkpoints",
        verb,
        json.dumps({"directory": str(directory)}),
    ]
    # A process's largest size begins with that of the process which forked it: with a small one, and not the tests'.
    measured = [sys.executable, "-I", "-c", RUN_AND_MEASURE, *command]
    return Looked(*json.loads(subprocess.run(measured, stdout=subprocess.PIPE, check=True, text=True).stdout))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "orch.pyz"
    path.write_bytes(bundle.load().code.data)
    return path


def saved(root: Path, size_bytes: int) -> Path:
    directory = root / "gen-000001"
    tensor_bundle(directory / "ckpt-100", TENSOR_BYTES, size_bytes // TENSOR_BYTES)
    (directory / "checkpoint").write_text('model_checkpoint_path: "ckpt-100"\n')
    past = time.time() - 100.0
    for path in directory.iterdir():
        os.utime(path, (past, past))
    return directory


@pytest.mark.tensorflow
def test_tensorflow_reads_what_the_tests_write_by_its_format(tmp_path: Path, archive: Path) -> None:
    tensor_bundle(tmp_path / "gen-000001" / "ckpt-3", 4000, 3)
    assert asked(archive, "verify", tmp_path / "gen-000001").answer["checkpoint"]["verified"] is True
    read = (
        "import sys, tensorflow as tf; found = tf.train.load_checkpoint(sys.argv[1]);"
        "print(sorted(found.get_variable_to_shape_map().items()), float(found.get_tensor('w0002').sum()))"
    )
    command = [sys.executable, "-c", read, str(tmp_path / "gen-000001" / "ckpt-3")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[('w0000', [1000]), ('w0001', [1000]), ('w0002', [1000])] 0.0"


@pytest.mark.long
@pytest.mark.parametrize("gigabytes", [1, 5])
def test_a_checkpoint_of_gigabytes_is_verified_at_the_speed_of_memory_in_little_of_it(
    gigabytes: int, tmp_path: Path, archive: Path
) -> None:
    directory = saved(tmp_path, gigabytes * GB)
    found = asked(archive, "verify", directory)
    assert (found.answer["checkpoint"]["bytes"], found.answer["rejected"]) == (
        sum(path.stat().st_size for path in directory.glob("ckpt-100.*")),
        [],
    )
    assert found.cpu_s < CPU_S_PER_GB * gigabytes
    assert found.resident_bytes < MEMORY_BYTES


@pytest.mark.long
@pytest.mark.parametrize("gigabytes", [1, 5])
def test_one_bit_of_gigabytes_is_found(gigabytes: int, tmp_path: Path, archive: Path) -> None:
    directory = saved(tmp_path, gigabytes * GB)
    (shard,) = directory.glob("*.data-*")
    with shard.open("r+b") as file:
        file.seek(gigabytes * GB - 3)
        file.write(b"\x10")
    answer = asked(archive, "verify", directory).answer
    assert answer["checkpoint"] is None
    assert "does not have its checksum" in answer["rejected"][0]["why"]

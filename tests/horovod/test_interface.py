"""The fake Horovod of the ordinary tests and the real one, by the same questions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).parents[1] / "contract/scripts/fake_horovod"
SCRIPT = Path(__file__).with_name("interface.py")

EXPECTED = {
    "server": ["addr", "handler", "verbose"],
    "init": ["host_alloc_plan"],
    "slot": ["hostname", "rank", "local_rank", "cross_rank", "size", "local_size", "cross_size"],
    "conversation": [
        ["GET", "/global/0", 404, ""],
        ["PUT", "/global/0", 200, ""],
        ["GET", "/global/0", 200, "first"],
        ["DELETE", "/global/0", 200, ""],
        ["GET", "/global/0", 200, "first"],
        ["DELETE", "/global/1", 200, ""],
        ["GET", "/global/0", 404, ""],
        ["PUT", "/local_a/1", 200, ""],
        ["GET", "/local_a/1", 200, "second"],
    ],
    "script": {name: [] for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")},
    "allreduce": ["tensor", "op"],
    "broadcast": ["tensor", "root_rank"],
    "broadcast_variables": ["variables", "root_rank"],
    "tape": ["gradtape"],
}


@pytest.mark.parametrize("which", ["fake", pytest.param("real", marks=pytest.mark.horovod)])
def test_what_orch_relies_on_is_there(which: str) -> None:
    python = sys.executable if which == "fake" else os.environ["ORCH_HOROVOD_PYTHON"]
    env = {**os.environ, "PYTHONPATH": str(FAKE) if which == "fake" else "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [python, str(SCRIPT)], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == EXPECTED

"""What `orch validate` and `orch up` say of a script under `transparent: true`."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.spec import own_paths
from orchestrator.spec.plan import load_plan

SPEC = """version: 1
name: t
hosts: [{name: here, transport: local, slots: 2}]
run: {strategy: multi_worker_mirrored, script: train.py, transparent: true, tasks: {worker: {replicas: 2}}}
"""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("np.random.seed(int(time.time()))", "train.py:1: a seed from int(time.time()) differs by worker"),
        (
            "\nrng = np.random.default_rng(seed=time.time_ns())",
            "train.py:2: a seed from time.time_ns() differs",
        ),
        (
            "class Count(keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n        global seen\n"
            "        seen += 1\n",
            "train.py:3: Count keeps seen outside of itself, which begins anew after a restart",
        ),
        ("np.random.seed(3)\nstarted = time.time()\nlosses.append(time.time())", None),
        ("keras.callbacks.ModelCheckpoint('best.keras')", None),
        ("def broken(:", None),
    ],
)
def test_what_differs_by_worker_or_is_lost_by_a_restart_is_said(
    tmp_path: Path, source: str, told: str | None
) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "cluster.yaml").write_text(SPEC)
    plan, _ = load_plan(tmp_path / "cluster.yaml")
    found = own_paths.sentences(plan)
    assert len(found) == (told is not None)
    assert not told or found[0].startswith(told)

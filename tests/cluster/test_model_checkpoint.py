"""The older tutorials' ModelCheckpoint, through a kill: with tf_keras as it is, with Keras 3 as `orch why` says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "model_checkpoint.py"
STEPS = 94
"""Of an epoch."""
EPOCHS = 25

MODERN = {
    "import argparse\n": "import argparse\nimport glob\n",
    "ckpt_{epoch}": "ckpt_{epoch:04d}.weights.h5",
    "tf.train.latest_checkpoint(directory)": 'max(glob.glob(directory + "/*.weights.h5"), default=None)',
    "    model.load_weights(newest)\n": "    with strategy.scope():\n"
    "        model.optimizer.build(model.trainable_variables)\n"
    "    model.load_weights(newest)\n",
    'newest.rpartition("ckpt_")[2]': 'newest.rpartition("ckpt_")[2].split(".")[0]',
}
"""What the failure signature says to write for Keras 3."""


def written(cluster: Cluster, changes: dict[str, str], **run: Any) -> str:
    """Write the example with these changes, and a spec that runs it for many epochs."""
    text = EXAMPLE.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    folder = cluster.directory / "code"
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return cluster.spec(
        *("--epochs", str(EPOCHS)), tasks=run.pop("tasks", 1), script="train.py", workdir=str(folder), **run
    )


def survives_a_kill(cluster: Cluster, spec: str, task: int = 0) -> None:
    cluster.ok("up", spec, timeout=60)
    before = cluster.wait_step(3 * STEPS, timeout=90)
    os.kill(before["tasks"][task]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    log = cluster.ok("logs", "t")
    ended = (run["phase"], run["restarts"], run["global_step"])
    assert ended == ("SUCCEEDED", 1, EPOCHS * STEPS), log[-4000:]
    (resumed,) = cluster.events(kind="resumed")
    given = resumed["data"]["global_step"]
    assert given >= STEPS
    assert given % STEPS == 0, "from the end of an epoch"
    tasks = len(run["tasks"])
    assert log.count(f"starting at epoch {given // STEPS}\n") == tasks, "each worker found the same"
    assert log.count(f"after {EPOCHS * STEPS} steps") == tasks, "the optimizer's state came back too"
    assert run["checkpoint"]["verified"]


@pytest.mark.parametrize(
    ("strategy", "tasks"),
    [
        pytest.param("mirrored", 1, marks=pytest.mark.long),
        pytest.param("multi_worker_mirrored", 2, marks=pytest.mark.long),
    ],
)
def test_weights_by_epoch_are_found_by_latest_checkpoint_after_a_kill(
    local_cluster: Cluster, strategy: str, tasks: int
) -> None:
    run: dict[str, Any] = {"strategy": strategy, "keras": 2, "tasks": tasks}
    if tasks == 1:
        run["replicas_on_cpu"] = 2
    survives_a_kill(local_cluster, written(local_cluster, {}, **run), tasks - 1)


@pytest.mark.long
def test_keras_3_refuses_the_name_and_the_modern_lines_are_said(local_cluster: Cluster) -> None:
    cluster = local_cluster
    spec = written(cluster, {}, strategy="mirrored", restart={"backoff": "0.1s"})
    assert cluster.orch("up", spec, "--wait", timeout=90).returncode == 1
    why = " ".join(cluster.ok("why", "t").split())
    assert "Keras 3 saves weights into files that end in `.weights.h5` only" in why
    for line in (
        "`ckpt_{epoch:04d}.weights.h5`",
        "`model.optimizer.build(model.trainable_variables)`",
        "`max(glob.glob(directory + '/*.weights.h5'))`",
        "`keras: 2`",
    ):
        assert line in why


@pytest.mark.long
def test_with_the_modern_lines_keras_3_survives_a_kill(local_cluster: Cluster) -> None:
    survives_a_kill(local_cluster, written(local_cluster, MODERN, strategy="mirrored", replicas_on_cpu=2))


def test_the_spec_asks_for_what_was_tested() -> None:
    run = yaml.safe_load((EXAMPLE.parents[1] / "cluster_specs" / "model_checkpoint.yaml").read_text())["run"]
    assert (run["strategy"], run["keras"], run["script"]) == ("mirrored", 2, EXAMPLE.name)

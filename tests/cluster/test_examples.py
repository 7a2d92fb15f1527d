"""Every spec that users are shown and that runs on one machine, to its end: `orch up cluster_specs/X.yaml --wait`.

Not here, since other tests run them: local.yaml (`make demo`), parameter_server.yaml (test_tensorflow.py),
curves.yaml (test_curves.py), save_and_load.yaml (test_course.py), jax_processes.yaml's and jax_mesh.yaml's script
(test_jax.py), horovod.yaml and estimator.yaml (`make test-horovod`), tpu.yaml's script (contract tests).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.lean import python_for

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

SPECS = Path(__file__).parents[2] / "cluster_specs"

ROWS: list[tuple[str, str, str]] = [
    ("digits_single", "--epochs 2", r"test accuracy: 0\.\d+ \(loss .*\) after 46 steps"),
    ("digits_mirrored", "--epochs 2 --batch 256", r"replicas: 2, images/s: \d+"),
    ("fault_tolerance", "--epochs 2", r"the best model: 0\.\d+ in best\.keras"),
    ("data_pipeline", "--images 256 --epochs 1", r"auto_shard_policy FILE: 8 files, 2 worker\(s\)"),
    ("model_parallel", "--steps 40", r"done at step 40, loss 0\."),
    ("model_parallel_three", "--parts 3 --steps 40", r"done at step 40, loss 0\."),
    ("model_and_data_parallel", "--steps 60", r"done at step 60, .* upper halves differ by 0"),
    ("monitored_session", "--steps 300", r"done at step 300, loss 0\."),
    ("big_dense", "--steps 1 --batch 8", r"\d+ % of a step with 2 workers is communication"),
    ("custom_training", "--epochs 1", r"done at step 21 with 2 replica\(s\)"),
    ("checkpoint_manager", "--steps 40 --save-every 20", r"evaluated at step 40, accuracy 0\."),
    ("tf_keras_backup", "--epochs 2", r"done at step 58"),
    ("model_checkpoint", "--epochs 2", r"accuracy 0\.\d+ after 188 steps"),
    ("transparent", "--epochs 2", r"test accuracy 0\.\d+, loss"),
    ("central_storage", "--epochs 2", r"test accuracy 0\.\d+, loss"),
    ("mnist", "--epochs 12", r"replicas 2, .* test accuracy (0\.9[89]|1\.0)"),
    ("images_per_second", "--cores 0,1 --steps 10", r"2 replica\(s\), \d+ images/s"),
]
"""A spec, arguments that make it short, and what it says in the end."""

LONG = {
    "digits_mirrored",
    "fault_tolerance",
    "model_parallel",
    "model_parallel_three",
    "monitored_session",
    "big_dense",
    "custom_training",
    "transparent",
    "images_per_second",
    "digits_single",
    "checkpoint_manager",
    "tf_keras_backup",
    "model_checkpoint",
    "central_storage",
    "mnist",
}
"""What differs from the others, or from other tests that train under a coordinator, in the script alone."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One coordinator for all of them."""
    made = Cluster(tmp_path_factory.mktemp("examples"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [pytest.param(*row, id=row[0], marks=[pytest.mark.long] if row[0] in LONG else []) for row in ROWS],
)
def test_a_spec_that_users_are_shown_runs_to_its_end(here: Cluster, name: str, args: str, says: str) -> None:
    document = yaml.safe_load((SPECS / f"{name}.yaml").read_text())
    run = document["run"]
    examples = SPECS.parent / "examples"
    run.update(args=args.split(), workdir=str(examples), python=python_for(examples / run["script"]))
    if "checkpoint" in run:
        run["checkpoint"]["dir"] = str(here.directory / name)
    path = here.directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    done = here.orch("up", str(path), "--wait", timeout=150)
    log = here.ok("logs", document["name"])
    assert done.returncode == 0, log[-4000:]
    assert re.search(says, log), log[-4000:]
    shown = here.run(document["name"])
    assert (shown["phase"], shown["restarts"]) == ("SUCCEEDED", 0)
    assert shown["global_step"] > 0, "its progress is seen"


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((28, 28), id="as MNIST has them", marks=pytest.mark.long),
        pytest.param((32, 32, 3), id="as CIFAR-10 has them", marks=pytest.mark.long),
    ],
)
def test_mnist_reads_a_file_for_hosts_without_a_network(tmp_path: Path, shape: tuple[int, ...]) -> None:
    script, file = SPECS.parent / "examples" / "mnist.py", tmp_path / "data.npz"
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (96, *shape), dtype=np.uint8), rng.integers(0, 10, (96, 1))
    np.savez(file, x_train=images, y_train=labels, x_test=images[:32], y_test=labels[:32])
    ran = subprocess.run(
        [python_for(script), str(script), "--data", "mnist", "--epochs", "1", "--file", str(file)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert "replicas 1, no later epoch, test accuracy 0." in ran.stdout

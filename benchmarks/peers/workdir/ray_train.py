"""Runs tf_train.py under Ray Train: python ray_train.py STATE."""

import os
import sys
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train(config: dict[str, Any]) -> None:
    """Train as one of the workers. Ray has set TF_CONFIG."""
    import tf_train

    tf_train.main(config["state"])


def main(state: str) -> None:
    """Start a Ray of one machine, and train with two workers until killed."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    TensorflowTrainer(
        train,
        train_loop_config={"state": state},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1), storage_path=f"{state}/ray"),
    ).fit()


if __name__ == "__main__":
    main(sys.argv[1])

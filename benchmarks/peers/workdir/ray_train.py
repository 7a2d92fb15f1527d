"""Runs tf_train.py under Ray Train: python ray_train.py STATE [ADDRESS of a Ray of two nodes of one processor]."""

import os
import sys
import time
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train(config: dict[str, Any]) -> None:
    """Train as one of the workers. Ray has set TF_CONFIG."""
    import tf_train

    tf_train.main(config["state"])


def main(state: str, address: str | None = None) -> None:
    """Train with two workers until killed, on the Ray at that address or on one of this machine."""
    environment = {"env_vars": {k: v for k, v in os.environ.items() if k in ("PYTHONPATH", "PEERS_SAVE_S")}}
    if address is None:
        ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment)
    else:
        connect(address, environment)
    TensorflowTrainer(
        train,
        train_loop_config={"state": state},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=-1), storage_path=f"{state}/ray"),
    ).fit()


def connect(address: str, environment: dict[str, Any]) -> None:
    """Connect to a Ray that may still be starting, and wait for its second node."""
    give_up_at = time.monotonic() + 60.0
    while True:
        try:
            ray.init(address, _node_ip_address=address.rpartition(":")[0], runtime_env=environment)
            break
        except ConnectionError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.5)
    while len([node for node in ray.nodes() if node["Alive"]]) < 2 and time.monotonic() < give_up_at:
        time.sleep(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])

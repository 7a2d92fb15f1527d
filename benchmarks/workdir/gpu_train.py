"""Trains a ConvNet on GPUs with JAX, or on one with torch: python gpu_train.py GPUS STEPS RESULT.

It writes the seconds and the CPU of a step after a warm-up, the images of a step and the name of the GPU, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable

BATCH = 256
"""Of one GPU."""
WARM_UP = 20

Step = Callable[[], None]
"""Trains one step, and waits for its end."""


def main(gpus: int, steps: int, result: str) -> None:
    """Train, and write what it took."""
    step, device = with_jax(gpus) if importlib.util.find_spec("jax") else with_torch(gpus)
    tell = reporter()
    for number in range(WARM_UP):
        step()
        tell(number + 1)
    began, cpu_began = time.perf_counter(), time.process_time()
    for number in range(steps):
        step()
        tell(WARM_UP + number + 1)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    found = {"step_s": took_s / steps, "cpu_s": cpu_s / steps, "images": BATCH * gpus, "device": device}
    with open(f"{result}.new", "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(f"{result}.new", result)


def reporter() -> Callable[[int], None]:
    """Return what tells orch of a step, where it runs this."""
    if "ORCH_RUN" not in os.environ:
        return lambda _step: None
    from orchestrator import runtime

    return runtime.report


def with_jax(gpus: int) -> tuple[Step, str]:
    """Shard the batch over the GPUs; XLA adds up the gradients."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = jax.devices("gpu")[:gpus]
    mesh = Mesh(devices, ("batch",))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("batch"), PartitionSpec()))
    keys = jax.random.split(jax.random.key(1), 6)
    shapes = ((3, 3, 3, 64), (3, 3, 64, 128), (3, 3, 128, 256), (256 * 8 * 8, 100))
    weights = [
        jax.device_put(0.05 * jax.random.normal(k, s), whole) for k, s in zip(keys, shapes, strict=False)
    ]
    images = jax.device_put(jax.random.normal(keys[4], (BATCH * gpus, 64, 64, 3)), split)
    labels = jax.device_put(jax.random.randint(keys[5], (BATCH * gpus,), 0, 100), split)

    def loss(weights: list[jax.Array]) -> jax.Array:
        found = images
        for kernel in weights[:3]:
            found = jax.lax.conv_general_dilated(
                found, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            found = jax.nn.relu(found)
        logits = found.reshape(BATCH * gpus, -1) @ weights[3]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -picked.mean()

    @jax.jit
    def train(weights: list[jax.Array]) -> list[jax.Array]:
        gradients = jax.grad(loss)(weights)
        return [w - 0.01 * g for w, g in zip(weights, gradients, strict=True)]

    def step() -> None:
        nonlocal weights
        weights = train(weights)
        jax.block_until_ready(weights)

    return step, f"{devices[0].device_kind}, JAX {jax.__version__}"


def with_torch(gpus: int) -> tuple[Step, str]:
    """Train on the first GPU."""
    import torch
    from torch import nn

    if gpus != 1:
        raise SystemExit("torch alone is used on one GPU here")
    layers = [nn.Conv2d(i, o, 3, 2, 1) for i, o in ((3, 64), (64, 128), (128, 256))]
    body = [part for layer in layers for part in (layer, nn.ReLU())]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(256 * 8 * 8, 100)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    images = torch.randn(BATCH, 3, 64, 64, device="cuda")
    labels = torch.randint(100, (BATCH,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step, f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

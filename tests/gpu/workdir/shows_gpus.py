"""Print what a task may see of the GPUs, hold some memory of one, and go on until it is stopped."""

import os
import time

import torch

from orchestrator import runtime

held = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
print("visible", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER"), flush=True)
print("device", torch.cuda.get_device_name(0), torch.cuda.device_count(), held.sum().item(), flush=True)
for step in range(1, 1_000_000):
    runtime.report(step, loss=1 / step)
    time.sleep(0.05)

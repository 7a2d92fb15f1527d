"""A typical Horovod script: rank 0 restores, broadcasts and saves, and all ranks sum something at each step."""

import argparse
import os
import time

import fake_trainer
import horovod.tensorflow as hvd

from orchestrator import runtime

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10_000)
options = parser.parse_args()

hvd.init()
mine = fake_trainer.restore() if hvd.rank() == 0 else 0
step = int(hvd.broadcast(mine, 0))
print(f"rank {hvd.rank()} of {hvd.size()} (local {hvd.local_rank()}) starts at step {step}", flush=True)
while step < options.steps:
    assert hvd.allreduce(float(hvd.rank()), op=hvd.Sum) == sum(range(hvd.size()))
    time.sleep(0.01)
    step += 1
    runtime.report(step)
    if step % 10 == 0 and hvd.rank() == 0:
        fake_trainer.save(step)
print(f"rank {hvd.rank()} is done at step {step} in {os.environ['ORCH_CHECKPOINT_DIR']}", flush=True)

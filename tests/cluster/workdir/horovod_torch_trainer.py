"""What a PyTorch script does with Horovod, without PyTorch: horovod.torch reads its rank from the environment alone.

`horovod.torch` has the library's core in common with `horovod.tensorflow`: what it is told is HOROVOD_*.
"""

import argparse
import os
import time
import zipfile

import horovod.torch as hvd

from orchestrator import runtime

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()

directory = os.environ["ORCH_CHECKPOINT_DIR"]


def restore() -> int:
    """Return the step of the newest file that `torch.save` would have written."""
    steps = [int(name[5:-3]) for name in os.listdir(directory) if name.startswith("step-")]
    return max(steps, default=0)


def save(step: int) -> None:
    """Write a zip file as torch.save does: the pickle, its data, and their checksums."""
    unfinished = os.path.join(directory, "unfinished")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name, content in (("data.pkl", b"\x80\x02}."), ("version", b"3\n"), ("data/0", bytes(64))):
            archive.writestr(f"archive/{name}", content)
    os.replace(unfinished, os.path.join(directory, f"step-{step}.pt"))


hvd.init()
step = int(hvd.broadcast_object(restore() if hvd.rank() == 0 else 0, root_rank=0))
print(f"rank {hvd.rank()} of {hvd.size()} uses cuda:{hvd.local_rank()}, starts at step {step}", flush=True)
while step < options.steps:
    assert hvd.allreduce(float(hvd.rank()), op=hvd.Sum) == sum(range(hvd.size()))
    time.sleep(0.01)
    step += 1
    runtime.report(step)
    if step % 10 == 0 and hvd.rank() == 0:
        save(step)

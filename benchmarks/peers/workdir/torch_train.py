"""Trains the ConvNet of tf_train.py for ever with DistributedDataParallel: python torch_train.py STATE."""

import os
import sys

import torch
from telling import Saves, Teller
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


def main(state: str) -> None:
    """Restore, and train until killed."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    tell, saves = Teller(state, rank), Saves()
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 10, bias=False),
    )
    path = f"{state}/model.pt"
    done = 0
    if os.path.exists(path):
        saved = torch.load(path)
        net.load_state_dict(saved["net"])
        done = saved["step"]
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        done += 1
        tell.did(done)
        if rank == 0 and saves.due(done):
            torch.save({"net": net.state_dict(), "step": done}, f"{path}.new")
            os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main(sys.argv[1])

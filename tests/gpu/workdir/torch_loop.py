"""A torch training on the GPU that saves every ten steps, and goes on from what orch gives it."""

import os
import time

import torch

from orchestrator import runtime

directory = os.environ["ORCH_CHECKPOINT_DIR"]
path = os.path.join(directory, "model.pt")
torch.manual_seed(1)
model = torch.nn.Linear(64, 1).cuda()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
step = 0
if os.path.exists(path):
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    step = kept["step"]
print("begins at step", step, "on", torch.cuda.get_device_name(0), flush=True)
x = torch.randn(256, 64, device="cuda")
y = x.sum(dim=1, keepdim=True)
while step < 600:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        told = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(told, path + ".tmp")
        os.replace(path + ".tmp", path)
    runtime.report(step, loss=loss.item())
    time.sleep(0.02)
print("done at step", step, flush=True)

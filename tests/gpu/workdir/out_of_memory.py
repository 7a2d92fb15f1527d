"""Ask for more memory than any GPU has."""

import torch

from orchestrator import runtime

runtime.report(3, loss=1.0)
torch.zeros(1 << 45, dtype=torch.uint8, device="cuda")

"""Prints its secret, as careless scripts do."""

import os

print("the key has", len(os.environ["WANDB_API_KEY"]), "characters:", os.environ["WANDB_API_KEY"])

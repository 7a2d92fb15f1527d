"""What the trainer takes from its package."""

from fake_trainer import main

__all__ = ["main"]

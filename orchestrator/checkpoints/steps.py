"""Which of the integers in a checkpoint is its global step."""

from __future__ import annotations

_OPTIMIZER_NAMES = ("_iterations", "iterations", "iteration:0", "iteration", "iter:0", "iter")
_OPTIMIZER_PLACES = ("vars/0", "_variables/0")
"""Where Keras 3 keeps an optimizer's count of steps."""
_OTHER_NAMES = ("global_step", "global_step:0", "_global_step", "step", "_step", "train_counter")


def choose_step(integers: dict[str, int]) -> int | None:
    """Return the one that counts the optimizer's steps; None if there is none.

    Args:
        integers: a checkpoint's integer scalars by name; `/` stands between the parts of a name.
    """
    choices = (
        (_OPTIMIZER_NAMES + _OPTIMIZER_PLACES, "optimizer"),
        (_OPTIMIZER_NAMES, ""),
        (_OTHER_NAMES, ""),
    )
    for names, within in choices:
        matches = [
            value
            for name, value in integers.items()
            if within in name.lower() and any(name == n or name.endswith("/" + n) for n in names)
        ]
        if matches:
            return max(matches)
    return None

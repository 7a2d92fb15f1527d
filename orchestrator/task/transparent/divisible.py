"""Which models can take a share of a batch in parts (see `parts.py`), and why others cannot."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def whole(why: str) -> str:
    """Return the message for a share that is not taken in parts."""
    return (
        f"{why}, so a replica takes its larger share of the batch as a whole, which may need more memory: "
        "`on_shrink: scale_lr` does not"
    )


def why_not(model: Any, step_function: Any, trainer: Any) -> str:
    """Return why the steps of a model are not taken in parts; empty where they may be."""
    if getattr(step_function, "__func__", None) is not trainer.train_step:
        return f"{model.name} has a train_step of its own"
    if not all(is_of_keras(model, name) for name in ("compute_metrics", "_compute_loss")):
        return f"{model.name} computes its metrics itself"
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    names = ("apply", "apply_gradients", "scale_loss")
    if not all(is_of_keras(owner, name) for owner in (model.optimizer, inner) for name in names):
        return "the optimizer applies gradients or scales the loss in a way of its own"
    if model.jit_compile:
        return (
            f"{model.name} is compiled with jit_compile=True, where parts need not come one after the other"
        )
    return ""


def is_of_keras(owner: Any, name: str) -> bool:
    """Return whether a method is Keras's, below what this runtime wraps around it, and not the object's own."""
    found = getattr(type(owner), name, None)
    if found is None or name in vars(owner):
        return False
    while found is not None:
        module = getattr(found, "__globals__", {}).get("__name__", "")
        if module.split(".")[0] not in ("keras", "orchestrator", "tensorflow"):
            return False
        found = getattr(found, "__wrapped__", None)
    return True


def is_overwritten(variable: Any) -> bool:
    return bool(getattr(variable, "overwrite_with_gradient", False))

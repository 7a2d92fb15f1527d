"""Finds a model's weights, and its optimizers: the one that it was compiled with, and those in its attributes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def weights_of(model: Any) -> list[Any]:
    """Return the weights that are variables. tf_keras's have vocabularies too, which only `adapt` changes."""
    return [each for each in model.weights if hasattr(each, "shape")]


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return a model's optimizers by name, in the same order in every process.

    A GAN has two, which are not `model.optimizer`, and often in a list or a dictionary.
    """
    by_name: dict[str, Any] = {}
    compiled = getattr(model, "optimizer", None)
    if compiled is not None:
        by_name["optimizer"] = compiled
    for name, value in sorted(getattr(model, "__dict__", {}).items()):
        for place, each in _held(value):
            if _is_optimizer(each) and all(each is not other for other in by_name.values()):
                by_name[f"optimizer.{name}{place}"] = each
    return by_name


def iterations_of(model: Any) -> int | None:
    """Return how many updates the optimizer with the most of them has made; None without an optimizer."""
    counts = [getattr(each, "iterations", None) for each in optimizers_of(model).values()]
    known = [int(each.numpy() if hasattr(each, "numpy") else each) for each in counts if each is not None]
    return max(known, default=None)


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield f".{key}", value[key]
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield f".{place}", each
    else:
        yield "", value


def _is_optimizer(value: Any) -> bool:
    return any(
        base.__name__ in ("BaseOptimizer", "Optimizer", "_BaseOptimizer", "OptimizerV2")
        and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in type(value).__mro__
    )

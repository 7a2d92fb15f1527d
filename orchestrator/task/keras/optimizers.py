"""Finds a model's weights, and its optimizers: those that it, or a model within it, was compiled with or has."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def weights_of(model: Any) -> list[Any]:
    """Return the weights that are variables. tf_keras's have vocabularies too, which only `adapt` changes."""
    return [each for each in model.weights if hasattr(each, "shape")]


INNER = "optimizer.layer "
"""How the name of an optimizer begins that a model within the model was compiled with, and may not be trained by."""


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return a model's optimizers, and those of models within it, by name, in the same order in every process."""
    by_name = _own(model)
    for place, layer in enumerate(layers_within(model)):
        each = getattr(layer, "optimizer", None)
        if _is_optimizer(each) and all(each is not other for other in by_name.values()):
            by_name[f"{INNER}{place}"] = each
    return by_name


def layers_within(model: Any) -> list[Any]:
    """Return the layers of a model at all depths, in the same order in every process."""
    return list(model._flatten_layers(include_self=False)) if hasattr(model, "_flatten_layers") else []


def _own(model: Any) -> dict[str, Any]:
    """Return a model's own optimizers by name.

    A GAN has two, which are not `model.optimizer`, and often in a list or a dictionary.
    """
    by_name: dict[str, Any] = {}
    compiled = getattr(model, "optimizer", None)
    if compiled is not None:
        by_name["optimizer"] = compiled
    for name, value in sorted(getattr(model, "__dict__", {}).items()):
        for place, each in held(value):
            if _is_optimizer(each) and all(each is not other for other in by_name.values()):
                by_name[f"optimizer.{name}{place}"] = each
    return by_name


def iterations_of(model: Any) -> int | None:
    """Return how many updates the optimizer with the most of them has made; None without an optimizer."""
    counts = [getattr(each, "iterations", None) for each in _own(model).values()]
    known = [int(each.numpy() if hasattr(each, "numpy") else each) for each in counts if each is not None]
    return max(known, default=None)


def held(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an attribute holds, or what is in its list or dictionary, with what tells it from the rest there."""
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

"""The arguments of Keras's `fit` by name, whether a script passes them by name or by position."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAMES = (
    "x",
    "y",
    "batch_size",
    "epochs",
    "verbose",
    "callbacks",
    "validation_split",
    "validation_data",
    "shuffle",
    "class_weight",
    "sample_weight",
    "initial_epoch",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
)
"""All of Keras 3's, in order. tf_keras begins with the same."""

DEFAULT_BATCH = 32
"""Keras's batch size for arrays."""


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `fit` by name. What lies beyond the names is left out."""
    return {**dict(zip(NAMES, args, strict=False)), **kwargs}


def callbacks_of(given: dict[str, Any]) -> list[Any]:
    """Take the callbacks out of named arguments, and return them, also those of a CallbackList."""
    callbacks = given.pop("callbacks", None) or []
    return list(getattr(callbacks, "callbacks", callbacks))

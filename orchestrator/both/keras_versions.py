"""Which version of Keras trains under which strategy. The coordinator asks before the start, the runtime in `fit`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PATCHED_FROM = (3, 12, 0)
PATCHED_BEFORE = (3, 16)
"""The versions of Keras 3 on which `task/keras/keras3.py` was tested."""

INSTALL = 'pip install "keras>=3.12,<3.16"'


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (3, 15, 1) for `3.15.1`, (3, 13, 0) for `3.13.0rc1`."""
    leading = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            leading.append(int(digits))
        if not digits or digits != part:
            break
    return tuple(leading)


def patched(keras: str) -> bool:
    """Return whether our patch of Keras 3 was tested on this version."""
    return PATCHED_FROM <= numbers(keras) < PATCHED_BEFORE


def unsupported(tf_class: str, versions: Mapping[str, str | None], legacy_keras: bool) -> str | None:
    """Return a sentence that says why `model.fit` would fail under this strategy, with the way out; or None.

    A missing Keras is a reason only if it was asked for, because a custom training loop needs none.

    Args:
        tf_class: the name of TensorFlow's class for the strategy; empty if it has none.
        versions: of `tensorflow`, `keras` and `tf_keras`; None or absent where not installed.
        legacy_keras: whether TF_USE_LEGACY_KERAS is set.
    """
    if legacy_keras:
        tensorflow = versions.get("tensorflow")
        tf_keras = versions.get("tf_keras")
        if not tensorflow or numbers(tensorflow) < (2, 16):
            return None  # this TensorFlow comes with Keras 2
        if tf_keras and numbers(tf_keras)[:2] == numbers(tensorflow)[:2]:
            return None
        have = f"tf_keras is {tf_keras}" if tf_keras else "tf_keras is not installed"
        return (
            f"Keras 2 is asked for, and {have}; it must have TensorFlow's minor version "
            f"({tensorflow}): {_install_tf_keras(tensorflow)}"
        )
    fails = _FAILS.get(tf_class)
    keras = versions.get("keras")
    if fails is None or not keras or numbers(keras) < (3,):
        return None
    way_out = f"write `keras: 2` under `run:` and {_install_tf_keras(versions.get('tensorflow'))}"
    if tf_class in _NEVER_PATCHED:
        return f"Keras {keras} {fails}: {way_out}, or write the loop with ClusterCoordinator"
    if patched(keras):
        return None
    return (
        f"Keras {keras} {fails}, and the patch was tested on 3.12.0 up to 3.15 only: {INSTALL}, or {way_out}"
    )


def asks_for_legacy(source: str) -> bool:
    """Return whether a script chooses Keras 2 itself, by TF_USE_LEGACY_KERAS or by importing tf_keras."""
    return "TF_USE_LEGACY_KERAS" in source or "import tf_keras" in source or "from tf_keras" in source


_FAILS = {
    "MultiWorkerMirroredStrategy": "cannot train with model.fit under MultiWorkerMirroredStrategy",
    "CentralStorageStrategy": "computes wrong metrics under CentralStorageStrategy with several replicas, and fails "
    "there with BatchNormalization and Dropout",
    "ParameterServerStrategy": "cannot train with model.fit under ParameterServerStrategy, in no version",
}

_NEVER_PATCHED = frozenset({"ParameterServerStrategy"})


def _install_tf_keras(tensorflow: str | None) -> str:
    minor = ".".join(str(n) for n in numbers(tensorflow or "")[:2])
    return (
        f'pip install "tf_keras~={minor}.0"'
        if minor
        else "pip install tf_keras of TensorFlow's minor version"
    )

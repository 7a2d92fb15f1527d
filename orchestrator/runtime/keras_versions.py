"""Which Keras trains under which strategy. Pure: the coordinator asks before the start, the runtime in `fit`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MENDED_FROM = (3, 12, 0)
MENDED_BEFORE = (3, 16)
"""Keras 3 of these versions was seen to train under MultiWorkerMirroredStrategy with `runtime/keras3.py`."""

INSTALL = 'pip install "keras>=3.12,<3.16"'


def numbers(version: str) -> tuple[int, ...]:
    """`3.15.1` or `3.13.0rc1` to its leading numbers."""
    found = []
    for part in version.split("."):
        digits = ""
        for letter in part:
            if not letter.isdecimal():
                break
            digits += letter
        if not digits:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)


def patched(keras: str) -> bool:
    """Whether our patch of Keras 3 was tested on this version."""
    return MENDED_FROM <= numbers(keras) < MENDED_BEFORE


def unsupported(tf_class: str, versions: Mapping[str, str | None], legacy_keras: bool) -> str | None:
    """The sentence that says why `model.fit` would fail under this strategy, and the way out; or None.

    `tf_class` is the name of TensorFlow's class for it, empty where there is none. `versions` are those of
    `tensorflow`, `keras` and `tf_keras`, None or absent where not installed; `legacy_keras` is whether
    TF_USE_LEGACY_KERAS is set. Nothing is said of what is not installed, unless it was asked for: a custom
    training loop needs no Keras.
    """
    if legacy_keras:
        return _legacy(versions.get("tensorflow"), versions.get("tf_keras"))
    fails = _FAILS.get(tf_class)
    keras = versions.get("keras")
    if fails is None or not keras or numbers(keras) < (3,):
        return None
    way_out = f"set TF_USE_LEGACY_KERAS=1 and {_install_tf_keras(versions.get('tensorflow'))}"
    if tf_class in _NEVER_PATCHED:
        return f"Keras {keras} {fails}: {way_out}, or write the loop with ClusterCoordinator"
    if patched(keras):
        return None
    return (
        f"Keras {keras} {fails}, and the patch was tested on 3.12.0 up to 3.15 only: {INSTALL}, or {way_out}"
    )


def asks_for_legacy(source: str) -> bool:
    """Whether a script chooses Keras 2 itself: by TF_USE_LEGACY_KERAS, or by importing tf_keras."""
    return "TF_USE_LEGACY_KERAS" in source or "import tf_keras" in source or "from tf_keras" in source


_FAILS = {
    "MultiWorkerMirroredStrategy": "cannot train with model.fit under MultiWorkerMirroredStrategy",
    "CentralStorageStrategy": "computes wrong metrics under CentralStorageStrategy with several replicas, and fails "
    "there with BatchNormalization and Dropout",
    "ParameterServerStrategy": "cannot train with model.fit under ParameterServerStrategy, in no version",
}

_NEVER_PATCHED = frozenset({"ParameterServerStrategy"})


def _legacy(tensorflow: str | None, tf_keras: str | None) -> str | None:
    if not tensorflow or numbers(tensorflow) < (2, 16):
        return None  # its own Keras is Keras 2
    if tf_keras and numbers(tf_keras)[:2] == numbers(tensorflow)[:2]:
        return None
    have = f"tf_keras is {tf_keras}" if tf_keras else "tf_keras is not installed"
    return (
        f"Keras 2 is asked for, and {have}; it must have TensorFlow's minor version "
        f"({tensorflow}): {_install_tf_keras(tensorflow)}"
    )


def _install_tf_keras(tensorflow: str | None) -> str:
    minor = ".".join(str(n) for n in numbers(tensorflow or "")[:2])
    return (
        f'pip install "tf_keras~={minor}.0"'
        if minor
        else "pip install tf_keras of TensorFlow's minor version"
    )

"""TensorFlow's checkpoints: a prefix with its index and data shards. Where our reader cannot tell, it is asked."""

from __future__ import annotations

import os

from orchestrator.checkpoints import crc32c
from orchestrator.checkpoints.hdf5 import is_integer
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.tensor_bundle import Bundle
from orchestrator.checkpoints.torn import NotUnderstood, Torn

OWN_SUM_BYTES_MAX = 4 << 20
"""Above it, TensorFlow's own checksum is faster than ours without the C library, its import included."""


def glance(prefix: str) -> None:
    """Read the index, and compare the sizes of the shards with it. Torn."""
    try:
        Bundle(prefix)
    except NotUnderstood:
        return


def peek(prefix: str) -> int | None:
    """Return the global step, without reading the tensors. Torn."""
    try:
        return _step_of(Bundle(prefix))
    except NotUnderstood:
        return None


def read(prefix: str) -> int | None:
    """Compare every tensor with its checksum. Return the global step. Torn."""
    try:
        bundle = Bundle(prefix)
        if bundle.data_bytes > OWN_SUM_BYTES_MAX and not crc32c.is_fast():
            raise NotUnderstood("too large")
        bundle.check_tensors()
    except NotUnderstood:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import tensorflow as tf

        steps = {}
        try:
            reader = tf.train.load_checkpoint(prefix)
            for name, shape in reader.get_variable_to_shape_map().items():
                value = reader.get_tensor(name)
                if not shape and is_integer(value):
                    steps[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = int(value)
        except (tf.errors.OpError, ValueError, OSError, RuntimeError) as e:
            raise Torn(f"TensorFlow: {str(e).splitlines()[0]}") from e
        return choose_step(steps)
    return _step_of(bundle)


def _step_of(bundle: Bundle) -> int | None:
    steps = {}
    for name in bundle.entries:
        value = bundle.integer(name) if "save_counter" not in name else None
        if value is not None:
            steps[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = value
    return choose_step(steps)

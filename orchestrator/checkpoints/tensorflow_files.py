"""TensorFlow's checkpoints: a prefix with its index and data shards. Where our reader cannot tell, it is asked."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager

from orchestrator.both import backup_file
from orchestrator.checkpoints import crc32c
from orchestrator.checkpoints.hdf5 import is_integer
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.tensor_bundle import Bundle
from orchestrator.checkpoints.torn import NotUnderstood, Torn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.both.within import Tree

OWN_SUM_BYTES_MAX = 4 << 20
"""Above it, TensorFlow's own checksum is faster than ours without the C library, its import included."""


def check_structure(tree: Tree, prefix: str) -> None:
    """Read the index, and compare the sizes of the shards with it. Torn."""
    _check_handed_over(tree, prefix)
    try:
        Bundle(tree, prefix)
    except NotUnderstood:
        return


def read_step(tree: Tree, prefix: str) -> int | None:
    """Return the global step, without reading the tensors. Torn."""
    try:
        return _step_of(Bundle(tree, prefix))
    except NotUnderstood:
        return None


def read(tree: Tree, prefix: str) -> int | None:
    """Compare every tensor with its checksum. Return the global step. Torn."""
    try:
        bundle = Bundle(tree, prefix)
        if bundle.data_bytes > OWN_SUM_BYTES_MAX and not crc32c.is_fast():
            raise NotUnderstood("too large")
        bundle.check_tensors()
    except NotUnderstood:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import tensorflow as tf

        steps = {}
        try:
            with _by_path(tree, prefix) as path:
                reader = tf.train.load_checkpoint(path)
                for name, shape in reader.get_variable_to_shape_map().items():
                    value = reader.get_tensor(name)
                    if not shape and is_integer(value):
                        steps[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = int(value)
        except (tf.errors.OpError, ValueError, OSError, RuntimeError) as e:
            raise Torn(f"TensorFlow: {str(e).splitlines()[0]}") from e
        return choose_step(steps)
    return _step_of(bundle)


def _check_handed_over(tree: Tree, prefix: str) -> None:
    """Compare a prefix with what the file beside it says, where a survivor has handed it over. Torn."""
    folder, name = os.path.split(prefix)
    if not name.startswith(backup_file.RESCUED) or not tree.has(prefix + backup_file.BESIDE):
        return
    files = [each for each in tree.names(folder) if each.startswith(f"{name}.data-")]
    shards = {each[len(name) :]: tree.stat(os.path.join(folder, each)).st_size for each in files}
    with tree.reading(f"{prefix}.index") as index:
        sums = backup_file.sums_of_prefix(index, shards)
    step = name.rpartition("-")[2]
    said = tree.read_object(prefix + backup_file.BESIDE) or {}
    if not step.isdecimal() or not backup_file.is_about(said, sums, int(step)):
        raise Torn("it is not what it says to be")


@contextmanager
def _by_path(tree: Tree, prefix: str) -> Iterator[str]:
    """Yield a path by which TensorFlow opens the files that we have opened: a private directory of links to them."""
    from tempfile import TemporaryDirectory

    folder, name = os.path.split(prefix)
    with TemporaryDirectory(prefix="orch-") as private, ExitStack() as files:
        for file in tree.names(folder):
            if file.startswith((f"{name}.index", f"{name}.data-")):
                opened = files.enter_context(tree.reading(os.path.join(folder, file)))
                os.symlink(f"/proc/self/fd/{opened.fileno()}", os.path.join(private, file))
        yield os.path.join(private, name)


def _step_of(bundle: Bundle) -> int | None:
    steps = {}
    for name in bundle.entries:
        value = bundle.integer(name) if "save_counter" not in name else None
        if value is not None:
            steps[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = value
    return choose_step(steps)

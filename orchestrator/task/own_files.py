"""Files in the checkpoint directory of a worker: each finds in its own what the chief has saved in the chief's.

Keras 2's ModelCheckpoint has every worker but the chief save into a temporary directory, which it removes. Here each
has a checkpoint directory to itself, so each saves there, as the chief does. What the script saves on the chief alone
is read from the chief's directory, where the hosts share it. After each load the runtime tells the checksum of the
weights, by which the coordinator sees that all have loaded the same.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import zlib

from orchestrator.task import this_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from orchestrator.protocol.reports import Loaded

CHIEF_SAVES_MAX_S = 10.0
"""How long a worker that has trained waits for the first checkpoint of the chief's, which may be saving just now."""

_loads: dict[int, int] = {}
"""How often weights were loaded, by where in the script: the chief alone may load some."""


def patches() -> dict[str, Callable[[ModuleType], None]]:
    """Return the patches by module name, for a script that is one of several processes and has a directory."""
    if not os.environ.get("ORCH_CHECKPOINT_DIR") or not os.environ.get("TF_CONFIG"):
        return {}
    keras2 = [
        (f"{name}.src.{module}", patch)
        for name in ("tf_keras", "keras")
        for module, patch in (
            ("distribute.distributed_file_utils", patch_file_utils),
            ("engine.training", patch_model),
        )
    ]
    latest = "tensorflow.python.checkpoint.checkpoint_management"
    loading = {f"{name}.src.saving.saving_api": patch_load_model for name in ("tf_keras", "keras")}
    return {**dict(keras2), **loading, "keras.src.models.model": patch_model, latest: patch_latest}


def patch_file_utils(module: ModuleType) -> None:
    """Let each worker save in its own checkpoint directory, and remove nothing there."""
    utils: Any = module
    place_of, remove = utils.write_filepath, utils.remove_temp_dir_with_filepath

    @functools.wraps(place_of)
    def write_filepath(filepath: Any, strategy: Any) -> Any:
        return filepath if _inner(filepath) is not None else place_of(filepath, strategy)

    @functools.wraps(remove)
    def remove_temp_dir_with_filepath(filepath: Any, strategy: Any) -> None:
        if _inner(filepath) is None:
            remove(filepath, strategy)

    utils.write_filepath, utils.remove_temp_dir_with_filepath = write_filepath, remove_temp_dir_with_filepath


def patch_latest(module: ModuleType) -> None:
    """Let `tf.train.latest_checkpoint` find what the chief alone has saved."""
    from orchestrator.task.transparent.files import replace_everywhere

    find: Any = module.latest_checkpoint

    @functools.wraps(find)
    def latest_checkpoint(checkpoint_dir: Any, latest_filename: Any = None) -> Any:
        found, of_chief = find(checkpoint_dir, latest_filename), _of_chief(checkpoint_dir)
        if found is not None or of_chief is None:
            return found
        has_trained = this_task.progress is not None and this_task.progress.has_stepped
        ends_at = time.monotonic() + CHIEF_SAVES_MAX_S * has_trained
        while (found := find(of_chief, latest_filename)) is None and time.monotonic() < ends_at:
            time.sleep(0.1)
        return found

    replace_everywhere(find, latest_checkpoint)
    module.latest_checkpoint = latest_checkpoint  # type: ignore[attr-defined]


def patch_model(module: ModuleType) -> None:
    """Let `load_weights` read what the chief alone has saved, and tell what was loaded."""
    model: Any = module.Model
    load = model.load_weights

    @functools.wraps(load)
    def load_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(self, _whole_of_chief(filepath), *args, **kwargs)
        _tell(self, filepath)
        return result

    model.load_weights = load_weights


def patch_load_model(module: ModuleType) -> None:
    """Let `load_model` read what the chief alone has saved, and tell what was loaded."""
    from orchestrator.task.transparent.files import replace_everywhere

    load: Any = module.load_model

    @functools.wraps(load)
    def load_model(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        model = load(_whole_of_chief(filepath), *args, **kwargs)
        _tell(model, filepath)
        return model

    replace_everywhere(load, load_model)


def _inner(path: Any) -> str | None:
    """Return a path below this task's checkpoint directory, relative to it; None for any other."""
    own = os.environ.get("ORCH_CHECKPOINT_DIR")
    if not own or not isinstance(path, (str, os.PathLike)):
        return None
    inner = os.path.relpath(os.path.realpath(os.fsdecode(path)), os.path.realpath(own))
    return None if inner.split(os.sep)[0] == ".." else inner


def _of_chief(path: Any) -> str | None:
    """Return the same path in the chief's checkpoint directory; None on the chief, and where it is not shared."""
    inner, chiefs = _inner(path), os.environ.get("ORCH_RESCUE_DIR")
    if inner is None or not chiefs or _inner(chiefs) is not None:
        return None
    return os.path.join(chiefs, inner)


def _whole_of_chief(path: Any) -> Any:
    """Return a path in the chief's directory for one that is not there in this task's own; else the path."""
    of_chief = _of_chief(path)
    is_of_chief = of_chief is not None and not _is_there(os.fspath(path)) and _is_there(of_chief)
    return of_chief if is_of_chief else path


def _is_there(path: str) -> bool:
    return os.path.exists(path) or os.path.exists(path + ".index")


def _tell(model: Any, path: Any) -> None:
    """Tell what was loaded, where several workers train: it must be the same on all."""
    if this_task.link is None or this_task.strategy is None:
        return
    try:
        from orchestrator.task.transparent.atomic import own

        checksum, count = 0, 0
        for weight in model.trainable_variables:
            checksum, count = zlib.crc32(own(weight).numpy().tobytes(), checksum), count + 1
    except Exception:  # not built yet, say: then nothing is known of it
        return
    if count:
        place = _place()
        _loads[place] = _loads.get(place, 0) + 1
        name: Any = os.path.basename(os.fsdecode(path))
        number = (place << _COUNT_BITS) + _loads[place] % (1 << _COUNT_BITS)
        loaded: Loaded = {"number": number, "file": name, "checksum": checksum}
        this_task.link.send({"loaded": loaded})


_COUNT_BITS = 16


def _place() -> int:
    """Return a number for the lines of the script that are being called: the same in all workers."""
    from orchestrator.both.script import is_of_script

    folder = os.path.dirname(os.path.realpath(getattr(sys.modules["__main__"], "__file__", "") or ""))
    place, frame = 0, sys._getframe()
    while frame is not None:
        if is_of_script(frame.f_code.co_filename, folder):
            name = os.path.basename(frame.f_code.co_filename)
            place = zlib.crc32(f"{name}:{frame.f_lineno}".encode(), place)
        frame = frame.f_back  # type: ignore[assignment]
    return place

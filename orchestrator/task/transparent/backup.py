"""The backup of a fit: weights, optimizer, metrics, and the position, in one HDF5 file that is replaced atomically.

It is written to a temporary file, synced, and renamed, so a kill at any moment leaves the backup before it. The file's
name and `optimizer/iterations` are what `checkpoints` looks for.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import zlib

from orchestrator.both import backup_file, durable
from orchestrator.both.backup_file import ABOUT, CHECKSUMS, POSITION, RESCUED
from orchestrator.both.newest import MARKER, InGeneration
from orchestrator.both.within import Tree, as_path
from orchestrator.protocol.paths import RelativePath
from orchestrator.task import fence, this_task
from orchestrator.task.keras.optimizers import INNER, held, layers_within, optimizers_of, weights_of
from orchestrator.task.transparent.atomic import of_tensorflow, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from orchestrator.protocol.reports import Restored

NAME, STEPS = backup_file.NAME, backup_file.STEPS
_FITS = "orch"
"""The directory of all fits, in that of the generation."""

_BUILDING = "saving_temp"
"""The directory of the temporary file. `checkpoints` ignores directories that end with `_temp`."""

_WHY_CHARS_MAX = 300
_NOT_OF_THE_FILE = ("ResourceExhaustedError", "UnavailableError", "AbortedError", "CancelledError")
"""TensorFlow's errors that say nothing of what is restored."""


class Position:
    """The position of a fit: `epoch` epochs are done, and `batch` batches of the next one."""

    def __init__(self, epoch: int, batch: int, steps: int = 0) -> None:
        self.epoch = epoch
        self.batch = batch
        self.steps = steps
        """The number of steps of this fit and of those before it."""
        self.scale: float | None = None
        """The global batch of these batches, as a multiple of the script's; None: the present one."""
        self.rate = 1.0
        """What the script's learning rate was multiplied with."""
        self.fit = 0
        """The number of the fit, which its folder has."""
        self.identity: list[float] = []
        """What tells the fit from others (see `identity.py`)."""
        self.epochs = 0
        """How many epochs the script asked for."""
        self.chance: list[Any] | None = None
        """The state of the random generators of the process, once the fit has ended."""
        self.callbacks: dict[str, dict[str, Any]] = {}
        """Attributes of callbacks by class, and place among those of it (see `remembered.py`): also History's."""
        self.own: dict[str, dict[str, dict[str, Any]]] = {}
        """The same by the number of the worker, where not all workers have the same callbacks."""
        self.begun = batch > 0
        """Whether the callbacks' `on_epoch_begin` of the next epoch has run."""
        self.unfinished: dict[str, Any] | None = None
        """Of which hook some callbacks are done and others are not (see `hooks.py`)."""
        self.proved = 0
        """With how many replicas a step was proved equal to that of one process, as far as it can be; 0: it was not."""
        self.set: dict[str, float] = {}
        """The numbers of its optimizers that the script had set when the fit began, such as the learning rate."""
        self.tables: dict[str, dict[str, int]] = {}
        """How many lines the tables of CSVLoggers had when the fit began, by the number of the worker and by name."""
        self.script = os.environ.get("ORCH_SCRIPT", "")
        """What tells the script, its arguments and its environment from changed ones; empty where that is not known."""
        self.replicas = 0
        """With how many replicas it was saved; 0 where that is not known."""
        self.length = 0
        """How many batches an epoch had; 0 where that is not known."""

    def as_json(self) -> str:
        return json.dumps(vars(self))

    def is_of_this_script(self) -> bool:
        """Return whether the script is the same now, as far as that is known."""
        return self.script in ("", os.environ.get("ORCH_SCRIPT", self.script))

    def in_batches_of(self, scale: float) -> None:
        """Count the batches of the epoch that has begun in batches of another size: as many examples are done."""
        if self.scale is not None:
            self.batch = int(self.batch * self.scale / scale + 1e-9)
        self.scale = scale

    @staticmethod
    def from_json(text: str) -> Position:
        fields = json.loads(text)
        position = Position(int(fields["epoch"]), int(fields["batch"]), int(fields.get("steps", 0)))
        position.script = ""
        others = vars(position).keys() & fields.keys() - {"epoch", "batch", "steps"}
        vars(position).update({name: fields[name] for name in others})
        position.rate = float(position.rate)
        return position


class Mismatch(RuntimeError):
    """The backup belongs to a model of other shapes."""

    orch_kind = "other-shapes"
    orch_says_all = True
    """No line of the script is at fault, so no traceback is printed."""


def folder(checkpoint_dir: str, fit: int) -> str:
    """Return the directory for the backups of the fit with this number."""
    return os.path.join(checkpoint_dir, _FITS, f"fit-{fit:03d}")


def rescued(directory: str, task: str) -> str:
    """Return the directory of the state that a survivor has handed over, for the fit of this directory."""
    return os.path.join(directory, RESCUED + task.replace(":", "-"))


def variables_of(model: Any) -> dict[str, list[Any]]:
    """Return the variables to save, by group. The order is the same in every process."""
    is_keras_3 = hasattr(model, "metrics_variables")
    if is_keras_3:  # whose `weights` lack the states of random generators
        metrics = list(model.metrics_variables)
        ids = {id(variable) for variable in metrics}
        weights = [variable for variable in model.variables if id(variable) not in ids]
    else:
        metrics = [variable for metric in model.metrics for variable in metric.variables]
        # The metrics of a model's own `train_step` are among its weights too: each replica counts its part.
        ids = {id(variable) for variable in metrics}
        weights = [variable for variable in weights_of(model) if id(variable) not in ids]
    groups = {"model": weights, "metrics": metrics}
    for name, optimizer in optimizers_of(model).items():
        variables = optimizer.variables
        groups[name] = list(variables() if callable(variables) else variables)
        rate = getattr(optimizer, "learning_rate", None)
        # Callbacks change it; that of tf_keras is none of its optimizer's variables.
        if hasattr(rate, "assign") and all(rate is not each for each in groups[name]):
            (groups[name] if name.startswith(INNER) else groups.setdefault("rates", [])).append(rate)
    return groups | _others(model, groups) if is_keras_3 else groups


OTHERS = "variables"
"""The first word of a group of variables that Keras 3 does not list: `variables.PLACE.ATTRIBUTE` of a layer's place."""


def _others(model: Any, groups: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the variables of TensorFlow in attributes of the model and its layers, which Keras 3 does not list."""
    known = {id(of_tensorflow(each)) for variables in groups.values() for each in variables}
    found: dict[str, list[Any]] = {}
    for place, layer in enumerate([model, *layers_within(model)]):
        for name, value in sorted(vars(layer).items()):
            if name.startswith("_self_"):
                continue  # there TensorFlow lists them again
            for _, each in held(value):
                if _is_other(each) and id(each) not in known:
                    known.add(id(each))
                    found.setdefault(f"{OTHERS}.{place}.{name}", []).append(each)
    return found


def _is_other(value: Any) -> bool:
    """Return whether that is a variable of TensorFlow that can be saved: of numbers, and one value of all replicas."""
    tf: Any = sys.modules.get("tensorflow")
    if tf is None or not isinstance(value, tf.Variable) or value.dtype in (tf.string, tf.variant):
        return False
    is_alone = own(value) is value or value.synchronization != tf.VariableSynchronization.ON_READ
    return is_alone or value.aggregation != tf.VariableAggregation.NONE


def may_be_missing(group: str) -> bool:
    """Return whether a fit goes on without what a backup has of this group: other attributes, or a model within it."""
    return group.startswith((f"{OTHERS}.", INNER))


def numbers_of_optimizers(groups: dict[str, list[Any]]) -> dict[str, float]:
    """Return the variables of optimizers that are a single number with a fraction, by group and name."""
    return {key: float(variable.numpy()) for key, _, variable in _numbers(groups)}


def _numbers(groups: dict[str, list[Any]]) -> Iterator[tuple[str, str, Any]]:
    """Yield these with their names in a backup between the two."""
    for group, variables in groups.items():
        for place, variable in enumerate(variables) if group.startswith(("optimizer", "rates")) else ():
            kind = str(getattr(variable.dtype, "name", variable.dtype))
            if tuple(variable.shape) == () and "float" in kind:
                path = str(getattr(variable, "path", None) or variable.name).partition(":")[0]
                name = path.rpartition("/")[2]
                of = f"{group}.{place}" if group == "rates" else group
                if name != "current_learning_rate":  # which tf_keras computes from a schedule in each step
                    yield f"{of}/{name}", f"{group}/{place:05d}", variable


def scale_rates(groups: dict[str, list[Any]], values: dict[str, Any], factors: dict[str, float]) -> None:
    """Multiply the learning rates of a backup, by their keys in `numbers_of_optimizers`, as far as they are built."""
    built = {group: _built(groups, values, group) for group in groups}
    for key, name, _ in _numbers(built):
        if key in factors and name in values:
            values[name] = values[name] * factors[key]


def collect(groups: dict[str, list[Any]], steps: int) -> dict[str, Any]:
    """Return all values by name. Every worker must call it, since reading a variable may need all of them."""
    values: dict[str, Any] = {STEPS: steps}
    for group, variables in groups.items():
        for place, variable in enumerate(variables):
            values[f"{group}/{place:05d}"] = variable.numpy()
    return values


def write(directory: str, values: dict[str, Any], position: Position) -> None:
    """Replace the backup in `directory`. Raises OSError if the disk refuses; then nothing new is left.

    With a weight that is NaN nothing is replaced: no training comes back from that, but it does from the backup before.
    """
    fence.check()
    import numpy as np

    if any(name.startswith("model/") and _is_nan(value) for name, value in values.items()):
        _tell_not_saved(int(values[STEPS]))
        return
    building = os.path.join(_BUILDING, NAME)
    arrays = {POSITION: np.frombuffer(position.as_json().encode(), dtype=np.uint8)}
    root = directory.rpartition(f"{os.sep}{_FITS}{os.sep}")[0]
    with opened(root or directory, directory) as tree:
        tree.make(_BUILDING)
        tree.remove(building)
        handle = tree.opened(building, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            _fill(as_path(handle), values | arrays, int(values[STEPS]))
            os.fsync(handle)
        except (OSError, RuntimeError):  # h5py raises either where the disk is full
            tree.remove(building)  # else it takes the room that the next start needs
            raise
        finally:
            os.close(handle)
        tree.rename(building, NAME)
        for older in _rescues(directory):
            if 0 < _steps(older) <= int(values[STEPS]):  # 0: it is being written, beside this save
                with contextlib.suppress(OSError):
                    tree.remove(os.path.basename(older))


def opened(root: str, directory: str) -> Tree:
    """Open a directory at or below that of a generation, and make it where it is missing.

    No link is followed below the directory that holds the generation's: others may be let write there.
    """
    directory = os.path.abspath(directory)
    with Tree(os.path.dirname(os.path.abspath(root))) as tree:
        tree.make(directory)
        return tree.below(directory)


def _is_nan(value: Any) -> bool:
    import numpy as np

    given = np.asarray(value)  # which may be of bfloat16 and similar types
    known = given if given.dtype.kind in "biufc" else given.astype(np.float32)
    return known.dtype.kind in "fc" and bool(np.isnan(known).any())


_told: set[str] = set()


def _tell_not_saved(steps: int) -> None:
    if "nan" not in _told and this_task.link is not None:
        _told.add("nan")
        this_task.link.say(
            "not-saved",
            f"step {steps} is not saved, since a weight is NaN: the backup before it stays, and a restart "
            "goes on from it",
        )


def _fill(path: str, values: dict[str, Any], steps: int) -> None:
    import h5py
    import numpy as np

    sums = {}
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            array = np.asarray(value)
            if name == STEPS:
                array = array.astype(np.int64)
            elif array.dtype.kind not in "biufc":  # HDF5 does not support bfloat16 and similar types
                array = array.astype(np.float32)
            file[name], sums[name] = array, zlib.crc32(np.ascontiguousarray(array).data)
        file[CHECKSUMS] = np.frombuffer(json.dumps(sums).encode(), dtype=np.uint8)
        file[ABOUT] = np.frombuffer(backup_file.about(sums, steps), dtype=np.uint8)


def newest(directory: str) -> str | None:
    """Return where the newest backup is: the fit's own, or one that a survivor has handed over."""
    there = [each for each in (directory, *_rescues(directory)) if os.path.isfile(os.path.join(each, NAME))]
    root = os.path.dirname(os.path.dirname(directory))
    marker = os.path.join(root, MARKER)
    made_at = os.stat(marker).st_mtime if os.path.isfile(marker) else None
    generation = InGeneration(durable.read_object(marker), made_at)

    def key(folder: str) -> tuple[object, ...]:
        path = os.path.join(folder, NAME)
        about = os.stat(path)
        return generation.key(os.path.relpath(path, root), _steps(folder), about.st_mtime, about.st_size)

    return max(there, key=key) if len(there) > 1 else there[0] if there else None


def _rescues(directory: str) -> list[str]:
    if not os.path.isdir(directory):
        return []
    return [
        os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.startswith(RESCUED)
    ]


def _steps(directory: str) -> int:
    """Return the steps of the backup in this very directory; 0 without one that tells them."""
    import h5py

    try:
        with h5py.File(os.path.join(directory, NAME), "r") as file:
            return int(file[STEPS][()])
    except (OSError, KeyError, TypeError, ValueError):
        return 0


def position(directory: str) -> Position | None:
    """Return the position of the backup; None if there is no backup."""
    import h5py

    generation = newest(directory)
    if generation is None:
        return None
    with h5py.File(os.path.join(generation, NAME), "r") as file:
        return Position.from_json(bytes(file["position"][()]).decode())


def read(directory: str) -> tuple[dict[str, Any], Position] | None:
    """Return what `write` wrote; None if there is no backup. Raises ValueError where that is not what is there now."""
    import h5py
    import numpy as np

    generation = newest(directory)
    if generation is None:
        return None
    with h5py.File(os.path.join(generation, NAME), "r") as file:
        groups = [name for name, item in file.items() if isinstance(item, h5py.Group)]
        values = {f"{group}/{name}": file[group][name][()] for group in groups for name in file[group]}
        texts = {name: bytes(file[name][()]) for name in backup_file.TEXTS if name in file}
    sums = {name: zlib.crc32(np.ascontiguousarray(value).data) for name, value in values.items()}
    sums[POSITION] = zlib.crc32(texts.get(POSITION, b""))
    backup_file.check(sums, texts, values.get(STEPS))
    return values, Position.from_json(texts[POSITION].decode())


def positions(checkpoint_dir: str) -> dict[int, Position]:
    """Return the positions of all backups, by the number of their fit."""
    root = os.path.join(checkpoint_dir, _FITS)
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    found = {}
    for name in names:
        if name[:4] == "fit-" and name[4:].isdecimal():
            with restoring(os.path.join(root, name), checkpoint_dir):
                found[int(name[4:])] = position(os.path.join(root, name))
    return {fit: each for fit, each in found.items() if each is not None}


@contextlib.contextmanager
def restoring(directory: str, checkpoint_dir: str | None) -> Iterator[None]:
    """Tell the shim of what is raised: a changed model, or a file that failed, and the next start gets another one."""
    try:
        yield
    except MemoryError:
        raise
    except Mismatch as e:
        if this_task.link is not None:  # first, because the script may swallow the error
            this_task.link.send({"error": {"kind": e.orch_kind, "message": str(e)}}, wait_s=1.0)
        raise
    except Exception as e:
        if type(e).__name__ not in _NOT_OF_THE_FILE:
            tell_restored(directory, checkpoint_dir, None, f"{type(e).__name__}: {e}")
        raise


def tell_restored(directory: str, checkpoint_dir: str | None, steps: int | None, why: str = "") -> None:
    """Tell the shim from which file a fit goes on, or why it could not."""
    folder = newest(directory)
    if folder is None or checkpoint_dir is None or this_task.link is None:
        return
    path = os.path.join(folder, NAME)
    known = os.stat(path)
    restored: Restored = {
        "file": RelativePath(os.path.relpath(path, checkpoint_dir)),
        "step": steps,
        "saved_at": known.st_mtime,
        "bytes": known.st_size,
        "why": why[:_WHY_CHARS_MAX],
    }
    this_task.link.send({"restored": restored}, wait_s=1.0)


def fits(groups: dict[str, list[Any]], values: dict[str, Any], group: str) -> bool:
    """Return whether this group has as many variables now as in the backup."""
    return len(groups.get(group, ())) == len(_names(values, group))


def assign(
    groups: dict[str, list[Any]], values: dict[str, Any], group: str, *, after: Sequence[Any] = ()
) -> None:
    """Assign the variables of one group, behind these if it begins with them.

    Raises:
        Mismatch: Their number or shapes differ.
    """
    pairs = matched(groups, values, group)
    begins = all(variable is each for (variable, _), each in zip(pairs, after, strict=False))
    _assign(pairs[len(after) if begins else 0 :])


def assign_built(groups: dict[str, list[Any]], values: dict[str, Any], group: str) -> list[Any]:
    """Assign the variables of one group as far as it is built, and return them.

    Before its first step an optimizer of Keras 3 has the count of its steps and its rate; all others come behind them.
    """
    built = _built(groups, values, group)
    if fits(groups, values, group):
        assign(groups, values, group)
        return built
    pairs = [(variable, values[name]) for variable, name in zip(built, _names(values, group), strict=False)]
    if not all(_has_shape(*pair) for pair in pairs):
        return []
    _assign(pairs)
    return [variable for variable, _ in pairs]


def _built(groups: dict[str, list[Any]], values: dict[str, Any], group: str) -> list[Any]:
    """Return the variables of a group that are at the same place in a backup, although others may be built later."""
    variables = groups.get(group, [])
    return variables if fits(groups, values, group) else variables[: 2 * group.startswith("optimizer")]


def _assign(pairs: Sequence[tuple[Any, Any]]) -> None:
    import tensorflow as tf

    for variable, value in pairs:
        variable.assign(tf.cast(value, variable.dtype))


def add(groups: dict[str, list[Any]], values: dict[str, Any], group: str) -> None:
    """Add the values to the variables: metrics are sums and counts. Every worker must call it, as `collect`."""
    for variable, value in matched(groups, values, group):
        variable.assign(variable.numpy() + value)


def groups_in(values: dict[str, Any]) -> list[str]:
    """Return the names of the groups of a backup."""
    return sorted({name.rpartition("/")[0] for name in values if name != STEPS})


def _names(values: dict[str, Any], group: str) -> list[str]:
    return sorted(name for name in values if name.rpartition("/")[0] == group and name != STEPS)


def matched(groups: dict[str, list[Any]], values: dict[str, Any], group: str) -> list[tuple[Any, Any]]:
    """Return the variables of one group with their values. Raises Mismatch where their number or shapes differ."""
    variables, names = groups.get(group, []), _names(values, group)
    pairs = [(variable, values[name]) for name, variable in zip(names, variables, strict=False)]
    differing = [_difference(*pair) for pair in pairs if not _has_shape(*pair)]
    if len(names) != len(variables):
        differing = [f"{len(variables)} variables, was {len(names)}"]
    if differing:
        raise Mismatch(
            f"the {group} has other shapes than the checkpoint ({differing[0]}): "
            "`orch up --again` begins from scratch"
        )
    return pairs


def _has_shape(variable: Any, value: Any) -> bool:
    """Return whether a value has a variable's shape, as far as that is known: sizes and the rank may be open."""
    if getattr(variable.shape, "rank", 0) is None:
        return True
    sizes = tuple(variable.shape)
    return len(sizes) == len(value.shape) and all(
        size in (None, there) for size, there in zip(sizes, value.shape, strict=True)
    )


def _difference(variable: Any, value: Any) -> str:
    now, then = ([str(size) for size in each.shape] for each in (variable, value))
    path = str(getattr(variable, "path", None) or variable.name).partition(":")[0]
    layer = "/".join(path.split("/")[-2:]).removesuffix("/kernel")
    others = [was for was, size in zip(then, now, strict=False) if was != size]
    if len(then) != len(now) or len(others) > 1:
        others = ["x".join(then) or "a single number"]
    return f"{layer}: {'x'.join(now) or 'a single number'}, was {others[0]}"

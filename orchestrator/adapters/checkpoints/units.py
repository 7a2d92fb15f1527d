"""The checkpoints that training scripts write, as units, and the check whether a unit reads whole.

A unit is the smallest thing that can be restored: a TensorFlow prefix with its shards, an HDF5 file, a `.keras`
archive, or the pair of weights and epoch that Keras 3's BackupAndRestore writes. `glance` checks the structure, which
takes milliseconds and only the standard library; `read` reads every tensor.
"""

from __future__ import annotations

import json
import os
import stat
import zipfile

from orchestrator.adapters.checkpoints.tensor_bundle import Bundle, NotUnderstood, Torn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

OWN_SUM_BYTES_MAX = 1 << 30
"""The largest checkpoint that we read ourselves. Beyond it TensorFlow is faster, even with seconds for its import."""

TENSORFLOW, HDF5, ARCHIVE = "tensorflow", "hdf5", "keras"
POINTER = "checkpoint"
WEIGHTS, METADATA = "latest.weights.h5", "training_metadata.json"
_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"


class Unit:
    """Something that can be restored. `paths` are all its files, and `path` is the one that names it."""

    def __init__(self, kind: str, path: str, paths: list[str]) -> None:
        self.kind = kind
        self.path = path
        self.paths = paths
        self._states = [_state(path) for path in paths]
        self.saved_at = max((at for at, _ in self._states), default=0.0)
        self.bytes = sum(size for _, size in self._states)
        self.global_step: int | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def is_same(self, other: Unit) -> bool:
        """Return whether none of its files has changed since `other` was found."""
        return (self.path, self.paths, self._states) == (other.path, other.paths, other._states)

    @property
    def resumes(self) -> bool:
        """Whether scripts resume from it by themselves. Other units may be exports of a model."""
        return self.kind == TENSORFLOW or self.name.removesuffix(".bkp") == WEIGHTS

    def order(self) -> tuple[bool, bool, float, int]:
        """Return a sort key: first what no script resumes from by itself, then Keras's `.bkp`, then by time."""
        return self.resumes, not self.name.endswith(".bkp"), self.saved_at, number_in(self.name) or 0

    def glance(self) -> None:
        """Check sizes and structure.

        Raises:
            Torn: the unit cannot be whole.
        """
        if self.kind == TENSORFLOW:
            try:
                Bundle(self.path)
            except NotUnderstood:
                return
        elif self.kind == HDF5:
            with _opened(self.path) as f:
                _glance_hdf5(f)
            _check_metadata(self.path)
        else:
            with _opened(self.path) as f:
                if not zipfile.is_zipfile(f):
                    raise Torn("it is no whole zip archive")

    def read(self) -> None:
        """Read every tensor, and learn the global step.

        Raises:
            Torn: a tensor does not read.
        """
        self.glance()
        try:
            step = self._read()
        except OSError as e:  # a running training replaces and removes its checkpoints while they are read
            raise Torn(f"it cannot be read: {e.strerror or e}") from e
        self.global_step = step if step is not None else number_in(self.name)

    def peek(self) -> None:
        """Learn the global step within milliseconds, without checking the tensors.

        Raises:
            Torn: as `glance`.
        """
        self.glance()
        try:
            step = self._peek()
        except OSError as e:
            raise Torn(f"it cannot be read: {e.strerror or e}") from e
        self.global_step = step if step is not None else number_in(self.name)

    def _peek(self) -> int | None:
        if self.kind == TENSORFLOW:
            try:
                return _step_of(Bundle(self.path))
            except NotUnderstood:
                return None
        if self.kind == HDF5:
            with _opened(self.path) as f:
                return _read_hdf5(f, scalars_only=True)
        return None

    def _read(self) -> int | None:
        if self.kind == TENSORFLOW:
            return _read_bundle(self.path)
        if self.kind == HDF5:
            with _opened(self.path) as f:
                return _read_hdf5(f)
        return _read_archive(self.path)


def _state(path: str) -> tuple[float, int]:
    """Return when a file was written (Unix time) and its size; zeros where it is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0.0, 0
    return found.st_mtime, found.st_size


def number_in(name: str) -> int | None:
    """Return the last number in a name before its suffixes: 50 for both `ckpt-50.index` and `w.50.h5`, else None."""
    digits, found = "", None
    for letter in name.partition(".weights")[0].removesuffix(".h5").removesuffix(".keras") + "-":
        if letter.isdecimal():
            digits += letter
        elif digits:
            found, digits = int(digits), ""
    return found


def find(directory: str) -> tuple[list[Unit], list[str], list[tuple[str, str]]]:
    """Return the units below a directory (newest first), the other regular files, and what was skipped, with reasons.

    Symbolic links are never followed. The paths are absolute if `directory` is.
    """
    units: list[Unit] = []
    others: list[str] = []
    passed: list[tuple[str, str]] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in list(folders):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                passed.append((path, "a symbolic link is not followed"))
            if os.path.islink(path) or name.endswith("_temp") or name == ".tempstate":
                folders.remove(name)
        files = []
        for name in sorted(names):
            mode = _mode(os.path.join(folder, name))
            if mode is not None and stat.S_ISREG(mode):
                files.append(name)
            elif mode is not None:
                passed.append((os.path.join(folder, name), "it is no regular file"))
        _sort_out(folder, files, units, others, passed)
    units.sort(key=Unit.order, reverse=True)
    return units, others, passed


def _mode(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None  # a running training removes its older checkpoints


def _sort_out(
    folder: str, files: list[str], units: list[Unit], others: list[str], passed: list[tuple[str, str]]
) -> None:
    prefixes = [name[: -len(".index")] for name in files if name.endswith(".index")]
    taken: set[str] = set()
    for prefix in prefixes:
        mine = [n for n in files if n == f"{prefix}.index" or n.startswith(f"{prefix}.data-")]
        taken.update(mine)
        units.append(Unit(TENSORFLOW, os.path.join(folder, prefix), [os.path.join(folder, n) for n in mine]))
    for name in files:
        path = os.path.join(folder, name)
        bare = name.removesuffix(".bkp")
        if name in taken or name == POINTER or name.removesuffix(".bkp") == METADATA:
            continue
        if ".data-" in name and "-of-" in name:
            passed.append((path, "its index is missing: the save was not finished"))
        elif bare.endswith((".h5", ".hdf5")):
            paths = [path]
            if bare == WEIGHTS:
                metadata = os.path.join(folder, METADATA + name[len(bare) :])
                paths += [metadata] if os.path.isfile(metadata) else []
            units.append(Unit(HDF5, path, paths))
        elif bare.endswith(".keras"):
            units.append(Unit(ARCHIVE, path, [path]))
        else:
            others.append(path)


def _opened(path: str) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as e:
        raise Torn(f"{os.path.basename(path)} cannot be read: {e.strerror}") from e


def _glance_hdf5(file: IO[bytes]) -> None:
    head = file.read(64)
    size = file.seek(0, os.SEEK_END)
    if head[:8] != _HDF5_SIGNATURE or len(head) < 48:
        raise Torn(f"it is no HDF5 file ({size} bytes)")
    # The superblock holds the file's length, at an offset that depends on the superblock's version.
    at = {0: 40, 1: 44}.get(head[8], 28)
    end = int.from_bytes(head[at : at + 8], "little")
    if size < end:
        raise Torn(f"it is cut off: {size} of {end} bytes")


def _check_metadata(weights: str) -> None:
    """Raise Torn where the file beside the weights is damaged: Keras reads the epoch from it, and would fail."""
    folder, name = os.path.split(weights)
    if name.removesuffix(".bkp") != WEIGHTS:
        return
    path = os.path.join(folder, name.replace(WEIGHTS, METADATA))
    try:
        with open(path, encoding="utf-8") as f:
            int(json.load(f)["epoch"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise Torn(f"{os.path.basename(path)} beside it is torn: {e}") from e


def _read_hdf5(file: Any, *, scalars_only: bool = False) -> int | None:
    try:
        import h5py
    except ImportError:
        return None  # a Python without h5py cannot restore the file either; its structure was checked
    steps: dict[str, int] = {}
    count = 0

    def visit(name: str, item: Any) -> None:
        nonlocal count
        if isinstance(item, h5py.Dataset):
            count += 1
            if scalars_only and item.shape != ():
                return
            value = item[()]
            if _is_integer(value):
                steps[name] = int(value)

    try:
        with h5py.File(file, "r") as h5:
            h5.visititems(visit)
    except (OSError, RuntimeError, ValueError, KeyError) as e:
        raise Torn(f"HDF5: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e
    if not count:
        raise Torn("it holds no data")
    return choose_step(steps)


def _is_integer(value: Any) -> bool:
    """Return whether `value` is a NumPy integer: a scalar, or an array without dimensions."""
    return getattr(value, "ndim", 1) == 0 and getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")


def _read_archive(path: str) -> int | None:
    step = None
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                with archive.open(member) as f:
                    if member.endswith(".h5"):
                        step = _read_hdf5(f)
                    else:
                        while f.read(1 << 20):  # zipfile compares the checksum at the end of the member
                            pass
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as e:
        raise Torn(f"zip: {e}") from e
    return step


def _read_bundle(prefix: str) -> int | None:
    try:
        bundle = Bundle(prefix)
        if bundle.data_bytes > OWN_SUM_BYTES_MAX:
            raise NotUnderstood("too large")
        bundle.check_tensors()
    except NotUnderstood:
        return _read_by_tensorflow(prefix)
    return _step_of(bundle)


def _step_of(bundle: Bundle) -> int | None:
    steps = {}
    for name in bundle.entries:
        value = bundle.integer(name) if "save_counter" not in name else None
        if value is not None:
            steps[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = value
    return choose_step(steps)


def _read_by_tensorflow(prefix: str) -> int | None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    steps = {}
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name, shape in reader.get_variable_to_shape_map().items():
            value = reader.get_tensor(name)
            if not shape and _is_integer(value):
                steps[name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = int(value)
    except (tf.errors.OpError, ValueError, OSError, RuntimeError) as e:
        raise Torn(f"TensorFlow: {str(e).splitlines()[0]}") from e
    return choose_step(steps)


_STEP_NAMES = (
    "_iterations",
    "iterations",
    "iteration:0",
    "iteration",
    "iter:0",
    "iter",
    "vars/0",
    "_variables/0",
)
_OTHER_NAMES = ("global_step", "global_step:0", "_global_step", "step", "_step", "train_counter")


def choose_step(integers: dict[str, int]) -> int | None:
    """Choose, from a checkpoint's integer scalars by name, the one that counts the optimizer's steps."""
    for names, within in ((_STEP_NAMES, "optimizer"), (_STEP_NAMES[:-2], ""), (_OTHER_NAMES, "")):
        found = [
            value
            for name, value in integers.items()
            if within in name.lower() and any(name == n or name.endswith("/" + n) for n in names)
        ]
        if found:
            return max(found)
    return None

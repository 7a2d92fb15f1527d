"""The checkpoints that training scripts write, as units, and whether each unit reads whole.

A unit is the smallest thing that can be restored: a TensorFlow prefix with its shards, an HDF5 file, a `.keras`
archive, Keras 3's BackupAndRestore pair of weights and epoch, all `.npz` files of one step, a directory that is named
after its step, or an Orbax directory. `check_structure` takes milliseconds and the standard library alone; `read` reads
every tensor. `discovery` finds the units.
"""

from __future__ import annotations

import errno
import os
import time
from copy import copy

from orchestrator.both.backup_file import STEP_MAX
from orchestrator.checkpoints import hdf5, keras_archive, names, npz, orbax, tensorflow_files
from orchestrator.checkpoints.torn import Torn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from orchestrator.both.within import Tree

    class Format(Protocol):
        """One kind of file, or of directory; of TensorFlow's, the path is a prefix. All may raise Torn or OSError."""

        def check_structure(self, tree: Tree, path: str, /) -> None: ...
        def read_step(self, tree: Tree, path: str, /) -> int | None: ...
        def read(self, tree: Tree, path: str, /) -> int | None: ...


TENSORFLOW, HDF5, ARCHIVE, NPZ, ORBAX, UNKNOWN = "tensorflow", "hdf5", "keras", "npz", "orbax", "unknown"

FORMATS: dict[str, Format] = {
    TENSORFLOW: tensorflow_files,
    HDF5: hdf5,
    ARCHIVE: keras_archive,
    NPZ: npz,
    ORBAX: orbax,
}

BY_CHECKSUMS, BY_STRUCTURE, BY_NAMES = "checksums", "structure", "names"
"""How much `read` proves: that no bit has changed; that nothing is missing; or only that the save was finished."""

IS_CHECKPOINT, MAY_BE_EXPORT, NO_FORMAT = 2, 1, 0
"""Ranks: what scripts resume from by themselves; what may also be a model for other uses, or data; what we cannot read.

Where a history has something of a higher rank, nothing of a lower one is resumed from."""

_CLOCK_S = 1.0
"""How far in the future the time of a file that is written now may be: file systems use a coarse clock."""

SETTLE_S = 2.0
"""A file that was written more recently may not have been written to its end."""

GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
"""The error numbers for a file that a script, or `keep`, has removed meanwhile."""


class Unit:
    """One thing that can be restored. `paths` are all its files; `path` is the one, or the directory, that names it."""

    def __init__(
        self,
        tree: Tree,
        kind: str,
        path: str,
        paths: Sequence[str],
        parts: Sequence[str] | None = None,
        *,
        step: int | None = None,
        in_series: bool = False,
        problem: str | None = None,
    ) -> None:
        """Look at the state of its files.

        Args:
            tree: in which it lies.
            kind: its format.
            path: what names it.
            paths: all its files.
            parts: the paths of all that can be read; None: it is one of its kind.
            step: its step, where the name of `path` alone does not tell it.
            in_series: its name tells its place in a series of saves; no script writes it again.
            problem: why it cannot be whole, where its files' names say so.
        """
        self.tree = tree
        self.kind = kind
        self.path = path
        self.paths = list(paths)
        self.parts = list(parts) if parts is not None else [path] if kind in FORMATS else []
        self.in_series = in_series
        self.problem = problem
        self.named_step = step if step is not None else names.step_in(self.name)
        self.family = (*names.series(path), kind)
        """The same for all that a script saves one after the other in one place."""
        self.global_step: int | None = None
        self.is_torn = False
        """Whether a look at its structure has shown that it cannot be whole."""
        self.is_given = False
        """Whether its generation was given it: then it is a copy of what an older one saved."""
        self._look()

    def _look(self) -> None:
        self._states = [_state(self.tree, file) for file in self.paths]
        self.saved_at = max((at for at, _, _ in self._states), default=0.0)
        self.bytes = sum(size for _, size, _ in self._states)

    def found_again(self) -> Unit:
        """Return the unit with the present state of its files."""
        again = copy(self)
        again._look()
        return again

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def rank(self) -> int:
        """IS_CHECKPOINT, MAY_BE_EXPORT or NO_FORMAT."""
        if self.kind == UNKNOWN:
            return NO_FORMAT
        if self.kind in (TENSORFLOW, ORBAX) or self.in_series:
            return IS_CHECKPOINT
        return IS_CHECKPOINT if self.name.removesuffix(".bkp") == hdf5.WEIGHTS else MAY_BE_EXPORT

    @property
    def is_verified(self) -> bool:
        """Whether `read` checks the content against the format. For Orbax it checks only that the save was finished."""
        return self.kind not in (ORBAX, UNKNOWN)

    @property
    def proof(self) -> str:
        """How much `read` proves: BY_CHECKSUMS, BY_STRUCTURE or BY_NAMES."""
        if not self.is_verified:
            return BY_NAMES
        return BY_CHECKSUMS if self.kind in (TENSORFLOW, ARCHIVE, NPZ) else BY_STRUCTURE

    def is_same(self, other: Unit) -> bool:
        """Whether nothing of it has changed since the other was found."""
        return (self.path, self.paths, self._states) == (other.path, other.paths, other._states)

    def is_unchanged(self) -> bool:
        """Whether all its files are as they were when it was found."""
        return [_state(self.tree, path) for path in self.paths] == self._states

    def settle(self, beside: str, pause: Callable[[float], None] = time.sleep, *, torn: bool = False) -> bool:
        """Wait until nobody has written it for `SETTLE_S`. Return whether there was anything to wait for.

        For a format that cannot be verified, this alone shows that the unit is whole; for a torn unit, it shows that
        nobody is still writing it.

        Args:
            beside: a directory of ours in the same tree, whose clock is asked: another may be wrong.
            pause: sleeps.
            torn: it was read, and is not whole.
        """
        if self.is_verified and not torn:
            return False
        age_s = self.age_s(beside)
        if age_s is None:  # nobody knows
            age_s = SETTLE_S if torn else 0.0
        is_fresh = -_CLOCK_S <= age_s < SETTLE_S if torn else age_s < SETTLE_S
        if is_fresh:
            pause(min(SETTLE_S, SETTLE_S - age_s))
        return is_fresh

    def age_s(self, beside: str) -> float | None:
        """Return how long ago it was written last, by the clock of `beside` as for `settle`; None if it has none."""
        try:
            self.tree.make(beside)
            self.tree.touch(beside)
            return self.tree.stat(beside).st_mtime - self.saved_at
        except OSError:
            return None

    def is_gone(self) -> bool:
        """Whether one of its files has been removed, or all of them before they were found."""
        return not self.paths or not all(
            number for _, _, number in (_state(self.tree, p) for p in self.paths)
        )

    def check_structure(self) -> None:
        """Look at sizes and structure. Torn if it cannot be whole."""
        if self.problem:
            raise Torn(self.problem)
        self._each(lambda reader: reader.check_structure)

    def read(self) -> None:
        """Read every tensor, and learn the global step. Torn if one does not read."""
        self.check_structure()
        self._know_step(self._each(lambda reader: reader.read))

    def read_step(self) -> None:
        """Learn the global step within milliseconds, without reading the tensors. Torn as for `check_structure`."""
        self.check_structure()
        self._know_step(self._each(lambda reader: reader.read_step))

    def _each(self, method: Callable[[Format], Callable[[Tree, str], int | None]]) -> list[int | None]:
        try:
            return [method(FORMATS[self.kind])(self.tree, path) for path in self.parts]
        except (IndexError, MemoryError) as e:
            raise Torn(f"it cannot be read: {e or type(e).__name__}") from e
        except OSError as e:  # a running training replaces and removes its checkpoints while we read them
            raise Torn(f"it cannot be read: {e.strerror or e}") from e

    def _know_step(self, steps: list[int | None]) -> None:
        inside = max((step for step in steps if step is not None and 0 <= step <= STEP_MAX), default=None)
        is_folder = self.path not in self.paths and self.kind != TENSORFLOW
        known = (self.named_step, inside) if is_folder else (inside, self.named_step)
        self.global_step = next((step for step in known if step is not None), None)

    def moved(self, source: str, target: Tree) -> Unit:
        """Return the same unit, copied from below `source` to below `target`."""

        def there(path: str) -> str:
            return os.path.normpath(os.path.join(target.path, os.path.relpath(path, source)))

        parts = [there(path) for path in self.parts]
        paths = [there(path) for path in self.paths]
        return Unit(
            target,
            self.kind,
            there(self.path),
            paths,
            parts,
            step=self.named_step,
            in_series=self.in_series,
            problem=self.problem,
        )


def _state(tree: Tree, path: str) -> tuple[float, int, int]:
    """When it was written, its size, and which file it is; zeros where it is gone."""
    try:
        info = tree.stat(path)
    except OSError as e:
        if e.errno not in GONE:
            raise
        return 0.0, 0, 0
    return info.st_mtime, info.st_size, info.st_ino

"""Which files below a directory form one checkpoint, and what else lies there.

Symbolic links are never followed. What has a temporary name was not finished, and is no part of anything. A generation
in which nothing here can read anything, and that is not empty, is one unit of an unknown format: it may have had
progress.
"""

from __future__ import annotations

import os
import stat

from orchestrator.both.backup_file import BESIDE, RESCUED, is_ours
from orchestrator.both.newest import SAME_S, InGeneration
from orchestrator.checkpoints import hdf5, names, orbax, places
from orchestrator.checkpoints.torn import Torn, opened
from orchestrator.checkpoints.units import ARCHIVE, GONE, HDF5, NPZ, ORBAX, TENSORFLOW, UNKNOWN, Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.both.within import Tree
    from orchestrator.protocol.reports import Restored

POINTER = "checkpoint"
"""TensorFlow's file that names the newest prefix."""

_ENDINGS = {HDF5: (".h5", ".hdf5"), ARCHIVE: (".keras",), NPZ: (".npz",)}

_POINTER_START = b"model_checkpoint_path"


class Contents:
    """What lies below a directory. Paths are absolute where the directory's is."""

    def __init__(self, tree: Tree, top: str) -> None:
        self.tree = tree
        self.top = top
        self.units: list[Unit] = []
        """Newest first."""
        self.others: list[str] = []
        """Files that belong to no unit."""
        self.skipped: list[tuple[str, str]] = []
        """(path, why) of what was skipped."""
        self.links: list[str] = []
        """Symbolic links that lead from somewhere below the directory to somewhere below it: `latest.pth`."""
        self.unfinished: list[tuple[str, str]] = []
        """(path, why) of files with temporary names: normal during a save, or left by a training that died."""

    def take_over(self, other: Contents) -> None:
        """Add what was skipped elsewhere."""
        self.skipped += other.skipped
        self.links += other.links
        self.unfinished += other.unfinished


def find(tree: Tree, directory: str, *, is_root: bool = False) -> Contents:
    """Return what lies below a directory.

    Args:
        tree: in which it lies.
        directory: a generation's, or one like it.
        is_root: it is the checkpoint directory itself, which may hold anything, even a data set. Our own directories in
            it are left out; a file of a format that data sets also have counts only if its name tells a step.
    """
    contents = Contents(tree, directory)
    stamped: dict[tuple[str, str, str], list[tuple[Unit, str | None]]] = {}
    for folder, folders, files in tree.walk(directory, _forgive if is_root else _complain):
        folders.sort()
        if is_root:
            folders[:] = [name for name in folders if not _is_of_a_run(tree, os.path.join(folder, name))]
        here = Contents(tree, directory)
        _prune(folder, folders, here)
        there = _regular(folder, sorted(files), here)
        if orbax.is_one(tree, folder, folders, there):
            unit: Unit | None = Unit(tree, ORBAX, folder, _all_below(folder, contents), in_series=True)
        elif folder != directory and names.is_step_folder(os.path.basename(folder)):
            unit = _step_folder_unit(folder, contents, is_root=is_root)
        else:
            unit = None
        if unit is None:
            contents.take_over(here)
            _sort_out(folder, there, contents, is_root=is_root)
            continue
        contents.units.append(unit)
        folders.clear()
        if unit.kind != ORBAX:
            stamp = next((name for name in there if names.is_stamp(name)), None)
            stamped.setdefault(unit.family, []).append((unit, stamp))
    # Mark units without a stamp as unfinished, where the script stamps those that it has saved to the end
    for siblings in stamped.values():
        mark = next(((unit, stamp) for unit, stamp in siblings if stamp), None)
        for unit, stamp in siblings if mark else ():
            if mark and not stamp:
                unit.problem = f"it has no {mark[1]}, which {mark[0].name} has: the save was not finished"
    _demand_parts(contents.units)
    if not contents.units and not is_root:
        # Make one unit of all files that may be a checkpoint; logs are none
        mine = [
            path
            for path in contents.others
            if _has_content(tree, path) and not names.is_log(os.path.basename(path))
        ]
        if mine:
            taken = set(mine)
            steps = [names.step_in(os.path.basename(path)) for path in mine]
            step = max((step for step in steps if step is not None), default=None)
            contents.units.append(Unit(tree, UNKNOWN, directory, mine, step=step))
            contents.others = [path for path in contents.others if path not in taken]
    contents.units = _newest_first(tree, directory, contents.units)
    return contents


def _newest_first(tree: Tree, directory: str, units: list[Unit]) -> list[Unit]:
    """Sort units: higher ranks first, then the others before Keras's second copies, then by `both.newest`."""
    path = os.path.join(directory, places.MARKER)
    made_at = tree.stat(path).st_mtime if tree.kind(path) == stat.S_IFREG else None
    marker = places.marker_of(tree, directory)
    generation = InGeneration(marker, made_at)
    for unit in units:
        try:
            unit.read_step()
        except Torn:
            unit.is_torn, unit.global_step = True, None

    def key(unit: Unit) -> tuple[object, ...]:
        name = os.path.relpath(unit.path, directory)
        unit.is_given = generation.place(name, unit.saved_at, unit.bytes) is not None
        step = _place_of_torn(unit, units) if unit.is_torn else unit.global_step
        count = names.place_in_series(unit.name, has_siblings=True) if unit.in_series else None
        order = generation.key(name, step, unit.saved_at, unit.bytes, count=count)
        return unit.rank, not unit.name.endswith(".bkp"), *order

    units = sorted(units, key=key, reverse=True)
    _demand_about(units, everywhere=bool((marker or {}).get("says_what_it_is")))
    return units


def _demand_about(units: list[Unit], *, everywhere: bool) -> None:
    """Mark each file of ours that does not say what it is, where its generation has one that does, or all should."""

    def lacks_about(unit: Unit) -> bool:
        if unit.kind == TENSORFLOW:
            return unit.path + BESIDE not in unit.paths
        return hdf5.lacks_about(unit.tree, unit.path)

    ours = [unit for unit in units if is_ours(unit.path) and not (unit.is_given or unit.is_torn)]
    lacking = [unit for unit in ours if lacks_about(unit)]
    for unit in lacking if everywhere or len(lacking) < len(ours) else ():
        unit.problem = "it does not say of which run, generation and step it is, as the others do"


def doubt(contents: Contents, step_max: int | None, unrestorable: list[Restored]) -> None:
    """Mark what is not to be used although it may read whole.

    Args:
        contents: of a generation's directory.
        step_max: the highest step that counts: the training cannot have been further, or failed behind it. A file of
            ours that claims more is not used.
        unrestorable: what a task could not restore.
    """
    for unit in contents.units:
        name, step = os.path.relpath(unit.path, contents.top), unit.global_step
        if step_max is not None and step is not None and step > step_max and is_ours(unit.path):
            unit.problem = f"it claims step {step}, and no state beyond step {step_max} counts"
        for failed in unrestorable:
            is_it = name == failed["file"] and abs(unit.saved_at - failed["saved_at"]) < SAME_S
            if is_it and unit.bytes == failed["bytes"]:
                unit.problem = f"a task could not restore it: {failed['why']}"


def _place_of_torn(torn: Unit, units: list[Unit]) -> float | None:
    """Return a step for a unit that does not tell its own: just above those that were saved before it."""

    def is_before(unit: Unit) -> bool:
        if unit.family == torn.family and unit.named_step is not None and torn.named_step is not None:
            return unit.named_step < torn.named_step
        return unit.saved_at < torn.saved_at

    before = [unit.global_step for unit in units if unit.global_step is not None and is_before(unit)]
    return max(before) + 0.5 if before else torn.named_step


def _is_of_a_run(tree: Tree, folder: str) -> bool:
    """Return whether a folder is ours, or the checkpoint directory of another run, as of the trials of `orch scale`."""
    name = os.path.basename(folder)
    is_ours = name == places.OWN or (
        name.startswith(places.PREFIX) and name[len(places.PREFIX) :].removesuffix(".tmp").isdecimal()
    )
    return is_ours or tree.kind(os.path.join(folder, places.OWN)) == stat.S_IFDIR


def _prune(folder: str, folders: list[str], contents: Contents) -> None:
    """Remove from the walk the folders that are not entered: temporary ones."""
    for name in list(folders):
        path = os.path.join(folder, name)
        if names.is_temporary(name):
            contents.unfinished.append((path, "it has a temporary name: the save was not finished"))
        elif not name.endswith("_temp") and name != ".tempstate":
            continue
        folders.remove(name)


def _regular(folder: str, files: list[str], contents: Contents) -> list[str]:
    """Return the names of the regular files whose save was finished."""
    there = []
    for name in files:
        path = os.path.join(folder, name)
        try:
            mode = contents.tree.stat(path).st_mode
        except OSError as e:
            if e.errno not in GONE:
                raise
            continue  # a training that lives removes its older checkpoints
        if stat.S_ISLNK(mode):
            _link(path, contents)
        elif not stat.S_ISREG(mode):
            contents.skipped.append((path, "it is no regular file"))
        elif names.is_temporary(name):
            contents.unfinished.append((path, "it has a temporary name: the save was not finished"))
        else:
            there.append(name)
    return there


def _link(path: str, contents: Contents) -> None:
    """Take note of a link, or skip one that leads out of the directory."""
    try:
        target = contents.tree.link_text(path)
    except OSError:
        return
    leads_to = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if not os.path.isabs(target) and leads_to.startswith(contents.top + os.sep):
        contents.links.append(path)
    else:
        contents.skipped.append((path, "a symbolic link is not followed"))


def _complain(error: OSError) -> None:
    """Raise an error of the walk: a directory that cannot be read is not an empty one."""
    if error.errno not in GONE:
        raise error


def _forgive(error: OSError) -> None:
    """In the root there may be directories of others, such as `lost+found`."""
    if not isinstance(error, PermissionError):
        _complain(error)


def _all_below(directory: str, contents: Contents) -> list[str]:
    paths = []
    for folder, folders, files in contents.tree.walk(directory, _complain):
        folders.sort()
        _prune(folder, folders, contents)
        paths += [os.path.join(folder, name) for name in _regular(folder, sorted(files), contents)]
    return paths


# -- a directory that is named after its step ------------------------------------------------------------------


def _step_folder_unit(folder: str, contents: Contents, *, is_root: bool) -> Unit | None:
    """All that lies in it, as one unit; None if it is empty, or where TensorFlow or Keras wrote what is in it."""
    inside = Contents(contents.tree, contents.top)
    paths = _all_below(folder, inside)
    arrays: list[str] = []
    for below in dict.fromkeys(os.path.dirname(path) for path in paths):
        kinds = _kinds([os.path.basename(path) for path in paths if os.path.dirname(path) == below])
        if not {NPZ, None}.issuperset(kinds.values()):
            return None
        arrays += [os.path.join(below, name) for name, kind in kinds.items() if kind == NPZ]
    if not arrays and (is_root or not any(_has_content(contents.tree, path) for path in paths)):
        return None
    contents.take_over(inside)
    # Arrays beside more that nothing here reads, such as rng.npz beside a model of torch, prove nothing.
    if _bytes(contents.tree, arrays) < _bytes(contents.tree, [path for path in paths if path not in arrays]):
        arrays = []
    return Unit(contents.tree, NPZ if arrays else UNKNOWN, folder, paths, arrays, in_series=True)


def _bytes(tree: Tree, paths: list[str]) -> int:
    return sum(tree.stat(path).st_size for path in paths if _has_content(tree, path))


def _demand_parts(units: list[Unit]) -> None:
    """Mark each unit that lacks a part which all others of its series have: its save was not finished."""
    series: dict[tuple[str, str], list[tuple[Unit, set[str]]]] = {}
    for unit in units:
        if unit.in_series and unit.kind != ORBAX:
            is_folder = unit.path not in unit.paths
            folder = unit.path if is_folder else os.path.dirname(unit.path)
            parts = {names.family(os.path.relpath(path, folder)) for path in unit.parts}
            key = os.path.dirname(unit.path), names.family(unit.name) if is_folder else ""
            series.setdefault(key, []).append((unit, parts))
    for siblings in series.values():
        for unit, parts in siblings:
            others = [theirs for other, theirs in siblings if other is not unit]
            common = set.intersection(*others) if others else set()
            if parts and parts < common:
                missing = sorted(common - parts)[0]
                unit.problem = (
                    unit.problem or f"it has no {missing}, as others have: the save was not finished"
                )


# -- files -----------------------------------------------------------------------------------------------------


def _sort_out(folder: str, files: list[str], contents: Contents, *, is_root: bool) -> None:
    prefixes = [name[: -len(".index")] for name in files if name.endswith(".index")]
    for prefix in prefixes:
        whole = [f"{prefix}.index", *([prefix + BESIDE] if prefix.startswith(RESCUED) else [])]
        mine = [name for name in files if name in whole or name.startswith(f"{prefix}.data-")]
        path = os.path.join(folder, prefix)
        contents.units.append(
            Unit(contents.tree, TENSORFLOW, path, [os.path.join(folder, name) for name in mine])
        )
    kinds = _kinds(files)
    for place, group in _by_place([name for name, kind in kinds.items() if kind == NPZ]).items():
        paths = [os.path.join(folder, name) for name in group]
        if place is None and is_root:
            contents.others += paths
        else:
            # What was saved together, or all that has no number: none of these files is of use without the others
            step = next((step for step in map(names.step_in, group) if step is not None), None)
            contents.units.append(
                Unit(contents.tree, NPZ, paths[0], paths, paths, step=step, in_series=place is not None)
            )
    for name, format_ in kinds.items():
        path = os.path.join(folder, name)
        if format_ == HDF5:
            # Where it is a backup of Keras, the epoch beside it belongs to it
            bare = name.removesuffix(".bkp")
            metadata = os.path.join(folder, hdf5.METADATA + name[len(bare) :])
            is_backup = bare == hdf5.WEIGHTS and contents.tree.kind(metadata) == stat.S_IFREG
            contents.units.append(Unit(contents.tree, HDF5, path, [path, metadata] if is_backup else [path]))
        elif format_ == ARCHIVE:
            contents.units.append(Unit(contents.tree, ARCHIVE, path, [path]))
        elif format_ is None and ".data-" in name and "-of-" in name:
            contents.skipped.append((path, "its index is missing: the save was not finished"))
        elif (
            format_ is None
            and name.removesuffix(".bkp") != hdf5.METADATA
            and not _is_pointer(contents.tree, path, bool(prefixes))
        ):
            contents.others.append(path)


def _kinds(files: list[str]) -> dict[str, str | None]:
    """Return the format that each file's name tells; TENSORFLOW of every file of a prefix whose index is there."""
    prefixes = {name[: -len(".index")] for name in files if name.endswith(".index")}
    kinds: dict[str, str | None] = {}
    for name in files:
        bare = name.removesuffix(".bkp")
        is_beside = name.startswith(RESCUED) and name.endswith(BESIDE)
        if name.endswith(".index") or is_beside or name.partition(".data-")[0] in prefixes:
            kinds[name] = TENSORFLOW
        else:
            kinds[name] = next((kind for kind, endings in _ENDINGS.items() if bare.endswith(endings)), None)
    return kinds


def _by_place(files: list[str]) -> dict[int | None, list[str]]:
    """Group files by the step in their names, else by another number there; those without a number under None."""
    families: dict[str, int] = {}
    for name in files:
        families[names.family(name)] = families.get(names.family(name), 0) + 1
    groups: dict[int | None, list[str]] = {}
    for name in files:
        place = names.place_in_series(name, has_siblings=families[names.family(name)] > 1)
        groups.setdefault(place, []).append(name)
    return groups


def _is_pointer(tree: Tree, path: str, has_prefixes: bool) -> bool:
    """Whether it is TensorFlow's file that names the newest prefix; others use that name for a checkpoint."""
    if os.path.basename(path) != POINTER:
        return False
    try:
        with opened(tree, path) as file:
            head = file.read(len(_POINTER_START))
    except (OSError, Torn):
        return True
    return has_prefixes or not head or head == _POINTER_START


def _has_content(tree: Tree, path: str) -> bool:
    try:
        return tree.stat(path).st_size > 0
    except OSError:
        return False

"""Give a new generation the last good checkpoint, in a directory of its own.

`ROOT/gen-000012/` is built as `gen-000012.tmp` and renamed when it is complete. The answer is stored inside, so the
same order asked twice gives the same directory and the same answer. A checkpoint is read *after* it was copied,
because a process left over from the generation before may still be writing to the original.
"""

from __future__ import annotations

import json
import os
import shutil

from orchestrator.adapters import durable
from orchestrator.adapters.checkpoints import lineage, places, units
from orchestrator.adapters.checkpoints.lineage import Chapter
from orchestrator.adapters.checkpoints.places import MARKER, SeedError, directory_of, generations, marker_of
from orchestrator.adapters.checkpoints.records import Records
from orchestrator.adapters.checkpoints.tensor_bundle import Torn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def seed(
    root: str,
    generation: int,
    *,
    from_scratch: bool = False,
    keep: int | None = None,
    by: dict[str, Any] | None = None,
    only: str | None = None,
) -> dict[str, Any]:
    """Make `gen-N` with the newest checkpoint that reads whole, and return the answer of the `seed` order.

    Args:
        root: the checkpoint directory.
        generation: N.
        from_scratch: start with no checkpoint, and leave all older ones behind.
        keep: how many generations' directories stay.
        by: whose generation it is (run, host, task), for people.
        only: the one directory to take the checkpoint from. Where hosts share no directory, the other checkpoints
            on this host may be outdated.

    Raises:
        SeedError: there is a generation as new, or there are checkpoints and none reads whole.
    """
    os.makedirs(root, exist_ok=True)
    target = directory_of(root, generation)
    with places.locked(root):
        before = marker_of(target)
        if before is not None:
            return before
        there = generations(root)
        if there and there[0] >= generation:
            raise SeedError(
                "superseded",
                f"{root} already has generation {there[0]}; {generation} is not newer",
                "start with a generation above it, or give the run another checkpoint directory",
            )
        building = f"{target}.tmp"
        try:
            chapters = [Chapter(root, only, None)] if only else lineage.history(root)
            answer = _make(root, generation, building, [] if from_scratch else chapters, by)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)  # the disk may be full; do not make it worse
            raise
        if keep is not None:
            _forget(root, keep, answer["source"])
    return answer


def _make(
    root: str, generation: int, building: str, chapters: list[Chapter], by: dict[str, Any] | None
) -> dict[str, Any]:
    rejected: list[dict[str, str]] = []
    chosen = _build(root, chapters, building, rejected)
    if chosen is None:
        emptied(building)
    target = directory_of(root, generation)
    answer: dict[str, Any] = {
        "global_step": chosen.global_step if chosen else None,
        "source": chosen.path if chosen else None,
        "path": target,
        "rejected": rejected,
        "highest_generation": generation,
        "from_scratch": not chapters,
        "by": by,
    }
    finish(building, target, answer)
    return answer


def _build(
    root: str, chapters: list[Chapter], building: str, rejected: list[dict[str, str]]
) -> units.Unit | None:
    """Fill `building` from the newest generation that reads whole. Return None where there never was a checkpoint.

    Raises:
        SeedError: there are checkpoints, and none reads whole.
    """
    history = []
    for chapter in chapters:
        found, others, passed = chapter.contents()
        history.append((chapter, [unit for unit in found if chapter.counts(unit)], others, passed))
    # A model that was exported at the end of `fit`, when Keras has already deleted its backup, resumes nothing. So
    # where any generation has a checkpoint that scripts resume from by themselves, only such checkpoints count.
    resumable = any(unit.resumes for _, found, _, _ in history for unit in found)
    torn: list[dict[str, str]] = []
    records = Records(root)
    for chapter, found, others, passed in history:
        rejected += [{"path": path, "why": why} for path, why in passed]
        emptied(building)
        chosen = _take(chapter.source, found, building, torn, resumable)
        if chosen is not None:
            # The root may hold anything, even a data set, so only checkpoints are copied from it.
            copy_others(chapter.source, [] if chapter.source == root else others, building, torn)
            complete(building)
            rejected += torn
            records.add(chosen, None)
            records.save()
            return chosen
    if torn:
        raise SeedError(
            "no-readable-checkpoint",
            f"no checkpoint under {root} reads whole; the newest is {torn[0]['path']}: {torn[0]['why']}",
            "put a good checkpoint there, or start anew with --from-scratch",
        )
    return None


def _take(
    source: str, found: list[units.Unit], building: str, torn: list[dict[str, str]], resumable: bool
) -> units.Unit | None:
    """Copy the units that read whole, and return the newest one that counts, or None.

    In each folder only the newest unit is read to its last byte. Of older ones only structure and sizes are checked.
    """
    chosen: units.Unit | None = None
    read: set[tuple[str, str]] = set()
    for unit in found:
        family = (os.path.dirname(unit.path), unit.kind)
        try:
            unit.glance()
            copy = copied(unit, source, building)
            if family not in read:
                copy.read()
                read.add(family)
                if chosen is None and unit.resumes == resumable:
                    chosen = unit
                    chosen.global_step = copy.global_step
        except Torn as e:
            _drop(unit, source, building)
            torn.append({"path": unit.path, "why": str(e)})
    return chosen


def _within(path: str, source: str, building: str) -> str:
    return os.path.join(building, os.path.relpath(path, source))


def copied(unit: units.Unit, source: str, building: str) -> units.Unit:
    """Copy a unit into `building`, and return the copy.

    Raises:
        Torn: the unit was removed meanwhile.
    """
    paths = [_within(path, source, building) for path in unit.paths]
    for path, copy in zip(unit.paths, paths, strict=True):
        try:
            place(path, copy)
        except FileNotFoundError as e:
            raise Torn(f"{os.path.basename(path)} went away") from e
    return units.Unit(unit.kind, _within(unit.path, source, building), paths)


def _drop(unit: units.Unit, source: str, building: str) -> None:
    for path in unit.paths:
        copy = _within(path, source, building)
        if os.path.lexists(copy):
            os.unlink(copy)


def _restore_backups(building: str) -> None:
    """Copy `latest.weights.h5.bkp` to `latest.weights.h5` where that was torn: Keras reads only the latter name."""
    for folder, _, names in os.walk(building):
        if units.WEIGHTS + ".bkp" in names and units.WEIGHTS not in names:
            for name in (units.WEIGHTS, units.METADATA):
                old = os.path.join(folder, name + ".bkp")
                if os.path.exists(old):
                    shutil.copy2(old, os.path.join(folder, name))


def copy_others(source: str, others: list[str], building: str, rejected: list[dict[str, str]]) -> None:
    for path in others:
        if os.path.basename(path) == MARKER:
            continue
        try:
            place(path, _within(path, source, building))
        except FileNotFoundError:
            rejected.append({"path": path, "why": "it went away"})


def complete(building: str) -> None:
    """Write what a script needs in order to find the checkpoint files."""
    _restore_backups(building)
    _write_pointers(building)


def _write_pointers(building: str) -> None:
    """Write new TensorFlow `checkpoint` files. An old one may be empty or torn, or name files that were dropped."""
    for folder, _, names in os.walk(building):
        prefixes = [name[: -len(".index")] for name in names if name.endswith(".index")]
        if not prefixes:
            continue
        found = sorted(
            (
                units.Unit(units.TENSORFLOW, os.path.join(folder, p), [os.path.join(folder, f"{p}.index")])
                for p in prefixes
            ),
            key=units.Unit.order,
        )
        lines = [f'model_checkpoint_path: "{_quoted(found[-1].name)}"']
        lines += [f'all_model_checkpoint_paths: "{_quoted(unit.name)}"' for unit in found]
        lines += [f"all_model_checkpoint_timestamps: {unit.saved_at!r}" for unit in found]
        lines.append(f"last_preserved_timestamp: {found[0].saved_at!r}")
        with open(os.path.join(folder, units.POINTER), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def place(source: str, target: str) -> None:
    """Copy a file with its times, or make a hard link where that is safe and possible.

    TensorFlow replaces data shards by rename, so a link to one is as good as a copy. It rewrites its index and HDF5
    files in place, so through a link a left-over process would write into the new generation's file.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.lexists(target):
        os.unlink(target)
    name = os.path.basename(source)
    if ".data-" in name and "-of-" in name:
        try:
            os.link(source, target, follow_symlinks=False)
            return
        except FileNotFoundError:
            raise
        except OSError:
            pass  # the target is on another file system, or the file system has no links
    shutil.copy2(source, target, follow_symlinks=False)


def emptied(directory: str) -> None:
    if os.path.lexists(directory):
        shutil.rmtree(directory)
    os.makedirs(directory)


def finish(building: str, target: str, answer: dict[str, Any]) -> None:
    """Write the marker, fsync everything, and then rename the directory into place."""
    with open(os.path.join(building, MARKER), "w", encoding="utf-8") as f:
        json.dump(answer, f)
    durable.sync_tree(building)
    durable.place(building, target)


def _forget(root: str, keep: int, source: str | None) -> None:
    """Remove the generations that are older than the newest `keep`.

    The generation that the last good checkpoint came from always stays; where that is unknown, nothing is removed.
    Generations that a person rolled back stay too. Pinned copies are in another directory.
    """
    if source is None:
        return
    aside = lineage.went_back_from(root)
    for generation in [number for number in generations(root) if number not in aside][max(1, keep) :]:
        directory = directory_of(root, generation)
        if not source.startswith(directory + os.sep):
            shutil.rmtree(directory, ignore_errors=True)


def copy(source: str, target: str) -> dict[str, Any]:
    """Copy a seeded directory to `target`, a task's own checkpoint directory. Do nothing where that was done before."""
    if os.path.exists(os.path.join(target, MARKER)):
        return {"files": 0, "bytes": 0}
    try:
        return _copy(source, target)
    except OSError:
        _clear(target)
        raise


def _clear(directory: str) -> None:
    """Empty a directory that holds half a checkpoint. The directory itself stays, since others made it."""
    for name in places.names_in(directory):
        path = os.path.join(directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _copy(source: str, target: str) -> dict[str, Any]:
    files = total = 0
    marker = None
    for folder, folders, names in os.walk(source):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
        os.makedirs(os.path.join(target, os.path.relpath(folder, source)), exist_ok=True)
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            if name == MARKER and folder == source:
                marker = path
                continue
            place(path, _within(path, source, target))
            files += 1
            total += os.lstat(path).st_size
    if marker:
        place(marker, os.path.join(target, MARKER))  # last, because it says that the rest is complete
    return {"files": files, "bytes": total}

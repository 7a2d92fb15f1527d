"""Give a new generation the last good checkpoint, in a directory of its own.

`ROOT/gen-000012/` is built as `gen-000012.tmp` and renamed when it is complete. The answer is stored inside, so the
same order asked twice gives the same directory and the same answer. A checkpoint is read *after* it was copied,
because a process left over from the generation before may still be writing to the original.
"""

from __future__ import annotations

import os

from orchestrator.both.backup_file import RESCUED, is_backup, is_ours
from orchestrator.checkpoints import claims, discovery, hdf5, lineage, places
from orchestrator.checkpoints.copying import copied, copy_link, copy_others, drop, emptied, is_linked, size
from orchestrator.checkpoints.discovery import Contents
from orchestrator.checkpoints.lineage import Origin
from orchestrator.checkpoints.places import (
    MARKER,
    Need,
    SeedError,
    directory_of,
    generations,
    marker_of,
    room_for,
)
from orchestrator.checkpoints.records import Records
from orchestrator.checkpoints.torn import Torn
from orchestrator.checkpoints.units import TENSORFLOW, Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.both.within import Tree
    from orchestrator.protocol.orders.driving import Claim
    from orchestrator.protocol.reports import Restored

    History = list[tuple[Origin, Contents]]

_POINTER_BYTES_MAX = 4096
_SAVES = 2
"""What a generation writes, in checkpoints: its own, and the next one while that is being written."""

_UNFINISHED_NAMED = 5
"""How many unfinished checkpoints are named at most: a script may have died a hundred times."""


def seed(
    root: str,
    generation: int,
    *,
    from_scratch: bool = False,
    keep: int | None = None,
    by: dict[str, Any] | None = None,
    only: str | None = None,
    claim: Claim | None = None,
    host_dir: str = "",
    step_max: int | None = None,
    unrestorable: list[Restored] | None = None,
    group: str | None = None,
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
        claim: whose the directory becomes.
        host_dir: the directory of this host, whose run saves here.
        step_max: which step the training can have reached at most; None if unknown.
        unrestorable: the checkpoints that tasks of this run could not restore.
        group: whose members may write into the directory too.

    Raises:
        SeedError: others may write into the directory, or another coordinator's run uses it, or there is a generation
            as new, or this one is another coordinator's, or there are checkpoints and none reads whole, or the disk is
            full.
    """
    target = directory_of(root, generation)
    places.admit(root, group)
    with places.locked(root) as tree:
        if claim is not None:
            _refuse_anothers(tree, claim)
            claims.stamp(tree, claim, host_dir)
        before = marker_of(tree, target)
        if before is not None:
            _refuse_taken(root, generation, before.get("by"), by)
            return {name: value for name, value in before.items() if name not in ("given", "says_what_it_is")}
        there = generations(tree)
        if there and there[0] >= generation:
            raise SeedError(
                "superseded",
                f"{root} already has generation {there[0]}; {generation} is not newer",
                "start with a generation above it, or give the run another checkpoint directory",
            )
        origins = [Origin(tree, only, None)] if only else lineage.history(tree)
        history = []
        for origin in [] if from_scratch else origins:
            contents = origin.contents()
            contents.units = [unit for unit in contents.units if origin.counts(unit)]
            discovery.doubt(contents, step_max, unrestorable or [])
            history.append((origin, contents))
        answer = _make(tree, generation, history, by)
        removed = _forget(tree, keep, answer["source"]) if keep is not None else []
    return {**answer, "removed": removed} if removed else answer


def _refuse_anothers(tree: Tree, claim: Claim) -> None:
    """Refuse where another coordinator's run uses the directory: it may have begun after the hosts were asked."""
    stamp = claims.stamped(tree)
    if stamp is None or not stamp["driven"]:
        return
    theirs = stamp["claim"]
    if theirs["run"] != claim["run"] and theirs["id"] != claim["id"]:
        raise SeedError(
            "driven",
            f"{theirs['run']} of {theirs['user']}@{theirs['head']} saves into {tree.path}, on {stamp['host']}, "
            f"and was seen there {stamp['ago_s']:.0f} s ago",
            "give each run its own checkpoint directory, or end that one first",
        )


def _refuse_taken(
    root: str, generation: int, theirs: dict[str, Any] | None, ours: dict[str, Any] | None
) -> None:
    """Refuse a generation that another coordinator has seeded, for a chief elsewhere."""
    if theirs and ours and theirs != ours:
        raise SeedError(
            "taken",
            f"generation {generation} in {root} was begun by another coordinator, for {theirs.get('task')} of "
            f"{theirs.get('run')} on {theirs.get('host')}",
            "a higher generation is tried; make sure that only one coordinator drives this run",
        )


def _make(tree: Tree, generation: int, history: History, by: dict[str, Any] | None) -> dict[str, Any]:
    target = directory_of(tree.path, generation)
    rejected: list[dict[str, str]] = []
    with room_for(tree, f"{target}.tmp") as need:
        chosen, given, dropped = _build(tree, history, need, rejected)
        if chosen is None:
            emptied(need.tree)
        answer: dict[str, Any] = {
            "global_step": chosen.global_step if chosen else None,
            "source": chosen.path if chosen else None,
            "verified": chosen.is_verified if chosen else None,
            "path": target,
            "rejected": rejected,
            "dropped": dropped,
            "highest_generation": generation,
            "from_scratch": not history,
            "aside": _kept_aside(tree) if not history else None,
            "replaceable": _replaceable(history, chosen) if chosen else None,
            "by": by,
        }
        # What its tasks write of ours says what it is; a version before made directories without this word
        finish(tree, need.tree, target, {**answer, "given": given, "says_what_it_is": True})
    return answer


def _replaceable(history: History, chosen: Unit) -> dict[str, Any] | None:
    """Return the file that is given, as a task would name it, where one of an earlier step could take its place."""
    usable = [unit for _, contents in history for unit in contents.units if not unit.problem]
    steps = [unit.global_step for unit in usable if unit.rank == chosen.rank and unit.global_step is not None]
    if chosen.global_step is None or min(steps, default=chosen.global_step) >= chosen.global_step:
        return None
    top = next(contents.top for _, contents in history if chosen in contents.units)
    name, step = os.path.relpath(chosen.path, top), chosen.global_step
    return {"file": name, "step": step, "saved_at": chosen.saved_at, "bytes": chosen.bytes, "why": ""}


def _build(
    tree: Tree, history: History, need: Need, rejected: list[dict[str, str]]
) -> tuple[Unit | None, list[tuple[str, float, int]], list[str]]:
    """Fill what `need` names from the newest generation that reads whole. Return None if there never was a checkpoint.

    The second value is for `both.newest`: name, time and size of each checkpoint that was given, newest first. The
    third are the paths that were removed, since there was no room for the next saves beside them.

    Raises:
        SeedError: there are checkpoints, and none reads whole.
    """
    # A model that was exported at the end of `fit`, when Keras has already deleted its backup, resumes nothing. So
    # where any generation has a checkpoint that scripts resume from by themselves, only such checkpoints count.
    rank = max((unit.rank for _, contents in history for unit in contents.units), default=0)
    torn: list[dict[str, str]] = []
    records, building = Records(tree), need.tree
    _remove_half_written(tree, history)
    for origin, contents in history:
        skipped = (*contents.skipped, *contents.unfinished[:_UNFINISHED_NAMED])
        rejected += [{"path": path, "why": why} for path, why in skipped]
        # The root may hold anything, even a data set, so only checkpoints are copied from it.
        contents.others = [] if origin.source == tree.path else contents.others
        emptied(building)
        # How much room the copy needs: a file that gets a second name needs none
        count = 0
        families = set()
        for unit in contents.units:
            if unit.family not in families or not unit.in_series:
                count += sum(size(tree, path) for path in unit.paths if not is_linked(path, unit.kind))
            families.add(unit.family)
        need.bytes = count + sum(size(tree, path) for path in contents.others)
        chosen, copies = _copy_whole(tree, origin.source, contents, building, torn, rank)
        if chosen is not None:
            rejected += torn
            records.add(chosen, None)
            records.save()
            copies, dropped = _make_way(tree, history, chosen, building, copies)
            complete(building, copies)
            _point_to_kept(tree, origin.source, contents, building, copies)
            names = [os.path.relpath(copy.path, building.path) for copy in copies]
            return (
                chosen,
                [(name, copy.saved_at, copy.bytes) for name, copy in zip(names, copies, strict=True)],
                dropped,
            )
    if torn:
        raise SeedError(
            "no-readable-checkpoint",
            f"no checkpoint under {tree.path} reads whole; the newest is {torn[0]['path']}: {torn[0]['why']}",
            "put a good checkpoint there, or start anew with --from-scratch",
        )
    return None, [], []


def _copy_whole(
    tree: Tree, source: str, contents: Contents, building: Tree, torn: list[dict[str, str]], rank: int
) -> tuple[Unit | None, list[Unit]]:
    """Copy what reads whole, and the files beside it. Return the newest unit of that rank, or None, and the copies.

    Of what a script saves one after the other, only the newest is read to its last byte. Of older ones only structure
    and sizes are checked.
    """
    chosen: Unit | None = None
    read: set[tuple[str, str, str]] = set()
    copies: list[Unit] = []
    for unit in contents.units:
        is_older = unit.family in read
        try:
            unit.check_structure()
            copy = copied(unit, source, building, link=is_older and unit.in_series)
            if not is_older:
                copy.read()
                read.add(unit.family)
                if chosen is None and unit.rank == rank:
                    chosen = unit
                    chosen.global_step = copy.global_step
        except Torn as e:
            drop(unit, source, building)
            torn.append({"path": unit.path, "why": str(e)})
        except OSError as e:
            if chosen is None or not places.is_full(e):
                raise
            drop(unit, source, building)  # the newest is there, and an older one is not worth a wait for room
        else:
            copies.append(copy)
    if chosen is not None:
        copy_others(tree, source, contents.others, building, torn)
    return chosen, copies


def _remove_half_written(tree: Tree, history: History) -> None:
    """Remove what tasks of ended generations had begun to write: it may be as large as a checkpoint."""
    for origin, _ in history:
        if origin.generation is None or origin.is_copy:
            continue
        for folder, folders, _ in tree.walk(origin.source):
            is_of_task = is_backup(os.path.join(folder, hdf5.WEIGHTS))
            for name in list(folders):
                if (is_of_task and name == "saving_temp") or (
                    name.startswith(RESCUED) and name.endswith(".tmp")
                ):
                    tree.remove(os.path.join(folder, name))
                    folders.remove(name)


def _make_way(
    tree: Tree, history: History, chosen: Unit, building: Tree, copies: list[Unit]
) -> tuple[list[Unit], list[str]]:
    """Remove older files of a run with rescues, where the next saves would have no room beside them, the oldest first.

    So rescues need no more room than a run without them. A file goes from all generations that were given it. What is
    pinned stays there too: a pin is another name of the file, so its removal would free nothing. Of each fit of a
    script the newest stays: without the backup of a fit that has ended, it would be trained again.

    Returns:
        the copies that are left, and the paths that were removed.
    """

    def identity(unit: Unit, top: str) -> tuple[str, float, int]:
        return os.path.relpath(unit.path, top), round(unit.saved_at, 2), unit.bytes

    saved = [
        (identity(unit, origin.source), unit)
        for origin, contents in reversed(history)
        if origin.generation is not None and not origin.is_copy
        for unit in reversed(contents.units)
    ]
    mine = next((known for known, unit in saved if unit is chosen), None)
    if mine is None or not any(RESCUED in unit.path for _, unit in saved):
        return copies, []
    pins = [(origin.source, unit) for origin, contents in history if origin.is_pin for unit in contents.units]
    newest = {_fit_of(mine[0]): mine}
    for known in (identity(copy, building.path) for copy in copies):
        newest.setdefault(_fit_of(known[0]), known)
    kept = {*newest.values(), *(identity(unit, top) for top, unit in pins)}
    older: dict[tuple[str, float, int], list[Unit]] = {}
    for known, unit in saved:
        is_beside = unit.kind == TENSORFLOW and os.path.dirname(known[0]) == os.path.dirname(mine[0])
        if known not in kept and _fit_of(known[0]) in newest and (is_ours(unit.path) or is_beside):
            older.setdefault(known, []).append(unit)
    dropped = []
    for known, units in older.items():
        if places.free_bytes(tree.path) >= _SAVES * chosen.bytes:
            break
        for path in [path for unit in units for path in unit.paths]:
            tree.remove(path)
        dropped += [unit.path for unit in units]
        for copy in [copy for copy in copies if identity(copy, building.path) == known]:
            drop(copy, building.path, building)
            copies = [other for other in copies if other is not copy]
    return copies, dropped


def _fit_of(path: str) -> str:
    """Return the directory of a fit, in which survivors hand over into directories of their own."""
    folder, name = os.path.split(os.path.dirname(path))
    return folder if name.startswith(RESCUED) else os.path.join(folder, name)


def complete(building: Tree, copies: list[Unit]) -> None:
    """Write what a script needs in order to find the copies, which are the newest first."""
    # Copy `latest.weights.h5.bkp` to `latest.weights.h5` where that was torn: Keras reads only the latter
    # name
    for folder, _, names in building.walk():
        if hdf5.WEIGHTS + ".bkp" in names and hdf5.WEIGHTS not in names:
            for name in (hdf5.WEIGHTS, hdf5.METADATA):
                if name + ".bkp" in names:
                    building.copy(os.path.join(folder, name + ".bkp"), building, os.path.join(folder, name))
    # Write TensorFlow's `checkpoint` files anew: an old one may be empty or torn, or name files that were dropped
    by_folder: dict[str, list[Unit]] = {}
    for copy in reversed(copies):
        if copy.kind == TENSORFLOW:
            by_folder.setdefault(os.path.dirname(copy.path), []).append(copy)
    for folder, units in by_folder.items():
        lines = [f'model_checkpoint_path: "{_quoted(units[-1].name)}"']
        lines += [f'all_model_checkpoint_paths: "{_quoted(unit.name)}"' for unit in units]
        lines += [f"all_model_checkpoint_timestamps: {unit.saved_at!r}" for unit in units]
        lines.append(f"last_preserved_timestamp: {units[0].saved_at!r}")
        text = "\n".join(lines) + "\n"
        building.write(os.path.join(folder, discovery.POINTER), text.encode(), mode=0o666, durable=False)


def _point_to_kept(tree: Tree, source: str, contents: Contents, building: Tree, copies: list[Unit]) -> None:
    """Make the links again.

    A file that names a dropped checkpoint, such as DeepSpeed's `latest`, then names the newest kept one.
    """
    kept = [os.path.join(source, os.path.relpath(unit.path, building.path)) for unit in copies]
    dropped = {os.path.split(unit.path) for unit in contents.units if unit.path not in kept}
    newest: dict[str, str] = {}
    for path in kept:
        newest.setdefault(*os.path.split(path))
    for path in contents.others if dropped else ():
        folder, copy = os.path.dirname(path), os.path.relpath(path, source)
        if not 0 < size(building, copy) <= _POINTER_BYTES_MAX:
            continue
        with building.reading(copy) as file:
            name = file.read().decode(errors="replace").strip()
        if (folder, name) in dropped and folder in newest:
            building.write(copy, newest[folder].encode(), mode=0o666, durable=False)
    for path in contents.links:
        folder, copy = os.path.dirname(path), os.path.relpath(path, source)
        if (folder, tree.link_text(path)) in dropped and folder in newest:
            building.symlink(newest[folder], copy)
        else:
            copy_link(tree, path, building, copy)


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def finish(tree: Tree, building: Tree, target: str, answer: dict[str, Any]) -> None:
    """Write the marker, fsync everything, and then rename the directory into place.

    Raises:
        SeedError: somebody has put another directory, or a link, in the place of the one that was built.
    """
    building.write_json(MARKER, answer, mode=0o666, durable=False)
    building.sync()
    tree.rename(building.path, target)
    if not os.path.samestat(tree.stat(target), building.stat()):
        tree.remove(target)
        raise SeedError(
            "replaced",
            f"{building.path} was replaced by something else while it was written",
            "see who may write there: `orch doctor` says it",
        )


def _kept_aside(tree: Tree) -> dict[str, Any]:
    """Return what a start from scratch leaves behind: it is set aside, and only a person removes it."""
    generations, steps, count = [], [], 0
    for origin in lineage.origins(tree):
        if origin.generation is None or origin.is_pin or origin.is_snapshot:
            continue
        units = origin.contents().units
        if units:
            generations.append(origin.generation)
        for unit in units:
            steps += [unit.global_step] if unit.global_step is not None else []
            count += unit.bytes
    return {"generations": generations, "global_step": max(steps, default=None), "bytes": count}


def _forget(tree: Tree, keep: int, source: str | None) -> list[int]:
    """Remove the generations that are older than the newest `keep`, and return which.

    The generation that the last good checkpoint came from always stays; where that is unknown, nothing is removed.
    What is set aside stays until a person removes it, and so does a generation that began from scratch: it says where
    the history begins, and without it what is older would count again. Pinned copies are in another directory.
    """
    if source is None:
        return []
    aside = {origin.generation for origin in lineage.set_aside(tree)}
    removed = []
    for generation in [number for number in generations(tree) if number not in aside][max(1, keep) :]:
        directory = directory_of(tree.path, generation)
        begins = (marker_of(tree, directory) or {}).get("from_scratch")
        if not begins and not os.path.join(source, "").startswith(os.path.join(directory, "")):
            places.remove(tree, directory)
            removed.append(generation)
    return removed

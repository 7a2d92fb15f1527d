"""Files on a host that the head may ask for: what the tasks wrote for TensorBoard, and what they left. Runs on hosts.

A task writes into three places: `logs` (ORCH_LOG_DIR, of one generation), `work` (its working directory) and `saved`
(ORCH_CHECKPOINT_DIR, of one generation, where it is the chief's). Of
TensorBoard's files in either, whoever has the first bytes asks for the rest, since they only grow.
"""

from __future__ import annotations

import errno
import os

from orchestrator.both.hostdir import HostFault, generation_dir, generations
from orchestrator.both.within import Tree
from orchestrator.host.system import workdir
from orchestrator.protocol.paths import RelativePath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    from orchestrator.protocol.orders.tasks import Saved

    Listed = tuple[str, os.stat_result | None]
    Candidate = tuple[str, int, str, str, int | None]

_MARK = "tfevents"
_PLUGINS = "plugins" + os.sep
"""The directory of profiles and the like. Other files that a script writes are not TensorBoard's."""

FILES_MAX = 5000
PATHS_CHARS_MAX = 1 << 20
"""The limits of a listing, which must fit into one frame. Trainings write fewer files, with shorter names in all."""

_READ_BYTES = 1 << 20


def log_dir(generation_dir: str) -> str:
    """Return what ORCH_LOG_DIR is for the task of that generation."""
    return os.path.join(generation_dir, "logs")


def listing(host_dir: str, run: str, kind: str, saved: Saved | None = None) -> dict[str, Any]:
    """List files of the run's tasks on this host, and count those that are left out.

    Args:
        host_dir: this host's directory.
        run: the run's id.
        kind: `summaries` (TensorBoard's, of all generations), `outputs` (what lies in the working directories) or
            `saved`.
        saved: for `saved`, where.

    Returns:
        `{"files": [{"task", "generation", "place", "path", "bytes"}], "left_out": n}`.
    """
    import re

    from orchestrator.protocol.limits import CONTROLS, PATH_CHARS_MAX

    controls = re.compile(CONTROLS).search
    files: list[dict[str, Any]] = []
    left_out = chars = 0
    for task, generation, place, path, size in _in_turn(_candidates(host_dir, run, kind, saved)):
        if kind == "summaries" and not (_MARK in os.path.basename(path) or _PLUGINS in path):
            continue
        chars += len(path)
        full = len(files) >= FILES_MAX or chars > PATHS_CHARS_MAX or len(path) > PATH_CHARS_MAX
        # The head could neither show a name with control characters nor send it back.
        if size is None or full or controls(path):
            left_out += kind != "summaries" or size is not None
            continue
        files.append({"task": task, "generation": generation, "place": place, "path": path, "bytes": size})
    files.sort(key=lambda file: (file["task"], file["generation"], file["place"], file["path"]))
    return {"files": files, "left_out": left_out}


def _candidates(host_dir: str, run: str, kind: str, saved: Saved | None) -> list[Iterator[Candidate]]:
    """Return what lies at each place: (task, generation, place, path, size). Size None: it is no regular file."""

    def lying(task: str, generation: int, place: str, entries: Iterator[Listed]) -> Iterator[Candidate]:
        for path, status in entries:
            yield task, generation, place, path, None if status is None else status.st_size

    if saved is not None:
        lie = workdir.regular(os.path.expanduser(saved["dir"]), others=True)
        return [lying(saved["task"], saved["generation"], "saved", lie)]
    newest: dict[str, int] = {}
    places = []
    for task, generation, directory in sorted(generations(host_dir, run)):
        newest[task] = generation
        if kind == "summaries":
            logs = workdir.regular(log_dir(directory), others=True)
            places.append(lying(task, generation, "logs", logs))
    for task, generation in sorted(newest.items()):
        places.append(lying(task, generation, "work", workdir.left(host_dir, run, task)))
    return places


def _in_turn(places: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    """Yield one of each place in turn: a task with more files than are listed leaves room for the others'."""
    while places:
        for place in places[:]:
            candidate = next(place, None)
            if candidate is None:
                places.remove(place)
            else:
                yield candidate


def read(host_dir: str, wish: dict[str, Any], offset: int, bytes_max: int) -> bytes:
    """Read part of one file, from byte `offset`. Raises HostFault for a path that leaves its place."""
    with _opened(host_dir, wish) as file:
        file.seek(offset)
        return file.read(bytes_max)


def digest(host_dir: str, wish: dict[str, Any]) -> dict[str, Any]:
    """Return the SHA-256 of a whole file, and its size. Raises HostFault for a path that leaves its place."""
    from hashlib import sha256

    so_far, size = sha256(), 0
    with _opened(host_dir, wish) as file:
        while chunk := file.read(_READ_BYTES):
            so_far.update(chunk)
            size += len(chunk)
    return {"sha256": so_far.hexdigest(), "bytes": size}


def _opened(host_dir: str, wish: dict[str, Any]) -> BinaryIO:
    """Open a file that is named by its run, task, generation, place and path, without following links."""
    run, task, path = wish["run"], wish["task"], wish["path"]
    if wish["place"] == "work":
        top = workdir.work_dir(host_dir, run, task)
    elif wish["place"] == "saved":
        top = os.path.expanduser(wish["dir"])
    else:
        top = log_dir(generation_dir(host_dir, run, task, wish["generation"]))
    try:
        with Tree(top) as tree:
            return open(tree.opened(RelativePath(path)), "rb")
    except ValueError as e:
        raise HostFault("bad-order", f"not a file of the run's tasks: {e}") from e
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.EXDEV, errno.EINVAL):
            raise HostFault("bad-order", f"not a file of the run's tasks: {path!r}: {e.strerror}") from e
        raise

"""Pulls the new parts of a run's TensorBoard files to the head node.

A host may give only files of the tasks that it has now. The size of a task's files is limited, and pulling stops while
only the journal's reserve is free on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from orchestrator.both.within import Tree
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.state.run import Run
from orchestrator.core.words import size
from orchestrator.head.links.conversation import Asks, Lends, refused
from orchestrator.head.node import disk
from orchestrator.head.transfer import files
from orchestrator.protocol.orders.tasks import TaskFile
from orchestrator.protocol.paths import RelativePath

SHARE_BYTES = 32 << 20
"""How much one call pulls from a host. Then the caller can report the progress and call again."""

FILES_MAX = 20_000
"""How many files of one task are kept."""


class _Share(NamedTuple):
    files: int
    fetched_bytes: int
    more: bool


def fetch(run: Run, directory: str, hosts: Iterable[str], lease: Lends) -> dict[str, Any]:
    """Pull at most SHARE_BYTES from each host. It blocks.

    Returns:
        `{"directory", "files", "fetched_bytes", "more", "unreached": {host: why}}`; `files` is how many the hosts
        have, and `more` says that there is more to pull.
    """
    try:
        shares, unreached = files.of_each(
            list(hosts),
            lambda host: lease(run, host, partial(_fetch_host, run=run, host=host, directory=directory)),
        )
    except OSError as e:
        raise OrchestratorError(f"{directory} cannot be written: {e.strerror}") from e
    return {
        "directory": directory,
        "files": sum(share.files for share in shares.values()),
        "fetched_bytes": sum(share.fetched_bytes for share in shares.values()),
        "more": any(share.more for share in shares.values()),
        "unreached": unreached,
    }


def _fetch_host(link: Asks, run: Run, host: str, directory: str) -> _Share:
    listing, _ = files.listing(link, run, host, "summaries")
    rooms: dict[str, _Room] = {}
    fetched = 0
    for file in listing:
        room = rooms.setdefault(file["task"], _Room(run, host, directory, file["task"]))
        room.check(file)
        # Pull the new part of a file, at most `room` bytes and a chunk, since a host may claim any size
        with open(_opened(directory, place(file)), "ab") as copy:
            got = files.pull(link, run, file, copy, end=file["bytes"], room=(SHARE_BYTES - fetched))
        room.taken(got)
        fetched += got
        if fetched >= SHARE_BYTES:
            return _Share(len(listing), fetched, more=True)
    return _Share(len(listing), fetched, more=False)


class _Room:
    """The limits for the files of one task."""

    def __init__(self, run: Run, host: str, directory: str, task: str) -> None:
        self._max = run.plan.summary_bytes_max
        self._task, self._host, self._directory = task, host, directory
        self._held = 0
        self._files = 0
        for where, _, names in os.walk(os.path.join(directory, files.task_name(task))):
            self._files += len(names)
            self._held += sum(os.lstat(os.path.join(where, name)).st_size for name in names)

    def check(self, file: TaskFile) -> None:
        """Raise OrderRefused if no more of the task may be pulled."""
        why = disk.why_reserved(self._directory)
        if self._held >= self._max:
            why = f"the head node has {size(self._held)} of {self._task} (run.summary_limit)"
        elif not os.path.exists(os.path.join(self._directory, place(file))):
            self._files += 1
            if self._files > FILES_MAX:
                why = f"the head node has {FILES_MAX} files of {self._task}"
        if why is not None:
            raise refused("limit", f"{why}; the rest stays on {self._host}")

    def taken(self, count: int) -> None:
        """Count bytes that were pulled."""
        self._held += count


def place(file: TaskFile) -> RelativePath:
    """Return the local path of a task's file. Generations share a directory, so TensorBoard shows one curve."""
    return files.below_task(file["task"], file["path"])


def _opened(directory: str, path: RelativePath) -> int:
    """Open the copy of a file to be written. Raises OrderRefused where a host calls one name a file and a directory."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with Tree(directory) as top:
        try:
            top.make(os.path.dirname(path))
            return top.opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except (NotADirectoryError, IsADirectoryError) as e:
            raise refused("wire", f"it named {path!r}, which is a file and a directory here") from e

"""Pulls files that a run's tasks have written, a part at a time: TensorBoard's, and what they left.

A host may give only files of the tasks that it has now. Its paths are checked where they come in, and are opened
without following links. It may claim any size for a file, so the caller limits how much is pulled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Literal, TypeVar

from orchestrator.core.state.run import Run
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import Asks, LinkDown, OrderRefused, refused
from orchestrator.protocol.channel import BLOB_BYTES_MAX
from orchestrator.protocol.orders.tasks import DIGEST, FILE, FILES, FileDigest, OfFile, Saved, TaskFile
from orchestrator.protocol.paths import RelativePath

T = TypeVar("T")

HOSTS_MAX = 64
"""How many hosts are asked at once."""

CHUNK_BYTES = BLOB_BYTES_MAX // 2
"""The size of one message: a heartbeat never waits for more."""

ASK_TIMEOUT_S = 30.0
DIGEST_TIMEOUT_S = 630.0
"""The timeout of an order that reads a whole file. It is above the agent's own deadline."""


def of_each(hosts: Sequence[str], ask: Callable[[str], T]) -> tuple[dict[str, T], dict[str, str]]:
    """Ask hosts at once, so that one that does not answer delays no other. It blocks.

    Returns:
        the answers by host, and why the others gave none.
    """

    def one(host: str) -> T | LinkDown | OrderRefused:
        try:
            return ask(host)
        except (LinkDown, OrderRefused) as e:
            return e

    with ThreadPoolExecutor(min(HOSTS_MAX, len(hosts)), thread_name_prefix="files") as asking:
        answers = dict(zip(hosts, asking.map(one, hosts), strict=True))
    unreached = {host: str(answer) for host, answer in answers.items() if isinstance(answer, Exception)}
    return {host: answer for host, answer in answers.items() if not isinstance(answer, Exception)}, unreached


def listing(
    link: Asks, run: Run, host: str, kind: Literal["summaries", "outputs", "saved"], generation: int = 0
) -> tuple[list[TaskFile], int]:
    """Return the files of the tasks that the host has now, and how many others it did not list.

    Of `saved`, those of the chief in that generation's directory of the checkpoint directory.

    Raises:
        LinkDown: the connection broke.
        OrderRefused: the host refused.
    """
    place: Saved = {"dir": _saved_in(run, generation), "task": str(run.chief), "generation": generation}
    wish = FILES({**orders.run_fields(run), "of": kind, "saved": place if kind == "saved" else None})
    answer = link.ask(wish, timeout_s=ASK_TIMEOUT_S).ok
    own = {str(task.id): task.generation for task in run.tasks if task.host == host}
    # All generations share one working directory, so the run's generation is named: the newest that the host knows may
    # be a standby's.
    listed = {
        (file["task"], file["place"], file["place"] == "logs" and file["generation"], file["path"]): file
        for file in answer["files"]
        if file["task"] in own and (file["place"] == "work" or file["generation"] <= own[file["task"]])
        if (file["place"] == "saved") == (kind == "saved")
    }
    return [*listed.values()], answer["left_out"]


def digest(link: Asks, run: Run, file: TaskFile) -> FileDigest:
    """Return the SHA-256 and the size of a file. Raises as `listing` does."""
    return link.ask(DIGEST(_named(run, file)), timeout_s=DIGEST_TIMEOUT_S).ok


def pull(link: Asks, run: Run, file: TaskFile, copy: BinaryIO, *, end: int, room: int) -> int:
    """Append the new part of a file to its copy: up to byte `end`, and at most `room` bytes and a chunk.

    Return how many bytes came. Raises as `listing` does.
    """
    fetched, offset = 0, copy.seek(0, os.SEEK_END)
    while offset < end and fetched < room:
        wanted = min(CHUNK_BYTES, end - offset)
        order = FILE({**_named(run, file), "offset": offset, "bytes_max": wanted})
        blob = link.ask(order, timeout_s=ASK_TIMEOUT_S).blob
        if len(blob) > wanted:
            sent = f"it sent {len(blob)} bytes of {file['path']!r}, and {wanted} were asked for"
            raise refused("wire", sent)
        if not blob:
            break
        copy.write(blob)
        offset += len(blob)
        fetched += len(blob)
    return fetched


def below_task(task: str, path: RelativePath) -> RelativePath:
    """Return the path of a task's file where those of several tasks lie. Raises OrderRefused if it is too long."""
    try:
        return RelativePath(f"{task_name(task)}/{path}")
    except ValueError as e:
        raise refused("wire", f"it named a file that has no place here: {e}") from e


def task_name(task: str) -> str:
    """Return the name of a task's directory."""
    return task.replace(":", "-")


def _saved_in(run: Run, generation: int) -> str:
    """Return a generation's directory of the checkpoint directory; empty without one."""
    checkpoint = run.plan.checkpoint
    return "" if checkpoint is None else f"{checkpoint.dir.rstrip('/')}/gen-{generation:06d}"


def _named(run: Run, file: TaskFile) -> OfFile:
    return {
        **orders.run_fields(run),
        "task": file["task"],
        "generation": file["generation"],
        "place": file["place"],
        "path": file["path"],
        "dir": _saved_in(run, file["generation"]) if file["place"] == "saved" else None,
    }

"""Pulls a run's TensorBoard files to the head node, as far as they are not there yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from orchestrator.adapters.channel import BLOB_BYTES_MAX
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.model import Problem, Run
from orchestrator.daemon.connection import orders
from orchestrator.daemon.connection.conversation import Asks, LinkDown, OrderRefused
from orchestrator.protocol.orders import SummaryFile
from orchestrator.protocol.table import SUMMARIES, SUMMARY

CHUNK_BYTES = BLOB_BYTES_MAX // 2
"""The size of one message: a heartbeat never waits for more."""

SHARE_BYTES = 32 << 20
"""How much to pull from a host in one call. Then the caller can report the progress and call again."""

ASK_TIMEOUT_S = 30.0


class _Share(NamedTuple):
    fetched_bytes: int
    more: bool


class Leases(Protocol):
    """Provides a link to a host for the duration of a call, also for a run that has ended."""

    def __call__(self, run: Run, name: str, use: Callable[[Asks], _Share]) -> _Share:
        """Return what `use` returns. Raises LinkDown where the host cannot be reached."""


def fetch(run: Run, directory: str, hosts: Iterable[str], lease: Leases) -> dict[str, Any]:
    """Pull at most SHARE_BYTES from each host. It blocks.

    Returns:
        `{"directory", "fetched_bytes", "more", "unreached": {host: why}}`; `more` says that there is more to pull.
    """
    shares, unreached = [], {}
    for host in hosts:
        try:
            shares.append(lease(run, host, lambda link: _fetch_host(link, run, directory)))
        except (LinkDown, OrderRefused) as e:
            unreached[host] = str(e)
        except OSError as e:
            raise OrchestratorError(f"{directory} cannot be written: {e.strerror}") from e
    return {
        "directory": directory,
        "fetched_bytes": sum(share.fetched_bytes for share in shares),
        "more": any(share.more for share in shares),
        "unreached": unreached,
    }


def _fetch_host(link: Asks, run: Run, directory: str) -> _Share:
    files = link.ask(SUMMARIES(orders.of_run(run)), timeout_s=ASK_TIMEOUT_S).ok["files"]
    fetched = 0
    for file in files:
        fetched += _fetch_file(link, run, file, directory, SHARE_BYTES - fetched)
        if fetched >= SHARE_BYTES:
            return _Share(fetched, more=True)
    return _Share(fetched, more=False)


def place(directory: str, task: str, path: str) -> str:
    """Return the local path of a task's file. Generations share a directory, so TensorBoard shows one curve.

    Raises:
        OrderRefused: the path would leave the directory. Hosts are not trusted with paths.
    """
    name = task.replace(":", "-")
    whole = os.path.normpath(os.path.join(directory, name, path))
    if os.sep in name or not whole.startswith(os.path.join(directory, name) + os.sep):
        raise OrderRefused(Problem("wire", f"it named a file outside of its logs: {path!r}"))
    return whole


def _fetch_file(link: Asks, run: Run, file: SummaryFile, directory: str, room: int) -> int:
    """Bring what is new of a file, at most `room` bytes and a chunk: a host may say that it has any size."""
    here = place(directory, file["task"], file["path"])
    os.makedirs(os.path.dirname(here), mode=0o700, exist_ok=True)
    fetched = 0
    with open(os.open(here, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as copy:
        offset = copy.seek(0, os.SEEK_END)
        while offset < file["bytes"] and fetched < room:
            order = SUMMARY(
                {
                    **orders.of_run(run),
                    "task": file["task"],
                    "generation": file["generation"],
                    "path": file["path"],
                    "offset": offset,
                    "bytes_max": min(CHUNK_BYTES, file["bytes"] - offset),
                }
            )
            blob = link.ask(order, timeout_s=ASK_TIMEOUT_S).blob
            if not blob:
                break
            copy.write(blob)
            offset += len(blob)
            fetched += len(blob)
    return fetched

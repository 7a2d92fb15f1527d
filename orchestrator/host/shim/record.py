"""The files of a generation of a task, which the shim writes and an agent reads.

tasks/worker-0/gen-000002/   start.json  what to start; the agent writes it
                             shim.json   the identities of the shim and its task, written before anything runs
                             sock        the shim's socket, 0600, while the shim lives
                             exit.json   how the task ended: the last TASK of its reports
                             released, swept   empty: it has passed its gate; orch kills it without asking its shim
                             exit.room   space on the disk that is reserved for exit.json while the task lives
                             shim.err    the shim's own traceback; empty unless the shim has a bug
"""

from __future__ import annotations

import json
import os
import time

from orchestrator.both import durable, private_socket, process
from orchestrator.host.shim.report import blank_task, ended_task
from orchestrator.host.shim.state import cause_of_silence
from orchestrator.host.shim.sweep import sweep
from orchestrator.host.system import cgroup, hostlog

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from orchestrator.protocol.reports import Left, SweptBy, Task, TaskExit

RELEASED = "released"
SWEPT = "swept"
"""Names of empty files in the generation's directory: one is made as the task passes its gate, one when orch kills it
and does not ask its shim."""

_ERROR_CHARS_MAX = 64 << 10

ROOM_BYTES = 16 << 10
"""The space reserved for an exit record, in case the disk is full by then. Last lines that do not fit are dropped."""


def listen(generation_dir: str) -> socket.socket:
    """Open the shim's socket with mode 0600. It is bound through /proc: a socket's path has at most 108 bytes."""
    import socket

    handle = os.open(generation_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        private_socket.listen(listener, f"/proc/self/fd/{handle}/sock", 8)
        return listener
    finally:
        os.close(handle)


def connect(generation_dir: str, timeout_s: float = 5.0) -> socket.socket:
    """Connect to the shim of that generation. The socket keeps `timeout_s`. Raises OSError if none listens."""
    import socket

    handle = os.open(generation_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(timeout_s)
        try:
            link.connect(f"/proc/self/fd/{handle}/sock")
        except OSError:
            link.close()
            raise
        return link
    finally:
        os.close(handle)


def shim_identity(generation_dir: str) -> process.Identity | None:
    """Return the identity of the shim that the generation has or had; None if none has recorded itself."""
    return identity_of(generation_dir, "shim")


def identity_of(generation_dir: str, part: str) -> process.Identity | None:
    """Return the identity of the `task` or the `shim` that the generation has or had; None if there is none yet."""
    return _identity((durable.read_object(generation_dir, "shim.json") or {}).get(part))


def shim_alive(generation_dir: str) -> bool:
    """Return whether the shim of that generation lives."""
    who = shim_identity(generation_dir)
    return who is not None and process.alive(who)


def lock(generation_dir: str, *, wait: bool = True) -> int:
    """Keep others from starting or recovering this generation until the returned descriptor is closed.

    The lock is on the directory: a repeated start order puts another start.json in the place of the one before.

    Raises:
        BlockingIOError: another process holds the lock, and `wait` is False.
        OSError: there is no start.json.
    """
    import fcntl

    os.stat(os.path.join(generation_dir, "start.json"))
    handle = os.open(generation_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        return handle  # the file system has no locks; then only the agent keeps two shims from starting
    return handle


def keep_room(generation_dir: str) -> None:
    """Reserve space for the exit record, because a full disk may be what ends the task. Raises OSError."""
    handle = os.open(
        os.path.join(generation_dir, "exit.room"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        os.posix_fallocate(handle, 0, ROOM_BYTES)
    finally:
        os.close(handle)


def write_exit(generation_dir: str, task: Task, ended_at: float) -> None:
    """Write the exit record with the last TASK.

    `ended_at` is the monotonic time of this boot, from which a reader computes how long ago the task ended. Raises
    OSError if the disk is full and no space was reserved.
    """
    value = {"task": task, "boot_id": process.boot_id(), "ended_monotonic_s": ended_at}
    room = os.path.join(generation_dir, "exit.room")
    try:
        durable.write_json(os.path.join(generation_dir, "exit.json"), value)
        if os.path.exists(room):
            os.unlink(room)
    except OSError:
        _write_into(room, value)
        durable.place(room, os.path.join(generation_dir, "exit.json"))


def write_failed_start(generation_dir: str, start: dict[str, Any], why: str) -> None:
    """Write the exit record of a task that was never started. Raises OSError as `write_exit` does."""
    task = blank_task(start)
    task["error"] = {"kind": "start-failed", "message": why}
    ended: TaskExit = {
        "cause": "start-failed",
        "ended_at": time.time(),
        "released": False,
        "last_lines": [why],
        "swept": "marker",
    }
    write_exit(generation_dir, ended_task(task, ended), time.monotonic())


def _write_into(room: str, value: dict[str, Any]) -> None:
    """Write the record into the reserved file, which needs no new space. Raises OSError if there is none."""
    data = json.dumps(value).encode()
    lines = list(value["task"]["exit"]["last_lines"])
    while len(data) > ROOM_BYTES and lines:
        del lines[: len(lines) // 2 + 1]
        ended = {**value["task"]["exit"], "last_lines": lines}
        data = json.dumps({**value, "task": {**value["task"], "exit": ended}}).encode()
    handle = os.open(room, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)


def mark(generation_dir: str, name: str) -> None:
    """Note that the task is RELEASED, or SWEPT, for whoever writes the record if this shim dies. Errors are ignored."""
    try:
        os.close(os.open(os.path.join(generation_dir, name), os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        return


def has_begun(generation_dir: str) -> bool:
    """Return whether a shim has recorded itself, or the generation's end is known."""
    return any(os.path.exists(os.path.join(generation_dir, name)) for name in ("shim.json", "exit.json"))


def is_marked(generation_dir: str, name: str) -> bool:
    """Return whether the task is RELEASED, or SWEPT."""
    return os.path.exists(os.path.join(generation_dir, name))


def diagnose(sentence: str) -> None:
    """Write a sentence to shim.err. Errors are ignored, because that disk may be full too."""
    try:
        os.write(2, f"{sentence}\n".encode("utf-8", "replace"))
    except OSError:
        return


def read_exit(generation_dir: str) -> Task | None:
    """Return the TASK from the exit record, with `ago_s` as of now; None while there is no record."""
    record = durable.read_object(generation_dir, "exit.json")
    if record is None or not isinstance(record.get("task"), dict):
        return None
    task: Task = record["task"]
    same_boot = record.get("boot_id") == process.boot_id()
    ended_at = record.get("ended_monotonic_s")
    ended = task.get("exit")
    if isinstance(ended, dict):
        ago_s = None
        if same_boot and isinstance(ended_at, (int, float)):
            ago_s = max(0.0, time.monotonic() - ended_at)
        ended["ago_s"] = ago_s
    return task


def recover(generation_dir: str) -> Task | None:
    """Return the TASK of a generation whose shim is gone; None while the shim lives or is starting.

    A shim is gone once its recorded process is; one that has recorded nothing, once no process is on the way to be it.
    Where it left no exit record, the processes left of its task are killed, and a record is written with the cause
    `rebooted` or `shim-died`. This waits a few seconds at most, for processes that do not die. Raises OSError where the
    disk refuses the record; the caller may try again.
    """
    task = read_exit(generation_dir)
    if task is not None or shim_alive(generation_dir):
        return task
    try:
        held = lock(generation_dir, wait=False)
    except BlockingIOError:
        return None
    try:
        if shim_identity(generation_dir) is None and process.started_with("shim", generation_dir):
            return None
        task = read_exit(generation_dir)  # it may have ended or started before the lock was taken
        if task is not None or shim_alive(generation_dir):
            return task
        return _bury(generation_dir)
    finally:
        os.close(held)


def _bury(generation_dir: str) -> Task:
    start = durable.read_object(generation_dir, "start.json") or {}
    shim = durable.read_object(generation_dir, "shim.json") or {}
    task = blank_task(start)
    task["pid"], task["port"] = (shim.get("task") or {}).get("pid"), shim.get("port")
    _, _, task["log_bytes"] = hostlog.read(generation_dir, 0, 0)
    swept, left = _sweep_task(start, shim)
    cause = cause_of_silence(_identity(shim.get("shim")), process.boot_id())
    task = ended_task(
        task,
        {
            "cause": cause,
            "ago_s": None if cause == "rebooted" else 0.0,
            "ended_at": time.time(),
            "ordered": is_marked(generation_dir, SWEPT),
            "released": is_marked(generation_dir, RELEASED),
            "last_lines": [*hostlog.tail(generation_dir), *_own_error(generation_dir)],
            "swept": swept,
            "left": left,
        },
    )
    write_exit(generation_dir, task, time.monotonic())
    return task


def _own_error(generation_dir: str) -> list[str]:
    """Return the last line of what the shim printed of a fault of its own; none where it printed nothing."""
    try:
        with open(os.path.join(generation_dir, "shim.err"), errors="replace") as file:
            lines = file.read(_ERROR_CHARS_MAX).split("\n")
    except OSError:
        return []
    return [f"its shim: {line.strip()}" for line in lines if line.strip()][-1:]


def _sweep_task(start: dict[str, Any], shim: dict[str, Any]) -> tuple[SweptBy, list[Left]]:
    if not all(key in start for key in ("host_dir", "run", "task", "generation")):
        return "marker", []
    host_dir, run, task = str(start["host_dir"]), str(start["run"]), str(start["task"])
    generation = int(start["generation"])
    group = cgroup.find(cgroup.name_of(host_dir, run, task, generation), shim.get("cgroup"))
    known = _identity(shim.get("task"))
    left = sweep(
        host_dir,
        run,
        {generation},
        task=task,
        groups=[group] if group is not None else [],
        known=[known] if known is not None else [],
    )
    return "marker" if group is None else "cgroup", left


def _identity(value: Any) -> process.Identity | None:
    try:
        return process.Identity.from_json(value)
    except (KeyError, TypeError, ValueError):
        return None

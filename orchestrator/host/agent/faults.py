"""`orch chaos` on a host: injects real faults into our own processes, which are identified exactly.

A fault that lasts is held by a separate process, which outlives the agent and undoes the fault when it ends.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import hostdir, process
from orchestrator.both.hostdir import HostFault
from orchestrator.host.shim import record as shim_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.host.agent.context import Context
    from orchestrator.host.agent.reply import Reply
    from orchestrator.protocol.orders import tasks

LASTS_MAX_S = 600.0
_KILL, _CONT, _STOP = 9, 18, 19

_CHUNK_BYTES = 1 << 30
_TMPFILE = getattr(os, "O_TMPFILE", 0o20000000 | os.O_DIRECTORY)
"""A Python that was built for an old C library does not know it."""


def inject(context: Context, order: tasks.Fault, reply: Reply) -> None:
    """Inject a fault, and answer when it is done, or when it has begun if it lasts."""
    fault, for_s = order["fault"], min(float(order["for_s"]), LASTS_MAX_S)
    if fault == "kill-agent":
        reply.ok({})
        me = process.identity(os.getpid())
        if me is not None:
            _apart(lambda: _after(0.1, me, _KILL))
    elif fault == "fill":
        handle = os.open(context.host.host_dir, _TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            # Fill the disk with a file that has no name, which the kernel frees when its last descriptor is closed
            filled, chunk = 0, _CHUNK_BYTES
            while chunk >= 4096:
                try:
                    os.posix_fallocate(handle, filled, chunk)
                    filled += chunk
                except OSError:
                    chunk //= 2
            _apart(lambda: time.sleep(for_s), keep=handle)
        finally:
            os.close(handle)
        reply.ok({"bytes": filled})
    elif fault in ("kill", "kill-shim", "freeze"):
        part = "shim" if fault == "kill-shim" else "task"
        task, generation = order.get("task"), order.get("generation")
        if task is None or generation is None:
            raise HostFault("bad-order", f"the fault {fault!r} is for a task, and the order names none")
        directory = hostdir.generation_dir(context.host.host_dir, order["run"], task, generation)
        who = shim_record.identity_of(directory, part)
        if who is None:
            raise HostFault("gone", f"{task} has no process yet")
        if not process.signal(who, _STOP if fault == "freeze" else _KILL):
            raise HostFault("gone", f"{task} has ended already")
        if fault == "freeze":
            _apart(lambda: _after(for_s, who, _CONT))
        reply.ok({"pid": who.pid})
    else:
        raise HostFault("bad-order", f"this agent knows no fault {fault!r}")


def _after(delay_s: float, who: process.Identity, number: int) -> None:
    time.sleep(delay_s)
    process.signal(who, number)


def _apart(work: Callable[[], None], *, keep: int | None = None) -> None:
    """Do the work in a process that nothing waits for, and that holds none of our descriptors except `keep`."""
    if os.fork():
        return
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != keep:
                _close(int(name))
        work()
    finally:
        os._exit(0)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # it is the descriptor of the listing itself, which is closed already

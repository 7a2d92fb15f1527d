"""`orch chaos` on the head: checks that a fault harms nothing else, and orders the host to inject it."""

from __future__ import annotations

import os

from orchestrator.adapters.host import process
from orchestrator.core.errors import Refused
from orchestrator.core.faults import Fault
from orchestrator.core.model import Run
from orchestrator.daemon.connection import wire
from orchestrator.daemon.connection.link import HostLink, LinkDown

_TIMEOUT_S = 30.0
"""Filling a disk may take this long."""


def check(link: HostLink | None, run: Run, fault: Fault, *, state_dir: str) -> None:
    """Raise Refused where the fault would harm another run or the coordinator. Call it before anything is journaled."""
    if link is None:
        return
    if fault.kind == "cut" and link.serves_others(run.run_id):
        raise Refused(f"another run shares the connection to {fault.host}; it would be cut off too")
    if fault.kind == "fill" and _is_on_our_disk(link, state_dir):
        host_dir = link.hello.get("host_dir")
        raise Refused(
            f"{fault.host} keeps the tasks' logs in {host_dir}, on the very file system of the coordinator's state "
            f"({state_dir}): to fill it would stop the journal, for all runs",
            hint="give one of the two a file system of its own (ORCH_HOST_DIR, ORCH_STATE_DIR), or fill another host",
        )


def inject(link: HostLink | None, run: Run, fault: Fault) -> None:
    """Inject the fault, and block until it has begun. Raises LinkDown or OrderRefused."""
    if link is None:
        raise LinkDown(f"{fault.host} is not connected")
    if fault.kind == "cut":
        link.hold_off(fault.for_s)
        return
    link.ask(wire.fault_order(run, fault), timeout_s=_TIMEOUT_S)


def _is_on_our_disk(link: HostLink, state_dir: str) -> bool:
    """Compare device numbers, which are the same for one kernel, also over SSH to this machine and in containers."""
    there, here = link.hello, os.stat(state_dir).st_dev
    return there.get("boot_id") == process.boot_id() and there.get("host_dir_device") == here

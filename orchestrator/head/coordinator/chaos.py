"""`orch chaos` on the head: checks that a fault harms nothing else, and orders the host to inject it."""

from __future__ import annotations

import os

from orchestrator.both import process
from orchestrator.core.errors import Refused
from orchestrator.core.faults import Fault
from orchestrator.core.state.run import Run
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import LinkDown
from orchestrator.head.links.link import HostLink
from orchestrator.protocol.hello import Greeting

_TIMEOUT_S = 30.0
"""Filling a disk may take this long."""


def check(link: HostLink | None, run: Run, fault: Fault, *, state_dir: str) -> None:
    """Raise Refused if the fault would harm another run or the coordinator. Call it before the fault is journaled."""
    if link is None:
        return
    if fault.kind == "cut" and link.serves_others(run.run_id):
        raise Refused(f"another run shares the connection to {fault.host}; it would be cut off too")
    hello = link.hello
    if fault.kind == "fill" and hello is not None and _is_on_our_disk(hello, state_dir):
        raise Refused(
            f"{fault.host} keeps the tasks' logs in {hello['host_dir']}, on the very file system of the coordinator's "
            f"state ({state_dir}): filling it would stop the journal, for all runs",
            hint="give one of the two a file system of its own (ORCH_HOST_DIR, ORCH_STATE_DIR), or fill another host",
        )


def inject(link: HostLink | None, run: Run, fault: Fault) -> None:
    """Inject the fault, and block until it has begun. Raises LinkDown or OrderRefused."""
    if link is None:
        raise LinkDown(f"{fault.host} is not connected")
    if fault.kind == "cut":
        link.hold_off(fault.for_s)
        return
    link.ask(orders.fault(run, fault), timeout_s=_TIMEOUT_S)


def _is_on_our_disk(hello: Greeting, state_dir: str) -> bool:
    """Compare device numbers. Within one kernel they are equal, also over SSH to this machine and in containers."""
    here = os.stat(state_dir).st_dev
    return hello["boot_id"] == process.boot_id() and hello["host_dir_device"] == here

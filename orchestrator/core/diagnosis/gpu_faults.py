"""GPUs that disappear, and errors that their driver reports (Xids): when they are noted, and when they end a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from orchestrator.core.causes import Blame
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import GpuFault, Host
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.turn import Turn

FAULTS_MAX = 64
"""Of one host; a host may tell of any number."""


class Xid(NamedTuple):
    """What an error number of the driver means."""

    means: str
    advice: str = ""
    """Empty: the script may well have done it, so it explains no end by itself."""


_REBOOT = (
    "reboot {host}; if it happens again there, have the GPU looked at, and leave it out of `gpus:` until then"
)

XIDS: Mapping[int, Xid] = {
    13: Xid("a program's error on the GPU"),
    31: Xid("a program's access to memory that it does not have"),
    43: Xid("a program was stopped on the GPU"),
    45: Xid("what was left of a program was cleared away"),
    48: Xid("an error in its memory that cannot be corrected", _REBOOT),
    61: Xid("a fault of its own controller", _REBOOT),
    62: Xid("a fault of its own controller", _REBOOT),
    63: Xid("a row of its memory is replaced by another"),
    64: Xid("a row of its memory cannot be replaced by another", _REBOOT),
    74: Xid("an error of an NVLink", _REBOOT),
    79: Xid("it has fallen off the bus", _REBOOT),
    92: Xid("many errors in its memory that were corrected"),
    94: Xid("an error in its memory, contained to one program", _REBOOT),
    95: Xid("an error in its memory that is not contained", _REBOOT),
    119: Xid("its system processor does not answer", _REBOOT),
    120: Xid("a fault of its system processor", _REBOOT),
}
"""After NVIDIA's list of Xid errors."""

_GONE = Xid("it has disappeared from nvidia-smi", _REBOOT)


def _about(fault: GpuFault) -> Xid:
    return _GONE if fault.xid is None else XIDS.get(fault.xid, Xid("see NVIDIA's list of Xid errors"))


def sentence(host: str, fault: GpuFault) -> str:
    """Return what has gone wrong with the GPU."""
    number = f" (Xid {fault.xid})" if fault.xid is not None else ""
    return f"GPU {fault.index} of {host}: {_about(fault).means}{number}"


def heard(turn: Turn, host: Host, reported: Sequence[tuple[int, int | None]]) -> None:
    """Record the faults that the host reports of GPUs that the run may use. Each is noted once."""
    ours = set(turn.run.plan.host(host.name).gpus)
    known = {(fault.index, fault.xid): fault for fault in host.gpu_faults}
    now = tuple(
        known.get(key) or GpuFault(*key, turn.run.generation)
        for key in dict.fromkeys(reported)
        # The UUIDs are unknown until the host is prepared, and where it must be prepared again
        if {key[0], host.gpu_uuid(key[0])} & ours or (host.facts is None and key in known)
    )[:FAULTS_MAX]
    if now == host.gpu_faults:
        return
    turn.set_host(host, gpu_faults=now)
    for fault in now:
        if (fault.index, fault.xid) not in known and not turn.run.phase.is_terminal:
            kind = NoteKind.GPU_LOST if fault.xid is None else NoteKind.GPU_XID
            data = {"host": host.name, "index": fault.index, "xid": fault.xid}
            turn.note(kind, sentence(host.name, fault), None, **data)


def explanation(run: Run, task: Task) -> tuple[str, str] | None:
    """Return what a fault of a GPU of this task means for its end, and the way out; None if there is none."""
    ended = task.exit
    if ended is None or ended.cause.row.blame in (Blame.NOBODY, Blame.PEER):
        return None
    own = set(run.plan.task(task.id).gpus if run.plan.task(task.id).host == task.host else ())
    host = run.host(task.host)
    for fault in host.gpu_faults:
        about = _about(fault)
        is_own = bool({fault.index, host.gpu_uuid(fault.index)} & own)
        if about.advice and is_own and fault.generation == task.generation:
            return sentence(task.host, fault), about.advice.format(host=task.host)
    return None

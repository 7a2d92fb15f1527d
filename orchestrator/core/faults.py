"""The faults that `orch chaos` injects: the kind of target of each, and whether it lasts."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.core.errors import Refused, UsageError
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.words import duration

LASTS_MAX_S = 600.0
"""No fault lasts longer than this, even if the coordinator that injected it is gone."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table."""

    name: str
    of: str
    """What it is done to: `task` or `host`."""
    does: str
    lasts: bool = False
    """Whether it has an end of its own."""
    restarts: bool = False
    """Whether the task's process certainly dies of it."""


KINDS = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("kill", "task", "its process is killed (SIGKILL)", restarts=True),
            Kind("freeze", "task", "its process is stopped (SIGSTOP), and continued afterwards", lasts=True),
            Kind("kill-shim", "task", "its shim is killed (SIGKILL)", restarts=True),
            Kind("kill-agent", "host", "the host's agent is killed (SIGKILL)"),
            Kind("cut", "host", "the head's connection is closed, and kept closed meanwhile", lasts=True),
            Kind("fill", "host", "the file system of the tasks' logs is filled, and freed", lasts=True),
        )
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, about to be injected."""

    kind: str
    host: str
    task: TaskId | None = None
    generation: int = 0
    for_s: float = 0.0

    @property
    def target(self) -> str:
        """Return the name of the task or host."""
        return str(self.task) if self.task is not None else self.host

    @property
    def sentence(self) -> str:
        """Return the sentence for the journal, by which a person can see later that the fault was injected."""
        where = f"{self.task} on {self.host}" if self.task is not None else self.host
        lasting = f" for {duration(self.for_s)}" if KINDS[self.kind].lasts else ""
        return f"orch chaos: {self.kind} {where}{lasting}: {KINDS[self.kind].does}"


def fault(run: Run, kind: str, target: str, for_s: float) -> Fault:
    """Return the fault to inject into this run, with its target resolved.

    Raises:
        UsageError: no such kind, task or host, or a duration out of bounds.
        Refused: the run is not marked, or does not train, or the target is not there to be hurt.
    """
    if not run.plan.chaos:
        raise Refused(
            f"{run.run_id} does not allow injected faults",
            hint="write `chaos: allowed` under `run` in its cluster spec, and start it again",
        )
    if kind not in KINDS:
        raise UsageError(f"no such fault: {kind!r}", hint=f"there are: {', '.join(KINDS)}")
    if not 0 < for_s <= LASTS_MAX_S:
        raise UsageError(f"a fault lasts more than 0 and at most {LASTS_MAX_S:g} seconds; got {for_s:g}")
    if run.phase is not Phase.RUNNING:
        raise Refused(f"{run.run_id} is {run.phase.value}; faults can be injected only while a run trains")
    if KINDS[kind].of == "task":
        known = {str(task.id): task for task in run.tasks}
        if target not in known:
            raise UsageError(f"{run.run_id} has no task {target!r}", hint=f"it has: {', '.join(known)}")
        task = known[target]
        if not task.phase.may_live:
            raise Refused(f"{target} has no process now: it is {task.phase.value}")
        return _reachable(run, Fault(kind, task.host, task.id, task.generation, for_s))
    names = [host.name for host in run.hosts]
    if target not in names:
        raise UsageError(f"{run.run_id} has no host {target!r}", hint=f"it has: {', '.join(names)}")
    return _reachable(run, Fault(kind, target, for_s=for_s))


def _reachable(run: Run, fault: Fault) -> Fault:
    if run.host(fault.host).link is not Link.CONNECTED:
        raise Refused(f"{fault.host} is not connected now; nothing can be injected there")
    return fault

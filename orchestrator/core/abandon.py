"""End a run about which nothing can be decided any more, because the user says so.

This does not use the table of transitions, and reads only the hosts and the tasks of the state: whatever is wrong with
the rest, the hosts are told to kill what is left of the run, and are asked for the proof.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.actions import Action, CloseHost, Note, SweepHost
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Ended, Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import TaskPhase

REASON = "killed by the user, without the order of a normal end: a bug in orch had stopped all decisions"


def abandoned(run: Run, at: Instant) -> tuple[Run, list[Action]]:
    """Return the run as KILLED, and what its hosts are to do. The proof of each host that answers is taken as usual."""
    lost = Exit(cause=Cause.ORDERED, at=at)
    tasks = tuple(
        replace(task, phase=TaskPhase.LOST, exit=task.exit or lost) if task.phase.may_live else task
        for task in run.tasks
    )
    ended = Ended(phase=Phase.KILLED, proof=None if run.generation == 0 else {})
    after = replace(run, phase_state=ended, tasks=tasks, since_at=at, reason=REASON)
    owing = unproven(after)
    sweeps = [SweepHost(host=name, generation=run.generation_last) for name in owing]
    closes = [CloseHost(host=host.name) for host in run.hosts if host.name not in owing]
    return after, [Note(NoteKind.KILLED, REASON), *sweeps, *closes]

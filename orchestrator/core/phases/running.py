"""RUNNING: what ends this phase, and what is watched meanwhile."""

from __future__ import annotations

from orchestrator.core import bottleneck
from orchestrator.core.bottleneck import HostReading, Watched
from orchestrator.core.events import NotGoneBack
from orchestrator.core.gang import gang
from orchestrator.core.hosts import silence
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import react_to_end
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn


def advance_running(turn: Turn) -> None:
    """End the generation where one of its tasks has ended or is lost; judge its pace meanwhile."""
    run = turn.run
    if any(task.phase.is_gone for task in gang(run)):
        react_to_end(turn, gang(run))
        if turn.run.phase is not Phase.RUNNING:
            return
    lost = silence.judge(turn)
    chief = turn.run.task(run.chief)
    if chief.host in lost and chief.phase.is_gone and turn.run.within(Running).going_back is not None:
        turn.tell(NotGoneBack(turn.at, run.generation, f"{chief.host} is lost"))
        return
    if lost:
        react_to_end(turn, gang(turn.run))
        return
    judge_pace(turn)


JUDGE_EVERY_S = 5.0
"""Judging reads the measurements of all tasks."""


def judge_pace(turn: Turn) -> None:
    """Judge every few seconds what limits the run, and note it when it changes."""
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return
    before = running.watched
    if before.looked_at is not None and turn.at - before.looked_at < JUDGE_EVERY_S:
        return
    hosts = _hosts(turn.run)
    if before == Watched() and not hosts:
        return
    after = bottleneck.judge(before, hosts, turn.at)
    turn.set_phase(watched=after)
    was, is_now = before.told, after.told
    if (was and was.key) == (is_now and is_now.key):
        return
    if is_now is None:
        turn.note(NoteKind.BOTTLENECK, "no measured value limits the run any more")
        return
    turn.note(
        NoteKind.BOTTLENECK,
        f"limited by {bottleneck.sentence(is_now)}; {bottleneck.REMEDIES[is_now.kind]}",
        None,
        bottleneck=is_now.kind,
        share=round(is_now.share, 3),
    )


def _hosts(run: Run) -> list[HostReading]:
    """Return what the hosts with tasks measure. A host that is not heard has no values."""
    if run.phase is not Phase.RUNNING or run.global_step is None:
        return []
    return [
        HostReading(host.name, host.measured.get("cpu_percent"), _gpu_percent(run, host))
        for host in run.assignees
        if host.link is Link.CONNECTED
    ]


def _gpu_percent(run: Run, host: Host) -> float | None:
    own = {gpu for task in run.placed.tasks if task.host == host.name for gpu in task.gpus}
    known = [
        percent
        for load in host.gpu_loads
        if {load.index, host.gpu_uuid(load.index)} & own
        and (percent := load.measured.get("utilization_percent")) is not None
    ]
    return sum(known) / len(known) if known else None


CONCERN = Concern("a generation that trains", advance={Phase.RUNNING: advance_running})

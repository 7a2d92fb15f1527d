"""What limits the pace of a run while it trains: looked at every few seconds, told as an event when it changes."""

from __future__ import annotations

from orchestrator.core import bottleneck
from orchestrator.core.bottleneck import HostReading, Watched
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Turn

LOOK_EVERY_S = 5.0
"""A look reads what all tasks have measured."""


def look(turn: Turn) -> None:
    """Judge what limits the run, if that is due, and say what has changed."""
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return
    before = running.watched
    if before.looked_at is not None and turn.at - before.looked_at < LOOK_EVERY_S:
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
        turn.note(NoteKind.BOTTLENECK, "nothing limits the run any more that was measured")
        return
    turn.note(
        NoteKind.BOTTLENECK,
        f"limited by {bottleneck.sentence(is_now)}; {bottleneck.REMEDIES[is_now.kind]}",
        None,
        bottleneck=is_now.kind,
        share=round(is_now.share, 3),
    )


def _hosts(run: Run) -> list[HostReading]:
    """Return what the hosts measure on which tasks train. Of a host that is not heard nothing is known."""
    if run.phase is not Phase.RUNNING or run.global_step is None:
        return []
    return [
        HostReading(host.name, host.cpu_percent, _gpu_percent(run, host))
        for host in run.assignees
        if host.link is Link.CONNECTED
    ]


def _gpu_percent(run: Run, host: Host) -> float | None:
    own = {gpu for task in run.placed.tasks if task.host == host.name for gpu in task.gpus}
    known = [
        load.utilization_percent
        for load in host.gpu_loads
        if load.index in own and load.utilization_percent is not None
    ]
    return sum(known) / len(known) if known else None

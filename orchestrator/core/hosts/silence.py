"""When a silent host counts as lost: one rule for every phase.

Silence counts from the host's last word, whatever its peers do meanwhile. While it trains, the progress of tasks that
cannot step without it is a word too: it may be that only the way from here to it is cut. Two witnesses are enough
without waiting: the head has not heard the host for `unreachable_after`, and the TensorFlow of a task on another host
has ended saying that a task there is gone. Then it is given up at once, if its tasks have somewhere to go. Fencing
makes that safe: whatever still runs there writes a directory and listens on ports that the next generation does not
use. While more than half of the hosts are silent it is the coordinator that is cut off, and nobody is lost.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.hosts import slots
from orchestrator.core.hosts.host_state import is_cut_off, living, lose, set_lost
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Backoff, Pending, Running, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Turn
from orchestrator.core.words import duration


def lost_at(run: Run) -> list[tuple[str, Deadline | None]]:
    """Return when each silent host, by name, counts as lost unless it is heard; None if nothing depends on it.

    No host is lost while the coordinator is the one that is cut off.
    """
    silent = [host for host in run.hosts if host.link is Link.UNREACHABLE]
    if not silent or is_cut_off(run):
        return []
    return [(host.name, _lost_at(run, host)) for host in silent]


def _lost_at(run: Run, host: Host) -> Deadline | None:
    match run.phase_state:
        case Running() as running:
            return _lost_while_training(run, running, host)
        case Backoff() | Pending() if run.has_begun:
            return _lost_afterwards(run, host) if run.tasks_on(host.name) else None
        case Stopping(proof=None):
            return _lost_afterwards(run, host) if living(run, host) else None
        case _:
            return None


def _lost_while_training(run: Run, running: Running, host: Host) -> Deadline | None:
    """Return when silent hosts of a generation that trains count as lost.

    A host on which no task may live any more does not matter, unless the run waits for it to go back to a checkpoint.
    """
    goes_back = running.going_back is not None and host.name == run.task(run.chief).host
    if not living(run, host) and not goes_back:
        return None
    words = [_silent_since(run, host)]
    if any(task.id.type in STRATEGIES[run.plan.strategy].needed for task in living(run, host)):
        words.append(running.progress_at)
    return max(words) + run.plan.timing.lost_after_s


def _lost_afterwards(run: Run, host: Host) -> Deadline | None:
    """Return when a silent host of a generation that ends or has ended counts as lost.

    The run waits until nothing of the generation is left there.

    A host that was given up, came back with a task that lives, and is gone again is waited for anew.
    """
    if host.state is not HostState.OPEN and not living(run, host):
        return None
    # Whether a task elsewhere has ended with the words that one of this host's is gone
    here = [task for task in run.tasks if task.host == host.name]
    followers = [
        task
        for task in run.tasks
        if task.host != host.name and task.exit is not None and task.exit.cause is Cause.FOLLOWER
    ]
    if any(
        cause.names(run, task_here, follower) for follower in followers for task_here in here
    ) and _has_somewhere_to_go(run, host):
        return host.since_at
    return _silent_since(run, host) + run.plan.timing.lost_after_s


def _silent_since(run: Run, host: Host) -> Instant:
    """Return since when its silence counts: after the coordinator was cut off, hosts do not come back all at once."""
    heard_at, again_at = last_word_at(host), run.connected_again_at
    return heard_at if again_at is None else max(heard_at, again_at)


def last_word_at(host: Host) -> Instant:
    """Return when a host was last heard; where this coordinator has not heard it yet, since when it listens."""
    return host.heard_at if host.heard_at is not None else host.since_at


def _has_somewhere_to_go(run: Run, host: Host) -> bool:
    """Return whether the next generation can begin without this host, now."""
    without = run.with_host(replace(host, state=HostState.LOST))
    return host.name not in slots.next_assignment(without).waits_for


def judge(turn: Turn) -> list[str]:
    """Give up the hosts that have been silent for too long, with their tasks; return their names."""
    lost = [turn.run.host(name) for name, at in lost_at(turn.run) if is_due(at, turn.at)]
    for host in lost:
        by_peer = ""
        if turn.at - last_word_at(host) < turn.run.plan.timing.lost_after_s:
            by_peer = ", and a peer's TensorFlow says that its task there is gone"
        silent = duration(turn.at - last_word_at(host))
        set_lost(turn, host)
        turn.note(NoteKind.HOST_LOST, f"{host.name} has been silent for {silent}{by_peer}; it counts as lost")
        for task in living(turn.run, host):
            lose(turn, task)
    return [host.name for host in lost]

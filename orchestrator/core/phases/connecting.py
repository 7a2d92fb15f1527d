"""Between release and first step: tasks that do not reach their peers. TensorFlow would wait for them in silence.

A peer that still imports or loads its data is waited for. It is a fault only if two tasks that are both there do not
reach each other. The shims find that out: they inspect the sockets of their tasks (`host/shim/peers.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.gang import gang, is_served
from orchestrator.core.launching.environment import endpoint
from orchestrator.core.phases.stopping import stop_for
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration, listed


class _Finding(NamedTuple):
    """What keeps a task from its peer, and the way out."""

    means: str
    advice: str
    tells_later: bool = True
    """Whether it is a fault too once the strategy was built, as where only some pairs of hosts reach each other."""


_FINDINGS = {
    "unresolved": _Finding(
        "{here} knows no address of this name",
        "give the host an `address` or `data_address` that all hosts know, or write the name into their /etc/hosts",
    ),
    "silent": _Finding(
        "no answer, as behind a firewall or on the wrong interface",
        "open the TCP ports {ports} between the hosts, or set `data_address` to an address that all of them reach",
    ),
    "no-route": _Finding(
        "there is no route to that network",
        "set `data_address` to an address on a network that all hosts share",
    ),
    "refused": _Finding(
        "nothing listens there",
        "check that this is the address of {peer_host} on the network that the hosts share",
        tells_later=False,
    ),
    "proxy": _Finding(
        "its port can be reached, but http_proxy (or https_proxy, grpc_proxy) is set, and gRPC goes through that proxy",
        "remove it from the login files of {here}, or write the hosts into `env: {{no_grpc_proxy: …}}`",
        tells_later=False,
    ),
}

_ON_ITS_WAY = (None, "importing", "building")
_UNTIL_ITS_STEP = ("connecting", "building", "compiling")


def due_at(run: Run) -> Deadline | None:
    """Return when tasks have waited for each other for `start_after`; None if none does."""
    unreached = _kept_apart(run)
    limit_s = run.plan.timing.start_after_s
    if unreached:
        return min(since_at(task) for task, _, _ in unreached) + limit_s
    waiting = waiting_tasks(run)
    if not waiting or any(_is_coming(run, task) for task in gang(run)):
        return None
    return max(since_at(task) for task in waiting) + limit_s


def waiting_tasks(run: Run) -> list[Task]:
    """Return the tasks whose strategy is being built."""
    return [task for task in _before_their_step(run) if task.progress.stage == "connecting"]


def since_at(task: Task) -> Instant:
    """Return since when the task has been at its stage."""
    return (task.heard_at or 0.0) - task.progress.heartbeat_age_s - task.progress.stage_age_s


def _advance(turn: Turn) -> None:
    """End the generation whose tasks do not reach each other."""
    if not is_due(due_at(turn.run), turn.at):
        return
    run, unreached = turn.run, _kept_apart(turn.run)
    waited = f"after {duration(run.plan.timing.start_after_s)}"
    if not unreached:
        named = listed([f"{task.id} on {task.host}" for task in waiting_tasks(run)])
        sentence = f"the strategy is not built {waited}: {named} wait for each other"
        stop_for(turn, FirstCause(None, run.generation, Cause.NOT_CONNECTED, sentence))
        return
    task, peer, finding = unreached[0]
    row = _FINDINGS[finding]
    facts = _facts(run, task, peer)
    first = FirstCause(
        task.id,
        run.generation,
        Cause.NOT_CONNECTED,
        f"{waited} {why_unreached(run, *unreached[0])}",
        means=Cause.NOT_CONNECTED.row.means,
        advice=row.advice.format_map(facts),
    )
    stop_for(turn, first)


def _waits(run: Run, now: Instant) -> str:
    """Return a sentence on who waits for whom before the first step; empty if nobody does."""
    due, unreached, waiting = due_at(run), _kept_apart(run), waiting_tasks(run)
    if not waiting and not unreached:
        return ""
    since = min(map(since_at, waiting or [task for task, _, _ in unreached]))
    ends = f"; gives up in {duration(max(0.0, due - now))}" if due is not None else ""
    if unreached:
        what = "; ".join(why_unreached(run, *pair) for pair in unreached[:2])
    else:
        coming = [f"{task.id} on {task.host}" for task in gang(run) if _is_coming(run, task)]
        what = (
            f"waiting for {listed(coming)}" if coming else f"{listed([str(t.id) for t in waiting])} connect"
        )
    return f"connecting for {duration(max(0.0, now - since))}: {what}{ends}"


def why_unreached(run: Run, task: Task, peer: Task, finding: str) -> str:
    """Return a sentence that says which peer a task does not reach, and why."""
    facts = _facts(run, task, peer)
    means = _FINDINGS[finding].means.format_map(facts)
    return f"{task.id} on {task.host} does not reach {peer.id} at {facts['address']}: {means}"


def _facts(run: Run, task: Task, peer: Task) -> dict[str, str]:
    address = endpoint(run.plan.host(peer.host).peer_address, peer.port or 0)
    first, last = run.plan.ports
    return {"here": task.host, "peer_host": peer.host, "address": address, "ports": f"{first} to {last}"}


def _kept_apart(run: Run) -> list[tuple[Task, Task, str]]:
    """Return each task and the peer that it does not reach, with the reason, where both tasks are there."""
    unreached = [
        (task, peer, finding)
        for task in _before_their_step(run)
        for peer, finding in _of(run, task.progress.unreached)
        if task.progress.stage == "connecting" or _FINDINGS[finding].tells_later
        if finding != "refused" or not _is_coming(run, peer)
    ]
    # Every task connects to the chief, the chief itself too.
    return sorted(unreached, key=lambda pair: (pair[0].id == pair[1].id, pair[1].id != run.chief))


def _of(run: Run, unreached: tuple[tuple[TaskId, str], ...]) -> list[tuple[Task, str]]:
    peers = [(run.find_task(peer), finding) for peer, finding in unreached if finding in _FINDINGS]
    return [(peer, finding) for peer, finding in peers if peer is not None]


def _before_their_step(run: Run) -> list[Task]:
    """Return the tasks that were released, are heard, and connect or build what trains, without a step yet."""
    if run.phase is not Phase.RUNNING:
        return []
    return [
        task
        for task in run.tasks
        if task.progress.stage in _UNTIL_ITS_STEP  # first, since it leaves out all that train
        and task.phase is TaskPhase.RUNNING
        and not task.progress.has_stepped
        and task.heard_at is not None
        and run.host(task.host).link is Link.CONNECTED
    ]


def _is_coming(run: Run, task: Task) -> bool:
    """Return whether a task has not built its strategy yet, or may not have."""
    return not is_served(run, task) and not task.progress.has_stepped and task.progress.stage in _ON_ITS_WAY


CONCERN = Concern(
    "connecting", advance={Phase.RUNNING: _advance}, due=lambda run: [due_at(run)], waits=_waits
)

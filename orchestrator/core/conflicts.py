"""Conflicts between runs: a command that would cause one is refused before anything begins.

Pure functions of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import cast

from orchestrator.core.differences import differences, sentence
from orchestrator.core.errors import Refused
from orchestrator.core.plan import LEASING, Gpu, HostPlan, Plan, TaskId, TaskPlan, lease_in_words
from orchestrator.core.state.owner import Driven, Owner
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import Problem, Run

_SPARE = "a spare"

DRIVEN = "driven"
"""The code of the problem that another coordinator drives a run that this one would conflict with."""

DRIVEN_EXIT_CODE = 6

WAY_BACK = (
    "`orch coordinator stop` and `orch recover --hosts cluster.yaml` adopt its living tasks, or give it "
    "up with --give-up"
)
"""What a person can do about a run that cannot be read."""


def refuse_start(
    plan: Plan, runs: Iterable[Run], set_aside: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise Refused if a run of this plan would share a name, a checkpoint directory or a GPU with an active one.

    Two of one name would share a checkpoint directory; two on one GPU would fail for want of memory.

    Args:
        set_aside: by name, the ids of runs that cannot be read: their tasks may be training.
    """
    if plan.name in set_aside:
        message = f"a run named {plan.name} may be active, and cannot be read: {set_aside[plan.name]}"
        raise Refused(message, hint=WAY_BACK)
    runs = list(runs)
    numbers = gpu_numbers(runs)
    for run in runs:
        if run.phase.is_terminal:
            continue
        if run.plan.name == plan.name:
            changed = sentence(differences(run.submitted, plan))
            raise Refused(
                f"a run named {plan.name} with another plan is active: {run.run_id}; {changed}",
                hint="`orch up FILE --restart` ends it at its next checkpoint, and goes on with this plan; or give "
                "this one another name",
            )
        if plan.queue is not None:
            continue  # it waits for whatever else they hold
        directory = _shared_checkpoints(run.plan, plan)
        if directory is not None:
            raise Refused(
                f"{run.run_id} is active and saves into {directory} too",
                hint="give each run its own checkpoint directory, or wait for it with `orch up --queue`",
            )
        if plan.has_choice:
            continue  # `pool` finds it another place
        held = _gpus_of(run.plan, run.placed.tasks, numbers)
        for place, (gpu, host, user) in _gpus_of(plan, plan.tasks, numbers).items():
            if place not in held:
                continue
            _, _, holder = held[place]
            if run.phase is Phase.QUEUED:
                what = f"GPU {gpu} of {host} is what {run.run_id} waits for, in the queue"
            elif user == holder == _SPARE:
                what = f"GPU {gpu} of {host} is a spare of {run.run_id} already"
            elif holder == _SPARE:
                what = f"GPU {gpu} of {host} is a spare of {run.run_id}, which may come to need it"
            else:
                what = f"GPU {gpu} of {host} is held by {holder} of {run.run_id}"
            raise Refused(
                what,
                hint=f"`orch up --queue` waits for it; or `orch kill {run.plan.name}` first, or choose other GPUs",
            )


def refuse_scratch(run: Run, *, from_scratch: bool) -> None:
    """Raise Refused if an active run is to start from scratch.

    A repeated request that is not yet done is accepted.
    """
    if from_scratch and not run.from_scratch:
        raise Refused(
            f"{run.run_id} is active, and goes on from its checkpoints: --from-scratch has changed nothing",
            hint=f"`orch kill {run.plan.name}` first, then `orch up --from-scratch`",
        )


def runs_of_others(
    plan: Plan,
    run_id: str | None,
    owner: Owner | None,
    driven: Iterable[Driven],
    is_known: Callable[[str], bool],
) -> list[Driven]:
    """Return the runs of other owners that this plan would run beside: of its name, or in its checkpoint directory.

    Runs in this head node's own journal are judged by `refuse_start`. A run of an unknown owner counts as another's,
    and so does a run of this owner that the journal lacks: the journal was lost, or restored from an old copy.

    Args:
        plan: what is to begin.
        run_id: its id; None if it has none yet.
        owner: who asks.
        driven: the runs that the hosts report.
        is_known: whether the own journal has the run of this id.
    """
    mine = owner.id if owner is not None else None
    directory = plan.checkpoint.dir if plan.checkpoint is not None else None
    return [
        item
        for item in driven
        if item.evidence
        and item.run_id != run_id
        and (item.owner is None or item.owner.id != mine or not is_known(item.run_id))
        and (item.name == plan.name or (directory is not None and item.checkpoint_dir == directory))
    ]


def driven(plan: Plan, others: Sequence[Driven], owner: Owner | None) -> Problem | None:
    """Return why a run must not begin beside those runs of others; None if there are none."""
    if not others:
        return None
    first = others[0]
    if first.owner is not None and owner is not None and first.owner.id == owner.id:
        return Problem(
            DRIVEN,
            f"{first.sentence}; this head node began it, and its journal does not have it",
            "the journal was damaged, or came back from an old copy: `orch coordinator stop` and `orch recover --hosts "
            "FILE` take the run up",
            exit_code=DRIVEN_EXIT_CODE,
        )
    head = first.owner.head if first.owner is not None else "its head node"
    return Problem(
        DRIVEN,
        first.sentence,
        f"`orch kill {first.name}` on {head} ends it; `orch up FILE --take-over` ends it from here, after showing it; "
        "if it was driven from here and the journal is lost, `orch recover --hosts FILE` adopts it"
        if first.name == plan.name
        else f"give each run its own checkpoint directory; or end it: `orch kill {first.name}` on {head}, or "
        "`orch up FILE --take-over` from here",
        exit_code=DRIVEN_EXIT_CODE,
    )


def refuse_rollback(run: Run, others: Iterable[Run], *, restart: bool) -> None:
    """Raise Refused if the rollback would change the directory of a gang that the user has not allowed to stop."""
    if not run.phase.is_terminal and not restart:
        raise Refused(
            f"{run.run_id} is active",
            hint="add --restart: its tasks are stopped, and go on from that checkpoint",
        )
    for other in others:
        if other.run_id == run.run_id or other.phase.is_terminal:
            continue
        directory = _shared_checkpoints(other.plan, run.plan)
        if directory is not None:
            raise Refused(
                f"{other.run_id} is active and saves into {directory}",
                hint=f"`orch ckpt rollback {other.run_id} --to … --restart`",
            )


def _shared_checkpoints(plan: Plan, other: Plan) -> str | None:
    """Return the directory into which both save; None if they do not."""
    place = saves_where(plan)
    return place[1] if place is not None and place == saves_where(other) else None


def saves_where(plan: Plan) -> tuple[str, str] | None:
    """Return the volume, of pods, and the directory in it into which a run saves."""
    return None if plan.checkpoint is None else (plan.checkpoint.volume, plan.checkpoint.dir)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a run needs or has for itself alone."""

    needs: Mapping[object, str]
    """What it is to the queue, and in words: GPUs (its spares' too), slots and the checkpoint directory."""
    users: Mapping[str, Mapping[Gpu, str]] = field(default_factory=dict)
    """By the address of the host: who has each of its GPUs and slots, for people."""
    tasks: tuple[str, ...] = ()
    """The addresses of its tasks."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """By address: how much memory they have asked for."""


def holding(run_id: str, plan: Plan, placed: Plan, numbers: Mapping[tuple[str, Gpu], int]) -> Holding:
    """Return what a run needs for itself alone. It is reckoned once for each plan: many runs are asked at once."""
    tasks = cast("Roster[TaskId, TaskPlan]", plan.tasks)
    held, by_uuid = tasks.once(_holding, run_id, plan, placed.tasks)
    return _holding(tasks, run_id, plan, placed.tasks, numbers)[0] if by_uuid and numbers else held


def _holding(
    _tasks: object,
    run_id: str,
    plan: Plan,
    there: Sequence[TaskPlan],
    numbers: Mapping[tuple[str, Gpu], int] = MappingProxyType({}),
) -> tuple[Holding, bool]:
    """Return the same, and whether it is reckoned anew where the numbers of GPUs are known: it names their UUIDs."""
    leased = _gpus_of(plan, there, numbers)
    users: dict[str, dict[Gpu, str]] = {}
    for (address, lease), (_, _, user) in leased.items():
        users.setdefault(address, {})[lease] = f"{user} of {run_id}"
    needed: dict[object, str] = {
        key: f"{lease_in_words(gpu)} of {host}" for key, (gpu, host, _) in leased.items()
    }
    if plan.checkpoint is not None:
        needed[saves_where(plan)] = plan.checkpoint.dir
    by_uuid = any(isinstance(gpu, str) for gpu, _, _ in leased.values())
    asked = {ask.type: ask.memory_bytes for ask in plan.needs if ask.memory_bytes is not None}
    memory: dict[str, int] = {}
    for task in there if asked else ():
        address = plan.host(task.host).address
        memory[address] = memory.get(address, 0) + asked.get(task.id.type, 0)
    return Holding(needed, users, tuple(plan.host(task.host).address for task in there), memory), by_uuid


def left_over(
    run_id: str, plan: Plan, placed: Plan, numbers: Mapping[tuple[str, Gpu], int], hosts: Collection[str]
) -> Holding:
    """Return what of an ended run may be left on these hosts."""
    leased = {key: of for key, of in _gpus_of(plan, placed.tasks, numbers).items() if of[1] in hosts}
    users: dict[str, dict[Gpu, str]] = {}
    for address, lease in leased:
        users.setdefault(address, {})[lease] = f"what may be left of {run_id}"
    return Holding({key: f"{lease_in_words(gpu)} of {host}" for key, (gpu, host, _) in leased.items()}, users)


def _spares(hosts: Iterable[HostPlan]) -> list[HostPlan]:
    return [host for host in hosts if host.spare]


def leased_gpus(run: Run, name: str) -> list[Gpu]:
    """Return the GPUs, and the slots, that a run has for itself on a host: it takes their leases there.

    There are none on a host that an engine lends, which lends the GPUs too, and none for an ended run, whose remaining
    processes hold the leases themselves.
    """
    if run.phase.is_terminal or run.plan.host(name).transport not in LEASING:
        return []
    gpus = _gpus_of(run.plan, run.placed.tasks, {})
    return sorted((gpu for gpu, host, _ in gpus.values() if host == name), key=str)


def gpu_numbers(runs: Iterable[Run]) -> dict[tuple[str, Gpu], int]:
    """Return the number of each GPU that a run has met, by the address of its host and its UUID.

    A spec may name a GPU by either. Of a host that no run has met yet, the agent finds out, when the leases are taken.
    """
    met = [(run.plan.host(host.name).address, host.facts) for run in runs for host in run.hosts]
    return {
        (address, uuid): number
        for address, facts in met
        for number, uuid in enumerate(facts.gpus if facts is not None else ())
    }


def _gpus_of(
    plan: Plan, there: Sequence[TaskPlan], numbers: Mapping[tuple[str, Gpu], int]
) -> dict[tuple[str, Gpu], tuple[Gpu, str, str]]:
    """Return a run's GPUs and slots by address and number, or UUID where the number is unknown.

    Each has its name in the spec, its host, and the task that holds it or will, or that it is a spare's.
    """
    spares = cast("Roster[str, HostPlan]", plan.hosts).once(_spares)
    held = [(host.name, _SPARE, host.leases) for host in spares]
    # Tasks that were left out of this generation may come back in the next one
    tasks = plan.tasks if there is plan.tasks else (*plan.tasks, *there)
    held += [(task.host, str(task.id), task.leases) for task in tasks]
    return {
        (address, numbers.get((address, gpu), gpu)): (gpu, host, user)
        for host, user, gpus in held
        for address in [plan.host(host).address]
        for gpu in gpus
    }

"""Asks hosts for their hardware, its users, and the runs of orch there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.client.choice import is_active
from orchestrator.client.environment import Environment
from orchestrator.client.known_run import known_runs
from orchestrator.core.errors import CoordinatorUnreachable, JournalError, UsageError
from orchestrator.core.plan import SLOT, HostPlan
from orchestrator.core.pool import Known, machine

if TYPE_CHECKING:
    from orchestrator.head.links.query import Answer
    from orchestrator.protocol.orders.driving import KnownRun

TIMEOUT_S = 60.0
"""For all questions to a host together."""

SCHEMA = 1


def document(environment: Environment, file: str | None) -> dict[str, Any]:
    """Return the document of `orch hosts --json`: the hosts of this file, or of the user's inventory and active runs.

    Raises:
        UsageError: No file is given, there is no inventory, and no run is active.
    """
    from orchestrator.spec.own_inventory import chosen, own
    from orchestrator.spec.plan import load_hosts

    file = file or chosen.get()
    plans = load_hosts(file) if file else _active_hosts(environment, load_hosts(own()) if own() else ())
    answers = ask(environment, plans)
    state_of = _by_coordinator(environment)
    hosts = [{**_UNTOLD, **_host(answer), **state_of(answer.host)} for answer in answers]
    return {"schema": SCHEMA, "hosts": hosts}


def _active_hosts(environment: Environment, listed: Sequence[HostPlan]) -> list[HostPlan]:
    try:
        runs = known_runs(environment)
    except JournalError:
        runs = []
    hosts = [*listed, *(host for run in runs if not run.phase.is_terminal for host in run.plan.hosts)]
    if not hosts:
        raise UsageError(
            "no run is active, so no hosts are known",
            hint="name a file, a cluster spec or an inventory: `orch hosts lab.yaml`",
        )
    return list({machine(host): host for host in reversed(hosts)}.values())[::-1]


def ask(environment: Environment, hosts: Sequence[HostPlan]) -> list[Answer[Any]]:
    """Ask each host for its hardware and its runs."""
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.links import requests as orders
    from orchestrator.head.links.query import Asker
    from orchestrator.protocol.orders.hosts import MACHINE

    asker = Asker(transports(environment.paths), bundle.load)
    return asker.ask([(host, [MACHINE({}), orders.drivers(None)]) for host in hosts], timeout_s=TIMEOUT_S)


_UNTOLD: Mapping[str, Any] = {"state": None, "reason": None}


def _by_coordinator(environment: Environment) -> Callable[[HostPlan], Mapping[str, Any]]:
    """Return what tells the state of a host in the active runs, or that it is drained; nothing if nobody answers."""
    try:
        client = environment.client()
        shown = client.get("/v1/status", {"waiting": "no"})["runs"]
        runs = [run for run in shown if is_active(run) and run["phase"] != "QUEUED"]  # of an older orch: all
        drained = client.get("/v1/coordinator").get("drained") or {}
    except CoordinatorUnreachable:
        return lambda _host: {}
    hosts = [host for run in runs for host in run.get("hosts") or []]
    known = {str(host["host"]): {key: host.get(key) for key in _UNTOLD} for host in hosts}

    def state_of(host: HostPlan) -> Mapping[str, Any]:
        if why := Known(drained=drained).why_drained(host):
            return {"state": "drained", "reason": why.removeprefix("is drained ")}
        return known.get(host.name, {})

    return state_of


def _host(answer: Answer[Any]) -> dict[str, Any]:
    host, unheard = answer.host, answer.unheard
    known: dict[str, Any] = {
        "host": host.name,
        "address": host.address or host.name,
        "transport": host.transport,
        "spare": host.spare,
        "labels": dict(host.labels),
        "reachable": unheard is None,
        "problem": str(unheard) if unheard is not None else None,
        "hint": unheard.hint if unheard is not None else None,
        "hostname": answer.hello["hostname"] if answer.hello is not None else None,
    }
    if unheard is not None:
        return {**known, **dict.fromkeys(_MACHINE), "gpus": [], "slots": [], "runs": []}
    machine, runs = (reply.ok or {} for reply in answer.replies)
    here = [_run(run) for run in runs.get("runs") or [] if run["alive"]]
    holders = {
        _lease(lease): {key: lease.get(key) for key in ("run", "user", "head", "since")}
        for lease in machine.get("leases") or []
    }
    gpus = [
        {**gpu, "held_by": (by := holders.get(gpu["index"])), "free": not gpu["processes"] and by is None}
        for gpu in machine.get("gpus") or []
    ]
    slots = [
        {"slot": number, "held_by": (by := holders.get(f"{SLOT}{number}")), "free": by is None}
        for number in range(host.tasks_max or 0)
    ]
    shown = {key: machine.get(key) for key in _MACHINE}
    return {**known, **shown, "gpus": gpus, "slots": slots, "runs": here}


def is_free(host: Mapping[str, Any]) -> bool:
    """Return whether a host may take a task now: a GPU and a slot are free, as far as they are counted."""
    if not host["reachable"] or host.get("state") not in (None, "ready", "spare"):
        return False
    return all(not each or any(one["free"] for one in each) for each in (host["gpus"], host["slots"]))


def _lease(lease: Mapping[str, Any]) -> int | str:
    number = lease["gpu"]
    return str(lease.get("instance")) if number is None else int(number)


_MACHINE = (
    "cpus",
    "load",
    "memory_total_bytes",
    "memory_free_bytes",
    "disk_total_bytes",
    "disk_free_bytes",
    "gpus",
    "gpus_why",
)


def _run(run: KnownRun) -> dict[str, Any]:
    """Return a live run of orch on a host, from any head node."""
    claim = run["claim"]
    return {
        "run_id": run["run"],
        "tasks": sorted({str(task["task"]) for task in run["tasks"] if task["alive"]}),
        "head": claim["head"] if claim is not None else None,
        "user": claim["user"] if claim is not None else None,
    }

"""Submits a cluster spec: loads it, checks the code to be pushed, and sends the plan to a coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.client import next_training
from orchestrator.client.choice import is_active, runs_of, to_read
from orchestrator.client.environment import Environment
from orchestrator.client.starting import ensure_coordinator
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, Refused, SpecError, UsageError
from orchestrator.core.plan import Plan, QueuePlan, TaskId, TaskPlan
from orchestrator.core.words import counted
from orchestrator.head.api.client import Client
from orchestrator.reporting.fault_costs import fault_costs
from orchestrator.reporting.fault_costs import sentence as costs_in_words

if TYPE_CHECKING:
    from orchestrator.head.code.snapshots import Snapshot

Before = Callable[[Mapping[str, Any], Plan], None]
"""Called with the coordinator's document and the plan before the plan is submitted. It may raise."""

Place = Callable[[Plan], Plan]

EXAMINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a run is to begin."""

    again: bool = False
    """At step 0, with older checkpoints set aside."""
    go_on: bool = False
    """From the checkpoint of the newest run of this name, if that has finished."""
    restart: bool = False
    """After the end of the active run of this name, if its spec or its code differs."""
    queue: bool = False
    """Once its GPUs are free, like `queue:` of the spec."""
    check: bool = True
    """Whether to check that the hosts are there, and reach each other."""
    wait_for_hosts: bool = False
    """Although a host does not answer; the run waits for it."""


_END_S = 900.0
"""How long a run may take to reach its next checkpoint and end before another replaces it."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The coordinator's answer."""

    run_id: str
    name: str
    created: bool
    changed: str | None = ""
    """How the code of a run that was active already differs from the current working directory; None: unknown."""
    waits: bool = False
    """Whether it waits in the queue."""
    finished: str = ""
    """Why nothing was begun: the run has finished, and nothing has changed since; else empty."""


def submit(
    file: str,
    environment: Environment,
    client: Client,
    start: Start,
    *,
    before: Before | None = None,
    place: Place | None = None,
    code: Snapshot | None = None,
) -> Submitted:
    """Submit the plan of this file. An active run with the same plan is left alone.

    Args:
        file: the cluster spec.
        environment: of the caller.
        client: of the coordinator.
        start: how it is to begin.
        before: see `Before`.
        place: replaces the plan's hosts by those that an engine provides.
        code: the snapshot of the code, where it was taken before; it is taken now otherwise.
    """
    from orchestrator.spec import own_paths
    from orchestrator.spec.own_notify import load_own
    from orchestrator.spec.plan import load_plan

    # Who restarts asks for the checkpoint, also where the run has just finished.
    wish = next_training.chosen(again=start.again, go_on=start.go_on or (start.restart and not start.again))
    plan, secrets = load_plan(file)
    plan = place(plan) if place is not None else plan
    plan = replace(plan, queue=plan.queue or QueuePlan()) if start.queue else plan
    load_own(environment.paths.notify)  # the user must learn now if no message can be sent later
    environment.paths.ensure()
    code = code or _snapshot_unless_running(file, plan, environment.paths.state_dir, client)
    coordinator, _ = ensure_coordinator(environment)
    if before is not None:
        before(coordinator, plan)
    last = _newest(client, plan.name)
    running = last is not None and is_active(last)
    begins = (
        next_training.Next(start.again) if running else _next_training(environment, last, plan, code, wish)
    )
    if last is not None and begins.finished:
        return Submitted(str(last["run_id"]), plan.name, created=False, finished=begins.finished)
    if begins.said:
        environment.say(begins.said)
    if start.restart or not running:
        if any(host.is_set_up for host in plan.hosts):  # else it is half a second of imports for nothing
            from orchestrator.client.setting_up import refuse, set_up

            refuse(set_up(file, environment) or [], file)
        if start.check:
            patient = start.wait_for_hosts or running
            plan = _examined(plan, environment, client, running=running, patient=patient)
    ended = _end_older(environment, client, plan, code) if start.restart else None
    try:
        from orchestrator.spec.plan import load_recipients

        answer = client.post(
            "/v1/runs",
            {
                "plan": plan_document(plan),
                "secrets": dict(secrets),
                "from_scratch": begins.from_scratch,
                "code": code.digest if code is not None else "",
                "recipients": load_recipients(file) if plan.notify else [],
            },
        )
    except OrchestratorError as e:
        if ended is not None:
            e.hint = (
                f"{ended} was ended before; `orch up {file}` goes on from its last checkpoint. {e.hint or ''}"
            )
        raise
    waits = answer.get("phase") == "QUEUED"
    submitted = Submitted(str(answer["run_id"]), plan.name, bool(answer.get("created")), waits=waits)
    if not submitted.created:
        return replace(submitted, changed=_changed_code(environment, submitted.run_id, plan, code))
    for sentence in code.remarks if code is not None else ():
        environment.say(sentence)
    _say_since_checkpoint(environment, submitted.run_id, plan, code)
    costs = fault_costs(plan)
    (environment.warn if costs["kind"] == "everything" else environment.say)(costs_in_words(costs))
    for sentence in own_paths.sentences(plan):
        environment.warn(sentence)
    return submitted


def _next_training(
    environment: Environment,
    last: Mapping[str, Any] | None,
    plan: Plan,
    code: Snapshot | None,
    wish: next_training.Wish,
) -> next_training.Next:
    """Compare with the newest run of this name, which has ended, and return what is begun now."""
    from orchestrator.client.comparing import with_now
    from orchestrator.client.known_run import known_run

    changed, undone = None, False
    if last is not None:
        with contextlib.suppress(OrchestratorError):  # the journal cannot be read from here
            before = known_run(environment.paths, str(last["run_id"]))
            undone = before.from_scratch
            changed = with_now(environment.paths, before, plan, code)
    return next_training.next_training(last, changed, wish, undone=undone)


def _end_older(environment: Environment, client: Client, plan: Plan, code: Snapshot | None) -> str | None:
    """End the active run of this name at a checkpoint if its spec or code has changed, and return its id."""
    from orchestrator.client import killing
    from orchestrator.client.comparing import with_now
    from orchestrator.client.known_run import known_run

    active = [run for run in runs_of(client) if run["name"] == plan.name and is_active(run)]
    if not active:
        return None
    run_id = str(active[-1]["run_id"])
    comparison = with_now(environment.paths, known_run(environment.paths, run_id), plan, code)
    if comparison.is_same:
        return None
    environment.say(f"Ending {run_id} at its next checkpoint, to go on with: {comparison.sentence}")
    killing.order(client, active[-1], force=False, at_checkpoint=True)
    ended = killing.wait_end(client, environment, active[-1], environment.now() + _END_S)
    problem = killing.verdict([ended])
    if problem is not None:
        raise problem
    return run_id


def _changed_code(environment: Environment, run_id: str, plan: Plan, code: Snapshot | None) -> str | None:
    """Return how an active run's code differs from its current working directory; None if unknown."""
    from orchestrator.client.comparing import with_now
    from orchestrator.client.known_run import known_run

    try:
        comparison = with_now(environment.paths, known_run(environment.paths, run_id), plan, code)
    except SpecError as e:  # the run has its code already
        return f"{plan.workdir} cannot be pushed any more: {e}"
    except OrchestratorError:
        return None
    return comparison.sentence if comparison.code is not None else None


def _say_since_checkpoint(environment: Environment, run_id: str, plan: Plan, code: Snapshot | None) -> None:
    """Report what has changed since the run that saved the checkpoint from which this one resumes."""
    from orchestrator.client.comparing import before_it, with_now
    from orchestrator.client.known_run import known_runs

    try:
        runs = known_runs(environment)
        older = before_it(runs, next(run for run in runs if run.run_id == run_id))
        changes = with_now(environment.paths, older, plan, code).sentence if older is not None else ""
    except (OrchestratorError, StopIteration):
        return
    if older is not None and changes:
        environment.say(f"Since {older.run_id}, which saved its checkpoint, this has changed: {changes}")


def placed_now(plan: Plan, client: Client, *, look: bool = True) -> tuple[Plan, Mapping[str, Any]]:
    """Return the plan where it would go now, and the coordinator's document.

    With `look`, the hosts are asked what others hold there. Raises UsageError if the coordinator is an older one.
    """
    document = client.post("/v1/place", {"plan": plan_document(plan), "look": look}, timeout_s=EXAMINE_S)
    tasks = tuple(
        TaskPlan(
            TaskId.parse(task["task"]), task["host"], tuple(task["gpus"]), task["slot"], task["host_slot"]
        )
        for task in document["tasks"]
    )
    return replace(plan, tasks=tasks), document


def _examined(plan: Plan, environment: Environment, client: Client, *, running: bool, patient: bool) -> Plan:
    """Check the hosts on which the run would be placed now, and return the whole plan with their addresses."""
    if not plan.has_choice:
        return examined(plan, environment, client, running=running, patient=patient)
    try:
        there, document = placed_now(plan, client, look=plan.queue is None)
    except UsageError:
        return plan  # an older coordinator
    if not document["fits"]:
        # It waits, or is refused with who has what: hosts that it may never have refuse nothing.
        with contextlib.suppress(Refused):
            return examined(plan, environment, client, running=running, patient=True)
        return plan
    used = {*there.hosts_used, *document["spares"]}
    few = replace(there, hosts=tuple(host for host in there.hosts if host.name in used))
    known = examined(few, environment, client, running=running, patient=patient)
    checked = {host.name: host for host in known.hosts}
    return replace(plan, hosts=tuple(checked.get(host.name, host) for host in plan.hosts))


def examined(
    plan: Plan, environment: Environment, client: Client, *, running: bool, patient: bool = False
) -> Plan:
    """Return the plan with the addresses at which its hosts reach each other. This takes a second or two.

    `patient`: a host that does not answer is no error, since the run waits for it.

    Raises:
        Refused: a host does not answer, or hosts do not reach each other; a line for each.
    """
    used = [plan.host(name) for name in plan.hosts_used]
    is_here = all(host.transport == "local" for host in used)
    if is_here or any(host.transport not in ("ssh", "local") for host in plan.hosts):
        return plan
    goal = "reach each other" if len(used) > 1 else "is there"
    environment.say(f"checking that {counted(len(plan.hosts), 'host')} {goal} …")
    try:
        answer = client.post("/v1/examine", {"plan": plan_document(plan)}, timeout_s=EXAMINE_S)
    except UsageError:
        return plan  # an older coordinator
    # Without all of its replicas it can begin, and spares are not needed yet
    needed = set() if patient or plan.replicas_min else {host.name for host in used if not host.spare}
    findings = [
        row
        for row in answer["findings"]
        if row["id"].startswith("net.")
        or row["id"] == "host.twice"
        or (row["id"] == "ssh.no-answer" and row["host"] in needed)
    ]
    errors = [row for row in findings if row["level"] == "error"]
    if running:  # the ports that it will give back
        errors = [row for row in errors if row["id"] != "net.ports-busy"]
    if errors:
        raise Refused(
            "\n".join(f"{row['message']} ({row['id']})" for row in errors),
            hint="; ".join(dict.fromkeys(row["hint"] for row in errors))
            + "; `orch doctor` says more; --wait-for-hosts begins, and waits for hosts that do not answer; "
            "--no-check looks at nothing",
        )
    for row in findings:
        if row["level"] == "warning":
            environment.warn(f"{row['message']} ({row['id']})")
    addresses = answer["addresses"]
    return replace(
        plan, hosts=tuple(replace(host, seen_address=addresses.get(host.name, "")) for host in plan.hosts)
    )


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as the coordinator takes it."""
    from pydantic import TypeAdapter

    document: dict[str, Any] = TypeAdapter(Plan).dump_python(plan, mode="json")
    return document


def snapshot(file: str, plan: Plan, state_dir: str) -> Snapshot:
    """Take the snapshot of the code that the run of a cluster spec is to have.

    Raises:
        SpecError: it cannot be pushed; each line has a place in `file`.
    """
    from orchestrator.head.code.snapshots import Snapshots
    from orchestrator.spec.load import located

    try:
        return Snapshots(state_dir).take(plan)
    except SpecError as e:
        lines = []
        for line in str(e).splitlines():
            key, _, words = line.partition(": ")
            lines.append(located(file, ("run", key.removeprefix("run.")), words))
        raise SpecError("\n".join(lines), hint=e.hint) from e


@contextlib.contextmanager
def held_snapshot(file: str, plan: Plan, state_dir: str) -> Iterator[Snapshot]:
    """Take the snapshot as `snapshot` does, and keep it whole for as long as the command waits before it submits."""
    from orchestrator.head.code.snapshots import Snapshots

    code = snapshot(file, plan, state_dir)
    with Snapshots(state_dir).held():
        yield code


def _snapshot_unless_running(file: str, plan: Plan, state_dir: str, client: Client) -> Snapshot | None:
    """Take the snapshot; None if that fails, and an active run of this name has its code already."""
    try:
        return snapshot(file, plan, state_dir)
    except OrchestratorError:  # of the spec, or the disk is full
        last = _newest(client, plan.name)
        if last is not None and is_active(last):
            return None
        raise


def _newest(client: Client, name: str) -> Mapping[str, Any] | None:
    """Return the status of the newest run of this name; None if there is none, or no coordinator to ask."""
    try:
        run = to_read(client, name)
    except (CoordinatorUnreachable, UsageError):
        return None
    return run if run.get("name") == name else None

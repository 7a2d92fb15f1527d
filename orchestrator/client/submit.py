"""Submit a cluster spec: load it, look at what it pushes, and hand its plan to a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.client.choice import is_active, runs_of
from orchestrator.client.environment import Environment
from orchestrator.client.starting import ensure_coordinator
from orchestrator.core.errors import CoordinatorUnreachable, SpecError
from orchestrator.head.api.client import Client

if TYPE_CHECKING:
    from orchestrator.core.plan import Plan
    from orchestrator.head.code.codetree import Survey

    Before = Callable[[Mapping[str, Any], Plan], None]
    """Called with the coordinator's document and the plan before the plan is submitted. It may raise."""

    Place = Callable[[Plan], Plan]


@dataclass(frozen=True, slots=True)
class Submitted:
    """The coordinator's answer."""

    run_id: str
    name: str
    created: bool


def submit(
    file: str,
    environment: Environment,
    client: Client,
    *,
    from_scratch: bool = False,
    before: Before | None = None,
    place: Place | None = None,
) -> Submitted:
    """Submit the plan of this file. What is already running with this plan is left as it is.

    `place` gives it other hosts: those that an engine lends.
    """
    from pydantic import TypeAdapter

    from orchestrator.core.plan import Plan
    from orchestrator.spec import own_paths
    from orchestrator.spec.own_notify import load_own
    from orchestrator.spec.plan import load_plan, load_recipients

    plan, secrets = load_plan(file)
    plan = place(plan) if place is not None else plan
    load_own(environment.paths.notify)  # if no message can be sent later, the user must learn that now
    seen = survey_code(file, plan, client)
    coordinator, _ = ensure_coordinator(environment)
    if before is not None:
        before(coordinator, plan)
    answer = client.post(
        "/v1/runs",
        {
            "plan": TypeAdapter(Plan).dump_python(plan, mode="json"),
            "secrets": dict(secrets),
            "from_scratch": from_scratch,
            "recipients": load_recipients(file) if plan.notify else [],
        },
    )
    submitted = Submitted(str(answer["run_id"]), plan.name, bool(answer.get("created")))
    if submitted.created and seen is not None:
        for sentence in seen.sentences():
            environment.say(sentence)
    if submitted.created:
        for sentence in own_paths.sentences(plan):
            environment.warn(sentence)
    return submitted


def survey_code(file: str, plan: Plan, client: Client) -> Survey | None:
    """Find the files of the working directory that will be pushed; None where an active run has its code already.

    Raises:
        SpecError: it cannot be pushed; each line says where in `file` the reason stands.
    """
    from orchestrator.head.code.codetree import survey
    from orchestrator.spec.load import located

    try:
        seen = survey(plan.workdir, plan.withheld)
        seen.check(plan.script, plan.push_bytes_max)
    except SpecError as e:
        if _is_running(client, plan.name):
            return None
        lines = []
        for line in str(e).splitlines():
            key, _, words = line.partition(": ")
            lines.append(located(file, ("run", key.removeprefix("run.")), words))
        raise SpecError("\n".join(lines), hint=e.hint) from e
    return seen


def _is_running(client: Client, name: str) -> bool:
    try:
        runs = runs_of(client)
    except CoordinatorUnreachable:
        return False
    return any(run.get("name") == name and is_active(run) for run in runs)

"""Trial runs: a command starts them, waits for their end, and ends them if it is interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.cli.session import Session
from orchestrator.cli.watching import Watch
from orchestrator.client import killing
from orchestrator.client.choice import is_active
from orchestrator.core.errors import OrchestratorError, Refused, WaitTimedOut
from orchestrator.core.plan import Plan

_NAME_KEPT = 47
"""How many characters of a run's name a trial's name keeps. A name has at most 63."""


def trial_of(own: Plan, plan: Plan, kind: str, which: str) -> Plan:
    """Return a plan as a trial of `plan`: with its hosts, but with its own name and checkpoint directory."""
    checkpoint = own.checkpoint
    if checkpoint is not None:
        checkpoint = replace(checkpoint, dir=f"{checkpoint.dir}/{kind}/{which}", keep=1)
    name = f"{plan.name[:_NAME_KEPT]}-{kind}-{which}"
    return replace(own, name=name, hosts=plan.hosts, checkpoint=checkpoint)


def begun(
    session: Session, plan: Plan, secrets: Mapping[str, str], code: str, *, doing: str
) -> dict[str, str]:
    """Begin a trial from scratch with the snapshot of this digest. Raises Refused if one of its name goes on."""
    from orchestrator.client.submit import plan_document

    document = {"plan": plan_document(plan), "secrets": dict(secrets)}
    answer = session.client().post("/v1/runs", {**document, "from_scratch": True, "code": code})
    if not answer.get("created"):
        raise Refused(f"{plan.name} is being {doing} already", hint=f"`orch kill {plan.name}` ends it")
    return {"run_id": str(answer["run_id"]), "name": plan.name}


def to_its_end(
    session: Session, plan: Plan, secrets: Mapping[str, str], code: str, *, doing: str, timeout_s: float
) -> Mapping[str, Any]:
    """Train a plan from scratch with the snapshot of this digest, and return the run's last status.

    Raises:
        Refused: a run of that name goes on.
        OrchestratorError: it took too long, or the coordinator is away. The run is being ended.
    """
    from orchestrator.client.submit import examined

    client = session.client()
    plan = examined(plan, session, client, running=False)
    run = begun(session, plan, secrets, code, doing=doing)
    watch = Watch(
        session,
        client,
        run,
        until=lambda seen: not is_active(seen),
        say=lambda _text: None,
        timeout_s=timeout_s,
    )
    try:
        return watch.to_its_end()
    except (KeyboardInterrupt, OrchestratorError) as e:
        killing.order(client, run, force=False)
        session.say(f"Stopped; {plan.name} is being ended")
        if isinstance(e, WaitTimedOut):
            e.hint = f"--timeout lets it train for longer; `orch status {plan.name}` shows its end"
        raise

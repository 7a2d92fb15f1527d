"""Ends a run that another head node drives, so that this one can replace it: `orch up --take-over`.

First each host gets a higher epoch for the run: from then on it refuses whatever the old coordinator orders. Only when
all do so are the processes killed. So the old gang has ended before the new one begins, and cannot come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.cli.host_queries import TIMEOUT_S, asker, must_confirm, say_problems
from orchestrator.cli.session import Session
from orchestrator.core import conflicts
from orchestrator.core.errors import Refused
from orchestrator.core.plan import HostPlan, Plan
from orchestrator.core.state.owner import Driven, Owner
from orchestrator.head.hosts.recovery import EPOCHS_UNHEARD
from orchestrator.head.links import ownership
from orchestrator.head.links import requests as orders
from orchestrator.head.links.query import Answer, Asker


def take_over(session: Session, plan: Plan, owner: Owner, *, yes: bool) -> None:
    """Show which runs of other owners conflict with this plan, and end them after a confirmation.

    Raises:
        Refused: it was not confirmed, a process cannot be killed, or a run goes on where this plan cannot reach it.
    """
    ask = asker(session)
    driven = _driven(session, ask, plan, owner)
    if not driven:
        session.say(f"Nothing to take over: nobody else drives {plan.name} or its checkpoint directory")
        return
    for run in dict.fromkeys(run.sentence for _, run in driven):
        session.say(run)
    here = [(host, run) for host, run in driven if not run.is_stamp]
    _refuse_elsewhere([run for _, run in driven if run.run_id not in {known.run_id for _, known in here}])
    names = ", ".join(dict.fromkeys(run.run_id for _, run in driven))
    if not yes:
        question = f"End {names} there, and start {plan.name} from here?"
        must_confirm(session, question, otherwise="nothing has changed")
    _end(ask, owner, plan.name, here)
    _refuse_elsewhere([run for _, run in _driven(session, ask, plan, owner)])
    session.say(f"Ended {names}")


def _refuse_elsewhere(left: Sequence[Driven]) -> None:
    """Raise Refused for a run that continues on hosts that this plan does not have."""
    if left:
        raise Refused(
            f"not ended: {left[0].sentence}",
            hint="end it on its own head node, or name its hosts in the spec; 15 minutes after it was last seen, the "
            "directory counts as free",
        )


def _driven(session: Session, ask: Asker, plan: Plan, owner: Owner) -> list[tuple[HostPlan, Driven]]:
    directory = plan.checkpoint.dir if plan.checkpoint is not None else None
    hosts = {host.connection: host for host in plan.hosts}.values()
    answers = ask.ask([(host, [orders.drivers(directory)]) for host in hosts], timeout_s=TIMEOUT_S)
    unheard = say_problems(session, answers)
    if unheard:
        session.warn(f"it is not known which runs are driven on {', '.join(unheard)}")
    return [
        (answer.host, run)
        for answer in answers
        for reply in answer.replies
        if reply.ok is not None
        for run in conflicts.runs_of_others(
            plan, None, owner, ownership.driven(answer.host.name, reply.ok), is_known=lambda _: True
        )  # an own run is taken up by `orch recover`
    ]


def _end(ask: Asker, owner: Owner, name: str, driven: Sequence[tuple[HostPlan, Driven]]) -> None:
    """Fence off these runs and kill them. Raises Refused if that fails."""
    # Each host gets an epoch above its own: an epoch that another host reports does not count there.
    above = [(host, run, run.epoch + EPOCHS_UNHEARD) for host, run in driven]
    fences = [(host, orders.fence_off(run, epoch)) for host, run, epoch in above]
    kills = [(host, orders.end_anothers(run, owner, epoch)) for host, run, epoch in above]
    nothing = f"nothing of {name} was started"
    # A coordinator whose tasks are killed on one host starts them again where it is not fenced off yet.
    for asked, hint in (
        (fences, f"nothing was ended, and {nothing}; try again once all hosts answer"),
        (kills, nothing),
    ):
        problems = [
            f"{run.run_id} on {host.name}: {problem}"
            for (host, run), answer in zip(driven, ask.ask(asked, timeout_s=TIMEOUT_S), strict=True)
            for problem in _problems(answer)
        ]
        if problems:
            raise Refused(f"could not be ended: {'; '.join(problems)}", hint=hint)


def _problems(answer: Answer[Any]) -> list[str]:
    if answer.unheard is not None:
        return [str(answer.unheard)]
    left = (answer.replies[0].ok or {}).get("left", ())
    return [f"pid {each['pid']}: {each['why']}" for each in left]

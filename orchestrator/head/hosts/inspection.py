"""Inspects the hosts of a plan before anything is started: whether they answer, and can train this script.

It uses the same probe and the same rules as a start. Nothing is pushed to the hosts, and nothing is left there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from orchestrator.core.hosts import compatibility, host_state
from orchestrator.core.plan import Plan
from orchestrator.core.state.host import Facts
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.hosts.preparation import look
from orchestrator.head.links.lease import leased
from orchestrator.head.links.link import LinkDown, OrderRefused, Watch
from orchestrator.head.reach.transport import Transport

_RUN_ID = "inspection-20000101-000000"
"""The id of a run that is never started. Hosts remember nothing of a run before they get its code."""


@dataclass(frozen=True, slots=True)
class Found:
    """A problem, and its host; the host is None where hosts do not fit together."""

    host: str | None
    problem: Problem


def inspect(
    plan: Plan, transports: Mapping[str, Transport], bundle: Callable[[], Bundle]
) -> tuple[Found, ...]:
    """Return everything that would keep `orch up` from starting. It blocks until each host answers or times out."""
    run = new_run(_RUN_ID, plan, epoch=1, at=0.0)

    def one(name: str) -> Facts | Found:
        host = plan.host(name)
        watch = Watch(run.epoch, plan.timing.heartbeat_s, 60.0)
        try:
            with leased(host, transports[host.transport], bundle, run.run_id, watch) as link:
                return look(link, run, name)
        except LinkDown as e:
            return Found(name, Problem("unreachable", f"{name}: {e}", exit_code=4))
        except OrderRefused as e:
            return Found(name, e.problem)

    names = [host.name for host in plan.hosts]
    with ThreadPoolExecutor(
        len(names), thread_name_prefix="inspect"
    ) as looking:  # a host that does not answer is not waited for
        answers = dict(zip(names, looking.map(one, names), strict=True))
    problems = [answer for answer in answers.values() if isinstance(answer, Found)]
    facts = {name: answer for name, answer in answers.items() if isinstance(answer, Facts)}
    return (*problems, *_stuck(facts), *_misfits(run, facts))


def _stuck(facts: Mapping[str, Facts]) -> list[Found]:
    return [
        Found(name, host_state.stuck(name, "; ".join(each.sentence for each in one.unkillable)))
        for name, one in facts.items()
        if one.unkillable
    ]


def _misfits(run: Run, facts: Mapping[str, Facts]) -> list[Found]:
    hosts = [replace(host, facts=facts[host.name]) for host in run.hosts if host.name in facts]
    problem = compatibility.differences(hosts)
    return [] if problem is None else [Found(None, problem)]

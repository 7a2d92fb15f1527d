"""Kills a run, waits for its end, and judges the proof that nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.client.choice import is_active, status_of
from orchestrator.client.environment import Environment
from orchestrator.core.errors import OrchestratorError, Refused, SomeHostsOnly, WaitTimedOut
from orchestrator.core.words import duration
from orchestrator.head.api.client import Client

_POLL_EVERY_S = 0.25

SAY_AGAIN_S = 5.0
"""A message that stays true is repeated this often, with its duration. Silence would look like a hanging command."""


def order(client: Client, run: Mapping[str, Any], *, force: bool, at_checkpoint: bool = False) -> None:
    """Order the kill of an active run, or its end at the next checkpoint."""
    body = {"force": force} | ({"at_checkpoint": True} if at_checkpoint else {})
    client.post(f"/v1/runs/{run['run_id']}/kill", body)


def wait_end(
    client: Client, environment: Environment, chosen: Mapping[str, Any], deadline: float
) -> dict[str, Any]:
    """Wait for the run's end, report what it waits for, and return the ended run. Raises WaitTimedOut."""
    last, since, again_at = "", 0.0, 0.0
    while True:
        began = environment.now()
        run = status_of(client, chosen)
        if not is_active(run):
            return run
        title, phase = run.get("run_id") or run.get("name"), run.get("phase")
        # While it trains until its next checkpoint, the reason contains the step, which is no new reason.
        waits = "trains until its next checkpoint" if phase == "RUNNING" else run.get("reason") or "stopping"
        sentence = f"{title}: {phase}: {waits}"
        if sentence != last:
            if not environment.rewrite(sentence):
                environment.say(sentence)
            last, since, again_at = sentence, began, began + SAY_AGAIN_S
        elif not environment.rewrite(so_far := f"{sentence}, for {duration(began - since)} so far") and (
            began >= again_at
        ):
            environment.say(so_far)
            again_at += SAY_AGAIN_S
        if environment.now() >= deadline:
            raise WaitTimedOut(
                f"{title} is still {phase}: {run.get('reason')}",
                hint="the kill continues; `orch status` shows what it waits for; `orch kill --force` kills at once",
            )
        environment.pause(max(_POLL_EVERY_S, environment.now() - began))


def verdict(runs: Sequence[Mapping[str, Any]]) -> OrchestratorError | None:
    """Return the error for processes that could not be killed or hosts that did not answer; None if there are none."""
    unkillable, unreachable = [], []
    for run in runs:
        proof = run.get("proof") or {}
        for host, seen in (proof.get("hosts") or {}).items():
            unkillable += [f"{host} {left_text(item)}" for item in seen.get("left") or []]
            ports = ", ".join(map(str, seen.get("ports_busy") or []))
            unkillable += [f"{host} ports still in use: {ports}"] if ports else []
        unreachable += list(proof.get("unreachable") or [])
    if unkillable:
        return Refused(
            f"could not be killed: {'; '.join(unkillable)}",
            hint="nothing new is started there; a process in D state waits for a disk or a network file system",
        )
    if unreachable:
        hosts = ", ".join(dict.fromkeys(unreachable))
        return SomeHostsOnly(
            f"could not check {hosts}: no answer",
            hint="the coordinator kills what is left there once it reaches them; `orch status` shows it; "
            "`orch drain HOST --gone` for one that does not come back",
        )
    return None


def left_text(item: object) -> str:
    """Describe a process that could not be killed, such as `pid 4242: uninterruptible sleep`."""
    if isinstance(item, Mapping):
        return f"pid {item.get('pid')}: {item.get('why')}"
    return str(item)

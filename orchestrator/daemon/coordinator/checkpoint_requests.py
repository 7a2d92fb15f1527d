"""What a person asks of a run's checkpoints: asked of the chief's host, where the directory is, of an ended run too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.adapters.head.checkpoint_store import CheckpointStore
from orchestrator.core.errors import HostError, OrchestratorError, UsageError
from orchestrator.core.events import RolledBack
from orchestrator.core.model import Run
from orchestrator.daemon.connection.link import Asks, LinkDown, OrderRefused, Reply

ASK_TIMEOUT_S = 630.0
"""Above what the agent gives the look itself: its sentence says more than ours."""

VERBS = ("list", "read", "pin", "unpin", "rollback")


class Leases(Protocol):
    """Gives a link to a host for the time of a call, of an ended run too."""

    def __call__(self, run: Run, name: str, use: Callable[[Asks], Reply]) -> Reply:
        """Return what `use` returned. LinkDown where the host cannot be reached."""


def ask(run: Run, verb: str, what: str | None, lease: Leases) -> dict[str, Any]:
    """Return the answer of the chief's host. Blocks while it reads the checkpoints."""
    checkpoint = run.plan.checkpoint
    if checkpoint is None:
        raise UsageError(
            f"{run.run_id} has no checkpoint directory",
            hint="give it one: `checkpoint: {dir: …}` in the spec",
        )
    host = run.task(run.chief).host
    order: dict[str, Any] = {"order": "checkpoints", "do": verb, "dir": checkpoint.dir, "what": what}
    order |= {"python": run.plan.host(host).python, "run": run.run_id, "epoch": run.epoch}
    try:
        answer = lease(run, host, lambda link: link.ask(order, timeout_s=ASK_TIMEOUT_S)).ok or {}
    except LinkDown as e:
        raise HostError(host, str(e), hint=f"the checkpoints are on it, in {checkpoint.dir}") from e
    except OrderRefused as e:
        raise _refusal(host, e) from e
    return {"run_id": run.run_id, "host": host, **answer}


def _refusal(host: str, refused: OrderRefused) -> OrchestratorError:
    problem = refused.problem
    if problem.code == "no-such-checkpoint":
        return UsageError(problem.message, hint=problem.hint)
    return HostError(host, problem.message, hint=problem.hint, code=problem.code)


def compare(answer: dict[str, Any], verb: str, store: CheckpointStore) -> None:
    """Where the head carries checkpoints: say which it holds (`pulled`), and go back with the host."""
    if verb == "rollback":
        store.go_back(float(answer["checkpoint"]["saved_at"]))
    for found in answer.get("checkpoints") or []:
        found["pulled"] = store.holds(found["global_step"], float(found["saved_at"]))


def rolled_back(answer: dict[str, Any], *, at: float) -> RolledBack:
    """Return the event that follows from the mark in the directory."""
    found = answer["checkpoint"]
    return RolledBack(
        at=at,
        generation=int(found["generation"]),
        global_step=found["global_step"],
        path=str(found["path"]),
        set_aside=tuple(int(number) for number in answer["set_aside"]),
    )

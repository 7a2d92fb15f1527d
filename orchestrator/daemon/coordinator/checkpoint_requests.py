"""What a person asks of a run's checkpoints: asked of the chief's host, where the directory is, of an ended run too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, get_args

from orchestrator.adapters.head.checkpoint_store import CheckpointStore
from orchestrator.core.errors import HostError, OrchestratorError, UsageError
from orchestrator.core.events import RolledBack
from orchestrator.core.model import Run
from orchestrator.core.phase_states import Phase
from orchestrator.daemon.connection import orders
from orchestrator.daemon.connection.conversation import Answer, Asks, LinkDown, OrderRefused
from orchestrator.protocol.orders import CheckpointsAnswer, CheckpointsDo
from orchestrator.protocol.table import CHECKPOINTS

ASK_TIMEOUT_S = 630.0
"""Above what the agent gives the look itself: its sentence says more than ours."""

VERBS: tuple[str, ...] = get_args(CheckpointsDo)


class Leases(Protocol):
    """Gives a link to a host for the time of a call, of an ended run too."""

    def __call__(
        self, run: Run, name: str, use: Callable[[Asks], Answer[CheckpointsAnswer]]
    ) -> Answer[CheckpointsAnswer]:
        """Return what `use` returned. LinkDown where the host cannot be reached."""


def ask(run: Run, verb: str, what: str | None, lease: Leases) -> dict[str, Any]:
    """Return the answer of the chief's host. Blocks, as long as reading all of them takes."""
    checkpoint = run.plan.checkpoint
    if checkpoint is None:
        raise UsageError(
            f"{run.run_id} has no checkpoint directory",
            hint="give it one: `checkpoint: {dir: …}` in the spec",
        )
    host = run.task(run.chief).host
    order = CHECKPOINTS(
        {
            **orders.of_run(run),
            "do": cast("CheckpointsDo", verb),
            "dir": checkpoint.dir,
            "python": run.plan.host(host).python,
            "what": what,
        }
    )
    try:
        answer = lease(run, host, lambda link: link.ask(order, timeout_s=ASK_TIMEOUT_S)).ok
    except LinkDown as e:
        raise HostError(host, str(e), hint=f"the checkpoints are on it, in {checkpoint.dir}") from e
    except OrderRefused as e:
        raise _refusal(host, e) from e
    _check_whole(host, verb, answer)
    found: dict[str, Any] = {"run_id": run.run_id, "host": host, **answer}
    if "checkpoints" in found:
        for one in found["checkpoints"]:
            _judge_unfinished(run, one)
        found["newest"] = _newest(found["checkpoints"])
    return found


def _judge_unfinished(run: Run, found: dict[str, Any]) -> None:
    """Say of a checkpoint that is not whole, and changes, that a task of the run is writing it, where one may be.

    What changed a moment ago and has no writer any more was left unfinished: that one is broken.
    """
    may_write = run.phase in (Phase.RUNNING, Phase.STOPPING) and found["generation"] == run.generation
    found["writing"] = bool(found.get("writing")) and may_write
    if found["writing"]:
        found["whole"], found["why"] = None, None


def _newest(checkpoints: list[dict[str, Any]]) -> str | None:
    """Return the name of the checkpoint that would be resumed from, whole or broken; None if there is none.

    One that a task is writing is passed over, since no generation starts before its tasks have ended.
    The host cannot choose: whether files that changed a moment ago have a writer is known here only.
    """
    counting = [one for one in checkpoints if not one["set_aside"] and not one["writing"]]
    return str(max(counting, key=_rank)["name"]) if counting else None  # the first of the highest rank


def _rank(found: dict[str, Any]) -> tuple[bool, bool]:
    """Order what scripts resume from by themselves before what may be an export, and that before unknown formats."""
    return found["resumes"], found["proof"] != "names"


def _check_whole(host: str, verb: str, answer: CheckpointsAnswer) -> None:
    """HostError for an answer to another question than this one."""
    wanted = ("dir", "checkpoints") if verb in ("list", "read") else ("checkpoint",)
    if verb == "rollback":
        wanted = (*wanted, "set_aside")
    missing = [name for name in wanted if name not in answer]
    if verb == "rollback" and "checkpoint" in answer and answer["checkpoint"]["generation"] is None:
        missing.append("checkpoint.generation")
    if missing:
        raise HostError(host, f"its answer to `{verb}` lacks {', '.join(missing)}", code="wire")


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
        verified=found.get("proof") != "names",
    )

"""Answers `orch ckpt`, also for an ended run: sends the request to the chief's host, which has the directory."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast, get_args

from orchestrator.both.backup_file import RESCUED
from orchestrator.core.errors import HostError, OrchestratorError, UsageError
from orchestrator.core.events import RolledBack
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import Lends, LinkDown, NoAnswer, OrderRefused
from orchestrator.head.records.checkpoint_store import CheckpointStore
from orchestrator.protocol.orders.base import CheckpointsDo
from orchestrator.protocol.orders.checkpoints import CHECKPOINTS, CheckpointsAnswer

ASK_TIMEOUT_S = 630.0
"""Longer than the agent's own limit, so that its more precise error message arrives first."""

_ByName = dict[str, dict[str, Any]]

VERBS: tuple[str, ...] = get_args(CheckpointsDo)


class Unreached(HostError):
    """The connection is down, or broke before the answer arrived. The host may have carried out the request."""


def ask(run: Run, verb: str, what: str | None, lease: Lends, now: Callable[[], Run]) -> dict[str, Any]:
    """Return the answer of the chief's host. It blocks while the host reads the checkpoints.

    `now` returns the current state of the run, which may end or restart meanwhile.
    """
    host = run.task(run.chief).host
    answer = _answer(run, host, verb, what, lease)
    document: dict[str, Any] = {"run_id": run.run_id, "host": host, **answer}
    if "checkpoints" in document:
        list_again, after = cache(lambda: _listed_again(run, host, lease)), now()
        judged = [_judged(entry, after, list_again) for entry in document["checkpoints"]]
        # What a later run of the name has saved since is not this one's
        last = after.generation_last if after.phase.is_terminal and after.generation_last else None
        document["checkpoints"] = [
            {**entry, "by": _by(entry, after)}
            for entry in judged
            if entry is not None and (last is None or (entry["generation"] or 0) <= last)
        ]
        document["newest"] = _newest(document["checkpoints"])
    return document


def go_back(run: Run, before_step: int, lease: Lends) -> dict[str, Any]:
    """Roll back to the newest intact checkpoint before a step. Raises OrchestratorError if there is none."""
    listed = ask(run, "list", None, lease, lambda: run)
    older = [
        entry
        for entry in listed["checkpoints"]
        if entry["whole"] is not False
        and not (entry["writing"] or entry["set_aside"] or entry["global_step"] is None)
        and entry["global_step"] < before_step
    ]
    problem = f"there is no checkpoint from before step {before_step}"
    for step in sorted({entry["global_step"] for entry in older}, reverse=True):
        try:
            # The step names it: a script that keeps a single file may overwrite it with another step meanwhile.
            return ask(run, "rollback", str(step), lease, lambda: run)
        except OrchestratorError as e:
            if not isinstance(e.__cause__, OrderRefused):
                raise  # the host may have rolled back already, so no older checkpoint is tried
            problem = str(e)
    raise OrchestratorError(problem)


def _answer(run: Run, host: str, verb: str, what: str | None, lease: Lends) -> CheckpointsAnswer:
    checkpoint = run.plan.checkpoint
    if checkpoint is None:
        raise UsageError(
            f"{run.run_id} has no checkpoint directory",
            hint="give it one: `checkpoint: {dir: …}` in the spec",
        )
    order = CHECKPOINTS(
        {
            **orders.run_fields(run),
            "do": cast("CheckpointsDo", verb),
            "dir": checkpoint.dir,
            "python": run.python(host),
            "what": what,
            "group": checkpoint.group,
        }
    )
    try:
        answer = lease(run, host, lambda link: link.ask(order, timeout_s=ASK_TIMEOUT_S)).ok
    except LinkDown as e:
        kind = HostError if isinstance(e, NoAnswer) else Unreached
        raise kind(host, str(e), hint=f"the checkpoints are on it, in {checkpoint.dir}") from e
    except OrderRefused as e:
        raise _refusal(host, e) from e
    # HostError for an answer to another question than this one
    wanted = ("dir", "checkpoints") if verb in ("list", "read") else ("checkpoint",)
    if verb == "rm":
        wanted = ("removed", "bytes")
    if verb == "rollback":
        wanted = (*wanted, "set_aside")
    missing = [name for name in wanted if name not in answer]
    if verb == "rollback" and "checkpoint" in answer and answer["checkpoint"]["generation"] is None:
        missing.append("checkpoint.generation")
    if missing:
        raise HostError(host, f"its answer to `{verb}` lacks {', '.join(missing)}", code="wire")
    return answer


def _listed_again(run: Run, host: str, lease: Lends) -> _ByName:
    """List all checkpoints again without reading them. Return them by name."""
    answer = _answer(run, host, "list", None, lease)
    return {entry["name"]: dict(entry) for entry in answer["checkpoints"]}


def _judged(checkpoint: dict[str, Any], run: Run, list_again: Callable[[], _ByName]) -> dict[str, Any] | None:
    """Decide whether an incomplete checkpoint that has just changed is being written or broken. None: it is gone.

    It is being written if a task may still write it. Else a second listing shows whether its task left it unfinished,
    completed it or removed it.
    """
    if not checkpoint.get("writing"):
        return {**checkpoint, "writing": False}
    if run.phase in (Phase.RUNNING, Phase.STOPPING) and checkpoint["generation"] == run.generation:
        return {**checkpoint, "writing": True, "whole": None, "why": None}
    since = list_again().get(checkpoint["name"])
    # A checkpoint that was completed since then has not been read, so it counts as being written.
    return None if since is None else {**since, "writing": since["whole"] is None}


def _by(checkpoint: dict[str, Any], run: Run) -> Any:
    """Return who has saved a checkpoint: of what a survivor has handed over, the survivor."""
    handed_over = next((p for p in str(checkpoint["path"]).split("/") if p.startswith(RESCUED)), None)
    if handed_over is None or not checkpoint["by"]:
        return checkpoint["by"]
    kind, index, *_ = [*handed_over.removeprefix(RESCUED).split("-"), ""]
    host = next(
        (task.host for task in run.tasks if str(task.id) == f"{kind}:{index}"), "a host that has left"
    )
    return {**checkpoint["by"], "task": f"{kind}:{index}", "host": host}


def _newest(checkpoints: list[dict[str, Any]]) -> str | None:
    """Return the name of the checkpoint from which the run would resume, intact or not; None if there is none.

    One that a task is writing does not count, since a generation starts only after the last one's tasks have ended.
    The host cannot choose, since only the head knows whether recently changed files have a writer.
    """
    counting = [entry for entry in checkpoints if not entry["set_aside"] and not entry["writing"]]
    return str(max(counting, key=_rank)["name"]) if counting else None  # the first one with the highest rank


def _rank(checkpoint: dict[str, Any]) -> tuple[bool, bool]:
    """Rank formats from which scripts resume above possible exports, and both above unverifiable formats."""
    return checkpoint["resumes"], checkpoint["proof"] != "names"


def _refusal(host: str, refused: OrderRefused) -> OrchestratorError:
    problem = refused.problem
    if problem.code == "no-such-checkpoint":
        return UsageError(problem.message, hint=problem.hint)
    return HostError(host, problem.message, hint=problem.hint, code=problem.code)


def compare(answer: dict[str, Any], verb: str, run: Run, store: CheckpointStore) -> None:
    """Mark the checkpoints of which the head has a copy (`pulled`), and roll the copies back with the host."""
    if verb == "rollback":
        store.go_back(answer["checkpoint"], run.generation)
    if verb == "rm":
        store.remove(answer["removed"])
    for checkpoint in answer.get("checkpoints") or []:
        checkpoint["pulled"] = store.holds(checkpoint["global_step"], float(checkpoint["saved_at"]))


def rolled_back(answer: dict[str, Any], *, at: float, why: str = "") -> RolledBack:
    """Return the event for a rollback that the directory records."""
    checkpoint = answer["checkpoint"]
    return RolledBack(
        at=at,
        generation=int(checkpoint["generation"]),
        global_step=checkpoint["global_step"],
        path=str(checkpoint["path"]),
        set_aside=tuple(int(number) for number in answer["set_aside"]),
        verified=checkpoint.get("proof") != "names",
        why=why,
    )

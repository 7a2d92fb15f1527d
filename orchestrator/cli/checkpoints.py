"""What commands ask of the checkpoints of a run, and which of them is its best model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from orchestrator.both.backup_file import is_ours
from orchestrator.cli.session import Session
from orchestrator.client.choice import to_read
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.words import listed

_TIMEOUT_S = 660.0


def ask(
    session: Session, verb: str, name: str | None, what: str | None = None, *, restart: bool = False
) -> dict[str, Any]:
    """Return the coordinator's answer. `name` None: the active run, or else the newest. `what`: which checkpoint."""
    client = session.client()
    path = f"/v1/runs/{to_read(client, name)['run_id']}/checkpoints"
    if verb == "list":
        return client.get(path, timeout_s=_TIMEOUT_S)
    return client.post(f"{path}/{verb}", {"checkpoint": what, "restart": restart}, timeout_s=_TIMEOUT_S)


def saved_as(checkpoint: Mapping[str, Any]) -> tuple[int, str]:
    """Return the generation of a checkpoint, and its path below the generation's directory."""
    generation = int(checkpoint["generation"])
    path = str(checkpoint["path"]).rpartition(f"/gen-{generation:06d}/")[2]
    if checkpoint["kind"] == "npz":  # it is several files, of which the path names one
        path = os.path.dirname(path)
    return generation, path


def best_model(session: Session, name: str | None, patterns: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Return the checkpoint that is the best model of a run, and the run's id. Raises OrchestratorError."""
    answer = ask(session, "list", name)
    usable = [
        entry
        for entry in answer["checkpoints"]
        if entry["generation"] is not None
        and not (entry["set_aside"] or entry.get("writing") or entry["whole"] is False)
        and not is_ours(saved_as(entry)[1])
    ]
    named = [
        entry
        for entry in usable
        if any(fnmatch(os.path.basename(entry["path"]), pattern) for pattern in patterns or ("*best*",))
    ]
    found = named or ([] if patterns else [entry for entry in usable if not entry["resumes"]])
    newest = [entry for entry in found if entry["generation"] == found[0]["generation"]]
    if not patterns and len(newest) > 1 and not named:
        raise OrchestratorError(
            f"which model is the best is not known: {listed([os.path.basename(entry['path']) for entry in newest])}",
            hint="name it: `orch fetch NAME PATTERN --best`",
        )
    if not newest:
        raise OrchestratorError(
            f"{answer['run_id']} has saved no model in its checkpoint directory"
            + (f" that matches {listed(patterns)}" if patterns else " that is called the best"),
            hint="`orch ckpt ls` shows what is there, and `orch ckpt fetch` brings it; `orch fetch` alone brings what "
            "the tasks left in their working directories",
        )
    return max(newest, key=lambda entry: float(entry["saved_at"])), str(answer["run_id"])

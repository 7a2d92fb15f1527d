"""Reads from hosts' answers which runs a coordinator drives there, and whose they are."""

from __future__ import annotations

from datetime import UTC, datetime

from orchestrator.core.state.owner import Driven, Owner
from orchestrator.core.words import duration, listed
from orchestrator.protocol.orders.driving import Claimed, KnownRun, KnownRuns


def driven(host: str, answer: KnownRuns) -> list[Driven]:
    """Return the runs that a host knows, and the run that its checkpoint directory belongs to."""
    runs = [_driven_run(host, known) for known in answer["runs"]]
    stamp = answer.get("checkpoint")
    # A run that was released on this host is not driven any more, although its stamp is still in the directory.
    over = {
        known["run"]
        for known in answer["runs"]
        if known["claim"] is not None and (not known["alive"] and known["watched_ago_s"] is None)
    }
    if stamp is not None and stamp["driven"] and stamp["claim"]["run"] not in over:
        claim = stamp["claim"]
        evidence = f"it was seen there {duration(stamp['ago_s'])} ago"
        runs.append(
            Driven(
                claim["run"],
                claim["name"],
                owner_of(claim),
                _since(claim),
                claim["checkpoint_dir"],
                evidence,
                f"the checkpoint directory, by {stamp['host']}",
                is_stamp=True,
            )
        )
    return runs


def _driven_run(host: str, known: KnownRun) -> Driven:
    claim = known["claim"]
    return Driven(
        run_id=known["run"],
        # A run id is its name, the day and the time.
        name=claim["name"] if claim is not None else known["run"].rsplit("-", 2)[0],
        owner=owner_of(claim) if claim is not None else None,
        since=_since(claim) if claim is not None else "",
        checkpoint_dir=claim["checkpoint_dir"] if claim is not None else None,
        evidence=_evidence(known),
        where=host,
        epoch=known["epoch"],
    )


def _evidence(known: KnownRun) -> str:
    """Return the evidence that the run goes on there; empty if there is none."""
    evidence = []
    if known["alive"]:
        living = [task for task in known["tasks"] if task["alive"]]
        steps = [task["global_step"] for task in living if task.get("global_step") is not None]
        at = f" at step {max(step for step in steps if step is not None)}" if steps else ""
        named = listed([task["task"] for task in living] or [f"pid {pid}" for pid in known["processes"]])
        evidence.append(f"alive there: {named}{at}")
    if known["watched"]:
        evidence.append("its coordinator watches it now")
    elif known["driven"]:
        evidence.append(f"its coordinator was there {duration(known['watched_ago_s'] or 0.0)} ago")
    return ", ".join(evidence)


def owner_of(claim: Claimed) -> Owner:
    """Return the owner in a claim."""
    return Owner(claim["id"], claim["head"], claim["user"])


def _since(claim: Claimed) -> str:
    try:
        return datetime.fromtimestamp(claim["since"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return ""

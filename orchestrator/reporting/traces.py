"""A run as a trace: a span for the run, one in it for each generation, and in these one for each thing it did.

Pure: what goodput knows of a run's time goes in. The ids follow from the run's id, so that another coordinator goes on
with the same trace, and what is told twice is the same span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

from orchestrator.reporting.goodput import Account, Generation

OK, ERROR, UNSET = "ok", "error", "unset"


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """From when to when something was done, in Unix time."""

    name: str
    id: int
    parent: int | None
    begin: float
    end: float
    attributes: Mapping[str, str | int | float]
    status: str = UNSET


def trace_id(run_id: str) -> int:
    """Return the 128 bits of a run's trace; never 0, which is none."""
    return int.from_bytes(sha256(run_id.encode()).digest()[:16], "big") or 1


def span_id(run_id: str, what: str) -> int:
    """Return the 64 bits of a span of it."""
    return int.from_bytes(sha256(f"{run_id}/{what}".encode()).digest()[:8], "big") or 1


def spans(
    run_id: str, name: str, phase: str, account: Account, *, after: int = -1
) -> tuple[int, list[TraceSpan]]:
    """Return the spans of ended generations above `after`, and of the run once it has ended.

    And the number of the last of these generations.
    """
    ended = list(account.generations) if account.is_final else list(account.generations[:-1])
    made: list[TraceSpan] = []
    for one in ended:
        if one.number > after and one.spans:
            made += _of_generation(run_id, name, one, is_last=one is account.generations[-1], phase=phase)
    if account.is_final:
        status = OK if phase == "SUCCEEDED" else ERROR if phase == "FAILED" else UNSET
        about: dict[str, str | int | float] = {
            "orch.run": name,
            "orch.run_id": run_id,
            "orch.phase": phase,
            "orch.generations": max(one.number for one in account.generations),
        }
        if account.value is not None:
            about["orch.goodput"] = round(account.value, 4)
        root = TraceSpan(
            f"run {name}", span_id(run_id, "run"), None, account.begin, account.end, about, status
        )
        made.insert(0, root)
    return max([after, *(one.number for one in ended)]), made


def _of_generation(
    run_id: str, name: str, one: Generation, *, is_last: bool, phase: str
) -> Iterator[TraceSpan]:
    own, root = span_id(run_id, f"gen-{one.number}"), span_id(run_id, "run")
    about: dict[str, str | int | float] = {
        "orch.run": name,
        "orch.run_id": run_id,
        "orch.generation": one.number,
    }
    steps = {
        "orch.resumed_from": one.resumed_from,
        "orch.last_step": one.last_step,
        "orch.kept_to": one.kept_to,
    }
    about |= {key: step for key, step in steps.items() if step is not None}
    failed = (phase == "FAILED") if is_last else one.number > 0
    title = f"generation {one.number}" if one.number else "prepare"
    yield TraceSpan(
        title, own, root, one.spans[0].begin, one.spans[-1].end, about, ERROR if failed else UNSET
    )
    for number, span in enumerate(one.spans):
        part = span_id(run_id, f"gen-{one.number}/{number}")
        yield TraceSpan(span.state, part, own, span.begin, span.end, {"orch.generation": one.number})

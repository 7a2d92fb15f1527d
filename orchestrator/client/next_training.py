"""What `orch up` begins after a run of the same name has ended: nothing, a new training, or more of the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.core.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.client.comparing import Comparison

Wish = Literal["", "again", "continue"]


@dataclass(frozen=True, slots=True)
class Next:
    """What is begun."""

    from_scratch: bool = False
    """From step 0. The checkpoints of the trainings before it are set aside, and kept."""
    said: str = ""
    finished: str = ""
    """Why nothing is begun; else empty."""


def chosen(*, again: bool, go_on: bool) -> Wish:
    """Return what the caller asks for. Raises UsageError where that contradicts itself."""
    if again and go_on:
        raise UsageError(
            "to train once more from step 0 and to go on from the checkpoint are two things",
            hint="use only one of --again (which is --from-scratch) and --continue",
        )
    return "again" if again else "continue" if go_on else ""


def next_training(
    last: Mapping[str, Any] | None, changed: Comparison | None, wish: Wish, *, undone: bool = False
) -> Next:
    """Return what is begun.

    Args:
        last: the status of the newest run of this name; None if there is none.
        changed: what differs from it; None if that is not known.
        wish: what the caller asks for.
        undone: the last run should begin from scratch, and ended before it could.
    """
    if wish == "again":
        return Next(from_scratch=True)
    if last is None or last.get("phase") not in ("SUCCEEDED", "FAILED", "KILLED"):
        return Next()
    run_id = str(last["run_id"])
    saved = (last.get("checkpoint") or {}).get("global_step")
    if last["phase"] != "SUCCEEDED" or wish == "continue":
        undone = undone and wish != "continue"
        where = "begins at step 0" if undone else f"goes on from step {saved}" if saved is not None else ""
        ended = {"SUCCEEDED": "finished", "FAILED": "failed", "KILLED": "was killed"}[last["phase"]]
        return Next(undone, f"{where}: {run_id} {ended} {_where(last)}".rstrip() if where else "")
    ways = "`--again` trains it once more, `--continue` goes on from it"
    finished = f"{run_id} finished {_where(last)}".rstrip()
    if changed is None or changed.is_same:
        known = changed is not None and changed.code is not None
        doubt = "" if known else "; whether its code has changed since is not known"
        return Next(finished=f"{finished}{doubt}; {ways}")
    return Next(
        True, f"a new training, from step 0: {finished}, and since then this has changed: {changed.sentence}"
    )


def _where(run: Mapping[str, Any]) -> str:
    """Return `at step 3760 with val_accuracy 0.995`, as far as known."""
    step = run.get("global_step")
    metric = telling(run.get("metrics") or {})
    at = "" if step is None else f"at step {step}"
    return f"{at} with {metric[0]} {metric[1]:.4g}" if metric is not None and at else at


def telling(metrics: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the metric that says most of a training: of validation before training, and another before the loss."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}

    def rank(name: str) -> tuple[bool, bool]:
        return not name.startswith("val_"), name.removeprefix("val_") in ("loss", "lr", "learning_rate")

    return min(numbers.items(), key=lambda item: rank(item[0]), default=None)

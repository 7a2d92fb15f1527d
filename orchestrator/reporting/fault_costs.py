"""What a fault costs: a property of every run, known before anything fails. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.core.plan import Plan
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import duration


def fault_costs(plan: Plan, no_rescue: str = "", rehearsed: Iterable[str] = ()) -> dict[str, str]:
    """Return the kind (`nothing`, `since-save` or `everything`), and why.

    Args:
        plan: of the run.
        no_rescue: why a survivor could hand over nothing, where the run has said that.
        rehearsed: what each task could hand over, as it has tried (`Progress.rehearsed`).
    """
    saving = plan.checkpoint
    if saving is None:
        return _cost("everything", "nothing is kept: give `checkpoint: {dir: …}` in the spec")
    if plan.no_restore:
        return _cost("everything", plan.no_restore)
    row = STRATEGIES[plan.strategy]
    trains = sum(task.id.type in row.needed for task in plan.tasks)
    hands_over = (plan.options.transparent or plan.rescues) and plan.restart.rescue_s > 0 and row.rescues
    tried = list(rehearsed)
    fails = next((each[4:] for each in tried if each.startswith("no: ")), plan.no_handover)
    if hands_over and trains > 1 and not no_rescue and not fails:
        said = tried[0] if tried and all(tried) else "not rehearsed yet"
        return _cost("nothing", f"a survivor hands over its state (rescue: {said})")
    if not (plan.options.transparent or plan.rescues):
        return _cost("since-save", "the script decides when it saves")
    often = "it saves as often as costs least"
    if saving.every_s is not None:
        often = f"at most {duration(saving.every_s)}"
    elif saving.every_steps is not None:
        often = f"at most {saving.every_steps} steps"
    nothing = f"; a survivor would hand over nothing: {fails}" if fails and hands_over and trains > 1 else ""
    return _cost("since-save", f"{often}{nothing}")


def _cost(kind: str, why: str) -> dict[str, str]:
    return {"kind": kind, "why": why}


_WHAT = {
    "nothing": "nothing",
    "since-save": "what was trained since the last save",
    "everything": "everything since step 0",
}


def sentence(costs: Mapping[str, str]) -> str:
    """Return it for people, such as `a fault costs everything since step 0: train.py saves nothing; add …`."""
    return f"a fault costs {_WHAT[costs['kind']]}: {costs['why']}"

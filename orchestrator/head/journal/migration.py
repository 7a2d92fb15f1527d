"""States of runs as orch 0.1.0 wrote them, in the shape of today. Of journals, and of the records that hosts keep.

0.1.0 had other names for some things, and the fields of all phases beside each other. What is not known here is left as
it is: whether a state can be read is found when it is read.
"""

from __future__ import annotations

import json
from typing import Any

_OF_A_RUN = {"stand_ins": "replacements"}
_OF_A_HOST = {"standing": "state", "standing_why": "state_why"}
_OF_A_BUDGET = {"signature": "failure"}
_INTENTS = {"regroup": "reschedule"}

_OF_A_PHASE = (
    *("intent", "deadline_at", "force_at", "verify_at", "seeding", "seeding_at", "proof", "cut_off_until"),
    *("progress_at", "moved_to", "moved_at", "look_asked_at", "evidence_at"),
)
"""Fields that lay beside the phase, and belong to one."""


def is_of_0_1(state: dict[str, Any]) -> bool:
    """Return whether a state has the shape of 0.1.0."""
    return "phase" in state and "phase_state" not in state


def migrated(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of 0.1.0 in today's shape. KeyError, TypeError, AttributeError where it is none."""
    state = _renamed(state, _OF_A_RUN)
    state["hosts"] = [_renamed(host, _OF_A_HOST) for host in state["hosts"]]
    state["budget"] = _renamed(state.get("budget", {}), _OF_A_BUDGET)
    state["tasks"] = [
        {**task, "budget": _renamed(task.get("budget", {}), _OF_A_BUDGET)} for task in state["tasks"]
    ]
    phase = state.pop("phase")
    beside = {name: state.pop(name, None) for name in _OF_A_PHASE}
    state["phase_state"] = {"phase": phase, **_phase_state(phase, beside, state["since_at"])}
    return state


def _renamed(value: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): part for name, part in value.items()}


def _phase_state(phase: str, beside: dict[str, Any], since_at: float) -> dict[str, Any]:
    deadline_at = beside["deadline_at"]
    match phase:
        case "PENDING":
            return {"deadline_at": deadline_at}
        case "RENDEZVOUS":
            found = {name: beside[name] for name in ("deadline_at", "seeding_at")}
            return {**found, "seeding": beside["seeding"] or ""}
        case "RUNNING":
            # The next coordinator need not know that this one was once cut off: it has not heard any host yet.
            return {
                "progress_at": beside["progress_at"] if beside["progress_at"] is not None else since_at,
                "verify_at": beside["verify_at"],
                "position": beside["moved_to"],
                "position_at": beside["moved_at"],
                "evidence_at": beside["evidence_at"],
            }
        case "STOPPING":
            found = {name: beside[name] for name in ("deadline_at", "force_at", "proof")}
            asked = {"final_verification_asked_at": beside["look_asked_at"]}
            return {**found, **asked, "intent": _INTENTS.get(beside["intent"], beside["intent"])}
        case "BACKOFF":
            return {"start_at": deadline_at}
        case _:
            return {"proof": beside["proof"]}


def migrated_text(text: str) -> str:
    """Return the JSON of a state in today's shape; what is of it already, or is no state at all, as it is."""
    try:
        state = json.loads(text)
        return json.dumps(migrated(state), ensure_ascii=False) if is_of_0_1(state) else text
    except (ValueError, KeyError, TypeError, AttributeError):
        return text

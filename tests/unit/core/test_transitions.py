"""What the table of transitions does not name cannot happen, and what it names does."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest

from orchestrator.core.errors import TransitionNotAllowed
from orchestrator.core.state.phase_states import Intent, Phase, Rendezvous, Stopping
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.transitions import LEADS_TO, TRANSITIONS
from orchestrator.core.turn import Turn
from tests.unit.core.phases import in_phase, state_of
from tests.unit.core.transcript import make_plan

ROOT = Path(__file__).resolve().parents[3]
RUN = new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
IMPOSSIBLE = [pair for pair in itertools.product(Phase, Phase) if pair[1] not in TRANSITIONS[pair[0]]]


def entering(run: Run, phase: Phase) -> Turn:
    turn = Turn(run, 7.0)
    turn.enter(state_of(phase), "because")
    return turn


@pytest.mark.parametrize(("old", "new"), IMPOSSIBLE)
def test_what_the_table_does_not_name_raises_and_changes_nothing(old: Phase, new: Phase) -> None:
    run = in_phase(RUN, old)
    turn = Turn(run, 7.0)
    with pytest.raises(TransitionNotAllowed, match=f"{old.value} -> {new.value} cannot happen"):
        turn.enter(state_of(new), "because", generation=9)
    assert turn.run is run
    assert turn.actions == []


@pytest.mark.parametrize("intent", Intent)
def test_stopping_leads_where_its_intent_says(intent: Intent) -> None:
    run = in_phase(RUN, Phase.STOPPING, intent=intent)
    assert entering(run, LEADS_TO[intent]).run.phase is LEADS_TO[intent]
    for phase in set(TRANSITIONS[Phase.STOPPING]) - {LEADS_TO[intent], Phase.STOPPING}:
        with pytest.raises(TransitionNotAllowed, match=f"the intent {intent.value} leads to"):
            entering(run, phase)


def test_what_belonged_to_a_phase_is_gone_with_it() -> None:
    turn = entering(in_phase(RUN, Phase.RUNNING, verify_at=3.0, evidence_at=4.0), Phase.STOPPING)
    assert turn.run.phase_state == Stopping(intent=Intent.RESTART, deadline_at=60.0)
    assert (turn.run.since_at, turn.run.reason) == (7.0, "because")
    with pytest.raises(TypeError):
        turn.set_phase(verify_at=9.0)
    with pytest.raises(AssertionError, match="is STOPPING, where Rendezvous was expected"):
        turn.run.within(Rendezvous)


def test_a_phase_is_entered_through_the_table_and_nowhere_else() -> None:
    """But where a run begins (`new_run`, `rebuild`) or is ended past the core (`abandon`); `set_phase` stays in one."""
    entered = {
        path.name for path in (ROOT / "orchestrator").rglob("*.py") if "phase_state=" in path.read_text()
    }
    assert entered == {"run.py", "turn.py", "rebuild.py", "abandon.py", "decision.py"}, "the last compares"


def test_every_transition_of_the_table_happens_in_a_transcript() -> None:
    """An edge that nothing takes would be a hole in the table."""
    shown = set()
    for path in sorted(Path(__file__).parent.glob("scenarios/*.txt")):
        shown |= set(re.findall(r"^  ([A-Z]+) -> ([A-Z]+)$", path.read_text(encoding="utf-8"), re.MULTILINE))
    edges = {
        (old.value, new.value) for old, allowed in TRANSITIONS.items() for new in allowed if old is not new
    }
    assert edges - shown == set()


def diagram() -> str:
    """Return the table as a mermaid diagram and a list of its edges, for `docs/phases.md`."""
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f"    [*] --> {phase.value}" for phase in (Phase.QUEUED, Phase.PENDING)]
    lines += [f"    {old.value} --> {new.value}" for old, allowed in TRANSITIONS.items() for new in allowed]
    lines += [f"    {phase.value} --> [*]" for phase in Phase if phase.is_terminal]
    lines += ["```", "", "| from | to | what has happened |", "|---|---|---|"]
    for old, allowed in TRANSITIONS.items():
        lines += [f"| {old.value} | {new.value} | {what} |" for new, what in allowed.items()]
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_table_as_it_is() -> None:
    """ORCH_REWRITE=1 writes it anew."""
    page = ROOT / "docs" / "phases.md"
    told, mark, _ = page.read_text(encoding="utf-8").partition("<!-- from core/transitions.py -->\n")
    if os.environ.get("ORCH_REWRITE"):
        page.write_text(told + mark + diagram(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == told + mark + diagram()

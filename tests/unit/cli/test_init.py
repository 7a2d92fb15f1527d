"""`orch init`: what is wrong with its arguments is said before any host is asked; what it says of a script's trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.script_trial import _proved
from tests.unit.cli.desk import Desk


def test_a_name_that_no_run_can_have_is_refused_before_any_host_is_asked(
    orch: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert orch("init", "gpu-a", "--name", "My_run") == 2
    assert "'My_run' is no name for a run" in orch.said
    assert "such as my-run" in orch.said
    assert "examining" not in orch.said


AGAIN = {"kind": "resumed", "data": {"global_step": 10, "steps_lost": 3}}
ANEW = {"kind": "from-start", "data": {}}


@pytest.mark.parametrize(
    ("seen", "events", "said"),
    [
        (
            {"generation": 2, "phase": "RUNNING"},
            [ANEW, AGAIN],
            "proved: it was killed, and went on from step 10, 3 steps of it trained again",
        ),
        ({"generation": 2, "phase": "RUNNING"}, [ANEW, ANEW], "no: it was killed, and began anew at step 0"),
        (
            {"generation": 2, "phase": "FAILED", "reason": "resume-mismatch"},
            [ANEW, AGAIN],
            "no: it was killed, and ended: resume-mismatch",
        ),
        (
            {"generation": 1, "phase": "SUCCEEDED", "global_step": 8},
            [ANEW],
            "not proved: t.py ended by itself by step 8",
        ),
        (
            {"generation": 1, "phase": "RUNNING", "global_step": 900},
            [ANEW],
            "not proved: t.py had saved nothing by step 900",
        ),
        ({"generation": 1, "phase": "RUNNING"}, [ANEW], "not proved: t.py has told of no step"),
    ],
)
def test_what_the_trial_proves(seen: dict[str, Any], events: list[dict[str, Any]], said: str) -> None:
    assert _proved("t.py", seen, events) == said

"""What is left of runs that the journal does not have is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.head.node.paths import Paths
from orchestrator.head.records import plan_copies


@pytest.mark.fault(81)
def test_a_journal_without_any_run_beside_files_of_runs_was_removed(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path / "state"), str(tmp_path / "run"))
    assert plan_copies.missing(paths, ()) == []
    (tmp_path / "state/runs/t-20261126-235924").mkdir(parents=True)
    (said,) = plan_copies.missing(paths, ())
    assert "the journal has no run, and 1 run left files" in said
    assert "t-20261126-235924" in said
    assert "Put it back from a copy" in said, "the way out"
    assert plan_copies.missing(paths, {"u-20261127-000000"}) == []

"""The table of `make trajectory`: what is compared, when a worker is killed, and what the page says."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.trajectory import __main__ as trajectory


def test_each_script_says_what_it_trains() -> None:
    known = trajectory.scripts()
    assert len(known) > 20
    assert all(said.endswith(".") for said in known.values()), known
    assert set(trajectory.VALIDATED) | set(trajectory.LAST_STEP) <= set(known)


def test_where_two_ends_differ_is_named() -> None:
    one: dict[str, Any] = {"weights": [1, 2], "history": {"loss": [0.5]}, "table": ["0,1"]}
    assert trajectory.differences(one, json.loads(json.dumps(one))) == []
    other = {"weights": [1, 3], "history": {"loss": [0.5, 0.4]}}
    assert trajectory.differences(one, other) == ["history.loss", "table", "weights.1"]
    assert trajectory.differences({"loss": [0.5]}, {"loss": [0.4]}) == ["loss.0 by 2e-01"]


@pytest.mark.parametrize("moment", trajectory.MOMENTS)
def test_a_worker_is_killed_at_a_moment_that_comes(moment: str) -> None:
    kills = [trajectory.kill_of("repeated", moment, random.Random(seed)) for seed in range(20)]
    for kill in kills:
        assert 0 <= kill["step"] <= trajectory.LAST_STEP["repeated"]
        assert kill["moment"] in ("compile", "step", "validation", "epoch end")
    if moment == "save":
        assert {(kill["rank"], kill["step"]) for kill in kills} == {(0, trajectory.EVERY_STEPS)}
    else:
        assert {kill["rank"] for kill in kills} == {0, 1}


def test_the_page_has_the_newest_row_of_each(tmp_path: Path) -> None:
    row = {"script": "gan", "moment": "step", "end": "differs", "said": "rescued at 7", "replicas": 1}
    row |= {"seed": 1, "commit": "abc", "date": "2026-11-28", "differing": ["rate"]}
    rows = [row, row | {"script": "arrays"}, row | {"end": "equal", "differing": [], "commit": "def"}]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    page = trajectory.page(table)
    assert "\n1 equal, 0 equal but for figures, 1 differs, 0 refused before.\n" in page
    listed = [line for line in page.splitlines() if line.startswith("| `")]
    assert [line.split("`")[1] for line in listed] == ["arrays", "gan"]
    assert "| differs: rate | abc |" in listed[0]
    figures = row | {"differing": ["history.loss.1 by 2e-01", "table.2"]}
    table.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    assert "| equal but for figures: history.loss.1 by 2e-01, table.2 | abc |" in trajectory.page(table)
    assert "| equal | def |" in listed[1]

"""Values with some fields changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.core.replacing import replace
from orchestrator.core.state.phase_states import Pending
from orchestrator.core.state.run import Run
from tests.unit.core.test_work import training


def the_run() -> Run:
    return training(4)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (the_run(), {"best_step": 9, "reason": "why"}),
        (the_run().tasks[0], {"pid": 4, "port": None}),
        (the_run().hosts[0], {}),
        (Pending(), {"deadline_at": 4.0}),
    ],
    ids=["run", "task", "host", "fields by keyword"],
)
def test_it_is_what_dataclasses_make_of_it(value: Any, changes: dict[str, Any]) -> None:
    assert replace(value, **changes) == dataclasses.replace(value, **changes)


@pytest.mark.parametrize("value", [the_run(), Pending()], ids=["by place", "by keyword"])
def test_a_field_that_is_not_there_is_refused(value: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        replace(value, no_such_field=1)

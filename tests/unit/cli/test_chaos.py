"""`orch chaos`: what a fault has cost, as the events of the run say it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import RUN, Desk


def trains(generation: int, step: int) -> dict[str, Any]:
    """Return the changes of a run's document that trains in this generation."""
    known = run_document()
    tasks = [{**task, "generation": generation, "phase": "RUNNING"} for task in known["tasks"]]
    hosts = [{**host, "link": "CONNECTED", "heard_age_s": 0.0} for host in known["hosts"]]
    seed = {"global_step": step - 10, "source": "ckpt"}
    return {
        "phase": "RUNNING",
        "generation": generation,
        "global_step": step,
        "seed": seed,
        "tasks": tasks,
        "hosts": hosts,
    }


def event(seq: int, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "run": RUN, "kind": kind, "message": kind, "data": data}


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ([], 0),  # only a task that is restarted individually
        ([17], 17),  # training went on for 7 steps after the step that was last reported, 100
        ([17, 5], 22),  # it failed again on its way
        ([17, None], None),  # of a checkpoint that tells no step
    ],
)
def test_the_steps_lost_are_those_of_every_restart_since_the_fault(
    orch: Desk, api: FakeApi, lost: list[int | None], said: int | None
) -> None:
    api.runs.append({**run_document(), **trains(1, 100)})
    api.events.append(event(1, "resumed", steps_lost=1000))  # long before
    seen: list[None] = []

    def advance() -> None:
        seen.append(None)
        if len(seen) == 4:
            api.events += [event(2, "task-exited"), event(2, "rescued", global_step=100)]
            api.events.extend(event(3 + i, "resumed", steps_lost=steps) for i, steps in enumerate(lost))
        if len(seen) > 20:
            api.runs[-1].update(trains(1 + len(lost) if lost else 2, 100))

    api.on_status = advance
    assert orch("chaos", "--kill", "worker:1", "--json") == 0
    (row,) = json.loads(orch.put_out)["faults"]
    assert (row["recovered"], row["lost"], row["done"]) == (True, said, "task-exited; rescued")

"""What hosts tell of who drives what, in words."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.core.state.owner import Owner
from orchestrator.head.links.ownership import driven
from orchestrator.protocol.orders.records import Claimed, KnownRun
from tests.protocol_values import valid

RUN = "my-run-20260101-000000"

CLAIM: Claimed = {
    "id": "2" * 32,
    "head": "head-2",
    "user": "ana",
    "run": RUN,
    "name": "my-run",
    "checkpoint_dir": "/shared/t",
    "since": 1.7e9,
}


def known(**changes: Any) -> KnownRun:
    quiet = {
        "watched": False,
        "watched_ago_s": 30.0,
        "driven": False,
        "alive": False,
        "processes": [],
        "tasks": [],
    }
    return cast("KnownRun", {**valid(KnownRun), "run": RUN, "claim": CLAIM, **quiet, **changes})


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({}, ""),
        ({"watched_ago_s": None}, ""),
        ({"driven": True}, "its coordinator was there 30 s ago"),
        ({"watched": True, "driven": True}, "its coordinator watches it now"),
        ({"alive": True, "processes": [7, 8]}, "alive there: pid 7, pid 8"),
        (
            {"alive": True, "tasks": [{"task": "worker:0", "alive": True, "global_step": 120}]},
            "alive there: worker:0 at step 120",
        ),
    ],
)
def test_what_shows_that_a_run_goes_on(changes: dict[str, Any], evidence: str) -> None:
    (one,) = driven("gpu-a", {"runs": [known(**changes)]})
    assert (one.evidence, one.where, one.name) == (evidence, "gpu-a", "my-run")
    assert (one.owner, one.since) == (Owner("2" * 32, "head-2", "ana"), "2023-11-14 22:13:20 UTC")


def test_of_a_run_that_an_older_orch_began_the_name_is_known_by_its_id() -> None:
    (one,) = driven("gpu-a", {"runs": [known(claim=None, alive=True, processes=[7])]})
    assert (one.owner, one.name, one.checkpoint_dir) == (None, "my-run", None)
    assert one.sentence == f"gpu-a: {RUN} is driven by an unknown owner: alive there: pid 7"


def test_the_directory_tells_of_runs_on_hosts_that_say_nothing() -> None:
    stamp: Any = {"claim": CLAIM, "host": "gpu-z", "ago_s": 40.0, "driven": True}
    stale: Any = {**stamp, "driven": False}
    (one,) = driven("gpu-a", {"runs": [], "checkpoint": stamp})
    assert one.is_stamp
    assert one.sentence.startswith(
        f"the checkpoint directory, by gpu-z: {RUN} is driven by ana@head-2 since "
    )
    assert "it was seen there 40 s ago" in one.sentence
    assert driven("gpu-a", {"runs": [], "checkpoint": stale}) == []
    over = known(watched_ago_s=None)
    assert [one.evidence for one in driven("gpu-a", {"runs": [over], "checkpoint": stamp})] == [""]

"""Trials that commands such as `orch prove` begin, and end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cli.trials import to_its_end
from orchestrator.core.errors import WaitTimedOut
from tests.contract.fake_api import FakeApi
from tests.unit.cli.desk import Desk
from tests.unit.core.transcript import make_plan


def test_a_trial_that_takes_too_long_is_ended_by_its_id(orch: Desk, api: FakeApi) -> None:
    plan = make_plan(["a"], checkpoint=False)
    plan = replace(plan, hosts=tuple(replace(host, transport="local") for host in plan.hosts))
    with pytest.raises(WaitTimedOut) as raised:
        to_its_end(orch, plan, {}, "", doing="proven", timeout_s=1.0)
    assert api.posted[1:] == [("/v1/runs/t-20261120-1/kill", {"force": False})]
    assert orch.said.endswith("Stopped; t is being ended\n")
    assert raised.value.hint == "--timeout lets it train for longer; `orch status t` shows its end"

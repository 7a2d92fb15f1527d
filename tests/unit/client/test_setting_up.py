"""What `orch setup` says of hosts that have no environment afterwards."""

from __future__ import annotations

import pytest

from orchestrator.client.setting_up import document, refuse
from orchestrator.core.errors import OrchestratorError, SomeHostsOnly
from orchestrator.core.state.run import Problem
from orchestrator.head.hosts.environments import SetUp

MADE = SetUp("a", "~/e/bin/python", "made", "3.11.2", "uv", 1.5)


def failed(host: str, problem: Problem) -> SetUp:
    return SetUp(host, "~/e/bin/python", "failed", problem=problem)


def test_each_host_that_failed_is_said_with_the_way_out_and_an_exit_code_of_its_own() -> None:
    refuse([MADE], "c.yaml")
    no_pip = failed("b", Problem("no-ensurepip", "b: it has neither pip nor ensurepip", "apt install"))
    with pytest.raises(SomeHostsOnly, match="b: it has neither pip nor ensurepip") as some:
        refuse([MADE, no_pip], "c.yaml")
    assert some.value.hint == "apt install; 1 host is set up: `orch setup c.yaml` again does the rest"
    with pytest.raises(OrchestratorError) as keys:
        refuse([failed("b", Problem("auth", "b: refuses our keys", exit_code=5))], "c.yaml")
    assert (keys.value.exit_code, keys.value.hint) == (5, None)
    assert (document(no_pip)["id"], document(MADE)["id"]) == ("setup.no-ensurepip", None)

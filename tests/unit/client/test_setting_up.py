"""What `orch setup` says of hosts that have no environment afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client.environment import Environment
from orchestrator.client.setting_up import _used, document, refuse
from orchestrator.core.errors import OrchestratorError, SomeHostsOnly
from orchestrator.core.events import KillRequested
from orchestrator.core.plan import ENVIRONMENTS
from orchestrator.core.state.run import Problem, new_run
from orchestrator.head.hosts.environments import SetUp
from tests.unit.core.transcript import make_plan
from tests.unit.head.recording import RUN, Head

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


@pytest.mark.parametrize(("is_over", "expected"), [(False, ["abc123"]), (True, [])])
def test_the_environments_of_runs_that_have_not_ended_are_in_use(
    tmp_path: Path, is_over: bool, expected: list[str]
) -> None:
    environment = Environment({"ORCH_STATE_DIR": str(tmp_path / "state")})
    environment.paths.ensure()
    plan = make_plan(["a", "b"], checkpoint=False)
    pythons = (f"{ENVIRONMENTS}/abc123/bin/python", "/usr/bin/python3")
    hosts = tuple(replace(host, python=python) for host, python in zip(plan.hosts, pythons, strict=True))
    head = Head(Path(environment.paths.journal))
    head.loop.submit(new_run(RUN, replace(plan, hosts=hosts), epoch=1, at=head.now))
    if is_over:
        head.tell(KillRequested(head.now, force=True))
        assert head.run.phase.is_terminal
    head.end()
    assert list(_used(environment)) == expected

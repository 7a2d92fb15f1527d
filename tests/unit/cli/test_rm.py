"""`orch rm`: a run is kept for a silent host that may have something of it, and for no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cli.commands import rm
from orchestrator.core.errors import ConnectFailed
from orchestrator.core.events import Ticked
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.journal.journal import Journal
from orchestrator.head.links.query import Asker
from tests.contract.fake_agent import BUNDLE, FakeHosts, always
from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import Desk
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> FakeHosts:
    """Hosts that answer, and have nothing of any run."""
    made = FakeHosts("a", "b", "s", "z")
    for agent in made.agents.values():
        agent.answers["runs"] = always({"runs": []})
    monkeypatch.setattr(rm, "asker", lambda _session: Asker({"fake": made.transport}, lambda: BUNDLE))
    return made


def ended(hosts: FakeHosts) -> Run:
    """Return a run that has trained on a and b, with the spare s. Its file names z too."""
    named = tuple(replace(host, spare=host.name == "s") for host in hosts.plans.values())
    plan = replace(make_plan(["a", "b"], checkpoint=False), hosts=named)
    return in_phase(replace(new_run(RUN, plan, epoch=1, at=0.0), generation=1), Phase.KILLED)


@pytest.mark.parametrize(
    ("silent", "gone", "boot_id", "is_kept"),
    [
        pytest.param("z", "", None, False, id="it was never there"),
        pytest.param("b", "", "boot-1", True, id="it had a task there"),
        pytest.param("b", "2026-11-20", "boot-1", False, id="a person said that the host is gone"),
        pytest.param("s", "", None, False, id="a spare that was never reached"),
        pytest.param("s", "", "boot-1", True, id="a spare that has its code"),
    ],
)
def test_a_run_is_kept_for_a_silent_host_only_if_it_was_there(
    orch: Desk, api: FakeApi, hosts: FakeHosts, silent: str, gone: str, boot_id: str | None, is_kept: bool
) -> None:
    run = ended(hosts)
    if silent != "z":
        run = run.with_host(replace(run.host(silent), gone=gone, boot_id=boot_id))
    journal = Journal(orch.paths.journal)
    journal.commit(run, Ticked(1.0), [])
    journal.close()
    api.runs.append(run_document(name="t", run_id=RUN, phase="KILLED"))
    hosts.transport.refuse(hosts.plans[silent], ConnectFailed(silent, "no route to host"))
    assert orch("rm", RUN, "--yes") == (4 if is_kept else 0)
    assert api.posted == ([] if is_kept else [(f"/v1/runs/{RUN}/forget", {})])
    assert (f"{RUN} is kept: {silent} did not answer" in orch.said) is is_kept

"""`orch drain` and `undrain`."""

from __future__ import annotations

import pytest

from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import RUN, Desk


def _stands(api: FakeApi, **changes: object) -> None:
    answer = {"host": "gpu-b", "state": "drained", "reason": "by the user", "tasks": ["worker:1"]}
    api.standing = {**answer, "checkpoints": True, **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            ": worker:1 will leave it at the next verified checkpoint; `orch drain gpu-b --now` does not wait",
        ),
        (
            {"checkpoints": False},
            ": worker:1 will leave it at the next restart; `orch drain gpu-b --now` does not wait",
        ),
        ({"tasks": []}, ": it is given no task"),
    ],
)
def test_drain_says_what_follows(orch: Desk, api: FakeApi, changes: dict[str, object], said: str) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api, **changes)
    assert orch("drain", "gpu-b") == 0
    assert orch.put_out == f"gpu-b is drained for {RUN}{said}\n"
    assert api.posted == [(f"/v1/runs/{RUN}/drain", {"host": "gpu-b"})]


def test_drain_at_once_and_undrain(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api)
    assert orch("drain", "gpu-b", "--now", "--name", "mnist") == 0
    assert orch.put_out == f"gpu-b is drained for {RUN}: its tasks are being stopped\n"
    assert orch("undrain", "gpu-b", "--json") == 0
    assert api.posted == [
        (f"/v1/runs/{RUN}/drain", {"host": "gpu-b", "now": True}),
        (f"/v1/runs/{RUN}/undrain", {"host": "gpu-b"}),
    ]


@pytest.mark.parametrize(
    ("argv", "runs", "said"),
    [
        (("gpu-x",), 1, "error: no active run has a host 'gpu-x'\nhint: their hosts: gpu-a, gpu-b\n"),
        (("gpu-b",), 0, "error: no run is active; there is nothing to drain\n"),
        (
            ("gpu-b",),
            2,
            "error: 2 active runs have the host gpu-b: mnist, big\n"
            "hint: say of which: `orch drain gpu-b --name mnist`\n",
        ),
        (("gpu-b", "--name", "mnits"), 1, "error: no run is named 'mnits'\nhint: did you mean 'mnist'?\n"),
    ],
)
def test_drain_of_what_is_not(orch: Desk, api: FakeApi, argv: tuple[str, ...], runs: int, said: str) -> None:
    hosts = [{"host": "gpu-a"}, {"host": "gpu-b"}]
    both = [run_document(hosts=hosts), run_document(name="big", run_id="big-20261120-1", hosts=hosts)]
    api.runs += both[:runs]
    assert orch("drain", *argv) == (1 if runs == 0 else 2)
    assert orch.said == said
    assert api.posted == []

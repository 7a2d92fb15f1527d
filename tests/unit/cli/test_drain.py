"""`orch drain` and `undrain`."""

from __future__ import annotations

import pytest

from orchestrator.cli.commands.drain import answer
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
            "; worker:1 will move at the next checkpoint; --now does not wait for it",
        ),
        (
            {"checkpoints": False},
            "; worker:1 will move at the next restart; --now does not wait for it",
        ),
        ({"tasks": []}, "; it has no tasks"),
    ],
)
def test_drain_says_what_follows(orch: Desk, api: FakeApi, changes: dict[str, object], said: str) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api, **changes)
    assert orch("drain", "mnist", "gpu-b") == 0
    assert orch.put_out == f"gpu-b is drained for {RUN}{said}\n"
    assert api.posted == [(f"/v1/runs/{RUN}/drain", {"host": "gpu-b"})]


def test_drain_of_no_named_run_is_for_all_runs_and_for_those_to_come() -> None:
    one = {"host": "gpu-b", "state": "drained", "run_id": "t-1", "tasks": ["worker:1"], "checkpoints": True}
    document = {"host": "gpu-b", "state": "drained", "runs": [one, {**one, "run_id": "u-1", "tasks": []}]}
    assert answer(document, now=True).splitlines() == [
        "gpu-b is drained for t-1; stopping worker:1",
        "gpu-b is drained for u-1; it has no tasks",
    ]


def test_drain_at_once_and_undrain(orch: Desk, api: FakeApi) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api)
    assert orch("drain", "mnist", "gpu-b", "--now") == 0
    assert orch.put_out == f"gpu-b is drained for {RUN}; stopping worker:1\n"
    assert orch("undrain", "mnist", "gpu-b", "--json") == 0
    assert orch("undrain", "gpu-b", "--name", "mnist") == 0, "as before NAME was the first argument"
    assert api.posted == [
        (f"/v1/runs/{RUN}/drain", {"host": "gpu-b", "now": True}),
        (f"/v1/runs/{RUN}/undrain", {"host": "gpu-b"}),
        (f"/v1/runs/{RUN}/undrain", {"host": "gpu-b"}),
    ]


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("ready", None, "ready for {}; it can take tasks"),
        ("spare", "", "spare for {}; it can take tasks"),
        ("spare", "its disk is full", "spare for {}: its disk is full"),
        ("stuck", "pid 7 cannot be killed", "stuck for {}: pid 7 cannot be killed"),
        ("unreachable", None, "unreachable for {}"),
    ],
)
def test_undrain_says_whether_the_host_can_take_tasks(
    orch: Desk, api: FakeApi, state: str, reason: str | None, said: str
) -> None:
    api.runs.append(run_document(hosts=[{"host": "gpu-a"}, {"host": "gpu-b"}]))
    _stands(api, state=state, reason=reason)
    assert orch("undrain", "mnist", "gpu-b") == 0
    assert orch.put_out == f"gpu-b is {said.format(RUN)}\n"


@pytest.mark.parametrize(
    ("argv", "runs", "said"),
    [
        (("mnits", "gpu-b"), 1, "error: no run is named 'mnits'\nhint: did you mean 'mnist'?\n"),
        (
            ("mnist", "gpu-a", "gpu-b"),
            1,
            "error: unexpected argument 'gpu-a'\nhint: `orch drain --help` shows its arguments and options\n",
        ),
    ],
)
def test_drain_of_what_is_not(orch: Desk, api: FakeApi, argv: tuple[str, ...], runs: int, said: str) -> None:
    hosts = [{"host": "gpu-a"}, {"host": "gpu-b"}]
    both = [run_document(hosts=hosts), run_document(name="big", run_id="big-20261120-1", hosts=hosts)]
    api.runs += both[:runs]
    assert orch("drain", *argv) == (1 if runs == 0 else 2)
    assert orch.said == said
    assert api.posted == []


def test_a_host_that_is_gone_is_told_to_every_run_that_waits_for_it(orch: Desk, api: FakeApi) -> None:
    hosts = [{"host": "gpu-a"}, {"host": "gpu-b"}]
    ended = {"phase": "KILLED", "hosts": hosts}
    api.runs += [
        run_document(name="old", run_id="old-1", **ended, proof={"unreachable": ["gpu-b"]}),
        run_document(name="done", run_id="done-1", **ended, proof={"unreachable": []}),
        run_document(hosts=hosts),
    ]
    _stands(api, reason="gone for good, as the user said at 09:30")
    assert orch("drain", "gpu-b", "--gone") == 0
    body = {"host": "gpu-b", "gone": True}
    assert api.posted == [("/v1/runs/old-1/drain", body), (f"/v1/runs/{RUN}/drain", body)]
    assert "gpu-b is gone for good, as the user said at 09:30, for" in orch.put_out
    assert orch("drain", "done", "gpu-b", "--gone") == 0
    assert api.posted[-1][0] == "/v1/runs/done-1/drain", "the coordinator knows better, and says so"
    assert orch("drain", "gpu-z", "--gone") == 2
    assert "no run waits for gpu-z" in orch.said

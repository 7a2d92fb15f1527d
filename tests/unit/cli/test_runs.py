"""`orch runs`: the experiments of a name, newest first, sorted and chosen by their metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.fake_api import FakeApi, run_document
from tests.unit.cli.desk import Desk


def experiment(number: int, **changes: Any) -> dict[str, Any]:
    given = {"run_id": f"mnist-20261120-{number}", "phase": "SUCCEEDED", "global_step": 100 * number}
    return run_document(**{**given, "started_at": 1000.0 * number, "steps_total": 900, **changes})


@pytest.fixture
def three(api: FakeApi) -> FakeApi:
    api.runs += [
        experiment(1, metrics={"loss": 0.5, "val_accuracy": 0.90, "measured/step_s": 1.0}),
        experiment(2, metrics={"loss": 0.1, "val_accuracy": 0.99}),
        experiment(3, phase="FAILED", metrics={"loss": 0.3}),
        run_document(name="other", run_id="other-20261120-1"),
    ]
    return api


def ids(orch: Desk, *argv: str) -> list[str]:
    orch.stdout.truncate(0)
    orch.stdout.seek(0)
    assert orch("runs", *argv, "--json") == 0
    return [str(run["run_id"])[-1] for run in json.loads(orch.put_out)["runs"]]


def test_a_row_for_each_run_newest_first(orch: Desk, three: FakeApi) -> None:
    assert orch("runs", "mnist") == 0
    assert orch.put_out.splitlines() == [
        "RUN               BEGAN                    PHASE            STEP  loss  val_accuracy",
        "mnist-20261120-3  1970-01-01 00:50:00 UTC  FAILED     300 of 900   0.3             -",
        "mnist-20261120-2  1970-01-01 00:33:20 UTC  SUCCEEDED         200   0.1          0.99",
        "mnist-20261120-1  1970-01-01 00:16:40 UTC  SUCCEEDED         100   0.5           0.9",
    ]


def test_all_names_and_one_run(orch: Desk, three: FakeApi) -> None:
    assert len(ids(orch)) == 4
    assert ids(orch, "mnist-20261120-2") == ["2"]


def test_the_best_first_a_loss_from_below_and_those_without_last(orch: Desk, three: FakeApi) -> None:
    assert ids(orch, "mnist", "--sort", "loss") == ["2", "3", "1"]
    assert ids(orch, "mnist", "--sort", "val_accuracy") == ["2", "1", "3"]
    assert ids(orch, "mnist", "--sort", "step") == ["3", "2", "1"]


def test_only_those_that_hold(orch: Desk, three: FakeApi) -> None:
    assert ids(orch, "mnist", "--where", "val_accuracy>0.95") == ["2"]
    assert ids(orch, "mnist", "--where", "loss<=0.3", "--where", "step < 300") == ["2"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["mnits"], "hint: did you mean 'mnist'?"),
        (["--where", "loss"], "hint: for example --where 'val_accuracy>0.9'"),
        (["--where", "loss<low"], "is no comparison"),
        (["--sort", "accuracy"], "hint: there are loss, val_accuracy"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    orch: Desk, three: FakeApi, argv: list[str], said: str
) -> None:
    assert orch("runs", *argv) == 2
    assert said in orch.said

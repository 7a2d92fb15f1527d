"""Servers of parameter server runs, with a `tensorflow` that is a small file of the test's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.launching.environment import strategy_options
from orchestrator.core.strategy import STRATEGIES, Strategy
from orchestrator.task import options
from orchestrator.task.link import Link
from orchestrator.task.strategies import part, server
from tests.patience import patient
from tests.unit.task.runtime_task import Task

Start = Callable[..., Task]
ROW = STRATEGIES["parameter_server"]
SERVED = json.dumps(strategy_options(ROW) | {"serve": True})

TENSORFLOW = """
import json, os, types
__version__ = "9.9"

class Spec:
    jobs = ["worker", "ps"]
    def num_tasks(self, job): return 500
    def task_address(self, kind, index): return "10.0.0.1:20001"

class Resolver:
    def __init__(self):
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        self.task_type, self.task_id, self.rpc_layer = task["type"], task["index"], None
    def cluster_spec(self): return Spec()

def Server(cluster, job_name, task_index, protocol, config, start):
    if os.environ.get("TAKEN"):
        raise RuntimeError("Could not start gRPC server")
    print(job_name, task_index, protocol, config.inter_op_parallelism_threads, start, flush=True)
    return object()

distribute = types.SimpleNamespace(
    Server=Server, cluster_resolver=types.SimpleNamespace(TFConfigClusterResolver=Resolver))
compat = types.SimpleNamespace(v1=types.SimpleNamespace(ConfigProto=types.SimpleNamespace))
"""

SCRIPT = "print('the script runs')\n"


def released(task: Start, tmp_path: Path, name: str, **env: str) -> Task:
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    run = task(SCRIPT, env={"ORCH_RUNTIME": SERVED, "ORCH_TASK": name, **env})
    kind, _, index = name.partition(":")
    # It is imported before the release, although the script does not name it.
    assert run.until("ready")["ready"]["versions"]["tensorflow"] == ("9.9" if kind in ROW.served else None)
    run.order(go={"env": {"TF_CONFIG": json.dumps({"task": {"type": kind, "index": int(index)}})}})
    return run


@pytest.mark.parametrize("name", ["worker:3", "ps:1"])
def test_a_server_serves_until_it_is_stopped_and_ends_then_at_once(
    task: Start, tmp_path: Path, name: str
) -> None:
    run = released(task, tmp_path, name)
    assert run.until("say")["say"] == {
        "kind": "serving",
        "message": f"{name} is served at 10.0.0.1:20001; the chief runs the script",
    }
    began = time.monotonic()
    run.order(stop={"grace_s": 30})
    assert run.ended() == 143
    assert time.monotonic() - began < patient(
        1.5
    )  # not the two seconds after which a stuck main thread is given up
    assert run.out.split() == [*name.split(":"), "grpc", "501", "True"]


def test_a_server_ends_with_its_shim(task: Start, tmp_path: Path) -> None:
    run = released(task, tmp_path, "worker:0")
    run.until("say")
    run.messages.close()
    run.socket.close()
    assert run.ended() == 143


def test_a_taken_port_is_told(task: Start, tmp_path: Path) -> None:
    run = released(task, tmp_path, "worker:0", TAKEN="1")
    error = run.until("error")["error"]
    assert error["kind"] == "exception"
    assert error["message"].endswith("Could not start gRPC server")
    assert run.ended() == 1


@pytest.mark.parametrize("name", ["chief:0", "evaluator:0"])
def test_chief_and_evaluator_run_the_script(task: Start, tmp_path: Path, name: str) -> None:
    run = released(task, tmp_path, name)
    assert run.ended() == 0
    assert run.out == "the script runs\n"


@pytest.mark.parametrize(
    ("given", "task_name", "expected"),
    [
        ({"serve": True}, "worker:0", True),
        ({"serve": True}, "ps:1", True),
        ({"serve": True}, "chief:0", False),
        ({"serve": False}, "worker:0", False),
        ({}, "ps:0", False),
        ({"serve": True}, "", False),
    ],
)
def test_who_is_served(given: dict[str, bool], task_name: str, expected: bool) -> None:
    assert server.wanted({"served": ["ps", "worker"], **given}, {"ORCH_TASK": task_name}) is expected


def test_tf_config_says_more_of_a_task_than_its_name() -> None:
    config = json.dumps({"cluster": {}, "task": {"type": "ps", "index": 2}})
    assert options.task_of({"TF_CONFIG": config, "ORCH_TASK": "worker:0"}) == ("ps", 2)
    assert options.task_of({"ORCH_TASK": "worker:12"}) == ("worker", 12)
    assert options.task_of({}) is None
    assert options.task_of({"TF_CONFIG": "no JSON"}) is None


def test_options_that_are_no_object_count_as_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert options.read({"ORCH_RUNTIME": '{"serve": true}'}) == {"serve": True}
    assert options.read({}) == {}
    assert capsys.readouterr().err == ""
    for text in ("[1]", "{"):
        assert options.read({"ORCH_RUNTIME": text}) == {}
        assert "ORCH_RUNTIME" in capsys.readouterr().err


@pytest.mark.parametrize(("keras", "expected"), [(2, "1\n"), (3, "None\n"), (None, "None\n")])
def test_keras_2_is_chosen_by_tensorflows_own_switch(task: Start, keras: int | None, expected: str) -> None:
    run = task(
        "import os\nprint(os.environ.get('TF_USE_LEGACY_KERAS'))\n",
        env={"ORCH_RUNTIME": json.dumps({"keras": keras})},
    )
    run.release()
    assert run.ended() == 0
    assert run.out == expected


@pytest.mark.parametrize("row", STRATEGIES.values(), ids=list(STRATEGIES))
def test_the_module_that_a_row_names_has_a_part(row: Strategy) -> None:
    own = part.chosen(strategy_options(row))
    assert isinstance(own, part.StrategyPart)


def test_a_strategy_without_a_module_changes_nothing() -> None:
    own = part.chosen({"strategy": "ring"})
    assert own.imports({}) is None
    assert own.patches({}, Link(None)) == {}
    own.begin({}, Link(None))

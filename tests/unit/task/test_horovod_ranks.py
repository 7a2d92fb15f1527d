"""The rendezvous beside rank 0, with a Horovod of the tests' own; the real one is under `make test-horovod`."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable

import pytest

from orchestrator.core.launching.environment import strategy_options
from orchestrator.core.launching.wiring import horovod_environment, slots
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.strategy import STRATEGIES
from orchestrator.task.strategies.horovod_ranks import NoAnswer, wait_for
from tests.contract.strategy_harness import free_ports
from tests.unit.task.runtime_task import ROOT, Task

Start = Callable[..., Task]
FAKE = ROOT / "tests/contract/scripts/fake_horovod"
SCRIPT = """
import os
import horovod.tensorflow as hvd
hvd.init()
assert "ORCH_HOROVOD" not in os.environ
print(hvd.rank(), hvd.local_rank(), hvd.cross_rank(), hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum), flush=True)
"""
IDS = [TaskId("worker", i) for i in range(3)]


def start(task: Start, **env: str) -> Task:
    return task(SCRIPT, env={"ORCH_RUNTIME": json.dumps(strategy_options(STRATEGIES["horovod"])), **env})


def told(port: int) -> list[dict[str, str]]:
    """Two ranks on one host and one on another, all of which are this machine."""
    plan = Plan(
        name="x",
        strategy="horovod",
        hosts=(HostPlan("a"), HostPlan("b")),
        tasks=(TaskPlan(IDS[0], "a"), TaskPlan(IDS[1], "a", slot=1), TaskPlan(IDS[2], "b")),
        script="train.py",
    )
    addresses = dict.fromkeys(IDS, f"127.0.0.1:{port}")
    return [horovod_environment(plan, addresses, task, slots(plan)) for task in IDS]


def test_ranks_meet_although_rank_0_is_released_last(task: Start) -> None:
    path = os.pathsep.join([str(ROOT), str(FAKE)])
    ranks = [start(task, PYTHONPATH=path) for _ in IDS]
    for rank, env in reversed(list(zip(ranks, told(*free_ports(1)), strict=True))):
        rank.until("ready")
        rank.order(go={"env": env})
    assert [rank.ended() for rank in ranks] == [0, 0, 0], [rank.err for rank in ranks]
    assert [rank.out for rank in ranks] == ["0 0 0 6.0\n", "1 1 0 6.0\n", "2 0 1 6.0\n"]
    assert all(rank.said()[0]["say"]["kind"] == "horovod" for rank in ranks)


def test_a_taken_port_is_said_in_the_words_that_the_coordinator_knows(task: Start) -> None:
    with socket.create_server(("", 0)) as server:
        rank = start(task, PYTHONPATH=os.pathsep.join([str(ROOT), str(FAKE)]))
        rank.release(told(server.getsockname()[1])[0])
        assert "Address already in use" in rank.until("error")["error"]["message"]
        assert rank.ended() == 1


def test_without_horovod_it_is_an_import_that_fails(task: Start) -> None:
    rank = start(task)
    rank.release(told(*free_ports(1))[0])
    error = rank.until("error")["error"]
    assert error["kind"] == "import"
    assert "No module named 'horovod'" in error["message"]
    assert rank.ended() == 1


def test_a_rendezvous_that_is_never_there_is_given_up_with_its_address() -> None:
    (port,) = free_ports(1)
    with pytest.raises(NoAnswer, match=f"127.0.0.1:{port} does not answer: "):
        wait_for("127.0.0.1", port, 0.0)

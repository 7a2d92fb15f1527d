"""Which task of a stalled gang is elsewhere than the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from orchestrator.core.launching.environment import wiring
from orchestrator.core.phases.stall import innermost, odd_one
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan

W0, W1, W2 = (TaskId("worker", i) for i in range(3))

WAITS = """Thread 0x1 (most recent call first):
  File "/a/threading.py", line 5 in wait

Current thread 0x2 (most recent call first):
  File "/opt/a/tensorflow/python/eager/execute.py", line 59 in quick_execute
  File "train.py", line 7 in <module>
"""
READS = WAITS.replace(
    '"/opt/a/tensorflow/python/eager/execute.py", line 59 in quick_execute', '"data.py", line 3 in read'
)
FROZEN = (
    "The runtime does not answer. What the kernel says:\nstatus:\nState:\tT (stopped)\nThreads:\t9\nwchan: 0"
)
ELSEWHERE = WAITS.replace("execute.py", "context.py").replace("line 59", "line 60")


@pytest.mark.parametrize(
    ("stacks", "odd"),
    [
        ({W0: WAITS, W1: WAITS, W2: READS}, W2),
        ({W0: WAITS, W1: READS}, W1),
        ({W0: WAITS, W1: WAITS}, None),
        ({W0: READS, W1: READS, W2: WAITS}, W2),  # two read, and one is elsewhere
        ({W0: WAITS, W1: WAITS, W2: ELSEWHERE}, W2),
        ({W0: READS}, None),  # alone there is no other
        ({}, None),
        ({W0: WAITS, W1: ""}, W1),
        ({W0: FROZEN, W1: READS}, W0),
        ({W0: FROZEN, W1: WAITS, W2: READS}, W0),
        ({W0: FROZEN, W1: FROZEN, W2: READS}, W2),
    ],
)
def test_the_odd_one(stacks: Mapping[TaskId, str], odd: TaskId | None) -> None:
    assert odd_one(stacks) == odd


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (WAITS, "execute.py, line 59 in quick_execute"),
        (READS, "data.py, line 3 in read"),
        (FROZEN, "its runtime does not answer, and the kernel says T (stopped)"),
        ("\n  the kernel: do_wait\nmore", "the kernel: do_wait"),
        ("", "no answer"),
    ],
)
def test_the_innermost_frame(text: str, place: str) -> None:
    assert innermost(text) == place


def test_processes_are_told_their_ranks_and_one_process_nothing() -> None:
    plan = Plan(
        name="t",
        strategy="processes",
        hosts=(HostPlan("a", data_address="fd00::7"),),
        tasks=(TaskPlan(W0, "a"), TaskPlan(W1, "a", slot=1)),
        script="train.py",
    )
    told = wiring(plan, {W0: "[fd00::7]:20000", W1: "[fd00::7]:20001"}, W1)
    assert told == {
        "ORCH_RANK": "1",
        "ORCH_WORLD_SIZE": "2",
        "ORCH_LOCAL_RANK": "1",
        "ORCH_COORDINATOR_ADDRESS": "[fd00::7]:20000",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "fd00::7",
        "MASTER_PORT": "20000",
    }
    assert "TF_CONFIG" in wiring(replace(plan, strategy="multi_worker_mirrored"), {W0: "a:1", W1: "a:2"}, W1)
    single = Plan("t", "single", plan.hosts, (TaskPlan(W0, "a"),), "train.py")
    assert wiring(single, {W0: "10.0.0.1:20000"}, W0) == {}

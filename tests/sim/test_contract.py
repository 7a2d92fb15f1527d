"""The simulated agent keeps the contract of the real one: the same tests, over the simulator's heap.

The links need none: the simulator runs the real ones. Tests of what is not played (code, sweeps of real processes, real
scripts) are left to the real agent; see NOT_PLAYED.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.plan import HostPlan
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.orders.base import Order
from tests.contract import test_agent
from tests.contract.agent_harness import RUN, Client
from tests.protocol_orders import BY_NAME, as_sent
from tests.sim.agent import CODE, Agent
from tests.sim.draw import draw
from tests.sim.world import World

Connect = Callable[[], Client]


class SimClient(Client):
    """A connection to a new simulated agent. Time passes while it waits."""

    def __init__(self, world: World) -> None:
        self.host = HostPlan("h0")
        self.world = world
        self.reports, self.replies, self.orders = [], {}, {}
        self.number = 0
        self._decoder = Decoder()
        self._heard = False
        self.agent = Agent(world.machines["h0"])
        self.agent.out = self  # type: ignore[assignment]

    def receive(self, data: bytes | None) -> None:
        """Take what the agent sends."""
        if data is not None:
            self._take(self._decoder.feed(data))
            self._heard = True

    def hear(self) -> bool:
        """Let time pass until something has come."""
        self._heard = False
        while self.agent.alive and not self._heard:
            self.world.heap.pop()()
        return self._heard

    def send(self, verb: Any, blob: bytes = b"", **fields: Any) -> Any:
        """Send an order. The agent sends its frames through this method too, as through a wire."""
        if not isinstance(verb, str):
            return self.receive(verb)
        self.number += 1
        order = as_sent(verb, {"id": self.number, "epoch": 1, "run": RUN, **fields})
        if verb in BY_NAME:
            self.orders[self.number] = Order(BY_NAME[verb], order)
        self.agent.receive(encode(order, blob))
        return self.number

    def push(self, **_files: str) -> str:
        """Return the digest of the one tree of code."""
        return CODE

    def close(self) -> None:
        """End the agent."""
        self.agent.end()


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    os.mkdir(tmp_path / "work")
    world = World(draw(1, str(tmp_path / "work"), "calm"), str(tmp_path))
    world.runs[RUN] = next(iter(world.runs.values()))
    yield lambda: SimClient(world)
    world.close()


test_start_twice = test_agent.test_a_start_asked_twice_is_done_once
test_reported = test_agent.test_the_newest_generation_and_the_living_older_ones_are_reported
test_fenced = test_agent.test_an_older_coordinator_is_refused_by_every_verb_that_changes_something


@pytest.mark.parametrize(
    ("verb", "fields", "code"),
    [
        ("dance", {}, "unknown-order"),
        ("start", {}, "bad-order"),
        ("release", {"generation": 1, "task": "worker:0", "env": {}, "seed": None}, "no-task"),
        ("stop", {"generation": 1, "task": "worker:0", "grace_s": 0}, "no-task"),
        ("_handle", {}, "unknown-order"),
    ],
)
def test_refused(connect: Connect, verb: str, fields: dict[str, Any], code: str) -> None:
    """As `test_an_order_that_cannot_be_is_answered`, of the orders that are played."""
    agent = connect()
    assert agent.error(verb, **fields) == code
    assert agent.ok("highest", dir="/nowhere") == {"generation": 0}


def test_a_task_is_adopted_by_the_next_agent_and_stopped(connect: Connect) -> None:
    """As `test_a_killed_agent_is_not_noticed_by_the_task`, without a real process."""
    first = connect()
    first.ok("watch", heartbeat_s=0.1)
    first.start(first.push())
    first.until_phase("ready")
    first.ok("release", generation=1, task="worker:0", env={}, seed=None)
    running = first.until_phase("running")
    first.close()
    second = connect()
    second.ok("watch", heartbeat_s=0.1)
    assert second.until_phase("running")["pid"] == running["pid"]
    assert second.ok("stop", generation=1, task="worker:0", grace_s=0) == {}
    ended = second.until_phase("exited")["exit"]
    assert (ended["ordered"], ended["left"]) == (True, [])

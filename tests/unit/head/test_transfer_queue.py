"""The transfers under way: one of each kind and generation, its result as an event, and the next after it has ended."""

from __future__ import annotations

import threading
from typing import Any, cast

from orchestrator.core.actions import SeedCheckpoint
from orchestrator.core.events import CheckpointSeeded, CheckpointVerified, Event, OrderFailed
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.run import new_run
from orchestrator.head.links.conversation import LinkDown
from orchestrator.head.transfer.checkpoints import Abandoned, CheckpointTransfer
from orchestrator.head.transfer.queue import TransferQueue
from tests.patience import comes
from tests.unit.core.transcript import make_plan

RUN = new_run("t-1", make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0)
SEED = Seed(generation=2, global_step=5, source="x")
VERIFIED = CheckpointVerified(at=0.0, generation=2, global_step=5, path="ckpt-5")


class Carrier:
    """Carries until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []
        self.fails: Exception | None = None

    def _carry(self, what: str) -> None:
        self.begun.append(what)
        assert self.may_end.wait(60)
        if self.fails is not None:
            raise self.fails

    def seed(self, _run: Any, action: SeedCheckpoint, _tell: Any) -> Seed:
        self._carry(f"seed {action.generation}")
        return SEED

    def bring(self, _run: Any, generation: int, _path: str) -> None:
        self._carry(f"bring {generation}")

    def close(self) -> None:
        self.may_end.set()


def test_a_transfer_that_is_asked_for_again_is_done_once_and_one_that_failed_may_be_begun_again() -> None:
    carrier, told = Carrier(), cast("list[Event]", [])
    queue = TransferQueue(
        cast("CheckpointTransfer", carrier), lambda _run, event: told.append(event), lambda: 9.0
    )
    for _ in range(3):
        queue.seed(RUN, SeedCheckpoint("a", 2))
        queue.bring(RUN, "a", VERIFIED)
    assert comes(lambda: len(carrier.begun) >= 2, 10.0)
    carrier.fails = LinkDown("the connection broke")
    carrier.may_end.set()
    assert comes(lambda: len(told) >= 2, 10.0)
    assert sorted(carrier.begun) == ["bring 2", "seed 2"]
    assert {(event.order, event.generation) for event in told if isinstance(event, OrderFailed)} == {
        ("seed", 2),
        ("verify", 2),
    }
    assert _again(queue, carrier, told, Abandoned()) == []
    assert set(_again(queue, carrier, told, None)) == {CheckpointSeeded(9.0, SEED), VERIFIED}
    queue.close()


def _again(
    queue: TransferQueue, carrier: Carrier, told: list[Event], failure: Exception | None
) -> list[Event]:
    """Ask for both again once none is under way, and return what is told of them."""
    assert comes(lambda: not queue._under_way, 3.0), "a transfer that has ended is none"
    told.clear()
    begun, carrier.fails = len(carrier.begun), failure
    queue.seed(RUN, SeedCheckpoint("a", 2))
    queue.bring(RUN, "a", VERIFIED)
    assert comes(lambda: len(carrier.begun) == begun + 2 and not queue._under_way, 10.0)
    if failure is None:
        comes(lambda: len(told) >= 2, 10.0)
    return [*told]

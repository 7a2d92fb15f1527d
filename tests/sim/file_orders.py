"""What an agent does in checkpoint directories: the shared one, or its host's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.both.hostdir import HostFault
from tests.arrivals import Arrivals
from tests.sim.apart import Apart

if TYPE_CHECKING:
    from tests.sim.machine import Machine

Order = dict[str, Any]
Answer = Callable[[dict[str, Any]], None]


class FileOrders:
    """The part of an agent that handles these orders."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.world = machine.world
        self.alive = True
        self._blob = b""
        """The bytes behind the order that is handled now."""
        self._arrivals: dict[str, Arrivals] = {}

    def _job(self, takes_s: float, work: Callable[[], None]) -> None:
        self.world.heap.after(takes_s, work)

    def _on_highest(self, order: Order, answer: Answer) -> None:
        share = self.world.runs[str(order["run"])].share
        if isinstance(share, Apart):
            self._with_files(order, answer)
        else:
            answer({"ok": {"generation": max(share.generations, default=0)}})

    def _on_seed(self, order: Order, answer: Answer) -> None:
        share = self.world.runs[str(order["run"])].share
        if isinstance(share, Apart):
            self._with_files(order, answer)
        else:
            self._on_share(
                answer, lambda: share.seed(order["generation"], keep=order["keep"], by=order["by"])
            )

    def _on_verify(self, order: Order, answer: Answer) -> None:
        share = self.world.runs[str(order["run"])].share
        if isinstance(share, Apart):
            self._with_files(order, answer)
        else:
            self._on_share(answer, lambda: share.verify(int(order["generation"])))

    def _with_files(self, order: Order, answer: Answer) -> None:
        """Do an order in the host's own checkpoint directory, as a job or at once."""
        share, blob = self.world.runs[str(order["run"])].share, self._blob
        assert isinstance(share, Apart)
        arrivals = self._arrivals.setdefault(share.name, Arrivals())

        def work() -> dict[str, Any]:
            try:
                ok, data = share.answer(self.machine, order, blob, arrivals)
                return {"ok": ok, "blob": data}
            except HostFault as e:
                return {"error": e.to_json()}

        if order["order"] in ("blob", "chunk"):
            answer(work())
        else:
            self._on_share(answer, work)

    _on_snapshot = _on_chunk = _on_receive = _on_blob = _with_files

    def _on_share(self, answer: Answer, work: Callable[[], dict[str, Any]]) -> None:
        """Do work in the checkpoint directory as a job, which hangs if the directory does."""

        def done() -> None:
            if self.machine.share_hangs and self.alive:
                self._job(30.0, done)
            elif self.alive:
                answer(work())

        slow = self.world.chance.random() < 0.1
        self._job(
            self.world.chance.uniform(10.0, 90.0) if slow else self.world.chance.uniform(0.1, 3.0), done
        )

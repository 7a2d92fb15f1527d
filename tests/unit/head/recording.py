"""A coordinator's loop and journal without its hosts: they say what the test has them say."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core import events as ev
from orchestrator.core.plan import TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress
from orchestrator.head.coordinator.loop import Loop
from orchestrator.head.journal.journal import Journal
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"
FACTS = Facts("3.11.2", {}, "c0de")


class Head:
    """A coordinator, and hosts that say what the test has them say."""

    def __init__(self, path: Path, now: float = 100.0) -> None:
        self.path, self.now = str(path), now
        self.journal = Journal(self.path)
        self.loop = Loop(self.journal, lambda *_: None, changed=lambda *_: None, now=lambda: self.now)

    @property
    def run(self) -> Run:
        return self.loop.runs[RUN]

    def tell(self, event: ev.Event) -> None:
        self.loop.post(RUN, event)
        self.loop.turn(0.0)

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while (sleep_s := self.loop.sleep_s()) is not None and self.now + sleep_s <= until:
            self.now += sleep_s
            self.loop.post("nobody", ev.Ticked(self.now))
            self.loop.turn(0.0)
        self.now = until

    def begin(self) -> None:
        self.loop.submit(new_run(RUN, make_plan(["a", "b"], checkpoint=True), epoch=1, at=self.now))
        for host in "ab":
            self.tell(ev.HostUp(self.now, host, "boot"))
            self.tell(ev.HostPrepared(self.now, host, FACTS))
        self.hear("ready")
        self.tell(ev.CheckpointSeeded(self.now, Seed(1)))

    def hear(self, phase: str = "running", step: int | None = None, hosts: str = "ab") -> None:
        for host in hosts:
            told = ev.TaskReport(
                task=TaskId("worker", "ab".index(host)),
                generation=1,
                phase=phase,
                pid=7,
                port=20000,
                progress=Progress(global_step=step, metrics={"loss": 1 / (step or 1)}),
            )
            self.tell(ev.HostReported(self.now, host, (told,), measured={"cpu_percent": 7.5}))

    def train(self, seconds: int, hosts: str = "ab") -> None:
        for _ in range(seconds // 2):
            self.pass_time(2.0)
            self.hear(step=int(self.now) if hosts == "ab" else None, hosts=hosts)

    def end(self) -> None:
        self.journal.close()

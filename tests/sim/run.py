"""A run of the world: its scenario, its checkpoint directory, its trainings, what people ask of it, and its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core import conflicts
from orchestrator.core.errors import JournalError
from orchestrator.core.events import KillRequested
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from tests.sim.apart import Apart
from tests.sim.checks import Checks
from tests.sim.draw import WILD
from tests.sim.hush import secrets_of
from tests.sim.share import Share
from tests.sim.training import Training

if TYPE_CHECKING:
    from tests.sim.draw import RunScenario
    from tests.sim.head import Head
    from tests.sim.process import Process
    from tests.sim.world import World


class SimRun:
    """What belongs to one run, in the world and not in the coordinator."""

    def __init__(self, world: World, scenario: RunScenario) -> None:
        self.world = world
        self.scenario = scenario
        self.name = scenario.plan.name
        self.kind = scenario.kind
        self.run_id = f"{self.name}-20260101-000000"
        self.chief = scenario.plan.chief
        checkpoint = scenario.plan.checkpoint
        assert checkpoint is not None
        self.share: Share | Apart = Share(checkpoint.dir)
        if not checkpoint.shared:
            self.share = Apart(self.name, checkpoint.dir, world.files, lambda: world.heap.now)
        self.checks = Checks(self)
        self.training = Training(self)
        self.is_lied_about = False
        """Whether a host has lied about it. Then no rule can hold for it, but for those of its neighbours."""
        self.processes_ever: list[Process] = []

    # -- what others ask -----------------------------------------------------------------------------------

    @property
    def now(self) -> Run | None:
        """The run as the current coordinator knows it; None while there is none."""
        head = self.world.head
        return head.loop.runs.get(self.run_id) if head is not None else None

    def processes(self) -> list[Process]:
        """Return all processes of the run that ever were."""
        return self.processes_ever

    def living(self) -> list[Process]:
        """Return all living processes of the run."""
        return [process for process in self.processes_ever if process.alive]

    def tears(self) -> bool:
        """Draw whether a checkpoint is torn although its writer succeeded."""
        return not self.world.is_healed and self.world.chance.random() < self.scenario.tears

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and left nothing behind."""
        run = self.now
        if self.is_lied_about:
            return True
        return run is not None and run.phase.is_terminal and not self.living() and not unproven(run)

    def uses(self, host: str) -> bool:
        """Whether the run may have tasks on that host."""
        return any(known.name == host for known in self.scenario.plan.hosts)

    # -- what a person asks --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let it begin with the coordinator that lives now, or the next one."""
        if self.scenario.kill_at is not None:
            self.world.heap.after(self.scenario.kill_at, self._kill)
        self.submit(self.world.head)

    def submit(self, head: Head | None) -> None:
        """Do what `Coordinator._submit` does, until it is acknowledged."""
        world, plan = self.world, self.scenario.plan
        if head is None or head is not world.head or self.run_id in head.loop.runs:
            return
        conflicts.refuse_start(plan, head.loop.runs.values())
        run = new_run(self.run_id, plan, epoch=head.epoch, at=head.clock())

        def work() -> None:
            head.secrets.save(self.run_id, secrets_of(self.run_id))
            head.loop.submit(run)
            if run.phase is not Phase.QUEUED:
                head.executor.open(run, [host.name for host in run.hosts])

        try:
            if world.guarded(head, work):
                self.checks.submitted = True
        except JournalError:
            world.heap.after(5.0, lambda: self.submit(head))

    def _kill(self) -> None:
        """Kill the run, and repeat until it is acknowledged."""
        world, head = self.world, self.world.head
        if head is None or self.run_id not in head.loop.runs:
            world.heap.after(10.0, self._kill)
            return
        event = KillRequested(at=head.clock(), force=self.scenario.force_kill)
        world.say(f"** the user kills {self.name}")
        try:
            if world.guarded(head, lambda: head.loop.decide(self.run_id, event)):
                self.checks.killed = True
                if not world.is_healed and world.kind in WILD and world.chance.random() < 0.4:
                    world.head_dies(whole_machine=False)  # right after an acknowledgement, which must hold
                return
        except JournalError:
            pass
        world.heap.after(10.0, self._kill)

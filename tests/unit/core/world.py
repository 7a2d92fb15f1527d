"""A world in memory for the core: hosts, links, processes and time, all driven by what the core asks for.

The production loop with another sleep: pop what happens next, or tick at the run's own deadline, whichever is sooner.
What no component could see is checked here: two living generations on hosts that are reached, a task started twice, a
task released before all had joined, a tick that changes nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from orchestrator.core import actions as do
from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.ends import Exit
from orchestrator.core.hosts.slots import why_not_drained
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.phase_states import Phase, Swept
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.core.state.task import Progress

LATENCY_S = 0.05
IMPORT_S = 1.0
STEPS_PER_S = 10.0
SAVE_EVERY = 50
"""Steps between checkpoints."""

_RUN: TypeAdapter[Run] = TypeAdapter(Run)


@dataclass
class Process:
    """One task of one generation, on its host."""

    generation: int
    began_at: float
    pid: int
    released_at: float | None = None
    first_step: int = 0
    exit: Exit | None = None

    def phase(self, now: float) -> str:
        if self.exit is not None:
            return "exited"
        if self.released_at is not None:
            return "running"
        return "ready" if now - self.began_at >= IMPORT_S else "starting"

    def step(self, until: float) -> int | None:
        if self.released_at is None:
            return None
        return self.first_step + max(0, int((until - self.released_at) * STEPS_PER_S))


class Machine:
    """One host. Its processes live whatever its link does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = 1
        self.cut = False
        self.connection = 0
        """Counts up with each; 0 is none. What was sent over an older one never arrives."""
        self.has_code = False
        self.processes: dict[TaskId, list[Process]] = {}

    def all(self) -> list[tuple[TaskId, Process]]:
        return [(task, p) for task, processes in self.processes.items() for p in processes]


class World:
    """Runs one run to its end, or to `until`."""

    def __init__(self, plan: Plan, *, steps: int = 400) -> None:
        self.now = 0.0
        self.steps = steps
        self.run = new_run("t-20260101-000000", plan, epoch=1, at=0.0)
        self.machines = {host.name: Machine(host.name) for host in plan.hosts}
        self.saved: list[int] = []
        self.fails_at: dict[TaskId, int] = {}
        """A script's own fault: that task exits with 1 whenever it gets to that step."""
        self.notes: list[do.Note] = []
        self.performed = 0
        self.crash_before: int | None = None
        """The coordinator dies when it is about to execute that action, counted from 0."""
        self.alive = True
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._connections = itertools.count(1)
        self._pids = itertools.count(1000)

    # -- time ----------------------------------------------------------------------------------------------

    def at(self, at: float, thunk: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at, next(self._numbers), thunk))

    def after(self, delay_s: float, thunk: Callable[[], None]) -> None:
        self.at(self.now + delay_s, thunk)

    def go(self, until: float) -> None:
        """Let time pass; stops when the run has ended and every host was looked at."""
        while self.now < until and not self.is_over:
            due = next_deadline(self.run) if self.alive else None
            if due is not None and (not self._heap or due <= self._heap[0][0]) and due <= until:
                self.now = max(self.now, due)
                self._tick()
            elif self._heap and self._heap[0][0] <= until:
                at, _, thunk = heapq.heappop(self._heap)
                self.now = max(self.now, at)
                thunk()
            else:
                self.now = until

    @property
    def is_over(self) -> bool:
        return self.run.phase.is_terminal and not self._heap

    def _tick(self) -> None:
        before = self.run
        self.tell(ev.Ticked(at=self.now))
        assert self.run != before, "a tick at its own deadline must change something"

    # -- the coordinator -----------------------------------------------------------------------------------

    def begin(self) -> None:
        self.tell(ev.Submitted(at=self.now))
        for machine in self.machines.values():
            self.connect(machine)
        self._beat()

    def tell(self, event: ev.Event) -> None:
        """One turn of the loop: step, keep, execute."""
        if not self.alive:
            return
        was = self.run
        self.run, actions, _ = decide.step(was, event)
        assert not was.phase.is_terminal or self.run.phase is was.phase, "a terminal phase is for ever"
        for action in actions:
            if isinstance(action, do.Note):
                self.notes.append(action)
                continue
            if self.performed == self.crash_before:
                self.crash_before = None
                self.crash()
                return
            self.performed += 1
            self._execute(action)

    def crash(self, back_after_s: float = 3.0) -> None:
        """Kill the coordinator. Its decisions are in the journal; messages on the way to it are lost."""
        self.alive = False
        for machine in self.machines.values():
            machine.connection = 0
        kept, written_at = _RUN.dump_json(self.run), self.now
        self.after(back_after_s, lambda: self._take_up(_RUN.validate_json(kept), written_at))

    def _take_up(self, kept: Run, written_at: float) -> None:
        self.alive = True
        other_clock = 1e6  # another boot's clock has nothing to do with this one's
        moved = rebased(kept, other_clock - written_at)
        self.run = rebased(moved, self.now - other_clock)
        self.tell(ev.EpochBegan(at=self.now, epoch=kept.epoch + 1))
        for machine in self.machines.values():
            self.after(0.2, lambda machine=machine: self.connect(machine))  # type: ignore[misc]

    def connect(self, machine: Machine) -> None:
        if machine.cut or machine.connection or not self.alive:
            return
        machine.connection = next(self._connections)
        self._hear(machine, ev.HostUp(self.now, machine.name, f"boot-{machine.boot}"))
        self._report(machine)

    def _beat(self) -> None:
        for machine in self.machines.values():
            self._report(machine)
        if not self.run.phase.is_terminal:
            self.after(2.0, self._beat)

    # -- faults --------------------------------------------------------------------------------------------

    def cut(self, name: str, for_s: float) -> None:
        """Nothing passes; the link notices after 5 s, and is made again a second after the cut is healed."""
        machine = self.machines[name]
        if machine.cut:
            return
        machine.cut = True
        broken = machine.connection

        def notice() -> None:
            if machine.connection == broken:
                machine.connection = 0
                self.tell(ev.HostDown(self.now, name, "the connection broke"))

        def heal() -> None:
            machine.cut = False
            if machine.connection == broken:
                machine.connection = 0
            self.after(1.0, lambda: self.connect(machine))

        self.after(5.0, notice)
        self.after(for_s, heal)

    def reboot(self, name: str) -> None:
        machine = self.machines[name]
        machine.boot += 1
        for _, process in machine.all():
            if process.exit is None:
                process.exit = Exit(cause=Cause.REBOOTED, at=self.now)
        self.cut(name, 8.0)

    def kill_process(self, task: TaskId) -> None:
        for machine in self.machines.values():
            for process in machine.processes.get(task, []):
                if process.exit is None:
                    self._end(machine, process, Exit(cause=Cause.SIGNAL, signal=9, at=self.now))

    # -- the user's word -----------------------------------------------------------------------------------

    def drain(self, name: str) -> None:
        """As the coordinator does it: refused where the run cannot do without the host."""
        if not self.run.phase.is_terminal and why_not_drained(self.run, name) is None:
            self.tell(ev.DrainRequested(self.now, name, now=self.now % 2 < 1))

    def undrain(self, name: str) -> None:
        if not self.run.phase.is_terminal:
            self.tell(ev.UndrainRequested(self.now, name))

    # -- hosts ---------------------------------------------------------------------------------------------

    def living(self) -> dict[TaskId, list[int]]:
        """Return the living generations of each task, on hosts that are not cut off."""
        found: dict[TaskId, list[int]] = {}
        for machine in self.machines.values():
            for task, process in machine.all():
                if process.exit is None and not machine.cut:
                    found.setdefault(task, []).append(process.generation)
        return found

    def _end(self, machine: Machine, process: Process, ended: Exit) -> None:
        process.exit = ended
        self._report(machine)

    def _hear(self, machine: Machine, event: ev.Event) -> None:
        """On its way from the host; lost where the connection is another by then, or cut."""
        sent_over = machine.connection

        def arrive() -> None:
            if machine.connection == sent_over and sent_over and not machine.cut:
                self.tell(replace(event, at=self.now))

        self.after(LATENCY_S, arrive)

    def _report(self, machine: Machine) -> None:
        self._advance(machine)
        newest = {task: processes[-1] for task, processes in machine.processes.items() if processes}
        reports = tuple(
            ev.TaskReport(
                task=task,
                generation=process.generation,
                phase=process.phase(self.now),
                pid=process.pid,
                port=20000 + process.pid,
                progress=Progress(global_step=self._step_of(task, process)),
                exit=process.exit,
            )
            for task, process in machine.all()
            if process.exit is None or process is newest[task]
        )
        self._hear(machine, ev.HostReported(self.now, machine.name, reports))

    def _advance(self, machine: Machine) -> None:
        """Let the scripts do what they have done by now."""
        for task, process in machine.all():
            step = self._step_of(task, process)
            if step is None or process.exit is not None:
                continue
            if task == min(self.machines_tasks) and step // SAVE_EVERY * SAVE_EVERY > max(
                self.saved, default=0
            ):
                self.saved.append(step // SAVE_EVERY * SAVE_EVERY)
            if task in self.fails_at and step >= self.fails_at[task]:
                process.exit = Exit(cause=Cause.SCRIPT, code=1, at=self.now, last_lines=("ValueError: bad",))
            elif step >= self.steps:
                process.exit = Exit(cause=Cause.SCRIPT, code=0, at=self.now)

    def _step_of(self, task: TaskId, process: Process) -> int | None:
        """Return the step of a task's process. A gang that has lost a member makes no progress."""
        gang = [p for m in self.machines.values() for _, p in m.all() if p.generation == process.generation]
        broken = (p.exit.at for p in gang if p.exit is not None and p.exit.code != 0)
        step = process.step(min([self.now, *broken]))
        return step if step is None else min(step, self.fails_at.get(task, step))

    @property
    def machines_tasks(self) -> Sequence[TaskId]:
        return [task.id for task in self.run.plan.tasks]

    def _execute(self, action: do.Action) -> None:
        if isinstance(action, do.Note | do.CollectStacks):
            return  # of a stalled run no stacks come: its deadline goes on without them
        machine = self.machines[action.host]
        if not machine.connection or machine.cut or isinstance(action, do.CloseHost):
            return
        sent_over = machine.connection

        def arrive() -> None:
            if machine.connection == sent_over and not machine.cut:
                self._handle(machine, action)

        self.after(LATENCY_S, arrive)

    def _handle(self, machine: Machine, action: do.Action) -> None:
        match action:
            case do.PrepareHost():
                machine.has_code = True
                facts = Facts(python="3.11.2", versions={"tensorflow": "2.21.0"}, code="c0de")
                self._hear(machine, ev.HostPrepared(self.now, machine.name, facts))
            case do.SeedCheckpoint(generation=generation):
                self.after(0.5, lambda: self._hear(machine, self._seed(generation)))
            case do.VerifyCheckpoint(generation=generation):
                newest = max(self.saved, default=None)
                path = f"ckpt-{newest}" if newest else ""
                self._hear(machine, ev.CheckpointVerified(self.now, generation, newest, path, took_s=0.1))
            case do.StartTask():
                self._start(machine, action)
            case do.ReleaseTask():
                self._release(machine, action)
            case do.StopTask():
                self._stop(machine, action)
            case do.SweepHost(generation=generation):
                for _, process in machine.all():
                    if process.exit is None and process.generation <= generation:
                        self._end(machine, process, Exit(cause=Cause.ORDERED, signal=9, at=self.now))
                self._hear(machine, ev.HostSwept(self.now, machine.name, Swept(by="cgroup")))

    def _seed(self, generation: int) -> ev.CheckpointSeeded:
        newest = max(self.saved, default=None)
        source = f"ckpt-{newest}" if newest else None
        return ev.CheckpointSeeded(self.now, Seed(generation, newest, source, f"gen-{generation:06d}"))

    def _start(self, machine: Machine, action: do.StartTask) -> None:
        processes = machine.processes.setdefault(action.task, [])
        if any(p.generation == action.generation for p in processes):
            return  # asked twice, done once
        older = [p for p in processes if p.exit is None]
        assert not older, f"{action} beside generation {older[0].generation}"
        assert all(p.generation < action.generation for p in processes)
        assert machine.has_code
        processes.append(Process(action.generation, self.now, next(self._pids)))
        self.after(IMPORT_S, lambda: self._report(machine))

    def _release(self, machine: Machine, action: do.ReleaseTask) -> None:
        for process in machine.processes.get(action.task, []):
            if (
                process.generation == action.generation
                and process.exit is None
                and process.released_at is None
            ):
                for task, generations in self.living().items():
                    assert set(generations) == {action.generation}, f"{task} lives as {generations}"
                process.released_at = self.now
                process.first_step = (self.run.seed.global_step or 0) if self.run.seed else 0

    def _stop(self, machine: Machine, action: do.StopTask) -> None:
        for process in machine.processes.get(action.task, []):
            if process.generation == action.generation:
                if process.exit is None:
                    self._end(machine, process, Exit(cause=Cause.ORDERED, signal=9, at=self.now))
                return
        problem = Problem("no-task", "it was never started on this host")
        failed = ev.OrderFailed(self.now, machine.name, "stop", action.generation, problem, action.task)
        self._hear(machine, failed)


def ended(world: World) -> tuple[Phase, int]:
    """How it ended, and after how many restarts."""
    return world.run.phase, world.run.budget.restarts

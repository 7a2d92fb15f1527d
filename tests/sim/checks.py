"""The rules that must hold after every event. No single component can check them, but the world sees all sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core import actions as do
from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.gang import gang, is_individual
from orchestrator.core.phases.restart import IN_A_ROW_FACTOR
from orchestrator.core.plan import Plan, TaskId
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Intent, Phase, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import TaskPhase
from orchestrator.head.journal.entries import Entry
from orchestrator.head.journal.replay import replay
from tests.sim.heap import Violation

if TYPE_CHECKING:
    from orchestrator.protocol.reports import Task
    from tests.sim.machine import Machine, Record
    from tests.sim.process import Process
    from tests.sim.run import SimRun


EVEN_SO = ("internal", "journal-mixed", "submit-lost", "older-epoch", "replay")
"""The rules that hold whatever hosts say."""


class Checks:
    """Checks the rules of one run. The other parts of the simulator tell it what happens."""

    def __init__(self, run: SimRun) -> None:
        self.run = run
        self.world = run.world
        self.submitted = False
        self.killed = False
        """Whether a kill was acknowledged."""
        self.may_be_left = False
        """Whether one of its hosts was ever to be taken away. Then it may end without a kill."""
        self.chief_finished = False
        self.drained: set[str] = set()
        """The hosts whose drain was acknowledged. No generation that begins later may have a task there."""
        self._went_to = ""
        self._left: int | None = None
        """The generation before an acknowledged rollback. Its checkpoints must not count any more."""
        self._epochs: dict[str, int] = {}
        self._told: dict[str, dict[TaskId, dict[int, str]]] = {}
        """The last reported phase, by host, task and generation."""
        self._heard_at: dict[str, float] = {}
        self._verified: dict[str, int] = {}
        self._ever_verified = False
        self._generation = 0
        self._in_advance: set[int] = set()
        """The generations that were started as a standby."""
        self._since_progress = 0
        self._blamed = 0
        self._ports: dict[TaskId, tuple[int, int]] = {}
        self._seed_wants: int | None = None
        self._rescuers: dict[int, TaskId] = {}

    def demand(self, holds: bool, name: str, sentence: str) -> None:
        """Raise Violation where a rule does not hold that must."""
        if not holds and (name in EVEN_SO or not self.run.is_lied_about):
            raise Violation(name, sentence)

    # -- the hosts' side -----------------------------------------------------------------------------------

    def spawned(self, process: Process) -> None:
        """Check I1 and I2: no other process writes a new process's directory, or is the same task and generation."""
        self._alone_on_its_gpus(process)
        for other in self.run.processes():
            if other is process or not other.alive or other.task != process.task:
                continue
            if process.by_stale or other.by_stale:
                continue  # two coordinators may start the same; see `goes` for what must not happen even so
            if other.machine is not process.machine and (process.in_advance or other.in_advance):
                continue  # a spare holds the same task at its gate, and one of them is released
            self._writes_alone(process, other)
            self.demand(
                other.generation != process.generation, "started-twice", f"{process!r} beside {other!r}"
            )

    def goes(self, process: Process) -> None:
        """Check I1 when a script may begin to write, whoever started it."""
        for other in self.run.living():
            if other is not process and other.released and other.task == process.task:
                self._writes_alone(process, other)
                stale = process.by_stale or other.by_stale
                twice = other.generation == process.generation and not stale
                self.demand(not twice, "released-twice", f"{process!r} beside {other!r}")

    def _writes_alone(self, process: Process, other: Process) -> None:
        same = other.directory is not None and other.directory == process.directory
        self.demand(
            not same or process.task.type == "evaluator",
            "one-writer",
            f"{process!r} and {other!r} both write {process.directory}",
        )

    def _alone_on_its_gpus(self, process: Process) -> None:
        """Check that no GPU is given to two runs, nor one that another user has."""
        foreign = {str(gpu) for gpu in process.machine.foreign}
        self.demand(not process.gpus & foreign, "gpu-twice", f"{process!r} has a GPU of another user")
        for other in process.machine.living:
            both = process.gpus & other.gpus
            self.demand(
                other.run is self.run or not both, "gpu-twice", f"{process!r} and {other!r} have GPUs {both}"
            )

    def saves(self, chief: Process) -> None:
        """Check I1: no other living process writes to the directory of a new checkpoint."""
        for other in self.run.processes():
            same = other.directory == chief.directory and other.task.type != "evaluator"
            self.demand(
                other is chief or not other.alive or not same, "one-writer", f"{chief!r} and {other!r}"
            )

    def hands_over(self, survivor: Process) -> None:
        """Check that of a generation one task hands over its state, and that it can reach the directory."""
        by = self._rescuers.setdefault(survivor.generation, survivor.task)
        self.demand(by == survivor.task, "one-writer", f"{survivor!r} hands over its state after {by}")
        can_reach = _can_reach(self.run.scenario.plan, survivor.task)
        self.demand(can_reach, "rescued-nowhere", f"{survivor!r} hands over its state into a scratch")

    def _chooses(self, before: Run, after: Run) -> None:
        """Check that of the survivors that are known to hold something the furthest is chosen, and none that differ."""
        was, now = before.phase_state, after.phase_state
        if not isinstance(was, Stopping) or not isinstance(now, Stopping) or was.rescuer == now.rescuer:
            return
        told = {task: after.task(task).progress.holds for task in now.survivors}
        chosen = told.get(now.rescuer) if now.rescuer else None
        known = chosen is not None or not any(told.values())
        self.demand(known, "rescued-unknown", f"{now.rescuer} is chosen, and others have said what they hold")
        for task, held in told.items():
            if chosen is None or held is None:
                continue
            ahead = held.step > chosen.step and after.task(task).phase.may_live
            ahead = ahead and after.host(after.task(task).host).link is Link.CONNECTED
            ahead = ahead and _can_reach(after.plan, task)
            self.demand(not ahead, "rescued-behind", f"{now.rescuer} is chosen, and {task} is further")
            differs = held.step == chosen.step and held != chosen
            self.demand(not differs, "rescued-diverged", f"{now.rescuer} is chosen, and {task} differs")

    def handles(self, machine: Machine, order: dict[str, Any]) -> None:
        """Check that a machine obeys no coordinator that is older than one it has obeyed."""
        epoch = int(order["epoch"])
        seen = self._epochs.get(machine.name, 0)
        self.demand(
            epoch >= seen, "older-epoch", f"{machine.name} obeys epoch {epoch} after {seen}: {order['order']}"
        )
        self._epochs[machine.name] = epoch

    def handled(self, machine: Machine, record: Record, order: dict[str, Any]) -> None:
        """Check that a shim obeys only orders for its own generation."""
        self.demand(
            int(order["generation"]) == record.key[2],
            "older-generation",
            f"the shim of {record.key} on {machine.name} obeys an order for {order['generation']}",
        )

    def recorded(self, process: Process) -> None:
        """Check that an exit record is written only when no process lives that can be killed."""
        self.demand(
            not process.alive or process.unkillable,
            "recorded-alive",
            f"the record of {process!r}, which lives",
        )

    def restored(self, chief: Process, step: int | None, *, whole: bool) -> None:
        """Check I5: training never resumes below a verified checkpoint that reads whole, nor silently at step 0."""
        if chief.task != self.run.chief:
            return
        if not whole:
            return  # it was torn after the seed, so the script cannot resume; the coordinator must notice that
        wants = self._seed_wants
        self.demand(
            wants is None or (step is not None and step >= wants),
            "resumed-below",
            f"{chief!r} starts at {step}, and the checkpoint of step {wants} was verified",
        )

        never = not self.run.share.ever_saved
        self.demand(
            step is not None or never, "silent-start", f"{chief!r} starts at 0, and there were checkpoints"
        )

    def finished(self) -> None:
        """Remember that the chief's script has ended with 0."""
        self.chief_finished = True

    # -- what the coordinator hears ------------------------------------------------------------------------

    def heard(self, host: str, tasks: list[Task]) -> None:
        """Remember a report that has arrived."""
        self._heard_at[host] = self.world.heap.now
        told = self._told.setdefault(host, {})
        told.clear()
        for task in tasks:
            told.setdefault(TaskId.parse(task["task"]), {})[task["generation"]] = task["phase"]

    def posted(self, event: ev.Event) -> None:
        """Check that no event reports an internal error, which would be a bug of ours."""
        problem = getattr(event, "problem", None)
        self.demand(not str(problem).startswith("a fault in orch"), "internal", str(problem))
        self.demand(getattr(problem, "code", "") != "internal", "internal", str(problem))

    # -- what people ask -----------------------------------------------------------------------------------

    def goes_back(self, path: str) -> None:
        """Remember a rollback that is marked in the directory. The coordinator may die before it hears of it."""
        self._went_to = path
        self._since_progress = self._blamed = 0
        # The seed that follows is not seen where its coordinator dies with the write of it.
        self._seed_wants = None
        self._verified, _ = self.run.share.still_there(self._verified)

    def went_back(self, left: int) -> None:
        """Remember that the coordinator has acknowledged a rollback."""
        self._left = left

    # -- what the coordinator decides ----------------------------------------------------------------------

    def changed(self, before: Run, after: Run) -> None:
        """Check the run after every turn of the loop, beyond what the core itself holds it to."""
        self.demand(bool(after.reason), "says-why", f"{after.phase.value} has no reason")
        self.demand(not before.phase.is_terminal or after.phase is before.phase, "terminal", "it is for ever")
        if after.generation != self._generation:
            self._begins(after)
        if after.phase is not before.phase:
            phases = f"{before.phase.value} -> {after.phase.value} ({after.generation})"
            self.world.say(f"-- {self.run.name}: {phases}: {after.reason[:90]}")
            self._enters(after)
        self._chooses(before, after)
        self._losses(before, after)
        self._checkpoints(before, after)
        if self.killed:
            decided = after.phase.is_terminal or after.intent in (Intent.KILL, Intent.SUCCEED, Intent.FAIL)
            self.demand(decided, "kill-lost", f"an acknowledged kill, and the run is in {after.phase.value}")

    def _begins(self, after: Run) -> None:
        self.demand(
            after.generation > self._generation,
            "generation-reused",
            f"{after.generation} after {self._generation}",
        )
        began = [r.key[2] for r in self._records() if not r.by_stale and not self._is_standby(r)]
        known = max(began, default=0)
        self.demand(
            after.generation > known, "generation-reused", f"{after.generation} begins, {known} was started"
        )
        self._generation = after.generation
        given = sorted(self.drained.intersection(task.host for task in after.tasks))
        self.demand(not given, "drain-lost", f"generation {after.generation} has tasks on {given}, drained")
        self._since_progress += 1
        limit = IN_A_ROW_FACTOR * after.plan.restart.without_progress_max
        self.demand(
            self._since_progress <= limit,
            "budget",
            f"{self._since_progress} generations without a newer checkpoint",
        )
        blamed_max = after.plan.restart.without_progress_max
        self.demand(
            self._blamed < blamed_max,
            "budget",
            f"{self._blamed} failures of the script without a newer checkpoint",
        )

    def _is_standby(self, record: Record) -> bool:
        """Return whether a record is of a task that was started in advance, and has not passed its gate."""
        is_released = record.process is not None and record.process.released
        return record.key[2] in self._in_advance and not is_released

    def _records(self) -> list[Record]:
        machines = self.world.machines.values()
        return [r for m in machines for r in m.records.values() if r.key[0] == self.run.run_id]

    def _enters(self, after: Run) -> None:
        if after.phase is Phase.BACKOFF:
            self.demand(self.run.kind == "chaos", "false-restart", after.reason)
        if after.phase is Phase.BACKOFF and after.first_cause is not None:
            lost = any(task.phase is TaskPhase.LOST for task in after.tasks)
            cause = after.first_cause.cause
            is_free = cause.row.is_free or cause is Cause.DISK  # it waits for room
            if not lost and not is_free and self._since_progress:
                self._blamed += 1
        if after.phase is Phase.SUCCEEDED:
            self.demand(self.chief_finished, "success", "SUCCEEDED, and the chief never ended with 0")
        if after.phase.is_terminal:
            self._proven(after)
        if after.phase is Phase.RUNNING:
            self._rotated(after)

    def _proven(self, run: Run) -> None:
        for name, swept in (run.proof or {}).items():
            machine = self.world.machines[name]
            looked = machine.looked_up_to.get(run.run_id, -1) >= run.generation_last
            self.demand(
                looked,
                "proof-without-look",
                f"{run.phase.value} with proof of {name}, where nobody has looked",
            )
            if run.phase is not Phase.KILLED:
                continue
            living = [] if swept.left or machine.cut_up else [p for p in machine.living if p.run is self.run]
            self.demand(not living, "killed-and-alive", f"KILLED with proof of {name}, where {living} live")

    def _rotated(self, run: Run) -> None:
        for task in gang(run):
            generation, port = self._ports.get(task.id, (0, 0))
            self.demand(
                task.generation == generation or task.port != port,
                "port-reused",
                f"{task.id} has port {task.port} in generations {generation} and {task.generation}",
            )
            self._ports[task.id] = (task.generation, task.port or 0)

    def _losses(self, before: Run, after: Run) -> None:
        then = {task.id: task for task in before.tasks}
        for now in after.tasks:
            was = then.get(now.id, now)
            if now.phase is not TaskPhase.LOST or was.phase is TaskPhase.LOST or now.exit is None:
                continue
            if now.exit.cause is not Cause.HOST_LOST or before.phase is not Phase.RUNNING:
                continue  # while a generation is being stopped, its own deadline decides
            if max(self._told.get(now.host, {}).get(now.id, {}), default=0) > was.generation:
                continue  # another coordinator has started a newer one in its place
            silent_s = self.world.heap.now - max(self._heard_at.get(now.host, 0.0), self.world.head_since)
            waited = silent_s >= 0.99 * after.plan.timing.lost_after_s
            self.demand(waited, "lost-too-soon", f"{now.id} on {now.host} is given up after {silent_s:.1f} s")

    def _checkpoints(self, before: Run, after: Run) -> None:
        known = after.checkpoint
        if known is not None and known != before.checkpoint:
            of_now = known.generation == after.generation or known.path == self._went_to
            self.demand(
                of_now, "checkpoint-stale", f"{known.path} is believed in generation {after.generation}"
            )
            left = known.generation == self._left and known.path != self._went_to
            self.demand(
                not left, "rollback-lost", f"{known.path} is believed, and the user went back from it"
            )
            if known.global_step is not None and known.global_step > max(self._verified.values(), default=-1):
                self._since_progress = self._blamed = 0
            if known.global_step is not None:
                self._verified[known.path] = known.global_step
        if after.seed is not None and after.seed != before.seed:
            self._seeded(after)

    def _seeded(self, after: Run) -> None:
        assert after.seed is not None
        self._verified, self._seed_wants = self.run.share.still_there(self._verified)
        if self.run.scenario.script == "restores-nothing":
            self._seed_wants = None  # what it saves from step 0 on is newer than what it had reached before
        given = after.seed.global_step
        self.demand(
            self._seed_wants is None or (given is not None and given >= self._seed_wants),
            "resumed-below",
            f"generation {after.generation} is given step {given}; that of step {self._seed_wants} was verified",
        )
        self.demand(
            self.run.share.was_given(after.generation, given),
            "seed-unlike",
            f"generation {after.generation} is said to begin at {given}, and was given something else",
        )

    def performed(self, run: Run, action: do.Action) -> None:
        """Check an action before its order is sent."""
        if isinstance(action, do.StartTask):
            self._starts(run, action)
        if isinstance(action, do.ReleaseTask) and run.plan.checkpoint is not None:
            seeded = run.seed is not None and run.seed.generation == run.generation
            self.demand(seeded, "released-unseeded", f"{action}, and its directory is not ready")
        if isinstance(action, do.StartTask | do.ReleaseTask):
            self.demand(not run.phase.is_terminal, "terminal", f"{action} in {run.phase.value}")
            self.demand(not self.killed, "kill-lost", f"an acknowledged kill, and {action}")

    def _starts(self, run: Run, action: do.StartTask) -> None:
        if action.standby:
            self._starts_in_advance(run, action)
            return
        task = run.task(action.task)
        self.demand(action.generation == task.generation, "older-generation", f"{action}")
        known = run.host(action.host).facts is not None
        self.demand(known, "started-unprepared", f"{action} on a host of which nothing is known")
        beside = [task] if is_individual(run, task) and task.generation > run.generation else list(run.tasks)
        for other in beside:
            if run.host(other.host).link is not Link.CONNECTED:
                continue
            for generation, phase in self._told.get(other.host, {}).get(other.id, {}).items():
                lives = phase != "exited" and generation < other.generation
                record = self.world.machines[other.host].records.get((run.run_id, str(other.id), generation))
                if record is not None and self._is_standby(record):
                    continue  # it was never released, and is being stopped
                if record is not None and record.by_stale:
                    continue  # it was ordered to stop, and is fenced off by its directory and its port
                self.demand(
                    not lives,
                    "beside-the-old",
                    f"{action}: {other.host} says {other.id} of {generation} lives",
                )

    def _starts_in_advance(self, run: Run, action: do.StartTask) -> None:
        # An order that a host may not have got is repeated once it is back, also while the run stops for a restart.
        is_repeated = action.generation in self._in_advance
        self._in_advance.add(action.generation)
        goes_on = run.phase is Phase.BACKOFF or run.intent in (Intent.RESTART, Intent.RESCHEDULE)
        trains = run.phase is Phase.RUNNING or (is_repeated and goes_on)
        trains = trains and action.generation > run.generation
        self.demand(trains, "standby", f"{action} in {run.phase.value}, generation {run.generation}")
        self.demand(action.generation <= run.generation_last, "standby", f"{action} is not counted")

    # -- afterwards ----------------------------------------------------------------------------------------

    def after_a_crash(self, kept: list[Run], found: Run | None) -> None:
        """Check I6: what was acknowledged is in the journal, and its state is one that was written."""
        self.demand(
            found is not None or not self.submitted,
            "submit-lost",
            "an acknowledged run is not in the journal",
        )
        if found and kept:
            self.demand(found in kept, "journal-mixed", "the journal holds a state that was never written")

    def at_the_end(self, run: Run | None) -> None:
        """Check the end, after all faults have healed and enough time has passed."""
        self.demand(run is not None, "submit-lost", "there is no run")
        assert run is not None
        told = f"{run.phase.value} ({run.intent}): {run.reason}"
        self.demand(
            run.phase.is_terminal, "liveness", f"after {self.world.scenario.bound_s:.0f} s it is {told}"
        )
        living = self.run.living()
        self.demand(not living, "left-behind", f"{run.phase.value}, and there live {living}")
        scenario = self.run
        if scenario.kind != "chaos":
            self.demand(run.phase is Phase.SUCCEEDED, "false-end", told)
        if scenario.kind in ("calm", "harmless"):
            self.demand(run.budget.restarts == 0, "false-restart", f"{run.budget.restarts} restarts")
        if scenario.kind == "alone":
            self.demand(run.generation == 1, "false-restart", f"the gang is in generation {run.generation}")
        unasked = run.phase is Phase.KILLED and not self.killed
        may_end = self.may_be_left or run.plan.time_limit_s is not None
        self.demand(not unasked or may_end, "killed-unasked", told)
        if self.killed and not self.chief_finished:
            self.demand(run.phase in (Phase.KILLED, Phase.FAILED), "kill-lost", told)

    def replayed(self, entries: list[Entry]) -> None:
        """Check that the journal tells how the run came to its end: each entry is decided again as it was."""
        for one in replay(entries):
            what = f"{one.entry.seq} {one.entry.type}"
            self.demand(not one.why_not, "replay", f"{what}: {one.why_not}")
            self.demand(not one.differs, "replay", f"{what}: {one.entry.outcome} is now {one.outcome}")


def _can_reach(plan: Plan, task: TaskId) -> bool:
    """Return whether what a task hands over is found by the next generation."""
    return task == plan.chief or (plan.checkpoint is not None and plan.checkpoint.shared)

"""A task and its shim. The shim's decisions are the real ones, and its actions apply to a fake process."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from orchestrator.core.plan import TaskId
from orchestrator.host.shim import state as shim_state
from orchestrator.host.shim.report import blank_task, ended_task
from orchestrator.host.shim.state import Do, Ended, Exited, KillChecked, Ordered, RuntimeReady, Ticked
from orchestrator.protocol.reports import Holds, Left, Rescued, Said, Task
from tests.sim.apart import Apart

if TYPE_CHECKING:
    from tests.sim.machine import Machine, Record
    from tests.sim.training import Gang

Answer = Callable[[dict[str, Any]], None]

UNAVAILABLE = "tensorflow.python.framework.errors_impl.UnavailableError: the peer is gone"


class Process:
    """The process of a user's script, with or without the runtime."""

    def __init__(self, shim: Shim, env: dict[str, str]) -> None:
        self.shim = shim
        self.machine = shim.machine
        self.world = shim.machine.world
        run_id, task, self.generation = shim.record.key
        self.run = self.world.runs[run_id]
        self.task = TaskId.parse(task)
        self.by_stale = shim.record.by_stale
        self.in_advance = bool(env.get("ORCH_STANDBY"))
        self.gpus = frozenset(filter(None, env.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        self.identity = self.machine.new_pid(self)
        self.directory = env.get("ORCH_CHECKPOINT_DIR") if not shim.record.start["scratch"] else None
        if self.directory is not None and isinstance(self.run.share, Apart):
            self.directory = f"{self.machine.name}:{self.directory}"
        self.alive = True
        self.frozen = False
        self.stuck = False
        self.unkillable = False
        self.given_up = False
        """Whether its host knows that it cannot be killed."""
        self.dying = False
        self.released = False
        self.gang: Gang | None = None
        self.error: Said | None = None
        self.holds: Holds | None = None
        self.rescued: Rescued | None = None
        self._lines: list[str] = []
        self._waits: list[Callable[[], None]] = []
        self.run.processes_ever.append(self)
        self.run.checks.spawned(self)
        scenario = self.run.scenario
        self._after(scenario.import_s * self.world.chance.uniform(0.8, 1.5), self._imported)

    def __repr__(self) -> str:
        return f"{self.run.name} {self.task} of generation {self.generation} on {self.machine.name}"

    @property
    def trains(self) -> bool:
        """Whether it would train, if its peers do."""
        return self.alive and self.released and not (self.frozen or self.stuck)

    @property
    def rescues(self) -> bool:
        """Whether it says that it can hand over its state."""
        may = Random(f"rescues {self.run.name} {self.generation}").random() < 0.7
        return may and self.gang is not None and self.gang.began

    def _after(self, delay_s: float, thunk: Callable[[], None]) -> None:
        """Call `thunk` after a delay if it still lives. While it is frozen, the call waits."""

        def due() -> None:
            if self.alive and self.frozen:
                self._waits.append(due)
            elif self.alive:
                thunk()

        self.world.heap.after(delay_s, due)

    def freeze(self, frozen: bool) -> None:
        """Act on SIGSTOP or SIGCONT."""
        self.frozen = frozen
        if not frozen:
            waits, self._waits = self._waits, []
            for due in waits:
                due()
        self.run.training.changed(self)

    def _imported(self) -> None:
        if self.run.scenario.script == "fails-early":
            self.fail("ValueError: the script cannot work")
            return
        self.shim.tell(RuntimeReady(self.machine.clock()))

    def go(self, env: dict[str, str]) -> None:
        """Act on the release, which brings TF_CONFIG."""
        self.run.checks.goes(self)
        self.released = True
        self.print("the training begins")
        config = json.loads(env.get("TF_CONFIG") or "null")
        self.run.training.join(self, config)

    def print(self, words: str) -> None:
        """Write a line to its log."""
        log = self.shim.record.log
        log.write(self.world.heap.now, f"{self!r}, byte {len(log.text)}: {words}")

    def ask_to_stop(self) -> None:
        """Let the runtime stop it, unless it is stuck where no Python runs."""
        if not self.stuck and self.world.chance.random() < 0.8:
            self._after(self.world.chance.uniform(0.01, 1.0), lambda: self.end(signal=15))

    def ask_to_rescue(self, *, compare: bool) -> None:
        """Say what it holds, or hand over the state of its gang and end; or have nothing to hand over, or hang."""
        chance, gang = self.world.chance, self.gang
        if self.stuck or chance.random() < 0.1:
            return
        if gang is None or not gang.began or chance.random() < 0.2:
            self._handed_over(None)
            return
        if compare:
            self._after(chance.uniform(0.05, 3.0), lambda: self._say(gang.holds()))
            return
        step, end = gang.hand_over(self)

        def written() -> None:
            end(not self.run.tears())
            self._handed_over(step)

        self._after(chance.uniform(0.05, 8.0), written)

    def _say(self, holds: Holds) -> None:
        self.holds = holds
        self.machine.changed(self.shim.record)

    def _handed_over(self, step: int | None) -> None:
        self.rescued = {"step": step, "took_s": 0.1, "why": "" if step is not None else "no fit is going on"}
        self.end(code=143)

    def fail(self, line: str, code: int = 1) -> None:
        """End by the script itself."""
        self.error = {"kind": "exception", "message": line} if code == 1 else None
        self._lines = [line] if line else []
        self.print(line)
        self.end(code=code)

    def fail_later(self, delay_s: float, line: str, code: int, still: Callable[[], bool]) -> None:
        """Call `fail` after a delay, if `still` holds then."""
        self._after(delay_s, lambda: self.fail(line, code) if still() else None)

    def killed(self) -> None:
        """Act on SIGKILL. A process with much memory takes some time to die."""
        if self.unkillable or self.dying:
            return
        self.dying = True
        if self.world.chance.random() < 0.8:
            self.end(signal=9)
        else:
            self.world.heap.after(self.world.chance.uniform(0.01, 1.5), lambda: self.end(signal=9))

    def end(self, code: int | None = None, signal: int | None = None) -> None:
        """End, for whatever reason."""
        if not self.alive:
            return
        self.alive = False
        self.machine.free_pid(self.identity)
        self.world.say(f"{self!r} ends: code {code}, signal {signal} {' '.join(self._lines)[:40]}")
        self.run.training.ended(self, code)
        self.shim.tell(Exited(Ended(self.machine.clock(), code=code, signal=signal)))

    @property
    def last_lines(self) -> list[str]:
        """The last lines of its log."""
        return self._lines


class Shim:
    """A shim: it executes what `shim/state.py` decides."""

    def __init__(self, machine: Machine, record: Record) -> None:
        self.machine = machine
        self.record = record
        self.run = machine.world.runs[record.key[0]]
        self.alive = True
        self.frozen = False
        self.identity = machine.new_pid(self)
        self.watched = True
        self._events: deque[tuple[shim_state.Event, Answer | None, dict[str, Any]]] = deque()
        self._busy = False
        self._timer: float | None = None
        record.shim, record.identity = self, self.identity
        start = record.start
        self.state, first = shim_state.begin(
            int(start["generation"]), int(start["epoch"]), bool(start["hold"])
        )
        for action, value in first:
            self._execute(action, value, None, {})
        self._decide()

    def tell(
        self, event: shim_state.Event, answer: Answer | None = None, order: dict[str, Any] | None = None
    ) -> None:
        """Decide on an event, now or once it is no longer frozen."""
        if self.alive:
            self._events.append((event, answer, order or {}))
            if not self.frozen and not self._busy:
                self._decide()

    def order(self, order: dict[str, Any], answer: Answer) -> None:
        """Take an order from an agent."""
        grace_s = float(order.get("grace_s", 0.0))
        at = self.machine.clock()
        port = order.get("port")
        if port is not None and port != self.record.port and self.state.phase is shim_state.Phase.READY:
            refused = shim_state.refusal(self.state, int(order["epoch"]), int(order["generation"]))
            if refused is None and port in self.machine.ports_held:
                answer({"error": {"code": "no-port", "message": f"port {port} is held", "hint": None}})
                return
            self.record.port = port if refused is None else self.record.port
        whose = int(order["epoch"]), int(order["generation"])
        asked = bool(order.get("rescue")), bool(order.get("compare"))
        event = Ordered(at, str(order["order"]), *whose, grace_s, *asked)
        self.tell(event, answer, order)

    def freeze(self, frozen: bool) -> None:
        """Act on SIGSTOP or SIGCONT to the shim alone. Its task continues."""
        self.frozen = frozen
        if not frozen and self.alive:
            self.tell(Ticked(self.machine.clock()))
            self.machine.changed(self.record)

    def killed(self) -> None:
        """Act on SIGKILL to the shim. Its task dies with it, and no exit record is written."""
        process = self.record.process
        self.vanish()
        self.machine.free_pid(self.identity)
        if process is not None:
            process.killed()
        self.machine.changed(self.record)

    def vanish(self) -> None:
        """Disappear; if the machine has crashed, together with the task."""
        self.alive = False
        process = self.record.process
        if process is not None and process.alive and not self.machine.up:
            process.unkillable = False
            process.end(signal=9)
        self.abandon()

    def abandon(self) -> None:
        """Answer waiting orders that the shim is gone."""
        waiting, self._events = self._events, deque()
        for event, answer, order in waiting:
            if answer is not None and isinstance(event, Ordered):
                answer(gone(order))

    def _decide(self) -> None:
        self._busy = True
        while self._events and self.alive and not self.frozen:
            event, answer, order = self._events.popleft()
            event.at = self.machine.clock()
            self.state, actions = shim_state.decide(self.state, event)
            for action, value in actions:
                self._execute(action, value, answer, order)
        self._busy = False
        self._arm()

    def _arm(self) -> None:
        due = self.state.deadline_at
        if due is None or not self.alive or self._timer == due:
            return
        self._timer = due

        def expire() -> None:
            if self.alive and self._timer == due:
                self._timer = None
                self.tell(Ticked(self.machine.clock()))

        self.machine.world.heap.at(self.machine.clock.when(due) + 1e-6, expire)

    def _execute(self, action: Do, value: Any, answer: Answer | None, order: dict[str, Any]) -> None:
        process = self.record.process
        if action is Do.SPAWN:
            self.record.process = Process(self, self.record.start["env"])
            if not self.record.start["hold"]:
                self.record.process.go(order.get("env") or {})
        elif action is Do.GO and process is not None:
            process.go(order.get("env") or {})
        elif action is Do.ASK_TO_STOP and process is not None:
            process.ask_to_stop()
        elif action is Do.ASK_TO_RESCUE and process is not None:
            process.ask_to_rescue(compare=value["compare"])
        elif action is Do.KILL:
            self._kill()
        elif action is Do.RECORD:
            self._record()
        elif action is Do.REPORT:
            self.record.was_ready |= self.state.shown in ("ready", "running")
            self.machine.changed(self.record)
        elif action is Do.ACCEPT and answer is not None:
            self.run.checks.handled(self.machine, self.record, order)
            answer({"ok": {}})
        elif action is Do.REFUSE and answer is not None:
            code, message, hint = value
            answer({"error": {"code": code, "message": message, "hint": hint or None}})

    def _kill(self) -> None:
        process = self.record.process
        if process is not None and process.alive:
            process.killed()
        left: list[Left] = []
        if process is not None and process.alive:
            left = [{"pid": process.identity.pid, "why": "D state: it waits in the kernel"}]
        self.tell(KillChecked(self.machine.clock(), left))

    def _record(self) -> None:
        state, process = self.state, self.record.process
        ended = state.ended or Ended(self.machine.clock())
        cause = shim_state.cause_of(ended, state.stop_by, None, 0, is_one=False)
        task = ended_task(
            self.task(),
            {
                "cause": cause,
                "code": ended.code,
                "signal": ended.signal,
                "ago_s": 0.0,
                "ended_at": self.machine.world.heap.now,
                "ordered": state.stop_by is shim_state.StopBy.ORDER,
                "released": state.reached is shim_state.Phase.RUNNING,
                "last_lines": process.last_lines if process is not None else [],
                "swept": "cgroup",
                "left": list(state.left),
            },
        )
        if process is not None:
            process.given_up = bool(state.left)
            process.run.checks.recorded(process)
        self.alive = False
        self.machine.free_pid(self.identity)
        self.machine.keep(self.record, task, ended.at)
        self.abandon()

    def task(self) -> Task:
        """Return the TASK of a report."""
        process = self.record.process
        task = blank_task(self.record.start)
        task["phase"] = self.state.shown
        task["port"] = self.record.port
        task["log_bytes"] = len(self.record.log.text)
        if process is not None:
            task["pid"] = process.identity.pid
            task["error"] = process.error
            task["rescues"] = process.rescues
            task["holds"] = process.holds
            task["rescued"] = process.rescued
            if process.gang is not None:
                task["global_step"] = process.gang.step_of(process)
        return task


def gone(order: dict[str, Any]) -> dict[str, Any]:
    """Return the agent's answer in place of a shim that has ended. A stop has then succeeded."""
    if order["order"] == "stop":
        return {"ok": {}}
    return {"error": {"code": "gone", "message": f"{order['task']} ended before it answered", "hint": None}}

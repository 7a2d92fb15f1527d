"""The agent of one connection: stateless, fenced, and gone with its connection. It decides with `agent/state.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.adapters.channel import Decoder, encode
from orchestrator.adapters.host.hostdir import HostFault, refuse_superseded
from orchestrator.daemon.agent import state as agent_state
from orchestrator.protocol import orders
from orchestrator.protocol.frames import Report, Task
from orchestrator.protocol.table import BY_NAME, Fence
from tests.sim.machine import Record
from tests.sim.process import Shim, gone
from tests.sim.wires import Wire

if TYPE_CHECKING:
    from tests.sim.machine import Machine

Order = dict[str, Any]
Answer = Callable[[dict[str, Any]], None]

CODE = "c0de" * 16
"""The digest of the one tree of code."""

NOT_PLAYED = {
    "blob": "the code is there at once",
    "psutil": "nothing is sampled",
    "snapshot": "the hosts share their checkpoint directory",
    "chunk": "as snapshot",
    "receive": "as snapshot",
    "checkpoints": "people go back by the share itself",
    "stacks": "nobody answers: see SimPerformer",
    "log": "the logs' bytes decide nothing",
    "summaries": "as log",
    "summary": "as log",
    "fault": "faults come from the world",
    "runs": "no journal is lost",
    "remove": "as runs",
}
"""Orders that this agent does not know, and why."""


class Agent:
    """A fake agent. It lives until its connection ends, or it is killed."""

    def __init__(self, machine: Machine, epoch: int) -> None:
        self.machine = machine
        self.world = machine.world
        self.epoch = epoch
        self.alive = True
        self.frozen = False
        self.out: Wire | None = None
        self.decoder = Decoder()
        self.heartbeat_s: float | None = None
        self._run = ""
        self._heard: dict[tuple[str, int], tuple[Task, float]] = {}
        """The last report of each shim, and when it came."""
        self._deferred: dict[tuple[str, int], list[tuple[Order, Answer]]] = {}
        self._inbox: list[bytes | None] = []
        self._reports = False
        self._beats = False
        machine.agents.append(self)

    # -- life ----------------------------------------------------------------------------------------------

    def vanish(self) -> None:
        """Disappear with the machine, without closing the connection."""
        self.alive = False
        if self in self.machine.agents:
            self.machine.agents.remove(self)

    def end(self) -> None:
        """End because it was killed or the connection has ended: the kernel closes the connection."""
        if self.alive:
            self.vanish()
            if self.out is not None:
                self.out.send(None)

    def freeze(self, frozen: bool) -> None:
        """Act on SIGSTOP or SIGCONT."""
        self.frozen = frozen
        if not frozen:
            inbox, self._inbox = self._inbox, []
            for data in inbox:
                self.receive(data)
            self._report()

    def receive(self, data: bytes | None) -> None:
        """Receive bytes from the head; None is the end."""
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(data)
        elif data is None:
            self.end()
        else:
            for order, _ in self.decoder.feed(data):
                self.take(order)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the head."""
        if self.alive and self.out is not None:
            self.out.send(encode(message))

    # -- reports -------------------------------------------------------------------------------------------

    def changed(self, record: Record) -> None:
        """Notice that a task has changed: its phase, or whether its shim lives."""
        deferred = self._deferred.pop(record.key, []) if record.shim is not None else []
        for order, answer in deferred:
            self._forward(record, order, answer)
        if record.is_silent:
            self._look_back(record)
        self._report_soon()

    def _look_back(self, record: Record) -> None:
        if record.burying:
            return
        record.burying = True

        def recover() -> None:
            record.burying = False
            if self.alive and not self.frozen:
                self.machine.bury(record)
            elif self.machine.agents:
                self.machine.changed(record)

        self._job(self.world.chance.uniform(0.05, 2.0), recover)

    def _report_soon(self) -> None:
        if self.heartbeat_s is not None and not self._reports:
            self._reports = True
            self.world.heap.after(0.01, self._report)

    def _report(self) -> None:
        self._reports = False
        if not self.alive or self.frozen or self.heartbeat_s is None:
            return
        known = [(*key, self._learn(record)) for key, record in self.machine.records.items()]
        tasks = [self._told(key) for key in agent_state.shown(known)]
        report: Report = {
            "host": {
                "cpu_percent": 3.0,
                "memory_percent": 9.0,
                "disk_free_bytes": 1 << 40,
                "psutil": "bundle",
                "checkpoint_dirs": {},
            },
            "runs": {self._run: tasks},
        }
        self.send({"report": report})

    def _learn(self, record: Record) -> bool:
        """Ask the shim, or read its exit record. Return whether the end of the task is known."""
        if record.task is not None and not record.lives:
            self._heard[record.key] = (self.machine.read(record), self.machine.clock())
            return True
        if record.shim is not None and record.lives and not record.shim.frozen:
            self._heard[record.key] = (record.shim.task(), self.machine.clock())
        return False

    def _told(self, key: tuple[str, int]) -> Task:
        if key not in self._heard:
            return agent_state.unknown(*key)
        task, at = self._heard[key]
        return agent_state.as_of(task, self.machine.clock() - at)

    def _beat(self) -> None:
        if self.alive and self.heartbeat_s is not None:
            self._report()
            self.world.heap.after(self.heartbeat_s / self.machine.clock.rate, self._beat)

    # -- orders --------------------------------------------------------------------------------------------

    def take(self, order: Order) -> None:
        """Handle an order, and send its reply."""
        number = order.get("id")
        self.handle(
            order, lambda reply: self.send({"reply": number, **reply}) if number is not None else None
        )

    def handle(self, order: Order, answer: Answer) -> None:
        """Check the fencing of an order, and do it."""
        try:
            if BY_NAME[order["order"]].fence is not Fence.NONE:
                refuse_superseded(str(order["run"]), self.machine.epoch, int(order["epoch"]))
                self.machine.epoch = max(self.machine.epoch, int(order["epoch"]))
                self.world.checks.handles(self.machine, order)
            do = getattr(self, BY_NAME[order["order"]].handler, None)
            if do is None:
                raise HostFault("unknown-order", f"this agent does not know the order {order['order']!r}")
            do(order, answer)
        except HostFault as e:
            answer({"error": e.to_json()})

    def _job(self, takes_s: float, work: Callable[[], None]) -> None:
        self.world.heap.after(takes_s, work)

    def _on_watch(self, order: Order, answer: Answer) -> None:
        self._run, self.heartbeat_s = str(order["run"]), float(order["heartbeat_s"])
        for record in self.machine.records.values():
            if record.is_silent:
                self._look_back(record)
        answer({"ok": {}})
        if not self._beats:
            self._beats = True
            self._beat()

    def _on_unwatch(self, _order: Order, answer: Answer) -> None:
        self.heartbeat_s = None
        answer({"ok": {}})

    def _on_probe(self, _order: Order, answer: Answer) -> None:
        facts: orders.Facts = {
            "python": "3.11.2",
            "versions": {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": None, "numpy": "2.0.0"},
            "checkpoint_writable": True,
            "checkpoint_why": None,
            "checkpoint_share": None,
            "gpus": None,
            "gpus_in_use": [],
            "disk_free_bytes": 1 << 40,
            "own_name": {"name": self.machine.name, "address": "10.0.0.1", "why": None},
        }
        answer({"ok": facts})

    def _on_code(self, _order: Order, answer: Answer) -> None:
        answer({"ok": {"digest": CODE, "missing": []}})

    def _on_highest(self, _order: Order, answer: Answer) -> None:
        answer({"ok": {"generation": max(self.world.share.generations, default=0)}})

    def _on_keep(self, _order: Order, answer: Answer) -> None:
        answer({"ok": {}})

    def _on_seed(self, order: Order, answer: Answer) -> None:
        self._on_share(
            answer, lambda: self.world.share.seed(int(order["generation"]), keep=int(order["keep"]))
        )

    def _on_verify(self, order: Order, answer: Answer) -> None:
        self._on_share(answer, lambda: self.world.share.verify(int(order["generation"])))

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

    def _on_start(self, order: Order, answer: Answer) -> None:
        task, generation = str(order["task"]), int(order["generation"])
        records = self.machine.records
        agent_state.refuse_older(task, generation, max((g for t, g in records if t == task), default=0))
        record = records.get((task, generation))
        if record is not None and (record.shim is not None or record.task is not None or record.starting):
            answer({"ok": {"pid": None, "already": True}})
            return
        if self.machine.start_fails:
            raise HostFault("start-failed", f"the shim of {task} cannot be started")
        record = records[(task, generation)] = Record(dict(order), starting=True)
        self._job(self.world.chance.uniform(0.05, 1.5), lambda: self._started(record, answer))

    def _started(self, record: Record, answer: Answer) -> None:
        """Start the shim if the machine still runs. The agent may be gone by now."""
        machine = self.machine
        if not record.starting:
            return  # the machine has crashed meanwhile
        record.starting = False
        held = machine.ports_held
        record.port = next((int(p) for p in record.start["ports"] if int(p) not in held), None)
        if record.port is None:
            del machine.records[record.key]
            answer({"error": {"code": "port", "message": "no port of the range is free", "hint": None}})
            return
        shim = Shim(machine, record)
        answer({"ok": {"pid": shim.identity.pid}})
        machine.changed(record)

    def _record(self, order: Order) -> Record:
        task, generation = str(order["task"]), int(order["generation"])
        record = self.machine.records.get((task, generation))
        if record is None:
            raise HostFault("no-task", f"{task} of generation {generation} was never started on this host")
        return record

    def _forward(self, record: Record, order: Order, answer: Answer) -> None:
        if record.task is not None and not record.lives:
            answer(gone(order))
        elif record.shim is not None and record.lives:
            record.shim.order(order, answer)
        else:
            self._deferred.setdefault(record.key, []).append((order, answer))

    def _on_release(self, order: Order, answer: Answer) -> None:
        record = self._record(order)
        takes_s = self.world.chance.uniform(0.05, 2.0) if order.get("seed") else 0.0
        self._job(takes_s, lambda: self._forward(record, order, answer) if self.alive else None)

    def _on_stop(self, order: Order, answer: Answer) -> None:
        self._forward(self._record(order), order, answer)

    def _on_sweep(self, order: Order, answer: Answer) -> None:
        generation_max = int(order["generation_max"])
        for (task, generation), record in list(self.machine.records.items()):
            if generation <= generation_max and record.shim is not None and record.lives:
                stop = {"order": "stop", "grace_s": 0, "run": order["run"], "epoch": order["epoch"]}
                self._forward(record, {**stop, "task": task, "generation": generation}, lambda _reply: None)
        self._job(self.world.chance.uniform(0.1, 1.0), lambda: self._swept(generation_max, answer))

    def _swept(self, generation_max: int, answer: Answer) -> None:
        if not self.alive:
            return
        for record in self.machine.records.values():
            if record.process is not None and record.key[1] <= generation_max:
                self.machine.signal(record.process.identity)
        living = [p for p in self.machine.living if p.generation <= generation_max]
        if any(p.dying for p in living):
            self._job(0.5, lambda: self._swept(generation_max, answer))
            return
        left = [{"pid": p.identity.pid, "why": "D state: it waits in the kernel"} for p in living]
        self.machine.looked_up_to = max(self.machine.looked_up_to, generation_max)
        answer({"ok": {"left": left, "ports_busy": [], "by": "cgroup"}})

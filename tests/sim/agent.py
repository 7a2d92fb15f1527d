"""The agent of one connection: stateless, fenced, and gone with its connection. It decides with `agent/state.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.both.hostdir import HostFault, refuse_superseded
from orchestrator.host.agent import state as agent_state
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.orders import hosts
from orchestrator.protocol.orders.base import Fence
from orchestrator.protocol.reports import Leaving, Report, Task, Unkillable
from tests.protocol_orders import BY_NAME
from tests.sim.apart import Apart
from tests.sim.file_orders import Answer, FileOrders, Order
from tests.sim.hush import check_frame
from tests.sim.machine import Key, Record
from tests.sim.process import Shim, gone
from tests.sim.wires import Wire

if TYPE_CHECKING:
    from tests.sim.machine import Machine

CODE = "c0de" * 16
"""The digest of the one tree of code."""

NOT_PLAYED = {
    "psutil": "nothing is sampled",
    "checkpoints": "people go back by the share itself; not where hosts share none",
    "machine": "only people ask",
    "examine": "before a run begins",
    "reach": "as examine",
    "environment": "as examine",
    "stacks": "nobody answers: see SimPerformer",
    "files": "their bytes decide nothing",
    "file": "as files",
    "digest": "as files",
    "fault": "faults come from the world",
    "remove": "no journal is lost, and there is one head",
}
"""Orders that this agent does not know, and why."""


class Agent(FileOrders):
    """A fake agent. It lives until its connection ends, or it is killed."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.alive = True
        self.frozen = False
        self.out: Wire | None = None
        self.decoder = Decoder()
        self._watched: dict[str, float] = {}
        """The heartbeat of each watched run in seconds, by run id."""
        self.leased: dict[int, str] = {}
        """By GPU, the run whose lease this process holds."""
        self._gpus: dict[str, list[int]] = {}
        self._rhythm = 0
        self._heard: dict[Key, tuple[Task, float]] = {}
        """The last report of each shim, and when it came."""
        self._deferred: dict[Key, list[tuple[Order, Answer]]] = {}
        self._inbox: list[bytes | None] = []
        self._reports = False
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
            for order, blob in self.decoder.feed(data):
                self.take(order, blob)

    def send(self, message: dict[str, Any], order: Order | None = None) -> None:
        """Send a message to the head: a report, or the reply to an order. `blob` of it are the bytes that follow."""
        if not self.alive or self.out is None:
            return
        blob = message.pop("blob", b"")
        liar = self.machine.liar
        data = encode(message, blob)
        check_frame(data)
        data = data if liar is None else liar.tell(message, blob, order)
        self.out.send(data)
        if self.machine.stutters and self.world.chance.random() < 0.3:
            self.out.send(data)

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
        if self._watched and not self._reports:
            self._reports = True
            self.world.heap.after(0.01, self._report)

    def _report(self) -> None:
        self._reports = False
        if not self.alive or self.frozen or not self._watched:
            return
        report: Report = {
            "host": {
                "cpu_percent": 3.0,
                "memory_percent": 9.0,
                "disk_free_bytes": 1 << 40,
                "psutil": "bundle",
                "checkpoint_dirs": {},
                "unkillable": self._unkillable(),
                "leaving": self._leaving(),
            },
            "runs": {run: self._tasks(run) for run in self._watched},
        }
        self.send({"report": report})

    def _leaving(self) -> Leaving | None:
        at = self.machine.leaves_at
        if at is None:
            return None
        return {"why": "it is taken away", "in_s": max(0.0, at - self.world.heap.now)}

    def _unkillable(self) -> list[Unkillable]:
        if not self.machine.was_unkillable:
            return []
        return [
            {"run": p.run.run_id, "pid": p.identity.pid, "command": "python3", "since": 0.0, "why": "D state"}
            for p in self.machine.living
            if p.given_up
        ]

    def _tasks(self, run: str) -> list[Task]:
        records = {key[1:]: record for key, record in self.machine.records.items() if key[0] == run}
        told = {key: self._told(record) for key, record in records.items()}
        known = {key: agent_state.known(told[key], ended=records[key].has_ended) for key in records}
        return [told[key] for key in agent_state.shown(known)]

    def _told(self, record: Record) -> Task:
        """Read the exit record, or ask the shim; of one that does not answer, return what it said last."""
        if record.has_ended:
            return self.machine.read(record)
        now = self.machine.clock()
        if record.shim is not None and record.lives and not record.shim.frozen:
            self._heard[record.key] = (record.shim.task(), now)
        if record.key not in self._heard:
            return agent_state.unknown(*record.key[1:])
        task, at = self._heard[record.key]
        return agent_state.as_of(task, now - at)

    def _beat(self, rhythm: int) -> None:
        if self.alive and self._watched and rhythm == self._rhythm:
            self._report()
            heartbeat_s = min(self._watched.values())
            self.world.heap.after(heartbeat_s / self.machine.clock.rate, lambda: self._beat(rhythm))

    # -- orders --------------------------------------------------------------------------------------------

    def take(self, order: Order, blob: bytes = b"") -> None:
        """Check the fencing of an order, do it, and send its reply."""
        number = order.get("id")

        def answer(reply: dict[str, Any]) -> None:
            if number is None:
                return
            late_s = self.world.chance.uniform(0.0, 3.0) if self.machine.stutters else 0.0
            if late_s:
                self._job(late_s, lambda: self.send({"reply": number, **reply}, order))
            else:
                self.send({"reply": number, **reply}, order)

        self._blob = blob
        verb = str(order["order"])
        try:
            if verb not in BY_NAME:
                raise HostFault("unknown-order", f"this agent does not know the order {verb!r}")
            if order.get("fence") != Fence.ANYBODY.value:
                run, epochs = str(order["run"]), self.machine.epochs
                refuse_superseded(run, epochs.get(run, 0), int(order["epoch"]))
                epochs[run] = max(epochs.get(run, 0), int(order["epoch"]))
                self.world.runs[run].checks.handles(self.machine, order)
            do = getattr(self, f"_on_{verb}", None)
            if do is None:
                raise HostFault("unknown-order", f"this agent does not know the order {verb!r}")
            do(order, answer)
        except KeyError as e:
            answer({"error": HostFault("bad-order", f"the order {verb!r} has no {e}").to_json()})
        except HostFault as e:
            answer({"error": e.to_json()})

    def _on_watch(self, order: Order, answer: Answer) -> None:
        run = str(order["run"])
        self._watched[run] = float(order["heartbeat_s"])
        self._gpus[run] = order.get("gpus", [])
        self._lacks(run)
        for record in self.machine.records.values():
            if record.is_silent:
                self._look_back(record)
        answer({"ok": {}})
        self._new_rhythm()

    def _on_unwatch(self, order: Order, answer: Answer) -> None:
        self._watched.pop(str(order["run"]), None)
        self._let_go(str(order["run"]))
        answer({"ok": {}})
        self._new_rhythm()

    def _on_lease(self, order: Order, answer: Answer) -> None:
        unknown = {"user": "u", "run": None, "head": None, "since": None}
        answer({"ok": {"others": [{"gpu": gpu, **unknown} for gpu in self._lacks(str(order["run"]))]}})

    def _lacks(self, run: str) -> list[int]:
        """Take the leases of a run, and return the GPUs that others have. As `Leases` of the real agent does."""
        lacking = []
        for gpu in self._gpus.get(run, []):
            other = self.machine.lessee(gpu)
            lives = any(record.lives for key, record in self.machine.records.items() if key[0] == other)
            if other == run and any(
                gpu in agent.leased for agent in self.machine.agents if agent is not self
            ):
                continue  # the kernel gives it to one process: the run has it by the agent of another coordinator
            if other in (None, run) or (self.leased.get(gpu) == other and not lives):
                self.leased[gpu] = run
            else:
                lacking.append(gpu)
        return lacking

    def _let_go(self, run: str) -> None:
        self._gpus.pop(run, None)
        self.leased = {gpu: other for gpu, other in self.leased.items() if other != run}

    def _new_rhythm(self) -> None:
        self._rhythm += 1
        self._beat(self._rhythm)

    def _on_runs(self, _order: Order, answer: Answer) -> None:
        answer({"ok": {"runs": []}})

    def _on_probe(self, _order: Order, answer: Answer) -> None:
        facts: hosts.Facts = {
            "python": "3.11.2",
            "versions": {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": None, "numpy": "2.0.0"},
            "checkpoint_writable": True,
            "checkpoint_why": None,
            "checkpoint_share": None,
            "gpus": None,
            "gpus_why": None,
            "gpus_in_use": [],
            "own_name": {"name": self.machine.name, "address": "10.0.0.1", "why": None},
            "unkillable": self._unkillable(),
        }
        self._job(self.world.chance.uniform(0.05, 2.0), lambda: answer({"ok": facts}))

    def _on_code(self, _order: Order, answer: Answer) -> None:
        answer({"ok": {"digest": CODE, "missing": []}})

    def _on_keep(self, _order: Order, answer: Answer) -> None:
        answer({"ok": {}})

    def _on_start(self, order: Order, answer: Answer) -> None:
        run, task, generation = key = _key(order)
        records = self.machine.records
        newest = max((g for r, t, g in records if (r, t) == (run, task)), default=0)
        agent_state.refuse_older(task, generation, newest)
        record = records.get(key)
        if record is not None and (record.shim is not None or record.task is not None or record.starting):
            if record.starting:
                record.asked_again.append(answer)
            else:
                pid = record.identity.pid if record.identity is not None else None
                answer({"ok": {"pid": pid, "already": True}})
            return
        if self.machine.start_fails:
            raise HostFault("start-failed", f"the shim of {task} cannot be started")
        if self._lacks(run):
            raise HostFault("gpu-leased", "somebody else has it")
        record = records[key] = Record(
            dict(order), starting=True, by_stale=int(order["epoch"]) in self.world.stale
        )
        record.gpus = frozenset(self._gpus.get(run, []))
        self._job(self.world.chance.uniform(0.05, 1.5), lambda: self._started(record, answer))

    def _started(self, record: Record, answer: Answer) -> None:
        """Start the shim if the machine still runs. The agent may be gone by now."""
        machine = self.machine
        if not record.starting:
            return  # the machine has crashed meanwhile
        record.starting = False
        held = machine.ports_held
        record.port = next((int(p) for p in record.start["ports"] if int(p) not in held), None)
        if record.start["ports"] and record.port is None:
            del machine.records[record.key]
            answer({"error": {"code": "port", "message": "no port of the range is free", "hint": None}})
            return
        shim = Shim(machine, record)
        answer({"ok": {"pid": shim.identity.pid}})
        for again in record.asked_again:
            again({"ok": {"pid": shim.identity.pid, "already": True}})
        machine.changed(record)

    def _record(self, order: Order) -> Record:
        record = self.machine.records.get(_key(order))
        if record is None:
            raise HostFault(
                "no-task",
                f"{order['task']} of generation {order['generation']} was never started on this host",
            )
        return record

    def _forward(self, record: Record, order: Order, answer: Answer) -> None:
        if record.task is not None and not record.lives:
            answer(gone(order))
        elif record.shim is not None and record.lives:
            record.shim.order(order, answer)
        else:
            self._deferred.setdefault(record.key, []).append((order, answer))

    def _on_log(self, order: Order, answer: Answer) -> None:
        log = self._record(order).log
        offset, data = log.read(order["offset"], order["bytes_max"])
        answer(
            {
                "ok": {"offset": offset, "end": len(log.text), "time": 1_700_000_000 + self.world.heap.now},
                "blob": data,
            }
        )

    def _on_release(self, order: Order, answer: Answer) -> None:
        record, share = self._record(order), self.world.runs[str(order["run"])].share
        seed = order.get("seed")
        if seed and isinstance(share, Apart) and not share.copy_is_whole(self.machine, seed):
            raise HostFault("os", f"there is no checkpoint at {seed}")
        if int(order["epoch"]) in self.world.stale:
            record.by_stale = True
            if record.process is not None:
                record.process.by_stale = True
        takes_s = self.world.chance.uniform(0.05, 2.0) if order.get("seed") else 0.0
        self._job(takes_s, lambda: self._forward(record, order, answer) if self.alive else None)

    def _on_stop(self, order: Order, answer: Answer) -> None:
        self._forward(self._record(order), order, answer)

    def _on_sweep(self, order: Order, answer: Answer) -> None:
        run_id, generation_max = str(order["run"]), int(order["generation_max"])
        for (run, task, generation), record in list(self.machine.records.items()):
            if run == run_id and generation <= generation_max and record.shim is not None and record.lives:
                stop = {"order": "stop", "grace_s": 0, "run": order["run"], "epoch": order["epoch"]}
                self._forward(record, {**stop, "task": task, "generation": generation}, lambda _reply: None)

        ends = bool(order.get("ends"))

        def swept(reply: dict[str, Any]) -> None:
            if ends and not reply["ok"]["left"]:
                self._let_go(run_id)
            answer(reply)

        self._job(self.world.chance.uniform(0.1, 1.0), lambda: self._swept(run_id, generation_max, swept))

    def _swept(self, run: str, generation_max: int, answer: Answer) -> None:
        if not self.alive:
            return
        mine = [r.process for k, r in self.machine.records.items() if k[0] == run and k[2] <= generation_max]
        for process in mine:
            if process is not None:
                self.machine.signal(process.identity)
        living = [process for process in mine if process is not None and process.alive]
        for process in living:
            process.given_up = not process.dying
        if any(p.dying for p in living):
            self._job(0.5, lambda: self._swept(run, generation_max, answer))
            return
        left = [{"pid": p.identity.pid, "why": "D state: it waits in the kernel"} for p in living]
        looked = self.machine.looked_up_to
        looked[run] = max(looked.get(run, -1), generation_max)
        answer({"ok": {"left": left, "ports_busy": [], "by": "cgroup"}})


def _key(order: Order) -> Key:
    return str(order["run"]), str(order["task"]), int(order["generation"])

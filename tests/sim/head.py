"""The coordinator: the real loop, journal, executor and wire over fake links. It may die at any write."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.adapters.bundle import Bundle
from orchestrator.adapters.channel import Decoder, encode
from orchestrator.adapters.head.journal import Journal
from orchestrator.adapters.head.secrets import Secrets
from orchestrator.adapters.transport import Transport
from orchestrator.core.actions import Action, Note
from orchestrator.core.errors import JournalError
from orchestrator.core.events import Event, HostReported
from orchestrator.core.model import Run
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import HostPlan
from orchestrator.daemon.connection import edge
from orchestrator.daemon.connection.conversation import Answer, LinkDown, OrderRefused, Reply
from orchestrator.daemon.connection.link import HostLink, Listener, Pace, Watch
from orchestrator.daemon.connection.wire import problem
from orchestrator.daemon.coordinator.executor import Executor
from orchestrator.daemon.coordinator.loop import Loop
from orchestrator.daemon.transfer.logcopy import LogCopier
from orchestrator.protocol.frames import Greeting
from orchestrator.protocol.frames import Reply as ReplyFrame
from orchestrator.protocol.table import UNWATCH, WATCH, Order
from tests.sim.agent import Agent
from tests.sim.heap import Clock
from tests.sim.wires import Wire

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

A = TypeVar("A")

CONNECT_TIMEOUT_S = 20.0


class Died(BaseException):
    """The coordinator was killed at this point."""


class SimJournal(Journal):
    """The real journal in a temporary file. At its writes, the coordinator may die."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self.tear: tuple[int, int] | None = None
        """The range of the write-ahead log in which it is torn: what the last write added."""
        self.kept: list[Run] = []
        """The states that may be found afterwards: the last one written, and one that was being written."""
        super().__init__(path)

    def commit(self, run: Run, event: Event, notes: Sequence[Note], **more: Any) -> None:
        """Commit as the real journal does, or die before, after or in the middle of it."""
        if self._world.disk_full:
            raise JournalError("the disk of the journal is full")
        fate = self._world.fate_of_write()
        if fate == "before":
            raise Died
        before = _size(self.path + "-wal")
        super().commit(run, event, notes, **more)
        after = _size(self.path + "-wal")
        if fate == "torn" and after > before:
            self.tear = (before, after)
            self.kept = [*self.kept[-1:], run]
            raise Died
        self.kept = [run]
        if fate != "lives":
            raise Died

    def survive(self, path: str) -> str:
        """Copy the files as a crash leaves them to `path`, and close this journal."""
        shutil.copy(self.path, path)
        if os.path.exists(self.path + "-wal"):
            shutil.copy(self.path + "-wal", path + "-wal")
            if self.tear is not None:
                with open(path + "-wal", "r+b") as wal:
                    wal.truncate(self._world.chance.randrange(*self.tear))
        self.close()
        return path


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0


class NoLogs(LogCopier):
    """Copies nothing, since the content of logs does not matter here."""

    def __init__(self) -> None:
        pass

    def reported(self, link: HostLink, run_id: str, epoch: int, report: HostReported) -> None:
        """Do nothing."""

    def is_behind(self, run_id: str, tasks: Any) -> bool:
        """Return False."""
        return False

    def forget(self, run_id: str, tasks: Any) -> None:
        """Do nothing."""


class Job:
    """The executor's workers: each job takes a while, in the one thread of the simulator."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def submit(self, work: Callable[..., Any], /, *args: Any) -> None:
        """Do the work after a random delay, if the coordinator still lives."""
        head = self._head
        head.world.heap.after(
            head.world.chance.uniform(0.05, 2.0), lambda: work(*args) if head.alive else None
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing."""


class SimPerformer(Executor):
    """The executor without stacks: the real one collects them in threads."""

    def stacks(self, run: Run) -> dict[str, str]:
        """Return no stacks for any task."""
        return {str(task.id): "no stacks" for task in run.tasks}


class SimLink(HostLink):
    """A link with the real one's protocol, but without its threads."""

    def __init__(self, head: Head, host: HostPlan, listener: Listener, pace: Pace) -> None:
        self.host = host
        self.head = head
        self.world = head.world
        self._listener = listener
        self._pace = pace
        self._watches: dict[str, Watch] = {}
        self._open: Connection | None = None
        self._closed = False
        self._tries = 0
        self._later(0.0, self._try)

    @property
    def machine(self) -> Machine:
        return self.world.machines[self.host.name]

    def _later(self, delay_s: float, thunk: Callable[[], None]) -> None:
        self.world.heap.after(delay_s, lambda: thunk() if self.head.alive and not self._closed else None)

    # -- as HostLink ---------------------------------------------------------------------------------------

    def attach(self, run_id: str, watch: Watch) -> None:
        """Serve another run too."""
        self._watches[run_id] = watch
        if self._open is not None:
            self._ask_to_watch(run_id, watch)
            self._listener.up(run_id, self.host.name, self._open.hello)

    def detach(self, run_id: str) -> bool:
        """Stop serving a run."""
        watch = self._watches.pop(run_id, None)
        if watch is not None:
            self.send(UNWATCH({"run": run_id, "epoch": watch.epoch}))
        if self._watches:
            return True
        self.close()
        return False

    def send(
        self, order: Order[A], blob: bytes = b"", on_reply: Callable[[Reply[A]], None] | None = None
    ) -> None:
        """Send an order, or drop it where there is no connection."""
        if self._open is not None:
            self._open.send(order, blob, on_reply)

    def ask(self, order: Order[A], blob: bytes = b"", *, timeout_s: float = 60.0) -> Answer[A]:
        """Ask an agent that can be reached, and return its reply at once: the job that asks has waited already."""
        machine, connection = self.machine, self._open
        if connection is None or connection.agent.frozen or not connection.agent.alive:
            raise LinkDown(f"{self.host.name} does not answer")
        if machine.cut_up or machine.cut_down:
            raise LinkDown(f"{self.host.name} is cut off")
        told: list[dict[str, Any]] = []
        frames = Decoder().feed(encode({**order.fields, "id": 0}, blob))
        connection.agent.handle(frames[0][0], told.append)
        frame = edge.frame(self.host.name, {"reply": 0, **told[0]}, b"")
        assert "report" not in frame
        if "error" in frame:
            raise OrderRefused(problem(frame["error"]))
        return Answer(edge.answer(self.host.name, order, frame["ok"], b""), b"")

    def reset(self, why: str) -> None:
        """Reconnect."""
        if self._open is not None:
            self._broke(self._open, why)

    def close(self) -> None:
        """Close the link. What runs on the host continues."""
        self._closed = True
        if self._open is not None:
            self._open.close()
            self._open = None

    @property
    def is_connected(self) -> bool:
        return self._open is not None

    # -- connecting ----------------------------------------------------------------------------------------

    def _try(self) -> None:
        if self._open is not None:
            return
        chance = self.world.chance
        slow = 15.0 if chance.random() < 0.03 else 0.0
        takes_s = chance.uniform(0.3, 1.5) + 6 * self.world.scenario.latency_s + slow
        if not self._reachable():
            self._later(CONNECT_TIMEOUT_S, self._failed)
        else:
            boot = self.machine.boot
            self._later(takes_s, lambda: self._connected(boot))

    def _reachable(self) -> bool:
        machine = self.machine
        return machine.up and not machine.cut_up and not machine.cut_down

    def _failed(self) -> None:
        self._tell_down("no answer within 20 s")
        self._retry()

    def _retry(self) -> None:
        delay_s = self._pace.retry_s[min(self._tries, len(self._pace.retry_s) - 1)]
        self._tries += 1
        self._later(delay_s * self.world.chance.uniform(0.75, 1.25), self._try)

    def _connected(self, boot: int) -> None:
        if not self._reachable() or self.machine.boot != boot:
            self._later(CONNECT_TIMEOUT_S, self._failed)
            return
        self._open = connection = Connection(self)
        self.world.say(f"{self.host.name} is connected (epoch {self.head.epoch})")
        for run_id, watch in list(self._watches.items()):
            self._ask_to_watch(run_id, watch)
        for run_id in list(self._watches):
            self._listener.up(run_id, self.host.name, connection.hello)
        self._later(self._silence_max_s(), lambda: self._check_silence(connection))

    def _silence_max_s(self) -> float:
        return min((watch.silence_max_s for watch in self._watches.values()), default=60.0)

    def _check_silence(self, connection: Connection) -> None:
        if self._open is not connection:
            return
        silent_s = self.world.heap.now - connection.heard_at
        if silent_s > self._silence_max_s():
            self._broke(connection, f"nothing was heard for {silent_s:.0f} s")
        else:
            self._later(self._silence_max_s() - silent_s + 1.0, lambda: self._check_silence(connection))

    def _ask_to_watch(self, run_id: str, watch: Watch) -> None:
        self.send(WATCH({"run": run_id, "epoch": watch.epoch, "heartbeat_s": watch.heartbeat_s}))

    def heard(self, connection: Connection, data: bytes | None) -> None:
        """Handle bytes from the agent; None is the end."""
        if self._open is not connection or not self.head.alive:
            return
        connection.heard_at = self.world.heap.now
        if data is None:
            self._broke(connection, "the connection broke")
            return
        for message, blob in connection.decoder.feed(data):
            frame = edge.frame(self.host.name, message, blob)
            if "report" not in frame:
                connection.replied(frame, blob)
                continue
            for run_id in list(self._watches):
                if run_id in frame["report"]["runs"]:
                    self.world.checks.heard(self.host.name, frame["report"]["runs"][run_id])
                    self._listener.reported(run_id, self.host.name, frame["report"], self)

    def broke(self) -> None:
        """Reset the connection, so that both ends learn of it."""
        if self._open is not None:
            connection = self._open
            connection.down.break_off()
            connection.up.break_off()
            connection.agent.end()
            self._broke(connection, "connection reset by peer")

    def _broke(self, connection: Connection, why: str) -> None:
        if self._open is not connection:
            return
        self._open = None
        connection.close()
        if self.world.heap.now - connection.began_at > self._pace.steady_s:
            self._tries = 0
        self.world.say(f"{self.host.name} is not connected any more: {why}")
        self._tell_down(why)
        self._retry()

    def _tell_down(self, problem: str) -> None:
        for run_id in list(self._watches):
            self._listener.down(run_id, self.host.name, problem)


class Connection:
    """An SSH connection and its agent."""

    def __init__(self, link: SimLink) -> None:
        world, machine = link.world, link.machine
        self._link = link
        self.agent = Agent(machine, link.head.epoch)
        self.hello = _hello(machine)
        self.began_at = self.heard_at = world.heap.now
        self.decoder = Decoder()
        boot, scenario = machine.boot, world.scenario
        times = (scenario.latency_s, 0.3 * scenario.plan.timing.unreachable_after_s)

        def of_another_boot() -> bool:
            return machine.boot != boot or not machine.up

        def handled(data: bytes | None) -> None:
            if not of_another_boot():
                self.agent.receive(data)

        self.down = Wire(world.heap, world.chance, *times, lambda: machine.cut_down, handled)
        self.up = Wire(
            world.heap, world.chance, *times, lambda: machine.cut_up, lambda data: link.heard(self, data)
        )
        self.agent.out = self.up
        world.wires[machine.name] = [w for w in world.wires[machine.name] if not w.dead] + [
            self.down,
            self.up,
        ]
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[Order[Any], Callable[[Reply[Any]], None] | None]] = {}

    def send(self, order: Order[A], blob: bytes, on_reply: Callable[[Reply[A]], None] | None) -> None:
        """Send an order as one frame."""
        number = next(self._ids)
        self._waiting[number] = (order, on_reply)
        self.down.send(encode({**order.fields, "id": number}, blob))

    def replied(self, frame: ReplyFrame, blob: bytes) -> None:
        """Hand a reply to whoever asked."""
        order, on_reply = self._waiting.pop(frame["reply"])
        if "error" in frame:
            reply: Reply[Any] = Reply(None, frame["error"], blob)
        else:
            reply = Reply(edge.answer(self._link.host.name, order, frame["ok"], blob), None, blob)
        if on_reply is not None:
            on_reply(reply)

    def close(self) -> None:
        """Close the head's end. Its kernel still sends what is in flight; what arrives is dropped."""
        self.down.send(None)
        self.up.dead = True


def _hello(machine: Machine) -> Greeting:
    return {
        "digest": "0" * 64,
        "python": "3.11.2",
        "platform": "linux-x86_64-glibc",
        "hostname": machine.name,
        "user": "ml",
        "boot_id": machine.boot_id,
        "host_dir": "/home/ml/.local/state/orch-host",
        "host_dir_device": 1,
        "psutil": "bundle",
        "psutil_wanted": False,
        "cgroup": True,
        "warning": None,
    }


class Head:
    """A process of the coordinator."""

    def __init__(self, world: World, path: str) -> None:
        self.world = world
        self.alive = True
        chance, skew = world.chance, world.scenario.clock_skew
        self.clock = Clock(world.heap, 1.0 + chance.uniform(-skew, skew), chance.uniform(0.0, 1e6))
        self.journal = SimJournal(world, path)
        self.epoch = self.journal.take_epoch()
        self.loop = Loop(self.journal, self._execute, changed=self._changed, now=self.clock)
        transports: dict[str, Transport] = {"ssh": None}  # type: ignore[dict-item]
        self.links: list[SimLink] = []
        self.executor = SimPerformer(
            transports,
            world.no_bundle,
            NoLogs(),
            Secrets(os.path.dirname(path)),
            self._post,
            connect=self._connect,
            workers=Job(self),
            now=self.clock,
        )
        self.due_at = float("inf")

    def _connect(
        self,
        host: HostPlan,
        _transport: Transport,
        _bundle: Callable[[], Bundle],
        listener: Listener,
        pace: Pace,
    ) -> HostLink:
        link = SimLink(self, host, listener, pace)
        self.links.append(link)
        return link

    def take_up(self) -> None:
        """Do what `Coordinator.take_up` does."""
        self.loop.take_up(self.journal.runs(), self.epoch)
        for run in self.loop.runs.values():
            names = unproven(run) if run.phase.is_terminal else [host.name for host in run.hosts]
            self.executor.open(run, names)
        self.look()

    def _post(self, run_id: str, event: Event) -> None:
        self.loop.post(run_id, event)
        self.world.checks.posted(event)
        self.world.heap.after(0.0, self.turn)

    def turn(self) -> None:
        """Do one turn of the loop."""
        if self.alive:
            self.world.guarded(self, lambda: self.loop.turn(0.0))

    def look(self) -> None:
        """Compute when the loop would wake by itself."""
        sleep_s = self.loop.sleep_s()
        self.due_at = (
            float("inf") if sleep_s is None else self.world.heap.now + sleep_s / self.clock.rate + 1e-6
        )

    def _execute(self, run: Run, action: Action) -> None:
        self.world.checks.performed(run, action)
        if self.world.dies_between():
            raise Died
        self.executor.execute(run, action)

    def _changed(self, before: Run, after: Run) -> None:
        self.world.checks.changed(before, after)

    def die(self, whole_machine: bool) -> None:
        """Kill the coordinator. Its kernel closes the connections, unless the whole machine dies."""
        self.alive = False
        for link in self.links:
            connection = link._open
            if connection is None:
                continue
            link._open = None
            if whole_machine:
                connection.up.dead = True
                connection.down.break_off()
                self.world.heap.after(self.world.chance.uniform(1.0, 900.0), connection.agent.end)
            else:
                connection.close()

"""The loop of a shim, which runs from the start of its task to the exit record.

It has one thread and one selector. `shim/state.py` decides what to do, and this module does it. The task is started
from the main thread, because the kernel kills the task when the thread that started it ends.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections import deque
from functools import partial

from orchestrator.both import durable, process
from orchestrator.both.hostdir import HostFault
from orchestrator.host.shim import ports, record, state
from orchestrator.host.shim.connections import AgentLink, Agents, Gone, RuntimeLink
from orchestrator.host.shim.peers import Peers
from orchestrator.host.shim.report import Progress, blank_task, ended_task
from orchestrator.host.shim.spawn import StartFailed, marker
from orchestrator.host.shim.state import (
    Do,
    Ended,
    Exited,
    KillChecked,
    Ordered,
    Phase,
    RuntimeReady,
    StopBy,
    Ticked,
)
from orchestrator.host.shim.task import TaskProcess
from orchestrator.host.system import gpu_lease
from orchestrator.host.system.hostlog import LogWriter
from orchestrator.host.system.presence import Presence
from orchestrator.protocol.limits import STACKS_CHARS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.protocol.reports import Task

    Order = dict[str, Any]

SAMPLE_S = 2.0
FIRST_SAMPLE_S = 0.5
STACKS_WAIT_S = 5.0
PEERS_AFTER_S = 2.0
"""How long after a task's release its peers are checked: it has connected to those that are there by then."""
CHANGE_MAY_WAIT_S = 0.5
"""How long a report of a new global_step may wait. A new phase is reported at once."""

LAST_WORDS_S = 1.0


class Shim:
    """The shim of one task: its state, its process and its connections."""

    def __init__(
        self, directory: str, start: Order, secrets: dict[str, str], port: socket.socket | None
    ) -> None:
        self._directory = directory
        self._start = start
        self._secrets = secrets
        self._port = port
        self._port_number = None if port is None else int(port.getsockname()[1])
        self._log = LogWriter(directory, int(start["log_max_bytes"]), list(secrets.values()))
        self._progress = Progress(str(start["task"]))
        self._state, self._first = state.begin(
            int(start["generation"]), int(start["epoch"]), bool(start["hold"])
        )
        self._events: deque[tuple[state.Event, AgentLink | None, Order]] = deque()
        self._selector = selectors.DefaultSelector()
        self._agents = Agents(self._selector, self._handle)
        self._runtime: RuntimeLink | None = None
        self._process = TaskProcess(start)
        self._presence = Presence(str(start["host_dir"]))
        self._peers = Peers()
        self._peers_at: float | None = None
        """When the connections to its peers are checked; None before its release, and once it has made a step."""
        self._pipes: dict[int, str] = {}
        self._stacks: list[tuple[AgentLink, Any, float]] = []
        self._report_at: float | None = None
        self._sample_at = 0.0

    # ---------------------------------------------------------------- life

    def open(self) -> None:
        """Do everything that may fail before the agent gets its answer. Raises OSError if something fails."""
        self._presence.hold()
        self._write_identity()
        record.keep_room(self._directory)
        if self._start.get("scratch"):
            os.makedirs(os.path.join(self._directory, "scratch"), mode=0o700, exist_ok=True)
        self._agents.listen(record.listen(self._directory))
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        self._wake_write = wake_write  # the reference keeps it open: signals are written to it
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(wake_read, selectors.EVENT_READ, partial(self._woken, wake_read))
        process.become_subreaper()

    def hold(self, leases: list[int]) -> None:
        """Hold the leases of the run's GPUs until its end, and answer who asks for them."""
        for number in leases:
            lease = socket.socket(fileno=number)
            asked = partial(gpu_lease.answer, lease, self._start["lease"])
            self._selector.register(lease, selectors.EVENT_READ, asked)

    def run(self) -> None:
        """Run until the task has ended and its exit record is written."""
        for action, value in self._first:
            self._execute(action, value, None, {})
        # A sweep may have looked here before there was a process.
        if record.is_marked(self._directory, record.SWEPT):
            self._handle_event(state.Signalled(time.monotonic()))
        self._decide()
        while not self._ended:
            due = [self._sample_at, *self._agents.due_at(), *(at for _, _, at in self._stacks)]
            due += [at for at in (self._state.deadline_at, self._report_at) if at is not None]
            for key, _ in self._selector.select(max(0.0, min(due) - time.monotonic())):
                callback: Callable[[], Any] = key.data
                if not self._ended:
                    callback()
            self._tick(time.monotonic())

    @property
    def _ended(self) -> bool:
        return self._state.phase is Phase.ENDED

    def _tick(self, at: float) -> None:
        self._handle_event(Ticked(at))
        if self._ended:
            return
        if at >= self._sample_at:
            self._sample_at = at + SAMPLE_S
            self._process.sample(at)
            self._presence.show()
            if self._progress.has_stepped:
                self._peers_at, self._peers = None, Peers()
            elif self._peers_at is not None and at >= self._peers_at and self._process.pid is not None:
                self._peers.check(self._process.pid)
        for waiting in [each for each in self._stacks if at >= each[2]]:
            self._stacks.remove(waiting)
            self._answer_stacks(waiting[0], waiting[1], None)
        if self._report_at is not None and at >= self._report_at:
            self._report()
        elif any(at >= due_at for due_at in self._agents.due_at()):
            self._send_report(at, all=False)

    def _woken(self, wake: socket.socket) -> None:
        numbers = wake.recv(4096)
        self._reap()
        if signal.SIGTERM in numbers:
            self._handle_event(state.Signalled(time.monotonic()))

    # ---------------------------------------------------------------- decisions

    def _handle_event(
        self, event: state.Event, link: AgentLink | None = None, order: Order | None = None
    ) -> None:
        """Decide on an event, and then on the events that its actions cause, one after the other."""
        self._events.append((event, link, order or {}))
        if len(self._events) == 1:
            self._decide()

    def _decide(self) -> None:
        while self._events:
            event, link, order = self._events[0]
            self._state, actions = state.decide(self._state, event)
            for action, value in actions:
                self._execute(action, value, link, order)
            self._events.popleft()

    def _execute(self, action: Do, value: Any, link: AgentLink | None, order: Order) -> None:
        if action is Do.SPAWN:
            # ---------------------------------------------------------------- the process
            release_env = _env_of(order)
            if not self._start["hold"]:
                self._close_port()
                record.mark(self._directory, record.RELEASED)
            try:
                sock, self._pipes = self._process.start(self._directory, self._secrets, release_env)
            except (StartFailed, OSError) as e:
                self._handle_event(Exited(Ended(time.monotonic(), why=str(e))))
                return
            for fd in self._pipes:
                self._selector.register(fd, selectors.EVENT_READ, partial(self._read_pipe, fd))
            self._runtime = RuntimeLink(sock)
            self._selector.register(sock, selectors.EVENT_READ, partial(self._hear, self._runtime))
            self._write_identity()
            self._sample_at = time.monotonic() + FIRST_SAMPLE_S
        elif action is Do.GO:
            self._close_port()
            record.mark(self._directory, record.RELEASED)
            self._peers, self._peers_at = Peers(_env_of(order)), time.monotonic() + PEERS_AFTER_S
            env = {**_env_of(order), **marker(self._start, self._directory)}
            if self._runtime is not None:
                self._runtime.send({"go": {"env": env}})
        elif action is Do.ASK_TO_STOP:
            if self._runtime is not None:
                self._runtime.send({"stop": {"grace_s": value}})
        elif action is Do.ASK_TO_RESCUE:
            if self._runtime is None or not self._runtime.send({"stop": value}):
                self._kill()
        elif action is Do.TERMINATE:
            self._process.terminate(runtime_asked=self._state.hold and self._runtime is not None)
        elif action is Do.KILL:
            self._kill()
        elif action is Do.RECORD:
            self._record()
        elif action is Do.REPORT:
            self._report()
        elif link is not None:
            answer = {"ok": {}} if action is Do.ACCEPT else {"error": HostFault(*value).to_json()}
            self._agents.reply(link, order.get("id"), answer)

    def _write_identity(self) -> None:
        me, task = process.identity(os.getpid()), self._process.identity
        value = {
            "shim": None if me is None else me.to_json(),
            "task": None if task is None else task.to_json(),
            "port": self._port_number,
            "cgroup": self._process.group_path,
        }
        try:
            durable.write_json(os.path.join(self._directory, "shim.json"), value)
        except OSError:
            if task is None:
                raise  # without a record of our identity the task must not be started
            # The disk has filled up since the first write. A sweep still finds the task by its marker.

    def _close_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _reap(self) -> None:
        ended = self._process.reap()
        if ended is not None:
            self._handle_event(Exited(ended))

    def _kill(self) -> None:
        was_any = self._process.kill()
        self._reap()
        # Each search reads all processes of the host, so there is no second one where the first found none.
        self._handle_event(KillChecked(time.monotonic(), self._process.left() if was_any else []))

    def _read_pipe(self, fd: int) -> bool:
        """Read from the task's output. Return False if nothing was there, or the pipe has ended."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._log.feed(self._pipes[fd], data)
            return True
        self._selector.unregister(fd)
        os.close(fd)
        del self._pipes[fd]
        return False

    # ---------------------------------------------------------------- the runtime

    def _hear(self, link: RuntimeLink) -> bool:
        """Handle the runtime's messages. Return False if there were none, or the socket was closed."""
        try:
            messages = link.receive()
        except Gone:
            self._selector.unregister(link.sock)
            link.sock.close()
            self._runtime = None
            return False
        at = time.monotonic()
        for message in messages:
            if "ready" in message:
                self._handle_event(RuntimeReady(at))
            elif "stacks" in message:
                waiting, self._stacks = self._stacks, []
                for agent, order_id, _ in waiting:
                    self._answer_stacks(agent, order_id, str(message["stacks"]))
            else:
                urgency = self._progress.heard(self._clean(message), at)
                if urgency == "now":
                    self._report()
                elif urgency == "soon" and self._report_at is None:
                    self._report_at = at + CHANGE_MAY_WAIT_S
        return bool(messages)

    def _clean(self, message: dict[str, Any]) -> dict[str, Any]:
        """Remove secrets from a message: the text of an exception often quotes values."""
        for key in ("error", "say"):
            text = message.get(key)
            if isinstance(text, dict):
                text = {
                    name: self._log.redact(value) for name, value in text.items() if isinstance(value, str)
                }
                message = {**message, key: text}
        rescued = message.get("rescued")
        if isinstance(rescued, dict) and "why" in rescued:
            message = {**message, "rescued": {"why": self._log.redact(str(rescued["why"]))}}
        return message

    # ---------------------------------------------------------------- the agents

    def _handle(self, link: AgentLink, order: Order) -> None:
        """Carry out an order. Its name finds its method, which may return an event to decide on."""
        verb = str(order.get("order"))
        do: Callable[[AgentLink, Order], Ordered | None] | None = getattr(self, f"_on_{verb}", None)
        try:
            if do is None:
                raise HostFault("unknown-order", f"this shim does not know the order {verb!r}")
            event = do(link, order)
        except HostFault as e:
            self._agents.reply(link, order.get("id"), {"error": e.to_json()})
        except (KeyError, TypeError, ValueError) as e:
            fault = HostFault("bad-order", f"the order {verb!r} cannot be read: {e!r}")
            self._agents.reply(link, order.get("id"), {"error": fault.to_json()})
        else:
            if event is not None:
                self._handle_event(event, link, order)

    def _on_watch(self, link: AgentLink, order: Order) -> None:
        link.heartbeat_s = max(0.05, float(order["heartbeat_s"]))
        link.report_at = min(link.report_at, time.monotonic() + link.heartbeat_s)
        self._agents.reply(link, order.get("id"), {"ok": {}})

    def _on_stacks(self, link: AgentLink, order: Order) -> None:
        self._check_fence(order)
        if self._process.is_stopped() or self._runtime is None or not self._runtime.send({"stacks": {}}):
            self._answer_stacks(link, order.get("id"), None)
        else:
            self._stacks.append((link, order.get("id"), time.monotonic() + STACKS_WAIT_S))

    def _on_release(self, _link: AgentLink, order: Order) -> Ordered:
        self._check_fence(order)
        port = order.get("port")
        if port is not None and not self._move(int(port)):
            why = f"port {port}, which the task before this one had, cannot be taken"
            raise HostFault("no-port", why, "end what listens there")
        return Ordered(time.monotonic(), "release", int(order["epoch"]), int(order["generation"]))

    def _on_stop(self, _link: AgentLink, order: Order) -> Ordered:
        return Ordered(
            time.monotonic(),
            "stop",
            int(order["epoch"]),
            int(order["generation"]),
            float(order.get("grace_s", 0.0)),
            bool(order.get("rescue")),
            bool(order.get("compare")),
        )

    def _check_fence(self, order: Order) -> None:
        """Raise HostFault for an order of an older coordinator, or of another generation."""
        refused = state.refusal(self._state, int(order["epoch"]), int(order["generation"]))
        if refused is not None:
            raise HostFault(*refused)

    def _move(self, port: int) -> bool:
        """Hold another port until the release, which is about to come. Return False if that cannot be had."""
        if self._port is None or port == self._port_number or self._state.phase is not Phase.READY:
            return True
        moved, _ = ports.take([port], ports.MOVE_WAIT_S)
        if moved is None:
            return False
        self._close_port()
        self._port, self._port_number = moved, port
        self._write_identity()
        return True

    def _answer_stacks(self, link: AgentLink, order_id: Any, text: str | None) -> None:
        if text is not None:
            shown = self._log.redact(text)[:STACKS_CHARS_MAX]
            self._agents.reply(link, order_id, {"ok": {"stacks": shown, "by": "runtime"}})
        elif self._process.pid is None or self._state.ended is not None:
            fault = HostFault("no-answer", "the task has no process")
            self._agents.reply(link, order_id, {"error": fault.to_json()})
        else:
            seen = process.kernel_view(self._process.pid)
            text = f"The runtime does not answer. What the kernel says:\n{seen}"
            self._agents.reply(link, order_id, {"ok": {"stacks": text, "by": "kernel"}})

    def _report(self) -> None:
        self._report_at = None
        if self._ended:
            return  # the exit record says it all
        self._send_report(time.monotonic(), all=True)

    def _send_report(self, at: float, *, all: bool) -> None:
        if self._agents.report(self._task(), at, all=all):
            self._progress.told()

    def _task(self) -> Task:
        task: Task = {**blank_task(self._start), **self._process.measured}
        task["phase"] = self._state.shown
        task["pid"] = self._process.pid
        task["port"] = self._port_number
        task["peak_rss_bytes"] = self._process.peak_rss_bytes
        task["log_bytes"] = self._log.end
        task["peers"] = self._peers.unreached
        task["log_dropped_bytes"] = self._log.dropped_bytes
        self._progress.put_into(task, time.monotonic(), attached=self._runtime is not None)
        return task

    # ---------------------------------------------------------------- the end

    def _record(self) -> None:
        """Write the last bytes of the log and the exit record, and send the last report."""
        # A task that was never released still holds its port, and a sweep may look right after the report.
        self._close_port()
        while any(self._read_pipe(fd) for fd in list(self._pipes)):
            pass
        while self._runtime is not None and self._hear(self._runtime):
            pass
        state = self._state
        ended = state.ended or Ended(time.monotonic())
        if ended.why is not None:
            self._log.feed("e", f"[orch: {ended.why}]\n".encode("utf-8", "replace"))
            self._progress.fail({"kind": "start-failed", "message": self._log.redact(ended.why)})
        self._log.finish()
        cause = self._process.cause(ended, state.stop_by)
        ago_s = time.monotonic() - ended.at
        task = ended_task(
            self._task(),
            {
                "cause": cause,
                "code": ended.code,
                "signal": ended.signal,
                "ago_s": ago_s,
                "ended_at": time.time() - ago_s,
                "ordered": state.stop_by is StopBy.ORDER or record.is_marked(self._directory, record.SWEPT),
                "released": state.reached is Phase.RUNNING,
                "last_lines": self._log.last_lines(),
                "peak_rss_bytes": self._process.peak_rss_bytes,
                "swept": self._process.swept_by,
                "left": list(state.left),
            },
        )
        if state.left:
            self._process.remember_left()
        self._write_exit(task, ended.at)
        self._agents.say_last(task, LAST_WORDS_S)
        self._process.remove_group(0.0 if state.left else LAST_WORDS_S)
        os.unlink(os.path.join(self._directory, "sock"))

    def _write_exit(self, task: Task, ended_at: float) -> None:
        for last_try in (False, True):
            try:
                record.write_exit(self._directory, task, ended_at)
                return
            except OSError as e:
                if last_try:
                    record.diagnose(f"the exit record could not be written: {e}")
                # The disk is full. How the task ended is more important than the oldest lines of its log.
                self._log.give_room()


def _env_of(order: Order) -> dict[str, str]:
    env = order.get("env")
    return {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}

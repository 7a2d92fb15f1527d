"""Many agents in one process, which say what real ones say: `python -m benchmarks.simulated_agents SOCKET COUNTER`.

Each connection to the Unix socket is a host with its own agent. Tasks are numbers here: they start, join, make a step a
heartbeat, and end when they are told to. So a thousand hosts fit on one machine, and the coordinator cannot tell.
"""

from __future__ import annotations

import heapq
import itertools
import json
import mmap
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from orchestrator.host.agent.main import next_heartbeat_s
from orchestrator.protocol import reports
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.orders import checkpoints, driving, hosts, tasks
from tests.agents import hello

BACKLOG = 2048
_READ_BYTES = 256 << 10
_CODE = "c0de" * 16

Order = dict[str, Any]


class Counter:
    """How many reports all agents have sent, in a file that another process reads."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def add(self) -> None:
        """Count one."""
        (count,) = struct.unpack("Q", self._map[:])
        self._map[:] = struct.pack("Q", count + 1)


class Timers:
    """What is to be done later."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        """Do it once, later."""
        heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._numbers), do))

    def run(self) -> float:
        """Do what is due. Return the seconds until the next."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            heapq.heappop(self._heap)[2]()
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else 1.0


class Agent:
    """One host with its tasks."""

    def __init__(self, connection: socket.socket, name: str, timers: Timers, counter: Counter) -> None:
        self._connection = connection
        self._name = name
        self._timers = timers
        self._counter = counter
        self._boot = bytearray()
        self._decoder: Decoder | None = None
        self._run = ""
        self._rhythm = 0
        self._tasks: dict[str, dict[str, Any]] = {}
        self.gone = False

    def receive(self) -> None:
        """Take what has arrived."""
        try:
            data = self._connection.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self.gone = True
        elif self._decoder is None:
            self._boot += data
            self._answer_boot()
        else:
            self._obey(data)

    def _answer_boot(self) -> None:
        parts = bytes(self._boot).split(
            b"\n", 3
        )  # for another shell than ours, the Python, and the bytes that follow
        if len(parts) < 4:
            return
        request = parts[3][int(parts[2]) :].split(b"\n", 1)
        if len(request) < 2:
            return
        nonce = json.loads(request[0])["nonce"]
        self._decoder = Decoder()
        self._write(b"orch-shell\n\n" + nonce[::-1].encode() + b' {"ok": true}\n')
        self._write(encode({"hello": hello(self._name, f"boot-of-{self._name}")}))
        self._obey(request[1])

    def _obey(self, data: bytes) -> None:
        assert self._decoder is not None
        for order, _ in self._decoder.feed(data):
            ok = getattr(self, f"_on_{order['order']}", self._on_anything)(order)
            if "id" in order:
                self._write(encode({"reply": order["id"], "ok": ok}))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.gone:
            try:
                view = view[self._connection.send(view) :]
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                self.gone = True

    # -- orders --------------------------------------------------------------------------------------------

    def _on_anything(self, _order: Order) -> dict[str, Any]:
        return {}

    def _on_watch(self, order: Order) -> dict[str, Any]:
        self._run = order["run"]
        self._rhythm += 1
        self._beat(self._rhythm, float(order["heartbeat_s"]))
        return {}

    def _on_unwatch(self, _order: Order) -> dict[str, Any]:
        self._rhythm += 1
        return {}

    def _on_probe(self, _order: Order) -> hosts.Facts:
        return {
            "python": "3.11.2",
            "versions": {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": None, "numpy": "2.0.0"},
            "checkpoint_writable": True,
            "checkpoint_why": None,
            "checkpoint_share": "one",
            "gpus": None,
            "gpus_why": None,
            "unkillable": [],
            "gpus_in_use": [],
            "own_name": {"name": self._name, "address": "10.0.0.1", "why": None},
        }

    def _on_machine(self, _order: Order) -> hosts.Hardware:
        return {
            "cpus": 8,
            "load": 1.0,
            "memory_total_bytes": 1 << 36,
            "memory_free_bytes": 1 << 35,
            "disk_total_bytes": 1 << 40,
            "disk_free_bytes": 1 << 39,
            "gpus": [],
            "gpus_why": None,
        }

    def _on_runs(self, _order: Order) -> driving.KnownRuns:
        return {"runs": []}

    def _on_lease(self, _order: Order) -> driving.LeasesOfOthers:
        return {"others": []}

    def _on_code(self, _order: Order) -> dict[str, Any]:
        return {"digest": _CODE, "missing": []}

    def _on_highest(self, _order: Order) -> dict[str, Any]:
        return {"generation": 0}

    def _on_seed(self, _order: Order) -> checkpoints.Seeded:
        return {"global_step": None, "source": None, "path": "", "rejected": []}

    def _on_verify(self, _order: Order) -> checkpoints.Verified:
        return {"checkpoint": None, "rejected": []}

    def _on_start(self, order: Order) -> dict[str, Any]:
        task = {
            "task": order["task"],
            "generation": order["generation"],
            "phase": "starting",
            "pid": 4242,
            "port": order["ports"][0],
            "log_bytes": 0,
            "heartbeat_age_s": 0.01,
            "runtime_age_s": 0.2,
        }
        self._tasks[order["task"]] = task
        self._timers.after(0.5, lambda: self._become(task, phase="ready"))
        return {"pid": 4242}

    def _on_release(self, order: Order) -> dict[str, Any]:
        self._become(self._tasks[order["task"]], phase="running", global_step=0, step_age_s=0.1)
        return {}

    def _on_stop(self, order: Order) -> dict[str, Any]:
        ended = {"code": 143, "signal": 15, "ago_s": 0.0, "ordered": True, "cause": "signal"}
        self._become(self._tasks[order["task"]], phase="exited", exit=ended)
        return {}

    def _on_sweep(self, _order: Order) -> tasks.Swept:
        return {"left": [], "ports_busy": [], "by": "cgroup"}

    # -- reports -------------------------------------------------------------------------------------------

    def _become(self, task: dict[str, Any], **changes: Any) -> None:
        if task["phase"] != "exited":
            task.update(changes)
            self._report()

    def _beat(self, rhythm: int, heartbeat_s: float) -> None:
        if rhythm != self._rhythm or self.gone:
            return
        for task in self._tasks.values():
            if task["phase"] == "running":
                step = task["global_step"] + 10
                task.update(global_step=step, steps_per_s=5.0, metrics={"loss": 1.0 / step, "accuracy": 0.5})
                task.update(cpu_percent=97.5, rss_bytes=1 << 30, epoch=1 + step // 1000)
        self._report()
        self._timers.after(
            next_heartbeat_s(heartbeat_s, time.time()), lambda: self._beat(rhythm, heartbeat_s)
        )

    def _report(self) -> None:
        host: reports.HostSample = {
            "cpu_percent": 12.5,
            "memory_percent": 40.0,
            "disk_free_bytes": 1 << 40,
            "psutil": "bundle",
            "checkpoint_dirs": {self._run: {"silent_s": 0.0, "free_bytes": 1 << 40}},
            "unkillable": [],
        }
        self._write(encode({"report": {"host": host, "runs": {self._run: list(self._tasks.values())}}}))
        self._counter.add()


def serve(path: str, counter: Counter) -> None:
    """Be the agents of all who connect, for ever."""
    timers, selector = Timers(), selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    selector.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    for number in itertools.count():
        for key, _ in selector.select(timers.run()):
            if key.data is None:
                connection, _ = listener.accept()
                connection.setblocking(False)
                agent = Agent(connection, f"host-{number}", timers, counter)
                selector.register(connection, selectors.EVENT_READ, agent)
                continue
            key.data.receive()
            if key.data.gone:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    serve(sys.argv[1], Counter(sys.argv[2]))

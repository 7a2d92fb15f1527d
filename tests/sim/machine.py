"""A host: its boots, its pids (which are reused), its disk, and the tasks that ran on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.both.process import Identity
from orchestrator.host.shim.report import blank_task, ended_task
from orchestrator.host.shim.state import cause_of_silence
from orchestrator.protocol.reports import Task
from tests.sim.heap import Clock, Violation
from tests.sim.logs import HostLog

if TYPE_CHECKING:
    from tests.sim.agent import Agent
    from tests.sim.liar import Liar
    from tests.sim.process import Process, Shim
    from tests.sim.world import World

Key = tuple[str, str, int]
"""(run, task, generation)"""

FIRST_PID = 1000
FOREIGN_MAX = 64


@dataclass
class Record:
    """The directory of a generation of a task, and its shim."""

    start: dict[str, Any]
    port: int | None = None
    shim: Shim | None = None
    """None until the shim has started. It stays set after the shim's death."""
    identity: Identity | None = None
    process: Process | None = None
    task: Task | None = None
    """The exit record, as in exit.json."""
    ended_at: float = 0.0
    boot_id: str = ""
    burying: bool = False
    starting: bool = False
    """Whether an agent's job is about to start the shim."""
    asked_again: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    """Who else waits for that start."""
    was_ready: bool = False
    log: HostLog = field(default_factory=HostLog)
    by_stale: bool = False
    """Whether the coordinator that ordered it, or its release, had a successor already."""
    gpus: frozenset[int] = frozenset()
    """Those whose leases its shim holds."""

    def __post_init__(self) -> None:
        start = self.start
        self.key: Key = (str(start["run"]), str(start["task"]), int(start["generation"]))

    @property
    def has_ended(self) -> bool:
        """Whether there is an exit record, and nobody who could say more."""
        return self.task is not None and not self.lives

    @property
    def is_silent(self) -> bool:
        """Whether its shim is gone or never started, and there is no exit record."""
        return self.task is None and not self.lives and not self.starting

    @property
    def lives(self) -> bool:
        """Whether its shim lives."""
        return self.shim is not None and self.shim.alive


@dataclass
class Machine:
    """A host. Only its disk survives a reboot: `records` and `epochs`."""

    world: World
    name: str
    data_address: str
    boot: int = 1
    up: bool = True
    cut_up: bool = False
    """Whether nothing that it sends reaches the head."""
    cut_down: bool = False
    cut_peers: bool = False
    epochs: dict[str, int] = field(default_factory=dict)
    """By run, the highest epoch that was obeyed here."""
    looked_up_to: dict[str, int] = field(default_factory=dict)
    """By run, the highest generation that a completed sweep has covered here."""
    records: dict[Key, Record] = field(default_factory=dict)
    agents: list[Agent] = field(default_factory=list)
    start_fails: bool = False
    share_hangs: bool = False
    disk_full: bool = False
    was_unkillable: bool = False
    """Whether some process here could not be killed for a while."""
    stutters: bool = False
    """Whether frames come twice, and replies in another order."""
    foreign: set[int] = field(default_factory=set)
    """GPUs of which another user has the lease."""
    leaves_at: float | None = None
    """When it is taken away, by the world's time, as it has been told; None where nobody has said so."""
    liar: Liar | None = None

    def __post_init__(self) -> None:
        self._pids: dict[int, Process | Shim | None] = {}
        self._next_pid = FIRST_PID
        self.clock = self._new_clock()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def _new_clock(self) -> Clock:
        skew = self.world.scenario.clock_skew
        return Clock(self.world.heap, 1.0 + self.world.chance.uniform(-skew, skew))

    # -- pids ----------------------------------------------------------------------------------------------

    @property
    def is_reachable(self) -> bool:
        """Whether the head can connect to it now."""
        return self.up and not self.cut_up and not self.cut_down

    def lessee(self, gpu: int) -> str | None:
        """Return the run whose processes hold the lease of a GPU here; None where nobody does."""
        runs = [agent.leased[gpu] for agent in self.agents if gpu in agent.leased]
        runs += [record.key[0] for record in self.records.values() if record.lives and gpu in record.gpus]
        runs += ["another user's run"] if gpu in self.foreign else []
        if len(set(runs)) > 1:
            raise Violation("gpu-leased-twice", f"GPU {gpu} of {self.name} is leased to {sorted(set(runs))}")
        return runs[0] if runs else None

    def new_pid(self, assignee: Process | Shim) -> Identity:
        """Give a new process a pid, and return its identity."""
        pid = self._next_pid
        self._next_pid += 1
        self._pids[pid] = assignee
        return self._identity(pid)

    def free_pid(self, who: Identity) -> None:
        """Free the pid of a process that has ended."""
        self._pids.pop(who.pid, None)

    def _identity(self, pid: int) -> Identity:
        return Identity(self.boot_id, pid, pid)  # the worst case: two boots with the same start times

    def signal(self, who: Identity) -> bool:
        """Send SIGKILL to exactly that process, as `process.signal` does. Return False where it is gone."""
        if who.pid not in self._pids or self._identity(who.pid) != who:
            return False
        assignee = self._pids[who.pid]
        if assignee is None:
            raise Violation("foreign-pid", f"{self.name}: pid {who.pid} belongs to a stranger and was killed")
        assignee.killed()
        return True

    # -- life ----------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Lose power. Nothing is told to anyone."""
        self.up = False
        for agent in list(self.agents):
            agent.vanish()
        for record in self.records.values():
            record.starting = False
            if record.shim is not None and record.shim.alive:
                record.shim.vanish()
        self._pids.clear()

    def come_back(self) -> None:
        """Boot again. The pids start over, and foreign processes get the pids that ours had."""
        self.up = True
        self.leaves_at = None
        self.boot += 1
        self.clock = self._new_clock()
        strangers = min(self._next_pid - FIRST_PID, FOREIGN_MAX)
        self._pids = dict.fromkeys(range(FIRST_PID, FIRST_PID + strangers))
        self._next_pid = FIRST_PID + strangers

    @property
    def living(self) -> list[Process]:
        """All living processes of tasks of all runs, whether anyone knows of them or not."""
        return [r.process for r in self.records.values() if r.process is not None and r.process.alive]

    def bury(self, record: Record) -> None:
        """Kill what a shim has left that died without an exit record, by recorded identity, and write the record."""
        if record.task is not None or record.lives or not self.up:
            return
        if record.process is not None and record.process.identity is not None:
            self.signal(record.process.identity)
        cause = cause_of_silence(record.identity, self.boot_id)
        task = blank_task(record.start)
        task["port"] = record.port
        task["pid"] = record.process.identity.pid if record.process is not None else None
        ago_s = None if cause == "rebooted" else 0.0
        task = ended_task(
            task,
            {
                "cause": cause,
                "code": None,
                "signal": None,
                "ago_s": ago_s,
                "ended_at": self.world.heap.now,
                "ordered": False,
                "released": record.process is not None and record.process.released,
                "swept": "cgroup",
            },
        )
        self.keep(record, task)

    def keep(self, record: Record, task: Task, ended_at: float | None = None) -> None:
        """Write exit.json."""
        record.task = task
        record.ended_at = self.clock() if ended_at is None else ended_at
        record.boot_id = self.boot_id
        self.changed(record)

    def read(self, record: Record) -> Task:
        """Return exit.json, as `record.read_exit` does."""
        assert record.task is not None
        ended = record.task.get("exit")
        assert ended is not None
        same_boot = record.boot_id == self.boot_id
        ago_s = max(0.0, self.clock() - record.ended_at) if same_boot else None
        return {**record.task, "exit": {**ended, "ago_s": ago_s}}

    def changed(self, record: Record) -> None:
        """Tell the agents about a change that they must report at once."""
        for agent in list(self.agents):
            agent.changed(record)

    @property
    def ports_held(self) -> set[int]:
        """The ports that living shims and tasks hold."""
        return {r.port for r in self.records.values() if r.port is not None and (r.lives or _runs(r))}


def _runs(record: Record) -> bool:
    return record.process is not None and record.process.alive

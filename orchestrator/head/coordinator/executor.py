"""Executes the core's actions: sends them to hosts as orders, and posts the replies as events."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from orchestrator.core import conflicts
from orchestrator.core.actions import (
    Action,
    CloseHost,
    CollectStacks,
    GoBack,
    Note,
    PrepareHost,
    ReleaseTask,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
    VerifyCheckpoint,
)
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.events import (
    CheckpointSeeded,
    CheckpointVerified,
    Event,
    HostDown,
    HostRefused,
    HostSwept,
    HostUp,
    LimitReached,
    NotGoneBack,
    OrderFailed,
    StacksCollected,
)
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Link
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.coordinator import checkpoint_requests
from orchestrator.head.hosts.host_records import Records, give_end
from orchestrator.head.hosts.preparation import prepare
from orchestrator.head.links import requests as orders
from orchestrator.head.links import wire
from orchestrator.head.links.conversation import Asks, LinkDown, NoAnswer, OrderRefused, Reply
from orchestrator.head.links.crew import Crew
from orchestrator.head.links.link import PACE, HostLink, Pace
from orchestrator.head.links.pool import Connect, ConnectionPool
from orchestrator.head.node.secrets import Secrets
from orchestrator.head.reach.transport import Transport
from orchestrator.head.transfer.checkpoints import CheckpointTransfer
from orchestrator.head.transfer.logcopy import LogCopier
from orchestrator.head.transfer.queue import TransferQueue
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.checkpoints import Seeded, Verified
from orchestrator.protocol.orders.tasks import STACKS, Swept
from orchestrator.protocol.reports import Report
from orchestrator.protocol.reports import Task as ReportedTask

log = logging.getLogger(__name__)

Ordered = StartTask | ReleaseTask | StopTask | SeedCheckpoint | VerifyCheckpoint | SweepHost
"""The actions that send a single order."""

STACKS_TIMEOUT_S = 10.0

DRAIN_S = 10.0
"""How long the link of an ended run stays open for the rest of its logs."""


_T = TypeVar("_T")
A = TypeVar("A")


class Workers(Protocol):
    """Runs blocking work for all hosts at once, so that a host that does not answer delays no other."""

    def submit(self, work: Callable[..., Any], /, *args: Any) -> object:
        """Do the work later."""


class _Opened(NamedTuple):
    """A run whose hosts are connected."""

    epoch: int
    tasks: frozenset[TaskId]
    hosts: frozenset[str]


class Executor:
    """Sends orders through the links of its pool, and passes events to the loop's `post`."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        bundle: Callable[[], Bundle],
        logs: LogCopier,
        secrets: Secrets,
        post: Callable[[str, Event], None],
        pace: Pace = PACE,
        *,
        connect: Connect | None = None,
        workers: Workers | None = None,
        now: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        state_dir: str = "",
        leaving: Callable[[Asks | None, Run, str], None] = lambda _link, _run, _host: None,
        is_known: Callable[[str], bool],
        measured: Callable[[str, str, Sequence[ReportedTask]], None] = lambda _run_id, _host, _tasks: None,
    ) -> None:
        """`is_known` returns whether this head node knows a run id; `measured` takes the host and tasks of a report."""
        self._snapshots = Snapshots(state_dir)
        self._is_known, self._measured = is_known, measured
        self._leaving = leaving
        self._logs = logs
        self._secrets = secrets
        self._post = post
        crew = Crew()
        self._pool = ConnectionPool(transports, bundle, self, pace, connect or partial(HostLink, crew=crew))
        self._opened: dict[str, _Opened] = {}
        """By run id, while one of its hosts is or should be connected."""
        self._preparing: set[tuple[str, str]] = set()
        self._openings: Counter[tuple[str, str]] = Counter()
        """How often a run has opened a host. Who closes an earlier opening closes nothing."""
        self._lock = threading.Lock()
        self._records = Records()
        self._now = now
        self._unix_time = unix_time
        self.transfers = TransferQueue(CheckpointTransfer(state_dir, self.link), post, now)
        self._workers = workers or crew

    # -- links ---------------------------------------------------------------------------------------------

    def open(self, run: Run, names: list[str]) -> None:
        """Connect the hosts of a run. Runs share the link to a host."""
        if not names:
            return
        with self._lock:
            known = self._opened.get(run.run_id)
            hosts = frozenset(names) | (known.hosts if known is not None else frozenset())
            self._openings.update((run.run_id, name) for name in names)
            tasks = frozenset(task.id for task in run.plan.tasks)
            self._opened[run.run_id] = _Opened(run.epoch, tasks, hosts)
            self._pool.attach(run, names)
        self._logs.expect_all(run)

    def reopen(self, before: Run, after: Run) -> None:
        """Connect the hosts of which a run has other GPUs and slots than before, and tell them so."""
        if before.plan is after.plan or after.has_no_process or after.phase.is_terminal:
            return
        old = {host.name: conflicts.leased_gpus(before, host.name) for host in before.hosts}
        names = [host.name for host in after.hosts]
        self.open(after, [name for name in names if old.get(name) != conflicts.leased_gpus(after, name)])

    def link(self, run: Run, name: str) -> HostLink | None:
        """Return the link to a host of the run, if there is one."""
        return self._pool.link(run, name)

    def lease(self, run: Run, name: str, use: Callable[[Asks], _T]) -> _T:
        """See `ConnectionPool.lease`."""
        return self._pool.lease(run, name, use)

    def close(self) -> None:
        """Close all links. Tasks on the hosts continue."""
        self._pool.close()
        self.transfers.close()

    @property
    def hosts(self) -> dict[str, bool]:
        """The hosts that have a link, and whether each is connected now."""
        return self._pool.hosts

    # -- what links report (in their threads) --------------------------------------------------------------

    def up(self, run_id: str, host: str, hello: Greeting) -> None:
        """See `Listener`."""
        event = HostUp(
            at=self._now(),
            host=host,
            boot_id=hello["boot_id"],
            warning=hello["warning"],
            slow=wire.slowness(hello),
            before=hello.get("before", ""),
        )
        self._post(run_id, event)

    def down(self, run_id: str, host: str, problem: str) -> None:
        """See `Listener`."""
        self._post(run_id, HostDown(at=self._now(), host=host, problem=problem))

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        """See `Listener`."""
        self._post(run_id, HostRefused(at=self._now(), host=host, problem=problem))

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        """See `Listener`."""
        opened = self._opened.get(run_id)
        if opened is None:
            return  # the last host of the run has just been detached
        event = wire.host_reported(
            host,
            run_id,
            report,
            at=self._now(),
            unix_time=self._unix_time(),
            ahead_s=self._logs.clock(run_id, host).ahead_s,
            known=opened.tasks,
        )
        self._measured(run_id, host, report["runs"].get(run_id, ()))
        self._post(run_id, event)
        self._logs.reported(link, run_id, opened.epoch, event)

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        """See `Listener`."""
        self._post(run_id, LimitReached(at=self._now(), host=host, message=problem))

    # -- actions of the core (in the deciding thread) ------------------------------------------------------

    def execute(self, run: Run, action: Action) -> None:
        """Begin an action without blocking. An order to an unconnected host is dropped; the core repeats it."""
        try:
            match action:
                case PrepareHost(host=host):
                    self._prepare(run, host)
                case SeedCheckpoint():
                    self._seed(run, action)
                case VerifyCheckpoint():
                    self._verify(run, action)
                case StartTask():
                    if not action.standby:  # a standby's order is repeated when it must be released
                        self._logs.expect(run, action.task, action.host, action.generation)
                    self._order(run, action, orders.start(run, action, self._secrets.load(run.run_id)))
                    self._record(run, action.host)
                case ReleaseTask():
                    self._order(run, action, orders.release(run, action))
                    self._record(run, action.host)
                case StopTask():
                    self._order(run, action, orders.stop(run, action))
                case SweepHost():
                    self._sweep(run, action)
                case GoBack():
                    self._workers.submit(self._go_back, run, action)
                case CollectStacks(generation=generation):
                    self._workers.submit(self._collect_stacks, run, generation)
                case CloseHost(host=host):
                    # The run no longer needs the host: detach it once the logs are complete and it has the record
                    self._records.forget(run, host)
                    if run.phase.is_terminal:
                        self.transfers.checkpoints.abandon(run.run_id)
                    opening = self._openings[run.run_id, host]
                    self._workers.submit(self._drain_and_detach, run, host, opening)
                case Note():
                    pass  # the journal has the note already
        except (
            Exception
        ) as e:  # secrets cannot be read, an order does not fit in a frame, or orch has a fault
            log.exception("%s: %s", run.run_id, action)
            problem = Problem("internal", f"{type(e).__name__}: {e}", "see the coordinator's log")
            self._failed(run, action, problem)

    def _failed(self, run: Run, action: Action, problem: Problem) -> None:
        if isinstance(action, Ordered):
            self._post(
                run.run_id,
                OrderFailed(
                    at=self._now(),
                    host=action.host,
                    order=action.order,
                    generation=action.generation,
                    problem=problem,
                    task=getattr(action, "task", None),
                ),
            )

    def _order(
        self, run: Run, action: Ordered, order: Order[A], done: Callable[[A], None] | None = None
    ) -> None:
        """Send an order. An error in the reply is posted as OrderFailed; any other reply goes to `done`."""

        def on_reply(reply: Reply[A]) -> None:
            if reply.error is not None:
                self._failed(run, action, wire.problem(reply.error))
            elif done is not None and reply.ok is not None:
                done(reply.ok)

        link = self.link(run, action.host)
        if link is not None:
            link.send(order, on_reply=on_reply)

    def _record(self, run: Run, host: str) -> None:
        link = self.link(run, host)
        if link is not None and link.is_connected:
            self._records.give(link, run, host, now=self._now())

    def changed(self, before: Run, after: Run) -> None:
        """Send the run's record after a drain, after its end, and to a reconnected host that may lack the newest."""
        if after.generation == 0 or after.phase.is_terminal or before.hosts is after.hosts:
            return
        pairs = [(was, now) for was, now in zip(before.hosts, after.hosts, strict=False) if was is not now]
        has_new_state = any(was.state is not now.state for was, now in pairs)
        if has_new_state:
            behind = [host.name for host in after.hosts if not host.untouched]
        else:
            back = [now.name for was, now in pairs if was.link is not now.link is Link.CONNECTED]
            behind = [name for name in back if self._records.is_behind(after, name)]
        for name in behind:
            self._record(after, name)

    def _prepare(self, run: Run, name: str) -> None:
        key = (run.run_id, name)
        link = self.link(run, name)
        with self._lock:
            if key in self._preparing or link is None or not link.is_connected:
                return
            self._preparing.add(key)
        self._workers.submit(self._prepare_now, link, run, name)

    def _prepare_now(self, link: HostLink, run: Run, name: str) -> None:
        event: Event | None = None
        try:
            event = prepare(
                link, run, name, now=self._now, is_known=self._is_known, snapshots=self._snapshots
            )
        except NoAnswer as e:
            link.reset(str(e))  # the core asks again once the host has reconnected
        except LinkDown as e:
            log.info("%s: %s: preparation broke off: %s", run.run_id, name, e)
        except OrchestratorError as e:
            problem = Problem(e.code, e.message, e.hint, e.exit_code)
            event = HostRefused(at=self._now(), host=name, problem=problem)
        except OSError as e:
            what, way = e.filename or run.plan.workdir, "make it readable, and `orch up` again"
            problem = Problem("workdir", f"{what} cannot be read: {e.strerror}", way, 2)
            event = HostRefused(at=self._now(), host=name, problem=problem)
        except Exception as e:  # a bug must be reported, and not vanish with the worker thread
            log.exception("%s: preparing %s", run.run_id, name)
            problem = Problem("internal", f"{name}: preparation failed: {e!r}", "see the coordinator's log")
            event = HostRefused(at=self._now(), host=name, problem=problem)
        finally:
            with self._lock:
                self._preparing.discard((run.run_id, name))
        if event is not None:
            self._post(run.run_id, event)
        elif link.is_connected:  # it has reconnected, and a new request was dropped as a duplicate
            self._prepare(run, name)

    def _seed(self, run: Run, action: SeedCheckpoint) -> None:
        checkpoint = run.plan.checkpoint
        if checkpoint is None:
            return
        if not checkpoint.shared:
            self.transfers.seed(run, action)
            return

        def done(ok: Seeded) -> None:
            seed = wire.seeded(ok, action.generation)
            self._post(run.run_id, CheckpointSeeded(at=self._now(), seed=seed))

        self._order(run, action, orders.seed(run, action, checkpoint), done)

    def _verify(self, run: Run, action: VerifyCheckpoint) -> None:
        checkpoint = run.plan.checkpoint
        if checkpoint is None:
            return
        began_at = self._now()

        def done(ok: Verified) -> None:
            event = wire.verified(ok, action.generation, at=self._now(), began_at=began_at)
            if checkpoint.shared or not event.path or _is_known(run, event):
                self._post(run.run_id, event)
            else:
                self.transfers.bring(run, action.host, event)

        self._order(run, action, orders.verify(run, action, checkpoint), done)

    def _go_back(self, run: Run, action: GoBack) -> None:
        event: Event
        try:
            answer = checkpoint_requests.go_back(run, action.before_step, self.lease)
            if run.plan.checkpoint is not None and not run.plan.checkpoint.shared:
                checkpoint_requests.compare(answer, "rollback", run, self.transfers.checkpoints.store(run))
            event = checkpoint_requests.rolled_back(answer, at=self._now(), why=action.why)
        except checkpoint_requests.Unreached:
            return  # the order is repeated once the host is connected again
        except OrchestratorError as e:
            event = NotGoneBack(self._now(), action.generation, str(e))
        except Exception as e:
            log.exception("%s: %s", run.run_id, action)
            event = NotGoneBack(self._now(), action.generation, f"{type(e).__name__}: {e}")
        self._post(run.run_id, event)

    def _sweep(self, run: Run, action: SweepHost) -> None:
        def done(ok: Swept) -> None:
            event = HostSwept(
                at=self._now(), host=action.host, swept=wire.swept(ok), generation=action.generation
            )
            self._post(run.run_id, event)

        self._order(run, action, orders.sweep(run, action), done)

    def _collect_stacks(self, run: Run, generation: int) -> None:
        stacks = tuple((TaskId.parse(task), text) for task, text in self.stacks(run).items())
        self._post(run.run_id, StacksCollected(at=self._now(), generation=generation, stacks=stacks))

    def stacks(self, run: Run) -> dict[str, str]:
        """Return the stacks of every task, or why there are none. It blocks for STACKS_TIMEOUT_S at most."""
        # All tasks are asked at once: the stacks should be of one moment, and a stuck task may need the whole timeout.
        with ThreadPoolExecutor(len(run.tasks), thread_name_prefix="stacks") as asking:
            texts = asking.map(lambda task: self._stacks_of(run, task), run.tasks)
            return {str(task.id): text for task, text in zip(run.tasks, texts, strict=True)}

    def _stacks_of(self, run: Run, task: Task) -> str:
        link = self.link(run, task.host)
        try:
            if link is None:
                raise LinkDown(f"{task.host} is not connected")
            order = STACKS({**orders.run_fields(run), "generation": task.generation, "task": str(task.id)})
            return link.ask(order, timeout_s=STACKS_TIMEOUT_S).ok["stacks"]
        except (LinkDown, OrderRefused) as e:
            return f"no stacks: {e}"

    def _drain_and_detach(self, run: Run, name: str, opening: int | None = None) -> None:
        until = self._now() + DRAIN_S
        here = [str(task.id) for task in run.tasks if task.host == name]
        self._logs.wait_for_the_rest(run.run_id, here, until)
        link = self.link(run, name)
        connected = link if link is not None and link.is_connected else None
        if run.phase.is_terminal:
            self._leaving(connected, run, name)
        if (
            connected is not None
            and run.phase.is_terminal
            and run.generation > 0
            and not run.host(name).untouched
        ):
            give_end(connected, run, name, now=self._now())
        with self._lock:
            if opening is not None and self._openings[run.run_id, name] != opening:
                return  # the run has come back to this host meanwhile
            self._pool.detach(run, name)
            self._openings.pop((run.run_id, name), None)
            opened = self._opened.pop(run.run_id, None)
            if opened is not None and (hosts := opened.hosts - {name}):
                self._opened[run.run_id] = opened._replace(hosts=hosts)
        self._logs.forget(run.run_id, here)


def _is_known(run: Run, verified: CheckpointVerified) -> bool:
    known = run.checkpoint
    return known is not None and known.is_same(verified.path, verified.global_step, verified.saved_time)

"""Threads in simulated time: one runs at a time, and each waits on the heap. So the real links and transfers play.

The modules in PLAYED get these in the place of `threading`, `queue`, `time` and the like. Which thread runs next is
decided by the heap alone, so a seed stays the same world.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from orchestrator.checkpoints import safe
from orchestrator.head.coordinator import executor
from orchestrator.head.links import conversation, crew, link, reception
from orchestrator.head.records import checkpoint_store
from orchestrator.head.transfer import checkpoints, partwise
from orchestrator.head.transfer import queue as transfer_queue
from orchestrator.host.system import codestore
from tests.sim.heap import Heap

PLAYED: tuple[ModuleType, ...] = (
    link,
    reception,
    conversation,
    crew,
    executor,
    checkpoints,
    partwise,
    transfer_queue,
    checkpoint_store,
    safe,
    codestore,
)


class Killed(BaseException):
    """The process of this thread was killed. It ends the thread where it waits."""


class Fiber:
    """A thread that runs only while the scheduler waits for it."""

    def __init__(self, fibers: Fibers, group: list[Fiber], work: Callable[[], object]) -> None:
        self._fibers = fibers
        self.group = group
        self._work = work
        self._go = threading.Lock()
        self._go.acquire()
        self._thread: threading.Thread | None = None
        self.waits = 0
        """Counts its waits, so that a wake-up for an earlier one is ignored."""
        self.woken = False
        self.killed = False
        self.done = False
        self.error: BaseException | None = None

    def resume(self, wait: int, woken: bool) -> None:
        """Run until the next wait, unless that wait is over already. Scheduler only."""
        if self.done or self.waits != wait:
            return
        self.waits += 1
        self.woken = woken
        fibers, before = self._fibers, self._fibers.current
        fibers.current = self
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        fibers.back.acquire()
        fibers.current = before
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def is_own(self) -> bool:
        """Whether it is this fiber that asks."""
        return self._thread is threading.current_thread()

    def _run(self) -> None:
        try:
            if not self.killed:
                self._work()
        except Killed:
            pass
        except BaseException as e:
            self.error = e
        finally:
            self.done = True
            self._fibers.back.release()

    def wait(self) -> bool:
        """Hand over to the scheduler, and return whether it was woken, and not by the time. Own thread only."""
        if self.killed:
            raise Killed
        self._fibers.back.release()
        self._go.acquire()
        if self.killed:
            raise Killed
        return self.woken

    def kill(self) -> None:
        """End it where it waits. Scheduler only."""
        self.killed = True
        self.resume(self.waits, True)


class Fibers:
    """The scheduler's side."""

    def __init__(self, heap: Heap) -> None:
        self.heap = heap
        self.group: list[Fiber] = []
        """The process to which the threads belong that begin now, unless another thread begins them."""
        self.back = threading.Lock()
        self.back.acquire()
        self.current: Fiber | None = None

    def start(self, group: list[Fiber], work: Callable[[], object], delay_s: float = 0.0) -> Fiber:
        """Begin a thread of that group."""
        fiber = Fiber(self, group, work)
        group[:] = [other for other in group if not other.done]
        group.append(fiber)
        self.heap.after(delay_s, lambda: fiber.resume(0, True))
        return fiber

    def wake(self, fiber: Fiber) -> None:
        """Let a thread go on that waits."""
        wait = fiber.waits
        self.heap.after(0.0, lambda: fiber.resume(wait, True))

    def own(self) -> Fiber | None:
        """Return the thread that plays. A real one, left by another test in a module that is played now, ends here."""
        if self.current is not None and not self.current.is_own():
            raise Killed
        return self.current

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until woken, or so long. Return whether it was woken."""
        fiber = self.own()
        assert fiber is not None, "the deciding thread must not block"
        if timeout_s is not None:
            wait = fiber.waits
            self.heap.after(timeout_s, lambda: fiber.resume(wait, False))
        return fiber.wait()

    def kill(self, group: list[Fiber]) -> None:
        """End all threads of a group, as the end of their process does."""
        for fiber in list(group):
            fiber.kill()
        group.clear()


class Waiters:
    """The threads that wait for something."""

    def __init__(self, fibers: Fibers) -> None:
        self.fibers = fibers
        self._waiting: list[Fiber] = []

    def wake(self) -> None:
        """Let all go on."""
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            self.fibers.wake(fiber)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until `wake`, or so long."""
        fiber = self.fibers.own()
        if fiber is not None:
            self._waiting.append(fiber)
        try:
            return self.fibers.wait(timeout_s)
        finally:
            if fiber in self._waiting:
                self._waiting.remove(fiber)


class Threading:
    """What the played modules use of `threading`, `queue`, `time` and `concurrent.futures`, in simulated time."""

    def __init__(self, fibers: Fibers) -> None:
        self.fibers = fibers

    def names(self) -> dict[str, Any]:
        """Return the stand-ins by the names that the modules import."""
        return {
            "threading": SimpleNamespace(
                Thread=self._thread,
                Event=lambda: Event(self.fibers),
                Lock=lambda: Lock(self.fibers),
                RLock=lambda: Lock(self.fibers),
            ),
            "queue": SimpleNamespace(SimpleQueue=lambda: Queue(self.fibers)),
            "time": SimpleNamespace(monotonic=lambda: self.fibers.heap.now, sleep=self.fibers.wait),
            "Future": lambda: Future(self.fibers),
            "ThreadPoolExecutor": lambda *_args, **_more: Pool(self.fibers, self._group),
        }

    @property
    def _group(self) -> list[Fiber]:
        current = self.fibers.current
        return current.group if current is not None else self.fibers.group

    def _thread(self, *, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any) -> Any:
        return SimpleNamespace(start=lambda: self.fibers.start(self._group, lambda: target(*args)))


class Event:
    """As threading.Event."""

    def __init__(self, fibers: Fibers) -> None:
        self._waiters = Waiters(fibers)
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._waiters.wake()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set and (timeout is None or timeout > 0):
            self._waiters.wait(timeout)
        return self._set


class Lock:
    """As threading.RLock."""

    def __init__(self, fibers: Fibers) -> None:
        self._waiters = Waiters(fibers)
        self._fibers = fibers
        self._holder: Fiber | None = None
        self._depth = 0

    def __enter__(self) -> None:
        while self._depth and self._holder is not self._fibers.current:
            self._waiters.wait()
        self._holder = self._fibers.current
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._waiters.wake()


class Queue:
    """As queue.SimpleQueue."""

    def __init__(self, fibers: Fibers) -> None:
        self._waiters = Waiters(fibers)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def get(self) -> Any:
        while not self._items:
            self._waiters.wait()
        return self._items.popleft()


class Future:
    """As concurrent.futures.Future, of which the result is awaited by threads only."""

    def __init__(self, fibers: Fibers) -> None:
        self._waiters = Waiters(fibers)
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def set_result(self, result: Any) -> None:
        self._done, self._result = True, result
        self._waiters.wake()

    def set_exception(self, error: BaseException) -> None:
        self._done, self._error = True, error
        self._waiters.wake()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done:
            self._waiters.wait(timeout)
        if not self._done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result


class Pool:
    """As ThreadPoolExecutor, without a limit."""

    def __init__(
        self, fibers: Fibers, group: list[Fiber], delay_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._fibers = fibers
        self._group = group
        self._delay_s = delay_s

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *args: Any) -> Future:
        """Do the work later."""
        future = Future(self._fibers)

        def do() -> None:
            try:
                future.set_result(work(*args))
            except Exception as e:
                future.set_exception(e)

        self._fibers.start(self._group, do, self._delay_s())
        return future

    def map(self, work: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        """Do all at once, and yield the results in order."""
        for future in [self.submit(work, item) for item in items]:
            yield future.result()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: the threads end with their process."""


@contextmanager
def played(stand_ins: dict[str, Any]) -> Iterator[None]:
    """Let the played modules use these instead of what they import under those names."""
    before = [
        (module, name, getattr(module, name))
        for module in PLAYED
        for name in stand_ins
        if hasattr(module, name)
    ]
    for module, name, _ in before:
        setattr(module, name, stand_ins[name])
    try:
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)

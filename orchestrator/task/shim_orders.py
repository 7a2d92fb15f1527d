"""The thread that receives the shim's orders: release, stop, stacks.

A stop must work where SIGTERM does not: under MultiWorkerMirroredStrategy TensorFlow takes SIGTERM as a preemption
notice, and training goes on. So the stop comes over the socket, and an exception ends the main thread. If that thread
is stuck in a C++ operation (such as a collective that waits for a dead peer), the process exits by itself.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading

from orchestrator.task import this_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from orchestrator.task.link import Link

STOPPED = 143
"""The exit code of a task that was stopped: what a shell shows for SIGTERM."""

STOP_MAX_S = 2.0

NOTHING = "the script has nothing to hand over"

# Python runs a signal handler in the main thread, and the signal interrupts a sleep. An asynchronous exception would
# be raised only after the sleep. It is a real-time signal because scripts and libraries use the named ones.
_SIGNAL = signal.SIGRTMIN + 11


class Stopped(SystemExit):
    """orch has stopped the training. It is a SystemExit, so that `except Exception` in a script does not catch it."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


class Orders:
    """Receives orders in a daemon thread, from `start()` on."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._released = threading.Event()
        self._environment: dict[str, str] = {}
        self._stopping = False
        self._hooks_done = threading.Event()
        self._main_thread = threading.main_thread().ident

    def start(self) -> None:
        """Start to listen. Call it in the main thread, since only there may a signal handler be set."""
        signal.signal(_SIGNAL, _raise_stopped)
        threading.Thread(target=self._listen, name="orch-orders", daemon=True).start()

    def wait_for_release(self) -> dict[str, str]:
        """Wait for the release, and return the environment that comes with it."""
        self._released.wait()
        return self._environment

    def raise_if_stopping(self) -> None:
        """Raise Stopped if an order to stop has come: a peer that stopped earlier may make the training fail first."""
        if self._stopping:
            self._hooks_done.wait(STOP_MAX_S)
            raise Stopped

    def _listen(self) -> None:
        for order in self._link.orders():
            if "go" in order:
                env = (order["go"] or {}).get("env") or {}
                self._environment = {str(k): str(v) for k, v in env.items()}
                self._released.set()
            elif "stop" in order:
                threading.Thread(target=self._stop, args=(order["stop"],), daemon=True).start()
            elif "stacks" in order:
                self._link.send({"stacks": stacks()}, wait_s=1.0)
        # The socket is closed, so the shim, our parent, is dead. Nothing watches this training any more, another
        # generation may already be starting, and an orphan would occupy its GPUs.
        end(STOPPED)

    def _stop(self, order: Any) -> None:
        order = order or {}
        rescues, rescue = bool(order.get("rescue")), this_task.rescue
        if self._stopping:
            if rescues and rescue is not None:
                rescue.chosen.set()
            return
        self._stopping = True
        grace_s = float(order.get("grace_s", STOP_MAX_S))
        timer = threading.Timer(
            max(0.0, grace_s if rescues else min(grace_s, STOP_MAX_S)), end, args=(STOPPED,)
        )
        timer.daemon = True
        timer.start()
        if rescues:
            if rescue is None:
                self._link.send({"rescued": {"why": NOTHING}}, wait_s=1.0)
            if rescue is None or not rescue.order(compare=bool(order.get("compare"))):
                end(STOPPED)
            self._hooks_done.set()  # nothing is asked of the script, whose step fails now
            return
        for hook in list(this_task.stop_hooks):
            try:
                hook()
            except Exception as e:
                print(f"orch: a hook of runtime.on_stop failed: {type(e).__name__}: {e}", file=sys.stderr)
        self._hooks_done.set()
        if self._main_thread is not None:
            signal.pthread_kill(self._main_thread, _SIGNAL)


def _raise_stopped(signum: int, frame: object) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    raise Stopped


def stacks() -> str:
    """Return the Python stacks of all threads. C code writes them, which works even if a thread is stuck."""
    descriptor = _anonymous_file()
    try:
        faulthandler.dump_traceback(descriptor, all_threads=True)
        size = os.lseek(descriptor, 0, os.SEEK_END)
        return os.pread(descriptor, min(size, 1 << 20), 0).decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def _anonymous_file() -> int:
    try:
        return os.memfd_create("orch-stacks")
    except (AttributeError, OSError):
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix="orch-stacks-")
        os.unlink(path)
        return descriptor


def end(code: int) -> NoReturn:
    """Exit at once, without atexit and the C++ teardown, which may wait for dead peers for up to 38 s."""
    for stream in (sys.stdout, sys.stderr):
        flusher = threading.Thread(target=_flush, args=(stream,), daemon=True)
        flusher.start()
        flusher.join(0.2)  # the stuck main thread may hold the stream's lock
    os._exit(code)


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return

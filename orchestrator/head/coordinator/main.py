"""`orch coordinator run`: connects the coordinator with its API, signals and log, and runs until it is stopped."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Protocol

from orchestrator import __version__
from orchestrator.head.coordinator import server as api_server
from orchestrator.head.coordinator.coordinator import Coordinator
from orchestrator.head.coordinator.succession import take_lock, take_over
from orchestrator.head.hosts.lent_hosts import LentHosts
from orchestrator.head.node.notify import Notifier
from orchestrator.head.node.paths import Paths
from orchestrator.head.reach.local import LocalTransport
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.head.reach.transport import Transport

_OFTEN = 4
"""How many times systemd is notified within its timeout. A busy loop may miss some."""


class Call(Protocol):
    """`Loop.call`."""

    def __call__(self, command: Callable[[], Any], *, timeout_s: float) -> Any: ...


@contextlib.contextmanager
def kept_alive(notifier: Notifier, call: Call) -> Iterator[None]:
    """While the block runs, the thread behind `call` notifies systemd periodically that it is alive."""
    if notifier.watchdog_s is None:
        yield
        return
    every_s = notifier.watchdog_s / _OFTEN
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            # A timeout: the loop is busy or stuck. If it stays so, systemd restarts the coordinator.
            with contextlib.suppress(TimeoutError):
                call(notifier.alive, timeout_s=every_s)
            ended.wait(every_s)

    thread = threading.Thread(target=ask, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


log = logging.getLogger(__name__)

LOG_FILE_BYTES = 8 << 20
"""The size at which the coordinator's own log is rotated; three older files are kept."""

ALLOCATION_VARIABLE = "ORCH_ALLOCATION"
"""Set if an engine also provides this machine. Then SIGTERM is a warning, and the run must be ended in order."""


_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""


def share_arenas() -> None:
    """Let all threads allocate from two arenas of glibc: an arena of its own keeps what a thread needed once.

    The environment could say so too, but the tasks of local hosts would inherit it.
    """
    import ctypes

    with contextlib.suppress(AttributeError, OSError):  # another C library has no arenas
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def transports(paths: Paths) -> dict[str, Transport]:
    """Return the transports, by the name in a host's spec."""
    from orchestrator.head.reach.kubernetes.transport import KubernetesTransport
    from orchestrator.head.reach.slurm.transport import slurm_transport

    paths.check()  # known_hosts is there
    return {
        "ssh": SshTransport(Path(paths.known_hosts)),
        "local": LocalTransport(),
        "slurm": slurm_transport(paths.bundle),
        "k8s": KubernetesTransport(paths.state_dir),
    }


def run(paths: Paths, *, after: int | None = None) -> int:
    """Run the coordinator until SIGTERM, SIGINT or `orch coordinator stop`, and return the exit code.

    `after` is the pid of a coordinator to replace: it is asked to end once this one is ready.
    """
    notifier = Notifier.from_environment(os.environ)
    share_arenas()
    if sys.stderr is not None:
        faulthandler.enable()  # prints the stacks when systemd's watchdog ends a coordinator that hangs, by SIGABRT
    paths.ensure()
    lock = take_lock(paths) if after is None else take_over(paths, after)
    handlers: list[logging.Handler] = [
        RotatingFileHandler(paths.coordinator_log, maxBytes=LOG_FILE_BYTES, backupCount=3)
    ]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    logging.basicConfig(
        level=logging.INFO,
        handlers=handlers,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("paramiko").setLevel(logging.WARNING)
    coordinator = Coordinator(paths, transports(paths))
    server = api_server.Server(coordinator)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.loop.stop())
    if os.environ.get(ALLOCATION_VARIABLE):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log.info("coordinator %s: pid %s, epoch %s", __version__, os.getpid(), coordinator.epoch)
    coordinator.take_up()
    from orchestrator.head.reach.kubernetes.lent import KubernetesLender

    lent_hosts = LentHosts(
        KubernetesLender(paths.state_dir),
        lambda: coordinator.loop.runs,
        coordinator,
        coordinator.owes,
        coordinator.fetches,
    )
    lent_hosts.start()
    server.start()
    notifier.ready()
    gc.freeze()  # imported objects stay alive, and searching them for garbage takes 30 ms each time
    try:
        with kept_alive(notifier, coordinator.loop.call):
            coordinator.loop.run()
    finally:
        notifier.stopping()
        lent_hosts.close()
        server.stop()
        coordinator.close()
        lock.close()
    log.info("coordinator stopped; tasks go on")
    return 0 if server.failure is None else 1

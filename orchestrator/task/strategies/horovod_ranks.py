"""Horovod without `horovodrun`: rank 0 serves the rendezvous, and the other ranks wait for it before they start."""

from __future__ import annotations

import os
import socket
import time

from orchestrator.task.strategies.part import StrategyPart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.task.link import Link

WISH = "ORCH_HOROVOD"
ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"

RENDEZVOUS_WAIT_S = 60.0
"""How long rank 0 may take to serve. It normally serves within a second of the release; Horovod waits only 1.5 s."""


class NoAnswer(RuntimeError):
    """The rendezvous of rank 0 does not answer."""

    orch_kind = "no-rendezvous"


def join(link: Link) -> None:
    """Serve the rendezvous, or wait for it. Do nothing in a run without Horovod.

    Call it after the release and before the script.

    Raises:
        ImportError: Horovod is not installed.
        OSError: the port of the rendezvous is taken.
        NoAnswer: the rendezvous does not answer.
    """
    text = os.environ.pop(WISH, "")
    if not text:
        return
    import json

    from horovod.runner.http import http_server

    wish = json.loads(text)
    address, port = os.environ[ADDRESS], int(os.environ[PORT])
    if wish["slots"]:
        # It listens on all interfaces, as TensorFlow's own server does: NAT may translate a host's address.
        # Start what Horovod's RendezvousServer starts, but on the reserved port: its own `start` takes a
        # random one
        slots = wish["slots"]
        import threading

        from horovod.runner.common.util.hosts import SlotInfo

        server = http_server.RendezvousHTTPServer(
            ((address if wish["alone"] else ""), port), http_server.RendezvousHandler, 0
        )
        server.daemon_threads = True  # a request that hangs must not keep the process alive after the script
        server.init([SlotInfo(**slot) for slot in slots])
        threading.Thread(target=server.serve_forever, name="orch-rendezvous", daemon=True).start()
    else:
        wait_for(address, port, RENDEZVOUS_WAIT_S)
    rank, size = os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]
    message = f"rank {rank} of {size}; the rendezvous is at {address}:{port}"
    link.say("horovod", message)


def wait_for(address: str, port: int, wait_s: float) -> None:
    """Wait until rank 0 serves. Raises NoAnswer after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            socket.create_connection((address, port), timeout=5.0).close()
            return
        except OSError as e:
            if time.monotonic() > deadline:
                raise NoAnswer(
                    f"the rendezvous of rank 0 at {address}:{port} does not answer: {e.strerror or e}"
                ) from None
        time.sleep(0.05)


PART = StrategyPart(begin=lambda _options, link: join(link))

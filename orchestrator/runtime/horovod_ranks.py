"""Horovod without `horovodrun`: its rendezvous server beside rank 0, up before any rank looks for it."""

from __future__ import annotations

import os
import socket
import time

from orchestrator.runtime.part import Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.link import Link

WISH = "ORCH_HOROVOD"
ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"

RENDEZVOUS_WAIT_S = 60.0
"""How long rank 0 may take to serve. It is up within a second of the release; Horovod itself waits for 1.5 s."""


class NoAnswer(RuntimeError):
    """Rank 0 cannot be reached."""


def join(link: Link) -> None:
    """After the release, before the script: serve the rendezvous, or wait for it. Nothing where nobody asks for it.

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
        # As TensorFlow's own server it hears all interfaces: the address of a host may be translated on the way.
        _serve(http_server, address if wish["alone"] else "", port, wish["slots"])
    else:
        wait_for(address, port, RENDEZVOUS_WAIT_S)
    rank, size = os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"]
    message = f"rank {rank} of {size}; the rendezvous is at {address}:{port}"
    link.say("horovod", message)


def _serve(http_server: Any, address: str, port: int, slots: list[dict[str, Any]]) -> None:
    """Horovod's RendezvousServer, but on the port that was reserved: its own `start` takes one at random."""
    import threading

    from horovod.runner.common.util.hosts import SlotInfo

    server = http_server.RendezvousHTTPServer((address, port), http_server.RendezvousHandler, 0)
    server.daemon_threads = True  # a request that hangs must not hold the process when the script is done
    server.init([SlotInfo(**slot) for slot in slots])
    threading.Thread(target=server.serve_forever, name="orch-rendezvous", daemon=True).start()


def wait_for(address: str, port: int, wait_s: float) -> None:
    """Until rank 0 serves; NoAnswer after `wait_s`."""
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


PART = Part(begin=lambda _options, link: join(link))

"""`orch metrics`: serve the numbers of the runs to Prometheus."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import Command
from orchestrator.cli.listening import DEFAULT, exposure, parse_listen
from orchestrator.cli.session import Session
from orchestrator.client.environment import Environment
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError
from orchestrator.head.node.notify import Notifier

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_TIMEOUT_S = 5.0
"""Less than Prometheus's own timeout of ten seconds, so that a coordinator that hangs is reported as one that does not
answer."""


def registry(environment: Environment) -> CollectorRegistry:
    """Return a registry with the runs as the coordinator tells of them."""
    from orchestrator.client import exposition

    def status() -> dict[str, Any] | None:
        try:
            return environment.client().get("/v1/status", timeout_s=_TIMEOUT_S)
        except CoordinatorUnreachable:
            return None

    return exposition.registry(status)


@click.command(
    cls=Command,
    examples=[
        ("orch metrics", "Serve http://127.0.0.1:9464/metrics until Ctrl-C"),
        ("orch metrics --listen 10.0.0.5:9464", "Serve on an address that Prometheus reaches"),
        ("orch metrics --once", "Print the metrics, for a textfile collector"),
    ],
)
@click.option("--listen", default=DEFAULT, show_default=True, metavar="ADDRESS:PORT", help="Where to listen.")
@click.option("--once", is_flag=True, help="Print the metrics once, and serve nothing.")
@click.pass_obj
def command(session: Session, listen: str, once: bool) -> int:
    """Serve the numbers of runs, tasks, hosts and GPUs to Prometheus, at /metrics.

    Each scrape asks the coordinator. Where none answers, orch_coordinator_up is 0. `orch service install --metrics`
    runs it as a systemd unit. A Grafana board and alert rules are in docs/metrics.md.
    """
    from prometheus_client import generate_latest, start_http_server

    if once:
        session.put(generate_latest(registry(session)).decode().rstrip("\n"))
        return 0
    address, port = parse_listen(listen)
    if (seen := exposure(address)) is not None:
        session.warn(seen)
    try:
        server, thread = start_http_server(port, address, registry(session))
    except OSError as e:
        raise OrchestratorError(
            f"cannot listen on {listen}: {e.strerror}", hint="choose another address or port with --listen"
        ) from e
    shown = f"[{address}]" if ":" in address else address
    session.say(f"Serving http://{shown}:{server.server_port}/metrics; Ctrl-C ends")
    Notifier.from_environment(os.environ).ready()
    try:
        thread.join()
    except KeyboardInterrupt:
        session.say("Ended")
    finally:
        server.shutdown()
        server.server_close()
    return 0

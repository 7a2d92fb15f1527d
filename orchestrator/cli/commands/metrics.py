"""`orch metrics`: serve the metrics of the runs to Prometheus."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import orch_command
from orchestrator.cli.options import DEFAULT, exposure, parse_listen
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
    """Return a registry with the metrics of the runs, as the coordinator reports them."""
    from orchestrator.client import exposition

    def status() -> dict[str, Any] | None:
        try:
            return environment.client().get("/v1/status", timeout_s=_TIMEOUT_S)
        except CoordinatorUnreachable:
            return None

    return exposition.registry(status)


@orch_command(
    about_runs=True,
    examples=[
        ("orch metrics", "Serve http://127.0.0.1:9464/metrics until Ctrl-C"),
        ("orch metrics --listen 10.0.0.5:9464", "Serve on an address that Prometheus reaches"),
        ("orch metrics --once", "Print the metrics, for a textfile collector"),
    ],
)
@click.option("--listen", default=DEFAULT, show_default=True, metavar="ADDRESS:PORT", help="Where to listen.")
@click.option(
    "--no-token", is_flag=True, help="Serve without a bearer token, to everyone who reaches the address."
)
@click.option("--once", is_flag=True, help="Print the metrics once, and serve nothing.")
def command(session: Session, listen: str, no_token: bool, once: bool) -> None:
    """Serve the numbers of runs, tasks, hosts and GPUs to Prometheus, at /metrics.

    Prometheus must send the bearer token, which is in the file that this command prints at its start
    (`authorization: {credentials_file: …}`).
    Each scrape asks the coordinator. Where none answers, orch_coordinator_up is 0. A systemd unit, a Grafana board and
    alert rules are in docs/metrics.md.
    """
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    from orchestrator.head.node.bearer import token_file
    from orchestrator.page import metrics
    from orchestrator.page.serving import serve

    if once:
        session.put(generate_latest(registry(session)).decode().rstrip("\n"))
        return
    address, port = parse_listen(listen)
    if (seen := exposure(address, with_token=not no_token)) is not None:
        session.warn(seen)
    token, path = ("", "") if no_token else token_file(session.paths.state_dir)
    try:
        listener = socket.create_server(
            (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET
        )
    except OSError as e:
        raise OrchestratorError(
            f"cannot listen on {listen}: {e.strerror}", hint="choose another address or port with --listen"
        ) from e
    shown = f"[{address}]" if ":" in address else address
    whom = "to everybody who reaches it" if no_token else f"to whoever has the bearer token in {path}"
    session.say(f"Serving http://{shown}:{listener.getsockname()[1]}/metrics {whom}; Ctrl-C ends")
    Notifier.from_environment(os.environ).ready()
    made = registry(session)
    serve(listener, metrics.application(lambda: generate_latest(made), CONTENT_TYPE_LATEST, token))
    session.say("Ended")

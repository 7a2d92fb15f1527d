"""`orch ui`: serve the page on this machine's loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from urllib.parse import quote

import click

from orchestrator.both import durable
from orchestrator.cli.help import Command
from orchestrator.cli.session import Session

PORT = 8265


@click.command(
    cls=Command,
    about_runs=True,
    examples=[
        ("orch ui", "Serve the page, and print its address"),
        ("orch ui --open", "Open it in a browser of this machine"),
        ("orch ui --port 9000 --actions", "On another port, with buttons that change runs"),
    ],
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one."
)
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--actions",
    is_flag=True,
    help="Allow kill, restart, drain, undrain and roll back, each after a question.",
)
@click.pass_obj
def command(session: Session, port: int, open_: bool, actions: bool) -> int:
    """Serve a page with all runs on 127.0.0.1: progress, plots, timeline, causes, tasks and logs, as it happens.

    The address works once, for ten minutes. The page only reads, unless --actions is given. It shows what is on the
    disk while no coordinator runs.
    """
    # The web stack takes as long to import as all of the command line.
    from orchestrator.head.node.bearer import token_file
    from orchestrator.page.guard import LOGIN, METRICS, Keys, forwarding
    from orchestrator.page.server import application, listen
    from orchestrator.page.serving import serve
    from orchestrator.page.source import Source

    session.paths.check_socket_path()
    session.paths.check()
    listener = listen(port)
    port = int(listener.getsockname()[1])
    session.paths.ensure()
    bearer, bearer_path = token_file(session.paths.state_dir)
    keys = Keys(port, bearer=bearer)

    def address() -> str:
        return f"http://127.0.0.1:{port}{LOGIN}?token={keys.new_token()}"

    # A browser is given a file: all users of this machine see the command lines of its processes.
    way_in = os.path.join(session.paths.runtime_dir, f"page-{port}.html")

    def remove_way_in() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(way_in)

    def opened() -> None:
        remove_way_in()
        session.say(f"A browser has opened the page. For another one: {address()}")

    def begun() -> None:
        if open_:
            import webbrowser

            durable.write(way_in, forwarding(first).encode(), durable=False)
            # In a thread that nobody waits for: a text browser runs until it is left.
            threading.Thread(target=webbrowser.open, args=(f"file://{quote(way_in)}",), daemon=True).start()

    first = address()
    session.put(first)
    session.say(
        "The address works once, within ten minutes; Ctrl-C ends the page, and no run. From another machine, first: "
        f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"
    )
    session.say(f"For Prometheus: http://127.0.0.1:{port}{METRICS} with the bearer token in {bearer_path}")
    try:
        serve(listener, application(Source(session.paths), keys, actions=actions, opened=opened), begun)
    finally:
        remove_way_in()
    return 0

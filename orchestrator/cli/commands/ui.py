"""`orch ui`: serve the page on this machine's loopback, and let others see it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from urllib.parse import quote

import click

from orchestrator.both import durable
from orchestrator.cli.help import Group
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.cli.show.terminal import printable
from orchestrator.cli.show.times import shown
from orchestrator.core.errors import Refused, UsageError
from orchestrator.head.node import page_access

PORT = 8265
_SHARE_LASTS_MAX_S = 365 * 86400.0


@click.group(
    cls=Group,
    about_runs=True,
    invoke_without_command=True,
    examples=[
        ("orch ui", "Serve the page, and print its address"),
        ("orch ui --open", "Open it in a browser of this machine"),
        ("orch ui --port 9000 --actions", "On another port, with buttons that change runs"),
        ("orch ui --base-url https://lab.example.org/orch", "Behind a proxy that passes that address on"),
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
@click.option("--base-url", metavar="URL", help="The address of a proxy that passes requests on to the page.")
@click.pass_context
def command(ctx: click.Context, port: int, open_: bool, actions: bool, base_url: str | None) -> int:
    """Serve a page with all runs on 127.0.0.1: progress, plots, timeline, causes, tasks and logs, as it happens.

    The address works once, for ten minutes; `orch ui link` prints another. The page only reads, unless --actions is
    given. It shows what is on the disk while no coordinator runs. Browsers that are in stay in when it starts again.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    # The web stack takes as long to import as all of the command line.
    from orchestrator.head.node.bearer import token_file
    from orchestrator.page.guard import LOCAL, LOGIN, METRICS, Base, Keys, base_of, forwarding
    from orchestrator.page.server import application, listen
    from orchestrator.page.serving import serve
    from orchestrator.page.source import Source

    session: Session = ctx.obj
    base = base_of(base_url) if base_url else LOCAL
    session.paths.check_socket_path()
    session.paths.check()
    listener = listen(port)
    port = int(listener.getsockname()[1])
    session.paths.ensure()
    bearer, bearer_path = token_file(session.paths.state_dir)
    access = page_access.PageAccess(session.paths.state_dir)
    here = Base(f"http://127.0.0.1:{port}")
    shown = base if base.origin else here

    def address(of: Base = shown) -> str:
        return f"{of.origin}{of.path}{LOGIN}?token={access.new_token()}"

    # A browser is given a file: all users of this machine see the command lines of its processes.
    way_in = os.path.join(session.paths.runtime_dir, f"page-{port}.html")

    def remove_way_in() -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(way_in)

    def opened() -> None:
        remove_way_in()
        session.say(
            "A browser has opened the page. `orch ui link` lets another one in, `orch ui share` a reader"
        )

    def begun() -> None:
        if open_:
            import webbrowser

            local = first if shown is here else address(here)
            durable.write(way_in, forwarding(local).encode(), durable=False)
            # In a thread that nobody waits for: a text browser runs until it is left.
            threading.Thread(target=webbrowser.open, args=(f"file://{quote(way_in)}",), daemon=True).start()

    first = address()
    session.put(first)
    session.say(
        "The address works once, within ten minutes; Ctrl-C ends the page, and no run. From another machine, first: "
        f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"
    )
    session.say(f"For Prometheus: {here.origin}{METRICS} with the bearer token in {bearer_path}")
    app = application(
        Source(session.paths), Keys(port, access, bearer=bearer), actions=actions, opened=opened, base=base
    )
    try:
        with page_access.served(session.paths.runtime_dir, port, f"{shown.origin}{shown.path}{LOGIN}"):
            serve(listener, app, begun)
    finally:
        remove_way_in()
    return 0


@command.subcommand(
    examples=[
        ("orch ui link", "Let another browser of yours in, such as that of a phone"),
        ("ssh head orch ui link", "The same from another machine, over SSH"),
    ],
)
def link(session: Session) -> None:
    """Print one more address of the page that is served.

    It works once, for ten minutes, and shuts nobody out.
    """
    address = _served(session)
    session.put(f"{address}?token={page_access.PageAccess(session.paths.state_dir).new_token()}")


@command.subcommand(
    examples=[
        (
            "orch ui share --note Anna",
            "Print an address by which Anna sees all runs for 7 days, and changes none",
        ),
        ("orch ui share --note Ben --for 8h", "The same for eight hours"),
        ("orch ui share --list", "Show who was given one, and until when"),
        ("orch ui share --revoke 3f9c21aa", "Take one back: its pages end at once"),
    ],
)
@click.option("--note", default="", help="Who it is for; --list shows it.")
@click.option("--for", "lasts_s", type=DURATION, default="7d", show_default=True, help="How long it works.")
@click.option("--list", "list_", is_flag=True, help="Show the shares.")
@click.option("--revoke", metavar="ID", help="Take this share back; all: shut out all browsers, yours too.")
def share(session: Session, note: str, lasts_s: float, list_: bool, revoke: str | None) -> None:
    """Print an address by which others see all but the runs' `env`.

    They change nothing. It works for as many browsers as open it, for 7 days or as --for says, also after `orch ui` was
    started again.
    """
    if not 60 <= lasts_s <= _SHARE_LASTS_MAX_S:
        raise UsageError("--for is one minute to 365 days", hint="such as --for 7d")
    access = page_access.PageAccess(session.paths.state_dir)
    if sum((bool(note), list_, revoke is not None)) > 1:
        raise UsageError("--note, --list and --revoke do not go together", hint="give one of them")
    if revoke == "all":
        access.revoke_all()
        session.say("All browsers and shares are shut out; `orch ui link` lets a browser in again")
    elif revoke is not None:
        session.say(f"{printable(access.revoke(revoke).note) or revoke} sees the page no more")
    elif list_:
        shares = ([made.id, shown(made.until), printable(made.note) or "-"] for made in access.shares())
        rows = [["ID", "UNTIL", "NOTE"], *shares]
        session.put("\n".join(table(rows, session.paint)) if len(rows) > 1 else "no shares")
    else:
        address = _served(session)
        made = access.share(note, lasts_s)
        session.put(f"{address}?token={made.token}")
        session.say(
            f"It only reads, and works until {shown(made.until)}, or until `orch ui share --revoke {made.id}`"
        )


def _served(session: Session) -> str:
    addresses = page_access.served_at(session.paths.runtime_dir)
    if not addresses:
        raise Refused("no page is served now", hint="`orch ui` serves one")
    return addresses[-1]

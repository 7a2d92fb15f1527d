"""`orch up --follow`: print the logs as they arrive; on a terminal, keep the run's status below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from orchestrator.cli.session import Session
from orchestrator.cli.show import render
from orchestrator.cli.show.log_folding import WITHIN_S, Folder, GrpcFolder
from orchestrator.cli.show.log_lines import LogPainter
from orchestrator.cli.show.terminal import fold, screen
from orchestrator.cli.watching import Watch
from orchestrator.client.choice import is_active
from orchestrator.client.log_selection import select
from orchestrator.client.waiting import wait_for_the_last_lines
from orchestrator.head.api.client import Client
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.reporting.log_level import is_info_of_tensorflow

if TYPE_CHECKING:
    from rich.live import Live

_ATTACHED_TAIL = 20


def follow(
    session: Session,
    client: Client,
    run: Mapping[str, Any],
    *,
    timeout_s: float | None,
    logs_on_stderr: bool,
    attached: bool,
    level: str | None = None,
) -> Mapping[str, Any]:
    """Follow the run until it ends. Return its last status.

    `attached`: it ran before; start with its last lines. `level`: only log lines that are at least so serious.
    """
    live = _live(session) if session.out_is_terminal and not logs_on_stderr else None
    put: Callable[[str], None] = session.say if logs_on_stderr else session.put
    say: Callable[[str], None] = session.say
    if live is not None:
        put = _above(live)
        say = _folding(put, session)
    watch = Watch(
        session,
        client,
        run,
        until=lambda seen: not is_active(seen),
        say=say,
        timeout_s=timeout_s,
        progress=live is None,
        from_now=attached,
        causes_are_shown=True,
    )
    logs = RunLogs(session.paths.state_dir)
    painter = LogPainter(session.paint, columns=None if logs_on_stderr else session.width)

    folder = Folder(lambda line, tasks: put(painter.line(line, tasks)))
    bursts = GrpcFolder(folder.add)
    wanted = select(level=level).chooser(lambda _task, _generation: None)

    def pause() -> bool:
        going = watch.poll()
        bursts.flush(session.time())
        folder.flush(session.time() - WITHIN_S)
        if live is not None and "phase" in watch.run:
            text = render.run(watch.run, session.paint, width=session.width)
            if watch.is_away:
                text += f"\n\n  {session.paint('Coordinator not answering; last known state', 'yellow')}"
            live.update(screen(f"\n{text}"), refresh=True)
        if not going:
            wait_for_the_last_lines(session, logs, watch.run)
        return going

    screen: AbstractContextManager[object] = live if live is not None else nullcontext()
    with screen:
        tail = _ATTACHED_TAIL if attached else None
        for line in logs.follow(str(run["run_id"]), tail=tail, pause=pause):
            if (wanted is None or wanted(line)) and not is_info_of_tensorflow(line.text):
                bursts.add(line)
        bursts.flush()
        folder.flush()
    return watch.run


def _live(session: Session) -> Live:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=session.out, highlight=False, no_color=not session.paint.on)
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)


def _above(live: Live) -> Callable[[str], None]:
    """Return a function that prints above the live part."""
    return lambda text: live.console.print(screen(text), soft_wrap=True)


def _folding(put: Callable[[str], None], session: Session) -> Callable[[str], None]:
    """Return a function that folds a sentence to the terminal before it is printed."""
    return lambda text: put("\n".join(fold(text, session.width, indent="    ")))

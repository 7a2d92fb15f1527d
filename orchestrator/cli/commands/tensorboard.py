"""`orch tensorboard`: fetch the TensorBoard files of a run, and serve them on this machine's loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from orchestrator.both import process
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.client.choice import is_active, status_of, to_read
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError
from orchestrator.core.words import size
from orchestrator.head.api.client import Client

FETCH_EVERY_S = 10.0
_FETCH_TIMEOUT_S = 600.0
_POLL_EVERY_S = 0.2

INSTALL_HINT = "`pip install tensorboard` for the Python that runs orch, or anywhere on the PATH"


def serve(client: Client, chosen: dict[str, Any], argv: list[str], session: Session) -> None:
    """Serve the files until TensorBoard ends or Ctrl-C, and fetch new data while the run is active."""
    with contextlib.suppress(KeyboardInterrupt), _serving(argv) as server:
        warned: dict[str, str] = {}
        training, next_at = True, session.now() + FETCH_EVERY_S
        while server.poll() is None:
            session.pause(_POLL_EVERY_S)
            if not training or session.now() < next_at:
                continue
            try:
                training = is_active(status_of(client, chosen))
                _fetch(client, chosen, session, warned=warned)
            except CoordinatorUnreachable as e:
                if warned.get("") != str(e):
                    session.say(f"{e}; new data arrives once a coordinator is running again")
                warned[""] = str(e)
            next_at = session.now() + FETCH_EVERY_S
        if server.returncode:
            raise OrchestratorError(f"TensorBoard ended with exit code {server.returncode}; see above")


def _fetch(
    client: Client, chosen: dict[str, Any], session: Session, *, warned: dict[str, str]
) -> dict[str, Any]:
    """Fetch the files. `warned`: the warnings that were printed, by host; a warning is repeated only if it changes."""
    answer = client.post(f"/v1/runs/{chosen['run_id']}/summaries", timeout_s=_FETCH_TIMEOUT_S)
    fetched = int(answer["fetched_bytes"])
    while answer["more"]:
        session.say(f"Fetched {size(fetched)}; fetching more")
        answer = client.post(f"/v1/runs/{chosen['run_id']}/summaries", timeout_s=_FETCH_TIMEOUT_S)
        fetched += int(answer["fetched_bytes"])
    unreached = {str(host): str(why) for host, why in answer["unreached"].items()}
    for host, why in unreached.items():
        if warned.get(host) != why:
            session.warn(f"{host}: its files are missing or incomplete: {why}")
    warned.clear()
    warned.update(unreached)
    return {**answer, "fetched_bytes": fetched}


def _say_nothing_found(fetched: dict[str, Any], chosen: dict[str, Any], session: Session) -> None:
    """If the hosts that answered have no TensorBoard file, print where they searched and the likely reason."""
    if fetched.get("files", 1):  # an older coordinator does not say it
        return
    session.warn(
        f"{chosen['run_id']}: no files of TensorBoard, neither in $ORCH_LOG_DIR nor below the working directory of a "
        "task"
    )
    if is_active(chosen):
        session.hint("it may be too early: Keras's TensorBoard callback writes at the end of an epoch")
    session.hint(
        "does the script write any? `keras.callbacks.TensorBoard(os.environ['ORCH_LOG_DIR'])` does; an absolute path "
        "such as /tmp/logs is not looked at"
    )


def _tensorboard() -> list[str]:
    """Return TensorBoard's command. Raises OrchestratorError if it is not installed."""
    from importlib.util import find_spec
    from shutil import which

    if find_spec("tensorboard") is not None:
        return [sys.executable, "-P", "-m", "tensorboard.main"]
    program = which("tensorboard")
    if program is None:
        raise OrchestratorError("TensorBoard is not installed on this machine", hint=INSTALL_HINT)
    return [program]


@contextlib.contextmanager
def _serving(argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run TensorBoard, which prints its address. It ends with this process, however that ends."""
    process.load_prctl()
    server = subprocess.Popen(
        argv,
        env=process.environ_without_here(os.environ),
        preexec_fn=partial(process.die_with_parent, os.getpid()),
    )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@orch_command(
    about_runs=True,
    examples=[
        ("orch tensorboard", "Serve the active run's curves until Ctrl-C"),
        ("orch tensorboard mnist --port 6007", "Serve those of the run mnist on a port of your choice"),
        ("orch tensorboard mnist --fetch", "Only fetch the files, and print their directory"),
    ],
)
@run_argument()
@click.option("--port", type=click.IntRange(0, 65535), help="TensorBoard's port; 0 takes any free port.")
@click.option("--fetch", "only_fetch", is_flag=True, help="Fetch the files, print their directory, and exit.")
@json_option("With --fetch: print a document, for scripts.")
def command(session: Session, name: str | None, port: int | None, only_fetch: bool) -> None:
    """Fetch what the tasks wrote for TensorBoard, and serve it on this machine only.

    It is looked for in ORCH_LOG_DIR and below the tasks' working directories.

    The files come over SSH, and keep coming while the run trains. All generations of a task form one curve. Without
    NAME: the active run, else the newest.
    """
    argv = [] if only_fetch else _tensorboard()  # it is told at once where it is not installed
    client = session.client()
    chosen = to_read(client, name)
    fetched = _fetch(client, chosen, session, warned={})
    _say_nothing_found(fetched, chosen, session)
    if not only_fetch:
        argv += ["--logdir", fetched["directory"], "--host", "127.0.0.1"]
        serve(client, chosen, [*argv, *([] if port is None else ["--port", str(port)])], session)
    else:
        session.answer(fetched, fetched["directory"])

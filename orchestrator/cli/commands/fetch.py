"""`orch fetch`: copy the files that a run's tasks left in their working directories to this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.checkpoints import best_model, saved_as
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_run, complete_task, name_and_task
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.cli.show.terminal import one_line
from orchestrator.client.choice import to_read
from orchestrator.core.errors import OrchestratorError, Refused, SomeHostsOnly, UsageError
from orchestrator.core.words import counted, listed, size
from orchestrator.head.api.client import Client

_TIMEOUT_S = 700.0
"""Longer than a host may take to read a large file from a slow disk."""

_TELL_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Request:
    """The run (None: the active one, or else the newest), the files, and the destination."""

    name: str | None
    patterns: Sequence[str] = ()
    task: str | None = None
    directory: str | None = None
    """None: `NAME-outputs/RUN_ID` in the current directory."""
    force: bool = False
    saved: tuple[int, str] | None = None
    """A checkpoint: its generation, and its path below the generation's directory."""


def run(request: Request, session: Session) -> dict[str, Any]:
    """Fetch the files, one after another. Return a document with the result for each."""
    client = session.client()
    chosen = to_read(client, request.name)
    listing = list_outputs(client, chosen, request)
    directory = os.path.abspath(
        request.directory or os.path.join(f"{chosen['name']}-outputs", str(chosen["run_id"]))
    )
    _tell_missing(listing, session)
    if request.directory is None and listing["files"]:
        from orchestrator.head.transfer.outputs import own_directory

        own_directory(os.path.dirname(directory))
    bringer = _Bringer(client, chosen, directory, session, sum(file["bytes"] for file in listing["files"]))
    by_size = sorted(listing["files"], key=lambda file: int(file["bytes"]))  # a large one holds up no other
    files = sorted(
        (bringer.bring(file, replace=request.force) for file in by_size), key=lambda file: str(file["to"])
    )
    return {
        "schema": 1,
        "run_id": chosen["run_id"],
        "directory": directory,
        "files": files,
        "fetched_bytes": sum(file["bytes"] for file in files if file["state"] == "fetched"),
        "hidden": listing["hidden"],
        "left_out": listing["left_out"],
        "unreached": listing["unreached"],
    }


def list_outputs(client: Client, chosen: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Return the coordinator's list of the requested files."""
    where = f"/v1/runs/{chosen['run_id']}"
    if request.saved is None:
        body: dict[str, Any] = {"patterns": list(request.patterns), "task": request.task}
        return client.post(f"{where}/outputs", body, timeout_s=_TIMEOUT_S)
    # A route of its own: a coordinator of the version before would list something else
    generation, path = request.saved
    listing = client.post(f"{where}/saved", {"generation": generation, "path": path}, timeout_s=_TIMEOUT_S)
    if not listing["files"] and not listing["unreached"]:
        raise OrchestratorError(
            f"no file of {path or 'that checkpoint'} is in the directory of generation {generation} any more",
            hint="`orch ckpt ls` shows what is there now; of a pinned checkpoint, the copy is at its path",
        )
    return listing


def _tell_missing(listing: Mapping[str, Any], session: Session) -> None:
    """Print which hosts and files are missing from the list."""
    for host, why in listing["unreached"].items():
        session.warn(f"{host}: not reached, so what its tasks left is missing: {why}")
    for host, count in listing["left_out"].items():
        session.warn(
            f"{host}: {counted(count, 'file')} left out: links, names with control characters, and what is "
            "beyond the bounds of a list"
        )
    if listing["hidden"]:
        session.say(f"{counted(listing['hidden'], 'hidden file')} left out; a PATTERN brings them")


class _Bringer:
    """Fetches files, and prints the progress."""

    def __init__(
        self, client: Client, chosen: Mapping[str, Any], directory: str, session: Session, total: int
    ) -> None:
        self._client, self._session, self._directory = client, session, directory
        self._path = f"/v1/runs/{chosen['run_id']}/outputs/fetch"
        self._total = total
        self._done = 0
        self._told_at = session.now()

    def bring(self, file: Mapping[str, Any], *, replace: bool) -> dict[str, Any]:
        """Fetch a file. Return its entry with `state`, `sha256` and, after a failure, `why`."""
        body: dict[str, Any] = {"file": file, "directory": self._directory, "replace": replace}
        entry = {**file, "state": "failed", "sha256": None}
        if file.get("why"):
            self._session.warn(one_line(f"{file['to']}: {file['why']}"))
            return entry
        try:
            while True:
                part = self._client.post(self._path, body, timeout_s=_TIMEOUT_S)
                here = self._done + int(part["here_bytes"])
                if self._session.now() - self._told_at >= _TELL_EVERY_S:
                    self._told_at = self._session.now()
                    self._session.say(f"Fetched {size(here)} of {size(self._total)}")
                if part["state"] != "more":
                    break
                body["sha256"] = part["sha256"]
        except OrchestratorError as e:
            if e.code in ("usage", "coordinator-unreachable", "internal"):
                raise  # the next file would meet the same error
            self._session.warn(one_line(str(e)))
            entry["why"] = str(e)
        else:
            entry |= {"state": part["state"], "sha256": part["sha256"]}
        self._done += int(file["bytes"])
        return entry


def fetched(session: Session, request: Request) -> None:
    """Fetch what is requested, and show what came. Raises OrchestratorError if not everything did."""
    document = run(request, session)
    if session.wants_json:
        session.put_json(document)
    else:
        _show(document, request.patterns, session)
    _check(document, request.patterns)


def _check(document: Mapping[str, Any], patterns: Sequence[str]) -> None:
    """Raise the command's error if it did not fetch everything that was requested."""
    by_state: dict[str, list[str]] = {}
    for file in document["files"]:
        by_state.setdefault(file["state"], []).append(one_line(file["to"]))
    failed, differ = by_state.get("failed", []), by_state.get("differs", [])
    if failed:
        raise OrchestratorError(
            f"{counted(len(failed), 'file')} could not be fetched: {listed(failed)}",
            hint="fetch again: what is here already is not sent twice",
        )
    if differ:
        raise Refused(
            f"not replaced, since their content here differs: {listed(differ)}",
            hint="--force replaces them; --to names another directory",
        )
    if document["unreached"]:
        raise SomeHostsOnly(
            f"not reached: {listed(list(document['unreached']))}",
            hint="`orch fetch` again once they answer",
        )
    if patterns and not document["files"]:
        raise OrchestratorError(
            f"{document['run_id']} left no file that matches {listed(list(patterns))}",
            hint="`orch fetch NAME --list` shows what it left",
        )


def _show(document: Mapping[str, Any], patterns: Sequence[str], session: Session) -> None:
    files = document["files"]
    if not files:
        _say_nothing(document, patterns, session)
        return
    rows = [["FILE", "SIZE", "TASK", "HOST", ""]]
    words = {"fetched": "fetched", "here": "was here", "differs": "differs", "failed": "failed"}
    rows += [[*_cells(file), words[file["state"]]] for file in files]
    session.say("\n".join(table(rows, session.paint_err, right=frozenset({"SIZE"}))))
    session.put(document["directory"])


def _cells(file: Mapping[str, Any]) -> list[str]:
    return [one_line(file["to"]), size(file["bytes"]), file["task"], file["host"]]


def _say_nothing(listing: Mapping[str, Any], patterns: Sequence[str], session: Session) -> None:
    """Print that there is nothing to fetch."""
    who = "its tasks have left no file" + (f" that matches {listed(list(patterns))}" if patterns else "")
    session.say(f"{listing['run_id']}: nothing to fetch: {who} in their working directories")


@orch_command(
    about_runs=True,
    examples=[
        ("orch fetch mnist", "Fetch all that the tasks of mnist have left, into mnist-outputs/"),
        ("orch fetch mnist model.keras '*.csv' --to results", "Fetch the model and all tables into results/"),
        ("orch fetch mnist --best", "Fetch the best model, saved in the checkpoint directory"),
        ("orch fetch mnist --task worker:1 --list", "Show what worker:1 has left, and fetch nothing"),
    ],
)
@click.argument("name", required=False, shell_complete=complete_run)
@click.argument("patterns", required=False, nargs=-1, metavar="[PATTERN]...")
@click.option("--task", shell_complete=complete_task, help="Only this task's files, such as worker:1.")
@click.option("--to", "directory", type=click.Path(), help="The directory. Default: NAME-outputs/RUN_ID.")
@click.option("--force", is_flag=True, help="Replace files that are there with another content.")
@click.option("--best", is_flag=True, help="The best model of the checkpoint directory.")
@click.option("--list", "only_list", is_flag=True, help="Print what could be fetched; fetch nothing.")
@json_option()
def command(
    session: Session,
    name: str | None,
    patterns: tuple[str, ...],
    task: str | None,
    directory: str | None,
    force: bool,
    best: bool,
    only_list: bool,
) -> None:
    """Fetch the files that the tasks have left in their working directories, such as a saved model.

    PATTERN is read as in .gitignore: `model.keras`, `*.csv`, `plots/`. The chief's files come to the directory itself,
    those of another task below the task's name. Each file is compared by its SHA-256. A fetch that broke off goes on
    where it was.

    --best brings the newest model of the checkpoint directory whose name matches PATTERN, or has `best` in it, or else
    from which no restart would resume; `orch ckpt fetch` brings any checkpoint. Exit code 4 if a host was not reached,
    6 if a file here has another content.
    """
    name, task = name_and_task(name, task)
    request = Request(name, patterns, task, directory, force)
    if best:
        if task is not None:
            raise UsageError("--best is of the chief, and --task names a task", hint="leave one of them out")
        document, name = best_model(session, name, patterns)
        request = Request(name, (), None, directory, force, saved_as(document))
    if not only_list:
        fetched(session, request)
        return
    # Print what could be fetched, and fetch nothing
    client = session.client()
    listing = list_outputs(client, to_read(client, request.name), request)
    rows = [["FILE", "SIZE", "TASK", "HOST"]]
    rows += [_cells(file) for file in listing["files"]]
    shown = table(rows, session.paint, right=frozenset({"SIZE"}))
    session.answer({"schema": 1, **listing}, *(shown if listing["files"] else ()))
    if session.wants_json:
        return
    if not listing["files"]:
        _say_nothing(listing, request.patterns, session)
    _tell_missing(listing, session)

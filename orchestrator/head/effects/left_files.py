"""Files that tasks of ended runs left on their hosts: listed when a host is detached. The list is kept beside the logs.

The files that `run.outputs` names are fetched then. The run's status shows what went wrong; the files stay on the hosts
until they are fetched.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

from orchestrator.both import durable
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.words import counted, listed
from orchestrator.head.links.conversation import Asks, Lends, LinkDown, OrderRefused
from orchestrator.head.node.paths import Paths
from orchestrator.head.transfer import files, outputs
from orchestrator.head.transfer.outputs import Output

log = logging.getLogger(__name__)

FILE = "outputs.json"
"""The file with the list, in a run's directory on the head node."""


PROBLEMS_MAX = 5
"""How many files of a host that could not be fetched are named."""


class Left(TypedDict):
    """The files of one task."""

    task: str
    host: str
    files: int
    bytes: int
    fetched: int
    """How many of them were fetched for `run.outputs`."""


class OfHost(TypedDict):
    """The files that were found on one host, and what went wrong there."""

    tasks: list[Left]
    problems: list[str]


class LeftFiles:
    """Keeps what is known by run and host. Any thread may call it."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, OfHost]] = {}
        self._awaited: set[str] = set()
        """The runs whose end this coordinator sees, or whose files it fetches. Of others no more will be listed."""
        self._under_way: set[tuple[str, str]] = set()
        """Runs and hosts whose files are being listed and fetched."""
        self._is_closed = False

    def close(self) -> None:
        """Record no failure any more: the links are closed now, and the next coordinator fetches what is missing."""
        self._is_closed = True

    def await_end(self, run_id: str) -> None:
        """Say that the run goes on, so that its end will be seen."""
        self._awaited.add(run_id)

    def resume(self, run: Run, lease: Lends, do: Callable[[Callable[[], None]], None]) -> None:
        """Let `do` fetch what a coordinator that ended after this run has not. Hosts that owe the proof come later."""
        if self._directory(run) is None:
            return
        self.await_end(run.run_id)
        for host in self._missing(run):
            do(partial(self._resume, run, host, lease))

    def _resume(self, run: Run, host: str, lease: Lends) -> None:
        try:
            lease(run, host, lambda link: self.end(link, run, host))
        except (LinkDown, OrderRefused) as e:
            log.warning("%s: %s: %s", run.run_id, host, e)
            self.end(None, run, host)

    def end(self, link: Asks | None, run: Run, host: str) -> None:
        """List the files of an ended run's tasks on a host, and fetch those that its spec names. It blocks."""
        if not any(task.host == host and task.generation for task in run.tasks):
            return
        key = (run.run_id, host)
        with self._lock:
            self._under_way.add(key)
        try:
            self._end(link, run, host)
        finally:
            with self._lock:
                self._under_way.discard(key)

    def is_fetching(self, run_id: str) -> bool:
        """Return whether files of the run are being fetched. That ends by itself, since each request has a timeout."""
        with self._lock:
            return any(fetched_run == run_id for fetched_run, _ in self._under_way)

    def _end(self, link: Asks | None, run: Run, host: str) -> None:
        on_host: OfHost = {"tasks": [], "problems": []}
        try:
            if link is None:
                raise LinkDown(f"{host} is not connected")
            self._list_and_fetch(link, run, host, on_host)
        except (LinkDown, OrderRefused, OrchestratorError, OSError) as e:
            if self._is_closed:
                return
            on_host["problems"] = [f"{host}: {e}"]
            log.warning("%s: what was left on %s: %s", run.run_id, host, e)
        with self._lock:
            known = self._of(run.run_id)
            known[host] = on_host
            try:
                durable.write_json(os.path.join(self._paths.run_dir(run.run_id), FILE), known)
            except OSError as e:
                log.warning("%s: %s cannot be written: %s", run.run_id, FILE, e)

    def document(self, run: Run) -> dict[str, Any] | None:
        """Return `outputs` of the run's status; None while it has not ended."""
        if not run.phase.is_terminal:
            return None
        with self._lock:
            known = self._of(run.run_id)
        pending = run.run_id in self._awaited and bool(self._missing(run))
        directory = self._directory(run)
        tasks = [left for host in known.values() for left in host["tasks"]]
        problems = [problem for host in known.values() for problem in host["problems"]]
        if directory and known and not (pending or problems or any(left["fetched"] for left in tasks)):
            problems.append(f"no file that `outputs` names was left: {listed(run.plan.outputs)}")
        return {"pending": pending, "directory": directory, "tasks": tasks, "problems": problems}

    def forget(self, run_ids: list[str]) -> None:
        """Keep runs that have left the journal in memory no more."""
        with self._lock:
            for run_id in run_ids:
                self._known.pop(run_id, None)
                self._awaited.discard(run_id)

    def _list_and_fetch(self, link: Asks, run: Run, host: str, on_host: OfHost) -> None:
        listed, _ = files.listing(link, run, host, "outputs")
        by_task: dict[str, Left] = {}
        for file in listed:
            left = by_task.setdefault(
                file["task"], {"task": file["task"], "host": host, "files": 0, "bytes": 0, "fetched": 0}
            )
            left["files"] += 1
            left["bytes"] += file["bytes"]
        on_host["tasks"] = list(by_task.values())
        directory = self._directory(run)
        if directory is None:
            return
        wanted, _ = outputs.chosen(
            [Output(host, file, outputs.destination(run, file, alone=False)) for file in listed],
            run.plan.outputs,
        )
        beyond = outputs.not_fetched(run, wanted)
        problems = [f"{host}: {output.to}: {beyond[output.to]}" for output in wanted if output.to in beyond]
        if wanted:
            outputs.own_directory(os.path.dirname(directory))
        for output in sorted(wanted, key=lambda each: each.file["bytes"]):
            if output.to in beyond:
                continue
            try:
                state = outputs.bring_whole(link, run, output, directory)
            except (OrderRefused, OSError) as e:  # of this file: the others come
                problems.append(f"{host}: {output.to}: {e}")
                continue
            if state == "differs":
                problems.append(f"{output.to} is in {directory} with another content")
                continue
            by_task[output.file["task"]]["fetched"] += 1
        on_host["problems"] = problems[:PROBLEMS_MAX]
        if len(problems) > PROBLEMS_MAX:
            on_host["problems"].append(f"{host}: and {counted(len(problems) - PROBLEMS_MAX, 'file')} more")

    def _missing(self, run: Run) -> set[str]:
        """Return the hosts of an ended run that are to be asked what its tasks left, and were not yet."""
        owing = {*unproven(run), *(host.name for host in run.hosts if host.gone)}
        with self._lock:
            return {task.host for task in run.tasks if task.generation} - owing - self._of(run.run_id).keys()

    def _directory(self, run: Run) -> str | None:
        """Return where `run.outputs` goes; None if it names nothing, or a person ended the run."""
        if not run.plan.outputs or run.phase is Phase.KILLED:
            return None
        return os.path.join(run.plan.outputs_dir, run.run_id)

    def _of(self, run_id: str) -> dict[str, OfHost]:
        """Return what is known of a run. The caller holds the lock."""
        if run_id not in self._known:
            stored = durable.read_object(self._paths.run_dir(run_id), FILE)
            self._known[run_id] = stored or {}
        return self._known[run_id]

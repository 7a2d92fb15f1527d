"""`Client` and `Run`: start runs, watch them, and end them, from Python. See docs/python.md.

The documents are those of `--json` on the command line, and the errors are its errors, each with a `hint` and an
`exit_code`. Neither class holds a connection or changes after it is made: any thread may use them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.client import asking, killing
from orchestrator.client.choice import TERMINAL_PHASES, find, find_or_newest, is_active, runs_of, status_of
from orchestrator.client.environment import Environment
from orchestrator.head.api.client import Client as Api

if TYPE_CHECKING:
    from orchestrator.client.series import Axis, Metrics
    from orchestrator.reporting.log_level import Level

Document = dict[str, Any]
"""A JSON object as the command line prints it."""


class Client:
    """The coordinator of this user, or of the directories that are given."""

    def __init__(
        self,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Take missing directories from $ORCH_STATE_DIR and $ORCH_RUNTIME_DIR, else the command line's defaults."""
        if environment is None:
            given = {"ORCH_STATE_DIR": state_dir, "ORCH_RUNTIME_DIR": runtime_dir}
            own = {name: os.fspath(path) for name, path in given.items() if path is not None}
            environment = Environment({**os.environ, **own})
        self._environment = environment

    def up(
        self,
        file: str | os.PathLike[str],
        *,
        from_scratch: bool = False,
        check: bool = True,
        queue: bool = False,
        restart: bool = False,
    ) -> Run:
        """Start the run of a cluster spec, and return once it is accepted. Start a coordinator if none is running.

        A run that is already running with this plan is returned as it is. With `check`, hosts that do not reach each
        other are refused. With `queue` it waits until its GPUs are free; with `restart`, a run of this name whose spec
        or code has changed since is ended at its next checkpoint first.

        Raises:
            SpecError: The file is wrong; one line for each diagnostic.
            Refused: Another run of that name is active.
        """
        from orchestrator.client.submit import submit

        submitted = submit(
            os.fspath(file),
            self._environment,
            self._api,
            from_scratch=from_scratch,
            check=check,
            queue=queue,
            restart=restart,
        )
        return Run(self._environment, submitted.name, submitted.run_id)

    def run(self, name: str | None = None) -> Run:
        """Return the run of this name or id; without a name, the newest active run, else the newest."""
        return self._run(find_or_newest(runs_of(self._api), name))

    def runs(self) -> list[Run]:
        """Return all runs that the coordinator knows, oldest first."""
        return [self._run(run) for run in runs_of(self._api)]

    def status(self, name: str | None = None) -> Document:
        """Return the document of `orch status --json`, of all runs or of one."""
        document = self._api.get("/v1/status")
        if name is None:
            return document
        return {**document, "runs": [find(document.get("runs") or [], name)]}

    def recorded(self, name: str | None = None) -> Document | None:
        """Return the last recorded status, which needs no coordinator, with `recorded_age_s`; None without a record."""
        from orchestrator.client import recorded

        document = recorded.status(self._environment.paths, now=self._environment.time())
        if name is None or document is None:
            return document
        return {**document, "runs": [find(document["runs"], name)]}

    def events(self, name: str | None = None, *, after: int = 0, follow: bool = False) -> Iterator[Document]:
        """Yield the events of all runs, of all runs of a name, or of the run of an id, in their order.

        With `follow`, yield new ones too, until that run has ended; for all runs, without end.
        """
        api = self._api
        chosen = None if name is None else find(runs_of(api), name)
        by_id = chosen is not None and name == chosen["run_id"]
        return asking.events(api, chosen, after=after, follow=follow, by_id=by_id)

    def hosts(self, file: str | os.PathLike[str] | None = None) -> list[Document]:
        """Ask the hosts of a cluster spec, or of the active runs, what they have, and who uses it.

        One that does not answer is returned too: `reachable` is false, and `problem` says why.
        """
        from orchestrator.client.hosts import document

        hosts: list[Document] = document(self._environment, None if file is None else os.fspath(file))[
            "hosts"
        ]
        return hosts

    @property
    def _api(self) -> Api:
        return self._environment.client()

    def _run(self, document: Mapping[str, Any]) -> Run:
        return Run(self._environment, str(document["name"]), str(document["run_id"]))

    def __repr__(self) -> str:
        return f"Client(state_dir={self._environment.paths.state_dir!r})"


class Run:
    """One run. Each property and method asks the coordinator again."""

    def __init__(self, environment: Environment, name: str, run_id: str) -> None:
        """Name a run that is known to exist; `Client` makes these."""
        self.name = name
        self.run_id = run_id
        self._environment = environment

    @property
    def status(self) -> Document:
        """Return the run's present part of `orch status --json`."""
        return status_of(self._api, self._chosen)

    @property
    def phase(self) -> str:
        """Return the present phase."""
        return str(self.status["phase"])

    def wait(self, *, timeout_s: float | None = None, until: str | None = None) -> Document:
        """Wait until the run has ended, or is in the phase `until`, and return its status then.

        A run that FAILED raises no exception: its `phase` says so, and `why()` the cause. If the coordinator is away,
        this waits for it, as training continues without it.

        Raises:
            WaitTimedOut: After `timeout_s`. The run continues.
        """
        from orchestrator.client.waiting import Wait

        def is_over(seen: Mapping[str, Any]) -> bool:
            return not is_active(seen) or seen.get("phase") == until

        wait = Wait(
            self._environment,
            self._api,
            self._chosen,
            until=is_over,
            say=self._environment.warn,
            timeout_s=timeout_s,
        )
        while wait.poll():
            pass
        return dict(wait.run)

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[Document]:
        """Yield what happened, in order, and new events as they come until the run has ended."""
        return asking.events(self._api, self._chosen, after=after, follow=follow, by_id=True)

    def logs(
        self,
        *tasks: str,
        follow: bool = False,
        since: float | datetime | None = None,
        tail: int | None = None,
        grep: str | None = None,
        hosts: str | Iterable[str] = (),
        generations: int | Iterable[int] = (),
        level: Level | None = None,
    ) -> Iterator[Document]:
        """Yield the output of these tasks, or of all, merged by time, as `orch logs --json` prints it.

        Args:
            tasks: For example `"worker:0"`.
            follow: Yield new lines too, until the run ends.
            since: A time, also as Unix time; only newer lines.
            tail: Only the last so many lines, of those that are wanted.
            grep: A regular expression; only lines that match it.
            hosts: Only lines of the tasks on this host, or on these.
            generations: Only lines of this generation, or of these.
            level: Only lines of this level, or more serious ones.

        Raises:
            UsageError: There is no such task or host, or an argument is not valid.
        """
        from orchestrator.client.log_reading import Request, document, read
        from orchestrator.client.log_selection import select

        at = since.timestamp() if isinstance(since, datetime) else since
        wanted = select(grep, generations, hosts, level)
        log = read(Request(self.run_id, tasks, follow, at, tail, wanted), self._environment)
        return (document(line, self.run_id) for line in log.lines)

    def metrics(self, *names: str, x: Axis = "step") -> Metrics:
        """Return the measurements as arrays by name: the pace, the loss, and what else the script reports.

        Args:
            names: Only these; `"worker:0/cpu_percent"` is one of a task.
            x: By global step, or by time.
        """
        from orchestrator.client import series

        return series.read(self._api, self.run_id, names, x)

    def why(self) -> Document:
        """Return the document of `orch why --all --json`: the first cause of each generation that failed."""
        return asking.why(self._environment, self.run_id)

    def stacks(self, task: str | None = None) -> dict[str, str]:
        """Return the Python stacks of the tasks, by task. They keep running."""
        return asking.stacks(self._api, self._chosen, task)

    def kill(self, *, force: bool = False, at_checkpoint: bool = False, timeout_s: float = 600.0) -> Document:
        """Stop the run, and return its last status, whose `proof` says which processes each host has left.

        With `at_checkpoint` once its next checkpoint is verified, or after 10 minutes without one.

        Raises:
            SomeHostsOnly: A host did not answer; the coordinator kills what is left there once it does.
            Refused: A process cannot be killed.
            WaitTimedOut: It has not ended after `timeout_s`. The kill continues.
        """
        api = self._api
        status = status_of(api, self._chosen)
        if not is_active(status):
            return status
        killing.order(api, status, force=force, at_checkpoint=at_checkpoint)
        deadline = self._environment.now() + timeout_s
        ended = killing.wait_end(api, self._environment, self._chosen, deadline)
        problem = killing.verdict([ended])
        if problem is not None:
            raise problem
        return ended

    def drain(self, host: str, *, now: bool = False) -> Document:
        """Move the run off a host at its next verified checkpoint, or now. Return the host's state."""
        body = {"host": host} | ({"now": True} if now else {})
        return self._api.post(f"/v1/runs/{self.run_id}/drain", body)

    def undrain(self, host: str) -> Document:
        """Let a drained or quarantined host take tasks again. Return the host's state."""
        return self._api.post(f"/v1/runs/{self.run_id}/undrain", {"host": host})

    @property
    def _api(self) -> Api:
        return self._environment.client()

    @property
    def _chosen(self) -> dict[str, str]:
        return {"name": self.name, "run_id": self.run_id}

    def __repr__(self) -> str:
        return f"Run({self.run_id!r})"


__all__ = ["TERMINAL_PHASES", "Client", "Document", "Run"]

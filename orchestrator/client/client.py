"""`Client` and `Run`: start runs, watch them, and end them, from Python. See docs/python.md.

The documents are those of `--json` on the command line. Errors are the same too, each with a `hint` and an `exit_code`.
Neither class holds a connection or changes after its construction, so any thread may use them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.client import asking, killing
from orchestrator.client.choice import TERMINAL_PHASES, find, is_active, runs_of, status_of, to_read
from orchestrator.client.environment import Environment
from orchestrator.head.api.client import Client as Api

if TYPE_CHECKING:
    from orchestrator.client.series import Axis, Metrics
    from orchestrator.reporting.log_level import Level

Document = dict[str, Any]
"""A JSON object as the command line prints it."""


class Client:
    """The coordinator of this user, or of the given directories."""

    def __init__(
        self,
        *,
        state_dir: str | os.PathLike[str] | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
        environment: Environment | None = None,
    ) -> None:
        """Use $ORCH_STATE_DIR and $ORCH_RUNTIME_DIR for missing arguments, else the command line's defaults."""
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
        go_on: bool = False,
        check: bool = True,
        queue: bool = False,
        restart: bool = False,
        wait_for_hosts: bool = False,
    ) -> Run:
        """Start the run of a cluster spec, and return once it is accepted. Start a coordinator if none is running.

        If a run with this plan is already active, it is returned; so is one that has finished, if nothing has changed
        since. `from_scratch` trains from step 0, and `go_on` goes on from the checkpoint of a run that has finished.
        `check` refuses hosts that do not reach each other, or do not answer, unless `wait_for_hosts`.
        `queue` lets the run wait until its GPUs are free. `restart` first ends an active run of this name at its next
        checkpoint if the spec or the code has changed.

        Raises:
            SpecError: The file is invalid; one line for each diagnostic.
            Refused: Another run of that name is active.
        """
        from orchestrator.client.submit import Start, submit

        start = Start(
            again=from_scratch,
            go_on=go_on,
            check=check,
            queue=queue,
            restart=restart,
            wait_for_hosts=wait_for_hosts,
        )
        submitted = submit(os.fspath(file), self._environment, self._api, start)
        return Run(self._environment, submitted.name, submitted.run_id)

    def run(self, name: str | None = None) -> Run:
        """Return the run with this name or id; without a name, the newest active run, or else the newest run."""
        return self._run(to_read(self._api, name))

    def runs(self) -> list[Run]:
        """Return all runs that the coordinator knows, oldest first."""
        return [self._run(run) for run in runs_of(self._api)]

    def status(self, name: str | None = None) -> Document:
        """Return the document of `orch status --json`, for all runs or for one."""
        document = self._api.get("/v1/status")
        if name is None:
            return document
        return {**document, "runs": [to_read(self._api, name, document.get("runs") or [])]}

    def recorded(self, name: str | None = None) -> Document | None:
        """Return the last recorded status with `recorded_age_s`; None without a record. It needs no coordinator."""
        from orchestrator.client import recorded

        document = recorded.status(self._environment.paths, now=self._environment.time())
        if name is None or document is None:
            return document
        return {**document, "runs": [find(document["runs"], name)]}

    def events(self, name: str | None = None, *, after: int = 0, follow: bool = False) -> Iterator[Document]:
        """Yield events in order: of all runs, of all runs with a name, or of the run with an id.

        `follow` also yields new ones, until that run has ended; for all runs, without end.
        """
        api = self._api
        chosen = None if name is None else to_read(api, name)
        by_id = chosen is not None and name == chosen["run_id"]
        return asking.events(api, chosen, after=after, follow=follow, by_id=by_id)

    def hosts(self, file: str | os.PathLike[str] | None = None) -> list[Document]:
        """Ask the hosts of a cluster spec, or of the active runs, for their hardware and its users.

        For a host that does not answer, `reachable` is false and `problem` says why.
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
        """Refer to an existing run. `Client` makes these objects."""
        self.name = name
        self.run_id = run_id
        self._environment = environment

    @property
    def status(self) -> Document:
        """Return the run's current entry of `orch status --json`."""
        return status_of(self._api, self._chosen)

    @property
    def phase(self) -> str:
        """Return the current phase."""
        return str(self.status["phase"])

    def wait(self, *, timeout_s: float | None = None, until: str | None = None) -> Document:
        """Wait until the run has ended, or is in the phase `until`, and return its status.

        A failed run raises no exception: its `phase` is FAILED, and `why()` returns the cause. If the coordinator is
        away, this waits for it, since training continues without it.

        Raises:
            WaitTimedOut: After `timeout_s`. The run continues.
        """
        from orchestrator.client.waiting import Wait

        def is_over(seen: Mapping[str, Any]) -> bool:
            return not is_active(seen) or seen.get("phase") == until

        say = self._environment.warn
        wait = Wait(self._environment, self._api, self._chosen, until=is_over, say=say, timeout_s=timeout_s)
        return dict(wait.to_its_end())

    def events(self, *, after: int = 0, follow: bool = True) -> Iterator[Document]:
        """Yield the events in order, and new ones until the run has ended."""
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
        """Yield the output of these tasks, or of all, merged by time, in the format of `orch logs --json`.

        Args:
            tasks: For example `"worker:0"`.
            follow: Yield new lines too, until the run ends.
            since: A time, also as Unix time; only newer lines.
            tail: Only this many of the last selected lines.
            grep: A regular expression; only lines that match it.
            hosts: Only lines of the tasks on this host, or on these.
            generations: Only lines of this generation, or of these.
            level: Only lines of this level or above.

        Raises:
            UsageError: There is no such task or host, or an argument is not valid.
        """
        from orchestrator.client.log_reading import LogRequest, document, read
        from orchestrator.client.log_selection import select

        at = since.timestamp() if isinstance(since, datetime) else since
        wanted = select(grep, generations, hosts, level)
        log = read(LogRequest(self.run_id, tasks, follow, at, tail, wanted), self._environment)
        return (document(line, self.run_id) for line in log.lines)

    def metrics(self, *names: str, x: Axis = "step") -> Metrics:
        """Return the measurements as arrays by name: the pace, the loss, and all other metrics of the script.

        Args:
            names: Only these. A task's metric has a name such as `"worker:0/cpu_percent"`.
            x: By global step, or by time.
        """
        from orchestrator.client import series

        return series.read(self._api, self.run_id, names, x)

    def why(self) -> Document:
        """Return the document of `orch why --all --json`: the first cause of each failed generation."""
        return asking.why(self._environment, self.run_id)

    def stacks(self, task: str | None = None) -> dict[str, str]:
        """Return the Python stacks of the tasks, by task. The tasks keep running."""
        return asking.stacks(self._api, self._chosen, task)

    def kill(self, *, force: bool = False, at_checkpoint: bool = False, timeout_s: float = 600.0) -> Document:
        """Stop the run, and return its last status. Its `proof` says which processes are left on each host.

        `at_checkpoint` stops it at its next step if all tasks can hand over their state; else once its next
        checkpoint is verified, or after 10 minutes without one.

        Raises:
            SomeHostsOnly: A host did not answer. The coordinator kills the processes there once it does.
            Refused: A process cannot be killed.
            WaitTimedOut: The run has not ended after `timeout_s`. The kill continues.
        """
        api = self._api
        status = status_of(api, self._chosen)
        if is_active(status):
            killing.order(api, status, force=force, at_checkpoint=at_checkpoint)
            deadline = self._environment.now() + timeout_s
            status = killing.wait_end(api, self._environment, self._chosen, deadline)
        problem = killing.verdict([status])
        if problem is not None:
            raise problem
        return status

    def drain(self, host: str, *, now: bool = False) -> Document:
        """Move the run's tasks off a host, at the next verified checkpoint or now. Return the host's state."""
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

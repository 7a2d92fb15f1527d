"""Hand over from one coordinator to the next, possibly of another version, while the tasks keep running.

Whatever can be checked in advance is checked before the old one is asked to end: if the new one could not start,
nobody would watch the runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import __version__
from orchestrator.cli.session import Session, is_not_running
from orchestrator.client.choice import is_active
from orchestrator.client.starting import (
    START_TIMEOUT_S,
    another_runs,
    coordinator_command,
    did_not_start,
    ensure_coordinator,
    log_size,
    log_tail,
    spawn,
)
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, Refused, WaitTimedOut
from orchestrator.core.words import counted, duration
from orchestrator.head.node.systemd import Systemd

STOP_TIMEOUT_S = 30.0
_POLL_EVERY_S = 0.05

_LIVE = ("STARTING", "READY", "RELEASED", "RUNNING", "UNREACHABLE")
"""Phases of tasks that have or may have a process."""


@dataclass(frozen=True, slots=True)
class Handover:
    """The result of a handover. `waiting`: hosts of active runs that have not reported yet."""

    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    tasks: int
    hosts: int
    seconds: float
    restarts: int
    waiting: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        keys = ("pid", "epoch", "version")
        return {
            "schema": 1,
            **{key: self.new.get(key) for key in keys},
            "previous": {key: self.old.get(key) for key in keys} if self.old else None,
            "tasks": self.tasks,
            "hosts": self.hosts,
            "seconds": round(self.seconds, 3),
            "restarts": self.restarts,
            "waiting": list(self.waiting),
        }

    @property
    def sentence(self) -> str:
        """Return the result for people."""
        tasks, hosts = counted(self.tasks, "task"), counted(self.hosts, "host")
        restarts = counted(self.restarts, "restart")
        return f"Adopted {tasks} on {hosts} in {duration(self.seconds)}; {restarts}"


def hand_over(session: Session, *, timeout_s: float) -> Handover:
    """Replace the running coordinator by one of this program, and wait until all tasks have reported to it.

    Raises Refused, before anything has changed, where this program cannot use the journal.
    """
    client = session.client()
    old = _running(session)
    check_successor(session, old)
    before = _restarts(client.get("/v1/status")) if old else {}
    began = session.now()
    if old is None:
        session.say("No coordinator is running")
    if old is not None and old.get("service"):
        new = _through_systemd(session, old)
    else:
        new = start_successor(session, old) if old is not None else ensure_coordinator(session)[0]
    return wait_until_adopted(session, old, new, before, began=began, timeout_s=timeout_s)


def wait_until_adopted(
    session: Session,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    before: Mapping[str, int],
    *,
    began: float,
    timeout_s: float,
) -> Handover:
    """Wait until every task has reported to the new coordinator. `before`: the restarts of each run until then."""
    while True:
        try:
            document = session.client().get("/v1/status")
        except CoordinatorUnreachable as e:
            if another_runs(session) and session.now() < began + timeout_s:
                session.pause(_POLL_EVERY_S)  # busy with the runs
                continue
            raise _gone(session, new) from e
        tasks, hosts, silent = adopted(document, int(new.get("epoch") or 0))
        if not silent or session.now() >= began + timeout_s:
            break
        session.pause(_POLL_EVERY_S)
    after = _restarts(document)
    restarts = sum(after.get(run_id, count) - count for run_id, count in before.items())
    return Handover(old, new, tasks, hosts, session.now() - began, restarts, silent)


def _gone(session: Session, new: Mapping[str, Any]) -> CoordinatorUnreachable:
    path = session.paths.coordinator_log
    log = "".join(f"\n  {line}" for line in log_tail(path, 0))
    return CoordinatorUnreachable(
        f"the new coordinator (pid {new.get('pid')}) stopped answering; the end of its log:{log}",
        hint=f"the tasks keep running; `orch coordinator start` starts another one; the log: {path}",
    )


def _running(session: Session) -> dict[str, Any] | None:
    try:
        return session.client().get("/v1/coordinator")
    except CoordinatorUnreachable as e:
        if not is_not_running(e):
            raise
        return None


def _answers(session: Session) -> bool:
    try:
        session.client().get("/v1/coordinator", timeout_s=1.0)
    except CoordinatorUnreachable:
        return False
    return True


def check_successor(session: Session, old: Mapping[str, Any] | None) -> None:
    """Raise Refused if a coordinator of this program cannot replace the running one."""
    untouched = f"; the running coordinator (pid {old.get('pid')}) is unchanged" if old else ""
    theirs = (old or {}).get("state_dir")
    if theirs is not None and theirs != session.paths.state_dir:
        raise Refused(
            f"the running coordinator's journal is in {theirs}, and a new one would use "
            f"{session.paths.state_dir}{untouched}",
            hint=f"ORCH_STATE_DIR={theirs} orch coordinator restart",
        )
    try:
        # All of its modules must import: an upgrade may have left a library out.
        import orchestrator.head.coordinator.main  # noqa: F401
        from orchestrator.head.journal.reading import read_runs
    except ImportError as e:
        raise Refused(
            f"a coordinator of this orch {__version__} cannot start: {e}{untouched}",
            hint="reinstall orch with its dependencies",
        ) from e
    try:
        read_runs(session.paths.journal)
    except OrchestratorError as e:
        raise Refused(f"{e.message}{untouched}", hint=e.hint) from e


def start_successor(
    session: Session, old: Mapping[str, Any], *, command: list[str] | None = None
) -> dict[str, Any]:
    """Start a successor, and return its document. Where it fails the error says which coordinator is running.

    The successor itself asks the old one to end, once nothing of its own start can fail any more.
    """
    pid, log_from = old.get("pid"), log_size(session)
    child = spawn(command or [*coordinator_command(), "--after", str(pid)], session)
    # From here on the handover needs this command no more.
    session.say(f"A new coordinator (pid {child.pid}) takes over from pid {pid} …")
    deadline = session.now() + START_TIMEOUT_S + STOP_TIMEOUT_S
    while True:
        code = child.poll()  # before the request: what an ended child did is then visible in the answer
        try:
            running = session.client().get("/v1/coordinator", timeout_s=5.0)
        except CoordinatorUnreachable:
            running = None
        if running is not None and running.get("pid") != pid:
            return running
        if code is not None and running is not None and not running.get("ending"):
            still = f"the old coordinator (pid {pid}) keeps running"
            raise did_not_start(session, log_from, f"exited with code {code}", still=still)
        if code is not None and running is None and not another_runs(session):
            session.say(
                f"Both coordinators have ended; the new one (pid {child.pid}) exited with code {code}"
            )
            return ensure_coordinator(session)[0]
        if session.now() >= deadline:
            raise _not_followed(session, pid, child.pid, lives=code is None)
        session.pause(_POLL_EVERY_S)


def _not_followed(session: Session, pid: object, successor: int, *, lives: bool) -> WaitTimedOut:
    patience_s = START_TIMEOUT_S + STOP_TIMEOUT_S
    follows = f"; the new one (pid {successor}) waits for it" if lives else ""
    return WaitTimedOut(
        f"the old coordinator (pid {pid}) has not ended after {duration(patience_s)}{follows}",
        hint=f"kill -9 {pid} is safe, the tasks keep running; the log of both: {session.paths.coordinator_log}",
    )


def end_coordinator(session: Session, pid: object) -> None:
    """Ask the coordinator to end, and wait until it has released the journal. It completes earlier requests first."""
    with contextlib.suppress(CoordinatorUnreachable):  # the answer may be lost; only the end matters
        session.client().post("/v1/stop")
    deadline = session.now() + STOP_TIMEOUT_S
    while another_runs(session) or _answers(session):
        if session.now() >= deadline:
            raise WaitTimedOut(
                f"the coordinator (pid {pid}) is still running after {duration(STOP_TIMEOUT_S)}",
                hint=f"kill -9 {pid} is safe, the tasks keep running",
            )
        session.pause(_POLL_EVERY_S)


def adopted(document: Mapping[str, Any], epoch: int) -> tuple[int, int, tuple[str, ...]]:
    """Return how many tasks and hosts have reported to this epoch, and the hosts with tasks that have not."""
    tasks = 0
    heard: set[str] = set()
    silent: dict[str, None] = {}
    for run in document.get("runs") or ():
        if not is_active(run):
            continue
        for task in run["tasks"]:
            if task["phase"] not in _LIVE or task.get("pid") is None:
                continue
            if run["epoch"] == epoch and task.get("heartbeat_age_s") is not None:
                tasks += 1
                heard.add(task["host"])
            else:
                silent[task["host"]] = None
    return tasks, len(heard), tuple(silent)


def _restarts(document: Mapping[str, Any]) -> dict[str, int]:
    return {run["run_id"]: int(run["restarts"]) for run in document.get("runs") or () if is_active(run)}


def _through_systemd(session: Session, old: Mapping[str, Any]) -> dict[str, Any]:
    """Restart a coordinator that is a systemd unit through systemd. The unit says which program is started."""
    unit = restart_unit(session, str(old["service"]))
    deadline = session.now() + START_TIMEOUT_S
    while session.now() < deadline:
        running = _running(session)
        if running is not None and running.get("pid") != old.get("pid"):
            if running.get("version") != __version__:
                session.warn(
                    f"{unit} started orch {running.get('version')}, and this "
                    f"command is {__version__}; `orch service install` updates the unit"
                )
            return running
        session.pause(_POLL_EVERY_S)
    raise CoordinatorUnreachable(
        f"{unit} did not answer within {duration(START_TIMEOUT_S)}", hint=f"see `journalctl --unit {unit}`"
    )


def say_other_version(session: Session, coordinator: Mapping[str, Any] | None) -> None:
    """Print a hint where the coordinator and this command are of different versions."""
    version = (coordinator or {}).get("version")
    if version is not None and version != __version__:
        session.hint(
            f"the coordinator is orch {version} and this command is {__version__}; "
            "`orch coordinator restart` replaces it and leaves the tasks running"
        )


def restart_unit(session: Session, named: str) -> str:
    """Restart the unit that a coordinator belongs to (`user/NAME` or `system/NAME`), and return its name."""
    manager, _, unit = named.partition("/")
    Systemd(session.environ, system=manager == "system").ctl("restart", unit)
    return unit

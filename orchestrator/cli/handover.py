"""One coordinator ends and another takes over, perhaps of another version; the tasks do not notice.

All that can be known beforehand is looked at before the old one is asked to end: a new one that could not begin would
leave the runs unwatched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import __version__
from orchestrator.adapters.head.systemd import Systemd
from orchestrator.cli import quantities, render
from orchestrator.cli.session import Session
from orchestrator.cli.starting import (
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

STOP_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.05

_LIVE = ("STARTING", "READY", "RELEASED", "RUNNING", "UNREACHABLE")
"""Phases of tasks that have, or may have, a process."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What came of it. `waiting`: hosts of active runs that have not been heard yet."""

    old: Mapping[str, Any] | None
    new: Mapping[str, Any]
    tasks: int
    hosts: int
    seconds: float
    restarts: int
    waiting: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
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
        """The same for people."""
        tasks, hosts = quantities.plural(self.tasks, "task"), quantities.plural(self.hosts, "host")
        return f"adopted {tasks} on {hosts} in {self.seconds:.1f} s; restarts {self.restarts}"


def hand_over(session: Session, *, timeout_s: float) -> Handover:
    """End the coordinator that runs, start this program's, wait until it has heard of every task.

    Refused where this program could not go on with the journal; nothing has changed then.
    """
    client = session.client()
    old = _running(session)
    check_successor(session, old)
    before = _restarts(client.get("/v1/status")) if old else {}
    began = session.now()
    if old is None:
        session.say("no coordinator is running")
    if old is not None and old.get("service"):
        new = _through_systemd(session, old)
    else:
        new = succeed(session, old) if old is not None else ensure_coordinator(session)[0]
    return await_taken_up(session, old, new, before, began=began, timeout_s=timeout_s)


def await_taken_up(
    session: Session,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    before: Mapping[str, int],
    *,
    began: float,
    timeout_s: float,
) -> Handover:
    """Wait until the new coordinator has heard of every task. `before`: each run's restarts until then."""
    while True:
        try:
            document = session.client().get("/v1/status")
        except CoordinatorUnreachable as e:
            if another_runs(session) and session.now() < began + timeout_s:
                session.pause(_LOOK_EVERY_S)  # busy with the runs
                continue
            raise _gone(session, new) from e
        tasks, hosts, silent = taken_up(document, int(new.get("epoch") or 0))
        if not silent or session.now() >= began + timeout_s:
            break
        session.pause(_LOOK_EVERY_S)
    after = _restarts(document)
    restarts = sum(after.get(run_id, count) - count for run_id, count in before.items())
    return Handover(old, new, tasks, hosts, session.now() - began, restarts, silent)


def _gone(session: Session, new: Mapping[str, Any]) -> CoordinatorUnreachable:
    path = session.paths.coordinator_log
    said = "".join(f"\n  {line}" for line in log_tail(path, 0))
    return CoordinatorUnreachable(
        f"the new coordinator (pid {new.get('pid')}) does not answer any more; the end of its log:{said}",
        hint=f"the tasks go on; `orch coordinator start` begins another one; its log: {path}",
    )


def _running(session: Session) -> dict[str, Any] | None:
    try:
        return session.client().get("/v1/coordinator")
    except CoordinatorUnreachable as e:
        if not isinstance(e.__cause__, (FileNotFoundError, ConnectionRefusedError)):
            raise
        return None


def _answers(session: Session) -> bool:
    try:
        session.client().get("/v1/coordinator", timeout_s=1.0)
    except CoordinatorUnreachable:
        return False
    return True


def check_successor(session: Session, old: Mapping[str, Any] | None) -> None:
    """Refused where a coordinator of this program could not take the place of that one."""
    untouched = f"; the coordinator that runs (pid {old.get('pid')}) was not touched" if old else ""
    theirs = (old or {}).get("state_dir")
    if theirs is not None and theirs != session.paths.state_dir:
        raise Refused(
            f"the coordinator that runs keeps its journal in {theirs}, and this would start one in "
            f"{session.paths.state_dir}{untouched}",
            hint=f"ORCH_STATE_DIR={theirs} orch coordinator restart",
        )
    try:
        # Whatever it is made of must be there: an upgrade may have lost a library.
        import orchestrator.daemon.coordinator.api
        import orchestrator.daemon.coordinator.main  # noqa: F401
        from orchestrator.adapters.head.journal import peek
    except ImportError as e:
        raise Refused(
            f"a coordinator of this orch {__version__} cannot start: {e}{untouched}",
            hint="install orch again, with its dependencies",
        ) from e
    try:
        peek(session.paths.journal)
    except OrchestratorError as e:
        raise Refused(f"{e.message}{untouched}", hint=e.hint) from e


def succeed(session: Session, old: Mapping[str, Any], *, command: list[str] | None = None) -> dict[str, Any]:
    """The document of the coordinator that follows the old one. Where none does the error says which one goes on.

    The successor itself asks the old one to end, when nothing of its own could fail any more.
    """
    pid, log_from = old.get("pid"), log_size(session)
    child = spawn(command or [*coordinator_command(), "--after", str(pid)], session)
    session.say(
        f"a new coordinator (pid {child.pid}) takes over from pid {pid} …"
    )  # from here on it does, without us
    deadline = session.now() + START_TIMEOUT_S + STOP_TIMEOUT_S
    while True:
        code = child.poll()  # before the look: what it did, it did by then
        found = _found(session)
        if found is not None and found.get("pid") != pid:
            return found
        if code is not None and found is not None and not found.get("ending"):
            raise did_not_start(
                session, log_from, f"ended with exit code {code}", goes_on=f"pid {pid} goes on"
            )
        if code is not None and found is None and not another_runs(session):
            session.say(
                f"the new coordinator (pid {child.pid}) ended with exit code {code}, after the old one"
            )
            return ensure_coordinator(session)[0]
        if session.now() >= deadline:
            raise _not_followed(session, pid, child.pid, lives=code is None)
        session.pause(_LOOK_EVERY_S)


def _found(session: Session) -> dict[str, Any] | None:
    try:
        return session.client().get("/v1/coordinator", timeout_s=5.0)
    except CoordinatorUnreachable:
        return None


def _not_followed(session: Session, pid: object, successor: int, *, lives: bool) -> WaitTimedOut:
    patience_s = START_TIMEOUT_S + STOP_TIMEOUT_S
    follows = f"; pid {successor} waits, and follows it when it has ended" if lives else ""
    return WaitTimedOut(
        f"the coordinator (pid {pid}) has not been followed in {patience_s:g} s{follows}",
        hint=f"it may be killed (kill -9 {pid}): the tasks go on; the log of both: {session.paths.coordinator_log}",
    )


def end_coordinator(session: Session, pid: object) -> None:
    """Ask it to end, and wait until it has let go of the journal: what it was told before, it still does."""
    with contextlib.suppress(CoordinatorUnreachable):  # the answer may be lost; what counts is that it ends
        session.client().post("/v1/stop")
    deadline = session.now() + STOP_TIMEOUT_S
    while another_runs(session) or _answers(session):
        if session.now() >= deadline:
            raise WaitTimedOut(
                f"the coordinator (pid {pid}) still lives after {STOP_TIMEOUT_S:g} s",
                hint=f"it may be killed (kill -9 {pid}): the tasks go on",
            )
        session.pause(_LOOK_EVERY_S)


def taken_up(document: Mapping[str, Any], epoch: int) -> tuple[int, int, tuple[str, ...]]:
    """Of a status document: tasks and hosts that this epoch has heard of, and which hosts with tasks it has not."""
    tasks = 0
    heard: set[str] = set()
    silent: dict[str, None] = {}
    for run in document.get("runs") or ():
        if not render.is_active(run):
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
    return {
        run["run_id"]: int(run["restarts"]) for run in document.get("runs") or () if render.is_active(run)
    }


def _through_systemd(session: Session, old: Mapping[str, Any]) -> dict[str, Any]:
    """One that systemd keeps is systemd's to restart; the unit names the program that begins."""
    unit = restart_unit(session, str(old["service"]))
    deadline = session.now() + START_TIMEOUT_S
    while session.now() < deadline:
        found = _running(session)
        if found is not None and found.get("pid") != old.get("pid"):
            if found.get("version") != __version__:
                session.say(
                    f"{unit} started orch {found.get('version')}, and this is {__version__}: "
                    "`orch service install` writes the unit anew"
                )
            return found
        session.pause(_LOOK_EVERY_S)
    raise CoordinatorUnreachable(
        f"{unit} does not answer after {START_TIMEOUT_S:g} s", hint=f"journalctl --unit {unit} says more"
    )


def say_other_version(session: Session, coordinator: Mapping[str, Any] | None) -> None:
    """One line where the coordinator is of another version than this command."""
    version = (coordinator or {}).get("version")
    if version is not None and version != __version__:
        session.say(
            session.paint_err("hint: ", "cyan", "bold")
            + f"the coordinator is orch {version} and this is orch {__version__}; "
            "`orch coordinator restart` hands over, and no task is touched"
        )


def restart_unit(session: Session, named: str) -> str:
    """Restart the unit that a coordinator says it belongs to (`user/NAME` or `system/NAME`); the unit's name."""
    manager, _, unit = named.partition("/")
    Systemd(session.environ, system=manager == "system").ctl("restart", unit)
    return unit

"""The coordinator's API over its real socket: who may speak, what is answered, and that asking twice does no harm."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from orchestrator.core.errors import (
    ConnectFailed,
    CoordinatorUnreachable,
    JournalError,
    OrchestratorError,
    Refused,
    UsageError,
)
from orchestrator.core.events import HostUp, Ticked
from orchestrator.core.plan import Ask, Plan, QueuePlan
from orchestrator.core.state.host import HostState
from orchestrator.core.state.phase_states import Phase, Queued
from orchestrator.core.state.run import new_run
from orchestrator.head.api.client import Client
from orchestrator.head.code.snapshots import Snapshot, Snapshots
from orchestrator.head.coordinator import server as api_server
from orchestrator.head.coordinator.coordinator import Coordinator
from orchestrator.head.journal.journal import Journal
from orchestrator.head.node.paths import Paths
from orchestrator.protocol.reports import Said, Task, TaskExit
from tests.contract.fake_agent import FACTS, SOON_S, TREE, FakeHosts, always, until
from tests.contract.small_disk import mounted
from tests.patience import patient
from tests.unit.core.transcript import make_plan

NOBODY = 65534


class Rig:
    """A coordinator in this process, over hosts in memory."""

    def __init__(self, directory: Path) -> None:
        self._short = tempfile.TemporaryDirectory(prefix="orch-api-")  # a socket's path is short
        self.paths = Paths(str(directory / "state"), self._short.name + "/run")
        self.paths.ensure()
        self.hosts = FakeHosts("a", "b")
        self.workdir = directory / "work"
        self.workdir.mkdir()
        (self.workdir / "train.py").write_text("print(1)\n")
        for agent in self.hosts.agents.values():
            agent.answers = {
                "probe": always(FACTS),
                "code": always({"digest": TREE, "missing": []}),
                "sweep": always({"left": [], "ports_busy": [], "by": "cgroup"}),
            }
        self.start_coordinator()
        self.client = Client(self.paths.socket)

    def start_coordinator(self) -> None:
        self.coordinator = Coordinator(self.paths, {"fake": self.hosts.transport})
        self.server = api_server.Server(self.coordinator)
        self.coordinator.take_up()
        self.server.start()
        self._thread = threading.Thread(target=self.coordinator.loop.run)
        self._thread.start()

    def stop_coordinator(self) -> None:
        self.coordinator.loop.stop()
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()
        self.server.stop()
        self.coordinator.close()

    def plan(self, **changes: Any) -> dict[str, Any]:
        plan: Plan = make_plan(["a", "b"], checkpoint=False)
        plan = replace(plan, hosts=tuple(self.hosts.plans.values()), workdir=str(self.workdir), **changes)
        return json.loads(json.dumps(asdict(plan)))  # type: ignore[no-any-return]

    def submission(self, **changes: Any) -> dict[str, Any]:
        return {"plan": self.plan(**changes), "secrets": {}, "from_scratch": False}

    def submit(self, **changes: Any) -> dict[str, Any]:
        return self.client.post("/v1/runs", self.submission(**changes))

    def snapshot(self, script: str = "print(1)\n") -> Snapshot:
        """Take a snapshot of the working directory with this script, as `orch up` does."""
        (self.workdir / "train.py").write_text(script)
        plan = replace(make_plan(["a", "b"], checkpoint=False), workdir=str(self.workdir))
        return Snapshots(self.paths.state_dir).take(plan)

    def status(self) -> dict[str, Any]:
        return self.client.get("/v1/status", {"name": "t"})["runs"][0]  # type: ignore[no-any-return]

    def phase(self) -> str:
        return str(self.status()["phase"])

    def raw(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("x", timeout=SOON_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.paths.socket)
        connection.request(method, path, body)
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    def close(self) -> None:
        self.stop_coordinator()
        self._short.cleanup()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.fault(73)
def test_a_coordinator_whose_api_ends_by_itself_ends_too_and_leaves_no_lock_without_a_socket(
    rig: Rig,
) -> None:
    rig.server._server.end()  # as by a fault in the server: `Server.stop` was not called
    rig._thread.join(SOON_S)
    assert not rig._thread.is_alive()
    said = "the API has ended by itself (without an error); the coordinator ends too, and tasks go on"
    assert rig.server.failure == said
    rig.stop_coordinator()
    assert not os.path.exists(rig.paths.socket)
    rig.start_coordinator()
    assert rig.client.get("/v1/coordinator")["pid"] == os.getpid()


def test_a_coordinator_that_a_logout_would_end_says_what_keeps_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.stop_coordinator()
    killed = "logind kills the processes of ml at logout (KillUserProcesses=yes)"
    monkeypatch.setattr("orchestrator.head.coordinator.coordinator.kills_at_logout", lambda _: killed)
    rig.start_coordinator()
    said = f"{killed}: the coordinator would end with its login; `orch service install` keeps it"
    assert rig.client.get("/v1/coordinator")["warning"] == said


# --- who may speak ------------------------------------------------------------------------------------------


@pytest.mark.fault(51)
def test_row_51_directory_and_socket_are_private(rig: Rig) -> None:
    assert stat.S_IMODE(os.stat(rig.paths.runtime_dir).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(rig.paths.state_dir).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(rig.paths.socket).st_mode) == 0o600
    assert rig.client.get("/v1/coordinator")["pid"] == os.getpid()
    assert stat.S_IMODE(os.stat(rig.paths.socket).st_mode) == 0o600, "the server has not widened it"


def _as_nobody(work: Callable[[], str]) -> str:
    """Run `work` in a process of another user, and return what it returns."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.fault(51)
def test_row_51_another_user_is_turned_away_by_the_mode_and_where_that_fails_by_the_kernels_word(
    rig: Rig,
) -> None:
    def ask() -> str:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(SOON_S)
        try:
            peer.connect(rig.paths.socket)
            peer.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
            return f"answered {peer.recv(100)!r}"
        except OSError as e:
            return type(e).__name__

    assert _as_nobody(ask) == "PermissionError"
    os.chmod(rig.paths.runtime_dir, 0o755)
    os.chmod(rig.paths.socket, 0o666)
    os.chmod(os.path.dirname(rig.paths.runtime_dir), 0o755)
    assert _as_nobody(ask) in ("answered b''", "ConnectionResetError", "BrokenPipeError")
    assert rig.client.get("/v1/status")["runs"] == [], "and who may speak is still answered"


def test_a_socket_behind_which_somebody_lives_is_not_taken_away(rig: Rig) -> None:
    with pytest.raises(Refused, match="another coordinator answers behind"):
        api_server.listen(rig.paths.socket)
    assert rig.client.get("/v1/coordinator")["epoch"] == 1


def test_a_socket_that_a_dead_coordinator_left_is_replaced(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="orch-api-") as short:
        path = f"{short}/coordinator.sock"
        api_server.listen(path).close()
        assert os.path.exists(path)
        again = api_server.listen(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        again.close()


@pytest.mark.fault(40)
def test_row_40_two_coordinators_the_second_says_who_is_first(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="orch-api-") as short:
        env = {**os.environ, "ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": f"{short}/run"}
        command = [sys.executable, "-m", "orchestrator.cli.main", "coordinator", "run"]
        first = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
        try:
            client = Client(f"{short}/run/coordinator.sock")
            until(lambda: _answers(client), "the first did not come up", timeout_s=30)
            second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
            assert second.returncode == 6
            assert f"pid {first.pid}" in second.stderr
            assert "orch coordinator stop" in second.stderr
            assert client.get("/v1/coordinator")["pid"] == first.pid
            # another state directory is another lock, but the socket is the same
            elsewhere = {**env, "ORCH_STATE_DIR": str(tmp_path / "other")}
            third = subprocess.run(
                command, env=elsewhere, capture_output=True, text=True, timeout=30, check=False
            )
            assert third.returncode == 6, third.stderr
            assert client.get("/v1/coordinator")["pid"] == first.pid
            client.post("/v1/stop")
            assert first.wait(15) == 0
            assert not os.path.exists(f"{short}/run/coordinator.sock")
        finally:
            if first.poll() is None:
                first.kill()
            first.communicate()


def _answers(client: Client) -> bool:
    try:
        return bool(client.get("/v1/coordinator"))
    except CoordinatorUnreachable:
        return False


# --- what is answered ---------------------------------------------------------------------------------------


def test_the_coordinator_describes_itself(rig: Rig) -> None:
    document = rig.client.get("/v1/coordinator")
    assert {"pid", "epoch", "version", "socket", "started_at", "runs", "hosts"} <= set(document)
    run_id = rig.submit()["run_id"]
    until(lambda: rig.client.get("/v1/coordinator")["hosts"] == {"a": True, "b": True})
    assert rig.client.get("/v1/coordinator")["runs"] == [run_id]


ENDLESS = b'{"fault": "kill", "target": "worker:0", "for_s": 1%s}' % (b"0" * 400)


@pytest.mark.parametrize(
    ("method", "path", "body", "http_status", "code", "says"),
    [
        ("GET", "/v1/status?name=nobody", None, 400, "usage", "there is no run 'nobody'"),
        ("POST", "/v1/runs/nobody/kill", b"{}", 400, "usage", "there is no run 'nobody'"),
        ("POST", "/v1/runs/nobody/stacks", b"{}", 400, "usage", "there is no run 'nobody'"),
        ("POST", "/v1/runs", b"not json", 400, "usage", "the request is not JSON"),
        ("POST", "/v1/runs", b"[]", 400, "usage", "the request is not a JSON object"),
        ("POST", "/v1/runs", b"{}", 400, "usage", "this is no plan"),
        ("POST", "/v1/runs", b'{"plan": {"name": "t"}}', 400, "usage", "this is no plan"),
        ("POST", "/v1/runs", b"x" * (17 << 20), 400, "usage", "the request is too large"),
        ("POST", "/v1/runs", b"[" * 200_000, 400, "usage", "the request is not JSON"),
        ("POST", "/v1/runs", b'{"plan": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400, "usage", "not JSON"),
        ("POST", "/v1/runs/nobody/chaos", ENDLESS, 400, "usage", "a fault has `fault`, `target` and `for_s`"),
        ("GET", "/v1/events?after=x", None, 400, "usage", "after and wait_s must be numbers"),
        ("GET", "/v1/events?after=" + "9" * 23, None, 400, "usage", "after must be the number of an event"),
        ("GET", "/v1/events?after=" + "9" * 5000, None, 400, "usage", "after"),
        ("GET", "/v1/events?wait_s=nan", None, 400, "usage", "wait_s must be a number"),
        ("GET", "/v1/nothing", None, 404, "usage", "GET /v1/nothing: Not Found"),
        ("GET", "/v1/runs", None, 405, "usage", "GET /v1/runs: Method Not Allowed"),
        ("POST", "/v1/status", b"{}", 405, "usage", "POST /v1/status: Method Not Allowed"),
    ],
)
def test_errors_have_one_shape(
    rig: Rig, method: str, path: str, body: bytes | None, http_status: int, code: str, says: str
) -> None:
    status, document = rig.raw(method, path, body)
    assert status == http_status
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"code", "message", "hint", "exit_code"}
    assert (error["code"], error["exit_code"]) == (code, 2)
    assert says in error["message"]


def test_a_fault_of_ours_is_an_error_of_that_shape_too(rig: Rig) -> None:
    bad = rig.plan()
    bad["tasks"] = []  # no chief: nothing that a spec could have made
    status, document = rig.raw("POST", "/v1/runs", json.dumps({"plan": bad}).encode())
    assert status >= 400
    assert set(document["error"]) == {"code", "message", "hint", "exit_code"}
    assert rig.client.get("/v1/status")["runs"] == [], "and it goes on"


def test_a_body_that_declares_to_be_too_large_is_refused_before_it_is_sent(rig: Rig) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(10)
        caller.connect(rig.paths.socket)
        caller.sendall(b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 800000000\r\n\r\n")
        answer = caller.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")


_FILE = {"task": "worker:0", "generation": 1, "place": "work", "path": "x", "bytes": 1}


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/runs/t/outputs", {"task": {}}, "task must be the name of a task"),
        ("/v1/runs/t/outputs", {"task": ["worker:0"]}, "task must be the name of a task"),
        ("/v1/runs/t/saved", {"generation": "1", "path": "x"}, "a checkpoint has a `generation`"),
        (
            "/v1/runs/t/outputs/fetch",
            {"file": {**_FILE, "host": "zz", "to": "x"}, "directory": "/nowhere"},
            "has no host 'zz'",
        ),
        ("/v1/runs", {"secrets": "text"}, "secrets must be an object whose values are strings"),
        ("/v1/runs", {"secrets": {"A": 1}}, "secrets must be an object whose values are strings"),
        ("/v1/runs", {"name": "../x"}, "'../x' is not a valid name of a run"),
        ("/v1/runs", {"hosts": []}, "this plan does not fit together: the plan names the host 'a'"),
        ("/v1/runs", {"hosts": [{"name": "a", "transport": "x"}]}, "there is no transport 'x'"),
        ("/v1/runs", {"name": "\0"}, "'\\x00' is not a valid name of a run"),
        ("/v1/runs", {"name": "\ud800"}, "'\\ud800' is not a valid name of a run"),
    ],
)
def test_a_body_of_another_form_is_a_usage_error(
    rig: Rig, path: str, body: dict[str, Any], says: str
) -> None:
    rig.submit()
    if path == "/v1/runs":
        plan = {
            **rig.plan(name=body.get("name", "u")),
            **({"hosts": body["hosts"]} if "hosts" in body else {}),
        }
        body = {"plan": plan, "secrets": body.get("secrets")}
    status, document = rig.raw("POST", path, json.dumps(body).encode())
    assert (status, document["error"]["code"], document["error"]["exit_code"]) == (400, "usage", 2)
    assert says in document["error"]["message"]
    assert len(rig.client.get("/v1/status")["runs"]) == 1


@pytest.mark.fault(54)
def test_row_54_the_same_plan_again_is_the_run_that_is_there(rig: Rig) -> None:
    first = rig.submit()
    assert first["created"] is True
    http_status, again = rig.raw("POST", "/v1/runs", json.dumps({"plan": rig.plan()}).encode())
    assert (http_status, again["created"], again["run_id"]) == (200, False, first["run_id"])
    with pytest.raises(Refused, match="a run named t with another plan is active") as caught:
        rig.submit(args=("--other",))
    assert caught.value.exit_code == 6
    assert len(rig.client.get("/v1/status")["runs"]) == 1


@pytest.mark.fault(54)
def test_row_54_up_from_many_at_once_is_one_run(rig: Rig) -> None:
    answers: list[dict[str, Any]] = []
    askers = [threading.Thread(target=lambda: answers.append(rig.submit())) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(SOON_S)
    assert len({answer["run_id"] for answer in answers}) == 1
    assert sorted(answer["created"] for answer in answers) == [False] * 7 + [True]


class SeenSnapshots(Snapshots):
    """Snapshots that say when one is to be kept."""

    def __init__(self, state_dir: str) -> None:
        super().__init__(state_dir)
        self.seen = threading.Event()

    def keep(self, name: str, digest: str) -> Snapshot:
        self.seen.set()
        return super().keep(name, digest)


def test_a_submission_that_waits_for_the_lock_of_the_code_holds_up_no_decision(rig: Rig) -> None:
    snapshots = rig.coordinator._snapshots = SeenSnapshots(rig.paths.state_dir)
    body = {**rig.submission(), "code": rig.snapshot().digest}
    answers: list[dict[str, Any]] = []
    asker = threading.Thread(target=lambda: answers.append(rig.client.post("/v1/runs", body)))
    handle = os.open(snapshots.directory, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as `orch gc` holds it
    try:
        asker.start()
        assert snapshots.seen.wait(SOON_S)
        assert rig.coordinator.loop.call(lambda: "decided", timeout_s=SOON_S) == "decided"
        assert answers == []
    finally:
        os.close(handle)
    asker.join(SOON_S)
    assert snapshots.names() == [answers[0]["run_id"]]


def test_of_many_submissions_at_once_the_one_that_begins_has_its_own_code(rig: Rig) -> None:
    answers: dict[str, dict[str, Any]] = {}

    def ask(digest: str) -> None:
        answers[digest] = rig.client.post("/v1/runs", {**rig.submission(), "code": digest})

    digests = [rig.snapshot(f"print({number})\n").digest for number in range(8)]
    askers = [threading.Thread(target=ask, args=(digest,)) for digest in digests]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(SOON_S)
    (begun,) = [digest for digest in digests if answers[digest]["created"]]
    run_id = answers[begun]["run_id"]
    kept = rig.coordinator._snapshots.snapshot_of(run_id)
    assert kept is not None
    assert (kept.digest, rig.coordinator._snapshots.names()) == (begun, [run_id])


@pytest.mark.fault(54)
def test_row_54_kill_twice_and_kill_of_what_has_ended(rig: Rig) -> None:
    run_id = rig.submit()["run_id"]
    until(lambda: rig.phase() == "RENDEZVOUS")
    for agent in rig.hosts.agents.values():
        agent.wait_order("start")
    answers = [rig.client.post("/v1/runs/t/kill", {"force": False}) for _ in range(3)]
    assert answers == [{"run_id": run_id, "phase": "STOPPING"}] * 3
    for index, agent in enumerate(rig.hosts.agents.values()):
        agent.wait_order("stop")
        agent.report({run_id: [_exited(index)]})
    for agent in rig.hosts.agents.values():
        agent.wait_order("sweep")
        assert agent.verbs().count("stop") == 1, "asked once"
    until(lambda: rig.phase() == "KILLED")
    assert rig.client.post(f"/v1/runs/{run_id}/kill", {"force": True})["phase"] == "KILLED"
    again = rig.submit()
    assert again["created"] is True, "the name is free again"
    assert again["run_id"] != run_id


@pytest.mark.fault(58)
def test_row_58_a_fault_of_ours_in_one_run_is_said_its_tasks_train_on_and_force_ends_it(rig: Rig) -> None:
    run_id = rig.submit()["run_id"]
    until(lambda: rig.phase() == "RENDEZVOUS")
    rig.coordinator.loop.post(run_id, HostUp(0.0, "no-such-host", "boot"))
    until(lambda: rig.status()["decisions_stopped"] is not None)
    shown = rig.status()
    assert shown["phase"] == "RENDEZVOUS"
    assert shown["reason"].startswith(
        f"nothing is decided about {run_id} any more, because of a bug in orch (KeyError"
    )
    assert shown["decisions_stopped"]["story"][-1].endswith("KeyError: 'no-such-host'")
    assert shown["reason"] in rig.client.get("/v1/coordinator")["warning"]
    with pytest.raises(Refused, match="nothing is decided about"):
        rig.client.post("/v1/runs/t/kill", {"force": False})
    assert all("stop" not in agent.verbs() for agent in rig.hosts.agents.values())
    assert rig.client.post("/v1/runs/t/kill", {"force": True})["phase"] == "KILLED"
    for agent in rig.hosts.agents.values():
        agent.wait_order("sweep")
    until(lambda: set(rig.status()["proof"]["hosts"]) == {"a", "b"})
    assert rig.status()["decisions_stopped"] is None
    assert rig.submit()["created"] is True, "the name is free again"


def test_secrets_are_kept_apart_and_removed_with_the_run(rig: Rig) -> None:
    plan = rig.plan(secrets=("TOKEN",))
    run_id = rig.client.post("/v1/runs", {"plan": plan, "secrets": {"TOKEN": "hunter2"}})["run_id"]
    kept = Path(rig.paths.state_dir) / "secrets" / f"{run_id}.json"
    assert "hunter2" in kept.read_text()
    told = json.dumps([rig.client.get("/v1/status"), rig.client.get("/v1/events")])
    assert "hunter2" not in told
    for name in ("", "-wal"):
        assert b"hunter2" not in Path(rig.paths.journal + name).read_bytes()
    for agent in rig.hosts.agents.values():
        assert agent.wait_order("start")["secrets"] == {"TOKEN": "hunter2"}
    rig.client.post("/v1/runs/t/kill", {"force": True})
    for index, agent in enumerate(rig.hosts.agents.values()):
        agent.report({run_id: [_exited(index)]})
    until(lambda: rig.phase() == "KILLED")
    until(lambda: not kept.exists())


def _exited(index: int) -> Task:
    ended: TaskExit = {"code": None, "signal": 9, "ago_s": 0.0, "cause": "signal", "ordered": True}
    return {"task": f"worker:{index}", "generation": 1, "phase": "exited", "exit": ended}


def test_events_are_waited_for_and_come_as_they_happen(rig: Rig) -> None:
    assert rig.client.get("/v1/events") == {"events": []}
    began = time.monotonic()
    assert rig.client.get("/v1/events", {"wait_s": 0.3}) == {"events": []}
    assert time.monotonic() - began >= 0.25
    told: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: told.extend(rig.client.get("/v1/events", {"wait_s": 30}, timeout_s=40)["events"])
    )
    waiter.start()
    rig.submit()
    waiter.join(SOON_S)
    assert told[0]["kind"] == "submitted"
    until(lambda: rig.phase() == "RENDEZVOUS")
    everything = rig.client.get("/v1/events", {"name": "t"})["events"]
    assert [event["seq"] for event in everything] == list(range(1, 1 + len(everything)))
    assert len(everything) >= 3
    assert rig.client.get("/v1/events", {"after": 2, "wait_s": 30})["events"] == everything[2:]
    assert {"seq", "time", "run", "kind", "task", "generation", "message"} <= set(everything[0])
    assert rig.client.get("/v1/events", {"name": "nobody"}) == {"events": []}


def test_who_waits_for_events_is_woken_and_does_not_look_again_and_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    async def is_disconnected(request: Request) -> bool:
        looks.append(request.url.path)
        return False

    monkeypatch.setattr(Request, "is_disconnected", is_disconnected)
    assert rig.client.get("/v1/events", {"wait_s": 0.5}) == {"events": []}
    assert len(looks) == 1
    assert rig.coordinator.loop.news._wakes == (), "nobody waits any more"


def test_who_waits_for_events_is_answered_when_the_coordinator_stops(rig: Rig) -> None:
    told: list[dict[str, Any]] = []
    waiter = threading.Thread(
        target=lambda: told.append(rig.client.get("/v1/events", {"wait_s": 30}, timeout_s=40))
    )
    waiter.start()
    rig.client.get("/v1/events", {"wait_s": 0.3})  # the one before is waiting by then
    rig.client.post("/v1/stop")
    waiter.join(SOON_S)
    assert told == [{"events": []}]


def test_stacks_of_tasks_that_answer_and_of_those_that_do_not(rig: Rig) -> None:
    rig.submit()
    until(lambda: rig.phase() == "RENDEZVOUS")
    rig.hosts.agents["a"].answers["stacks"] = always({"stacks": "Thread 1: train.py:7", "by": "runtime"})
    rig.hosts.transport.refuse(rig.hosts.plans["b"], ConnectFailed("b", "no route to host"))
    rig.hosts.agents["b"].die()
    until(lambda: rig.client.get("/v1/coordinator")["hosts"]["b"] is False)
    told = rig.client.post("/v1/runs/t/stacks")["stacks"]
    assert told["worker:0"] == "Thread 1: train.py:7"
    assert told["worker:1"] == "no stacks: b is not connected"


def test_a_run_that_cannot_be_kept_leaves_nothing_behind(rig: Rig) -> None:
    os.rmdir(rig.paths.runs)
    Path(rig.paths.runs).write_text("a file where the directory should be")
    code = rig.snapshot().digest
    with pytest.raises(OrchestratorError, match="cannot be written"):
        rig.client.post("/v1/runs", {"plan": rig.plan(), "secrets": {"TOKEN": "hunter2"}, "code": code})
    assert rig.client.get("/v1/status")["runs"] == []
    assert rig.coordinator._snapshots.names() == []
    secrets = Path(rig.paths.state_dir) / "secrets"
    assert list(secrets.iterdir()) == []
    os.unlink(rig.paths.runs)
    os.mkdir(rig.paths.runs)
    assert rig.submit()["created"] is True


def test_no_run_of_an_unknown_name_is_found_by_a_clever_one(rig: Rig) -> None:
    for name in ("..", "%2e%2e%2fetc", "a'%20OR%201=1"):
        with pytest.raises(UsageError):
            rig.client.post(f"/v1/runs/{name}/kill")


def test_the_end_is_not_begun_before_all_was_read_that_asks_for_it(rig: Rig) -> None:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(rig.paths.socket)
        asking.sendall(b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n")
        assert rig.client.get("/v1/coordinator")["ending"] is False
        asking.sendall(b"{}")
        assert asking.recv(65536).startswith(b"HTTP/1.1 202 ")
    assert rig.coordinator.loop.ending, "who is told so can see it"


def test_another_coordinator_takes_the_runs_up(rig: Rig, tmp_path: Path) -> None:
    run_id = rig.submit()["run_id"]
    until(lambda: rig.phase() == "RENDEZVOUS")
    rig.stop_coordinator()
    (Path(rig.paths.state_dir) / "secrets").mkdir(exist_ok=True)
    orphan = Path(rig.paths.state_dir) / "secrets" / "gone-1.json"
    orphan.write_text("{}")
    rig.start_coordinator()
    assert rig.client.get("/v1/coordinator")["epoch"] == 2
    (shown,) = rig.client.get("/v1/status")["runs"]
    assert (shown["run_id"], shown["epoch"], shown["phase"]) == (run_id, 2, "RENDEZVOUS")
    assert not orphan.exists()
    start = rig.hosts.agents["a"].wait_order("start", count=2)
    assert start["epoch"] == 2, "asked again, by the new epoch"


@pytest.mark.fault(59)
def test_row_59_a_run_that_cannot_be_read_is_named_and_the_rest_is_taken_up(rig: Rig) -> None:
    broken = rig.client.post("/v1/runs", {"plan": rig.plan(secrets=("TOKEN",)), "secrets": {"TOKEN": "x"}})[
        "run_id"
    ]
    other = rig.submit(name="u")["run_id"]
    rig.stop_coordinator()
    with sqlite3.connect(rig.paths.journal) as db:
        db.execute("UPDATE runs SET state = '{}' WHERE run_id = ?", (broken,))
    rig.start_coordinator()
    status = rig.client.get("/v1/status")
    assert [run["run_id"] for run in status["runs"]] == [other]
    (trouble,) = status["troubles"]
    assert f"{broken} is set aside: its state in the journal cannot be read" in trouble
    assert "orch recover" in trouble
    assert rig.client.get("/v1/coordinator")["warning"].count(trouble) == 1
    with pytest.raises(Refused, match=f"{broken} is set aside") as caught:
        rig.client.get("/v1/status", {"name": "t"})
    assert "orch recover" in str(caught.value.hint)
    events = rig.client.get("/v1/events", {"name": broken})["events"]
    assert events[-1]["kind"] == "run-set-aside"
    with pytest.raises(Refused, match=f"may be active, and cannot be read: {broken}"):
        rig.submit()
    secrets = Path(rig.paths.state_dir) / "secrets" / f"{broken}.json"
    assert secrets.exists(), "it may be rebuilt, and go on"


@pytest.mark.fault(34)
def test_row_34_on_a_full_state_disk_changes_are_refused_at_once_and_looks_are_answered(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path / "small") as disk:
        rig = Rig(disk.path)
        try:
            run_id = rig.submit()["run_id"]
            until(lambda: rig.phase() == "RENDEZVOUS")
            disk.fill()
            _fill_what_the_journal_has_left(rig)
            began = time.monotonic()
            with pytest.raises(JournalError, match="state disk full") as caught:
                rig.client.post("/v1/runs/t/kill", {"force": False})
            with pytest.raises(OrchestratorError, match="state disk full"):
                rig.submit(name="u")
            assert rig.phase() == "RENDEZVOUS"
            assert rig.client.get("/v1/events")["events"]
            assert time.monotonic() - began < patient(5.0)
            assert "training goes on" in str(caught.value.hint)
            disk.empty()
            assert rig.client.post("/v1/runs/t/kill", {"force": True})["phase"] == "STOPPING"
            for index, agent in enumerate(rig.hosts.agents.values()):
                agent.report({run_id: [_exited(index)]})
            until(lambda: rig.phase() == "KILLED")
        finally:
            rig.close()


def _fill_what_the_journal_has_left(rig: Rig) -> None:
    """Post events until the journal refuses one; the loop holds it and goes on."""
    agent = rig.hosts.agents["a"]
    for number in range(200):
        before = rig.coordinator.loop.news.seq
        agent.report({rig.client.get("/v1/coordinator")["runs"][0]: [_said(number)]})
        try:
            until(lambda before=before: rig.coordinator.loop.news.seq > before, timeout_s=0.5)  # type: ignore[misc]
        except AssertionError:
            return
    raise AssertionError("the disk is not full")


def _said(number: int) -> Task:
    said: list[Said] = [{"kind": "says", "message": f"{number} {part} " + "x" * 1900} for part in range(3)]
    return {"task": "worker:0", "generation": 1, "phase": "starting", "pid": 7, "said": said}


# --- two state directories -------------------------------------------------------------------------------------------


def test_a_client_of_another_state_directory_is_refused_with_both_named(rig: Rig, tmp_path: Path) -> None:
    other = Client(rig.paths.socket, state_dir=str(tmp_path / "größer"))
    for ask in (other.get, other.post):
        with pytest.raises(Refused) as caught:
            ask("/v1/stop")
        assert f"has the state directory {rig.paths.state_dir}, and not {tmp_path / 'größer'}" in str(
            caught.value
        )
        assert "$ORCH_RUNTIME_DIR" in str(caught.value.hint)
    (tmp_path / "link").symlink_to(rig.paths.state_dir)
    for same in (rig.paths.state_dir, str(tmp_path / "link")):
        assert Client(rig.paths.socket, state_dir=same).get("/v1/status")["runs"] == []


def test_an_active_run_is_not_started_from_scratch_in_silence(rig: Rig) -> None:
    rig.submit()
    with pytest.raises(Refused, match="--from-scratch has changed nothing"):
        rig.client.post("/v1/runs", {"plan": rig.plan(), "secrets": {}, "from_scratch": True})


def test_the_owner_is_the_journals_and_lost_with_it(rig: Rig) -> None:
    def owner() -> Any:
        return rig.client.get("/v1/coordinator")["owner"]

    first = owner()
    assert len(first["id"]) == 32
    rig.stop_coordinator()
    rig.start_coordinator()
    assert owner() == first
    rig.stop_coordinator()
    for name in os.listdir(rig.paths.state_dir):
        if name.startswith("journal.db"):
            os.unlink(os.path.join(rig.paths.state_dir, name))
    rig.start_coordinator()
    assert owner()["id"] != first["id"]
    assert owner()["head"] == first["head"]


def test_a_drain_is_of_the_machine_whatever_each_file_calls_it(rig: Rig) -> None:
    needs = (Ask("worker", 1),)
    machines = {"x": "b", "b": "a"}
    rig.hosts.agents["x"] = rig.hosts.agents["b"]
    others = tuple(replace(rig.hosts.plans[theirs], name=mine) for mine, theirs in machines.items())
    (task, _) = make_plan(["a", "b"], checkpoint=False).tasks
    rig.submit(needs=(Ask("worker", 1, on=("b",)),), tasks=(replace(task, host="b"),))
    plan = rig.plan(needs=needs) | {"name": "u", "hosts": [json.loads(json.dumps(asdict(o))) for o in others]}
    plan |= {"tasks": [json.loads(json.dumps(asdict(replace(task, host="x"))))]}
    rig.client.post("/v1/hosts/a/drain", {})
    against = rig.client.post("/v1/place", {"plan": plan, "look": False})["against"]
    assert "is drained by the user" in against["b"], "its address is a's"
    rig.stop_coordinator()
    rig.start_coordinator()
    assert "is drained" in rig.client.post("/v1/place", {"plan": plan, "look": False})["against"]["b"]
    rig.client.post("/v1/runs", {"plan": plan, "secrets": {}, "from_scratch": False})
    status, refused = rig.raw("POST", "/v1/hosts/b/drain", b"{}")
    assert (status, refused["error"]["message"]) == (400, "b is the name of 2 machines: a, b")
    rig.client.post("/v1/hosts/a/undrain", {})
    assert rig.client.post("/v1/place", {"plan": plan, "look": False})["against"] == {}


def _begin_and_end(rig: Rig, plan: dict[str, Any], host: str) -> str:
    """Let a run of one task begin, which is on that host, and end it. Return its id."""
    run_id: str = rig.client.post("/v1/runs", {"plan": plan, "secrets": {}})["run_id"]
    rig.hosts.agents[host].wait_order("start")
    rig.client.post("/v1/runs/t/kill", {"force": True})
    rig.hosts.agents[host].report({run_id: [_exited(0)]})
    until(lambda: rig.phase() == "KILLED")
    return run_id


@pytest.mark.parametrize("has_others", [False, True])
def test_a_drain_is_undone_by_the_name_that_was_said_although_no_run_knows_it_any_more(
    rig: Rig, has_others: bool
) -> None:
    rig.hosts.agents["x"] = rig.hosts.agents["b"]
    host = replace(rig.hosts.plans["b"], name="x")
    plan = rig.plan(tasks=make_plan(["x"], checkpoint=False).tasks)
    run_id = _begin_and_end(rig, plan | {"hosts": [json.loads(json.dumps(asdict(host)))]}, "x")
    rig.client.post("/v1/hosts/x/drain", {})
    (why,) = rig.client.get("/v1/coordinator")["drained"].values()
    assert why.endswith("UTC (`orch undrain x` lets it in again)")
    rig.client.post(f"/v1/runs/{run_id}/forget", {})
    if has_others:
        rig.submit(name="u")
    with pytest.raises(UsageError) as caught:
        rig.client.post("/v1/hosts/y/undrain", {})
    assert f"b {why}" in str(caught.value.hint), "what is drained is named"
    rig.client.post("/v1/hosts/x/undrain", {})
    assert rig.client.get("/v1/coordinator")["drained"] == {}
    assert rig.client.post("/v1/hosts/a/undrain", {})["state"] == "open", "as all are, with no run too"


def test_an_undrain_is_for_a_run_too_that_has_made_way_and_waits(rig: Rig) -> None:
    rig.stop_coordinator()
    plan = replace(make_plan(["a", "b"], checkpoint=True), hosts=tuple(rig.hosts.plans.values()))
    waits = Queued(since_at=0.0, why="it has made way", retry_at=3600.0)
    run = new_run("t-20260101-000000", replace(plan, queue=QueuePlan()), epoch=1, at=0.0)
    run = replace(run, phase_state=waits, generation=1, generation_last=1)
    run = run.with_host(replace(run.host("a"), state=HostState.DRAINED, state_why="by the user"))
    journal = Journal(rig.paths.journal)
    journal.commit(run, Ticked(0.0), [])
    journal.close()
    rig.start_coordinator()
    assert rig.client.post("/v1/hosts/a/drain", {})["runs"] == [], "it has nothing there that could move"
    assert rig.client.post("/v1/hosts/b/undrain", {})["runs"] == [], "b is open for it"
    (told,) = rig.client.post("/v1/hosts/a/undrain", {})["runs"]
    assert (told["run_id"], told["host"]) == (run.run_id, "a")
    now = rig.coordinator.loop.runs[run.run_id]
    assert (now.phase, now.host("a").state) == (Phase.QUEUED, HostState.OPEN)


def test_a_run_is_placed_where_a_run_of_its_name_was_before(rig: Rig) -> None:
    (task, _) = make_plan(["a", "b"], checkpoint=False).tasks
    plan = rig.plan(needs=(Ask("worker", 1),), tasks=(task,))
    rig.client.post("/v1/hosts/a/drain", {})
    _begin_and_end(rig, plan, "b")
    rig.client.post("/v1/hosts/a/undrain", {})
    (placed,) = rig.client.post("/v1/place", {"plan": plan, "look": False})["tasks"]
    assert placed["host"] == "b", "a is free too, and is before b in the file"
    rig.submit(name="u", needs=(Ask("worker", 1),), tasks=(task,))
    assert [shown["host"] for shown in _tasks_of(rig, "u")] == ["a"], "no run of that name was anywhere"


def _tasks_of(rig: Rig, name: str) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = rig.client.get("/v1/status", {"name": name})["runs"][0]["tasks"]
    return tasks

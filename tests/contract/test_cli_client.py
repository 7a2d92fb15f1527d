"""The client of the API, against a server on a real socket, and against everything that a socket can be."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, Refused, UsageError
from orchestrator.head.api.client import Client
from tests.contract.fake_api import FakeApi, event_document, run_document


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with FakeApi(tmp_path / "coordinator.sock") as fake:
        yield fake


def test_a_document_comes_back_as_it_is(api: FakeApi) -> None:
    api.runs.append(run_document(reason="läuft"))
    assert Client(api.socket_path).get("/v1/status") == {"schema": 1, "runs": api.runs}


def test_a_query_arrives(api: FakeApi) -> None:
    api.events += [event_document(n, "k", "m") for n in (1, 2, 3)]
    found = Client(api.socket_path).get("/v1/events", {"name": "mnist", "after": 1, "wait_s": 0.5})
    assert [event["seq"] for event in found["events"]] == [2, 3]


def test_a_body_arrives(api: FakeApi) -> None:
    answer = Client(api.socket_path).post("/v1/runs", {"plan": {"name": "größe"}, "secrets": {"K": "v"}})
    assert answer == {"run_id": "größe-20261120-1", "created": True}
    assert api.posted == [("/v1/runs", {"plan": {"name": "größe"}, "secrets": {"K": "v"}})]


@pytest.mark.parametrize(
    ("code", "exit_code", "kind"),
    [("usage", 2, UsageError), ("refused", 6, Refused), ("host-key-unknown", 5, OrchestratorError)],
)
def test_an_error_document_is_the_error_that_it_tells_of(
    api: FakeApi, code: str, exit_code: int, kind: type[OrchestratorError]
) -> None:
    api.refuse = (409, {"error": {"code": code, "message": "no", "hint": "do", "exit_code": exit_code}})
    with pytest.raises(kind) as caught:
        Client(api.socket_path).post("/v1/runs", {"plan": {}})
    error = caught.value
    assert (type(error), str(error), error.hint, error.exit_code, error.code) == (
        kind,
        "no",
        "do",
        exit_code,
        code,
    )


def test_an_error_of_no_known_form_is_still_a_sentence(api: FakeApi) -> None:
    api.refuse = (500, {"detail": "Internal Server Error"})
    with pytest.raises(OrchestratorError, match=r"answered 500: .*Internal Server Error"):
        Client(api.socket_path).post("/v1/runs", {"plan": {}})


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorUnreachable, match="no coordinator is running behind") as caught:
        Client(str(tmp_path / "none.sock")).get("/v1/status")
    assert caught.value.exit_code == 3
    assert "orch coordinator start" in str(caught.value.hint)


def test_a_socket_that_nobody_listens_on(tmp_path: Path) -> None:
    path = str(tmp_path / "dead.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(CoordinatorUnreachable, match="no coordinator is running behind"):
        Client(path).get("/v1/status")


def test_a_coordinator_that_is_frozen(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s.sock"))
        silent.listen()
        with pytest.raises(CoordinatorUnreachable, match=r"did not answer within 0.1 s"):
            Client(str(tmp_path / "s.sock"), timeout_s=0.05).get("/v1/status")


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"]
)
def test_an_answer_that_breaks_off(tmp_path: Path, answer: bytes) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        with pytest.raises(CoordinatorUnreachable, match="broke off its answer"):
            Client(path).post("/v1/stop", {})
        thread.join()


def test_one_that_dies_of_a_kill_while_it_is_asked_is_no_coordinator(tmp_path: Path) -> None:
    """The last thread of a killed process closes the socket, so for a moment it takes connections, and resets them."""
    path = str(tmp_path / "s.sock")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def die() -> None:
        connection, _ = server.accept()
        server.close()
        connection.close()  # with the question unread: that resets it

    thread = threading.Thread(target=die)
    thread.start()
    with pytest.raises(CoordinatorUnreachable, match="no coordinator is running behind"):
        Client(path).get("/v1/status")
    thread.join()


def test_an_answer_that_comes_before_the_question_was_sent_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer_at_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10)
                connection.sendall(b'HTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\n{"pid":7}')

        thread = threading.Thread(target=answer_at_once)
        thread.start()
        more_than_a_socket_holds = {"x": "y" * (8 << 20)}
        assert Client(path).post("/v1/stop", more_than_a_socket_holds) == {"pid": 7}
        thread.join()


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b"\xff\xfe"])
def test_an_answer_that_is_no_document(api: FakeApi, content: bytes) -> None:
    api.raw = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    with pytest.raises(OrchestratorError, match="no JSON"):
        Client(api.socket_path).get("/v1/status")


def test_a_server_that_is_stopped_in_the_middle_of_an_answer_is_away(api: FakeApi) -> None:
    content = b"Internal Server Error"  # as uvicorn says it
    api.raw = b"HTTP/1.0 500 x\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    with pytest.raises(CoordinatorUnreachable, match="broke off"):
        Client(api.socket_path).get("/v1/events", {"wait_s": 5})


def test_a_socket_of_somebody_else(api: FakeApi) -> None:
    os.chmod(api.socket_path, 0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may open every socket; nobody may not
    try:
        with pytest.raises(CoordinatorUnreachable, match="no permission"):
            Client(api.socket_path).get("/v1/status")
    finally:
        os.seteuid(user)

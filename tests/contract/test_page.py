"""The page's server: who is let in, what they are told, and what it does while no coordinator answers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.datastructures import Headers

from orchestrator.core.errors import UsageError
from orchestrator.head.node.bearer import token_file
from orchestrator.head.node.paths import Paths
from orchestrator.page import server, serving
from orchestrator.page.guard import KEY_HEADER, TICKET_LASTS_S, TICKETS_MAX, TOKEN_LASTS_S, Keys, Tickets
from orchestrator.page.source import Source
from tests.contract.fake_api import FakeApi, run_document


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


class Served:
    """The page of a coordinator of the test's own, in a thread."""

    def __init__(self, directory: Path, *, actions: bool = False) -> None:
        paths = Paths(str(directory / "state"), str(directory / "run"))
        paths.ensure()
        self.api = FakeApi(Path(paths.socket))
        self.api.runs = [run_document()]
        self.listener = server.listen(0)
        self.port = self.listener.getsockname()[1]
        self.keys = Keys(self.port, bearer="for-prometheus")
        self.opened = 0
        app = server.application(Source(paths), self.keys, actions=actions, opened=self._opened)
        self.server = serving.server(app)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)

    def _opened(self) -> None:
        self.opened += 1

    def __enter__(self) -> Served:
        self.api.__enter__()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.api.close()

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, {"Host": f"127.0.0.1:{self.port}", **named})
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        connection.close()
        return answer

    def log_in(self) -> dict[str, str]:
        """Return the headers of a browser that has opened the address."""
        answer = self.ask(f"/login?token={self.keys.new_token()}")
        assert answer.status == 200
        key = answer.body.decode().partition("url=/#key=")[2].partition('"')[0]
        cookie = (answer.headers["Set-Cookie"] or "").split(";")[0]
        return {"Cookie": cookie, KEY_HEADER: key, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


@pytest.fixture
def acting(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, actions=True) as made:
        yield made


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/v1/runs", "/v1/pool", "/v1/stream", "/login", "/login?token=", "/x"]
)
def test_who_has_no_token_is_told_401(served: Served, path: str) -> None:
    served.keys.new_token()
    answer = served.ask(path, Sec_Fetch_Site="same-origin")
    assert answer.status == 401
    assert b"t-2026" not in answer.body
    assert "Set-Cookie" not in answer.headers


@pytest.mark.fault(52)
def test_a_token_works_once(served: Served) -> None:
    token = served.keys.new_token()
    first = served.ask(f"/login?token={token}")
    assert first.status == 200
    assert {"HttpOnly", "SameSite=strict"} <= {
        part.strip() for part in (first.headers["Set-Cookie"] or "").split(";")
    }
    assert served.ask(f"/login?token={token}").status == 401
    assert served.ask("/login?token=").status == 401, "the place of a used token is empty, and opens nothing"
    assert served.opened == 1


def test_where_no_bearer_token_was_drawn_an_empty_one_opens_nothing() -> None:
    assert not Keys(1).has_bearer(Headers({"authorization": "Bearer "}))


def test_a_ticket_downloads_once_soon_and_of_many_the_oldest_is_not_valid_any_more() -> None:
    at = [0.0]
    tickets = Tickets(now=lambda: at[0])
    oldest, *_, newest = [tickets.new("t-1", {"task": str(n)}) for n in range(TICKETS_MAX + 1)]
    assert tickets.redeem(newest) == ("t-1", {"task": str(TICKETS_MAX)})
    late = tickets.new("t-1", {})
    for at[0], ticket in ((0.0, oldest), (0.0, newest), (TICKET_LASTS_S, late)):
        with pytest.raises(UsageError, match="begun already, or too late"):
            tickets.redeem(ticket)


def test_a_token_ends_after_ten_minutes() -> None:
    at = [0.0]
    keys = Keys(1, now=lambda: at[0])
    token = keys.new_token()
    at[0] = TOKEN_LASTS_S + 1
    assert not keys.redeem(token)
    assert not keys.redeem("")


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""]
)
def test_another_host_name_is_told_403(served: Served, host: str) -> None:
    """A page of theirs whose name has come to lead here (DNS rebinding)."""
    assert served.ask("/v1/runs", **{**served.log_in(), "Host": host}).status == 403
    assert served.ask("/", **{**served.log_in(), "Host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8265"])
def test_the_names_of_loopback_are_ours_at_any_port(served: Served, host: str) -> None:
    assert served.ask("/v1/runs", **{**served.log_in(), "Host": host}).status == 200


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_another_site_is_told_403_and_never_allowed_to_read(served: Served, headers: dict[str, str]) -> None:
    answer = served.ask("/v1/runs", **{**served.log_in(), **headers})
    assert answer.status == 403
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.fault(52)
def test_a_cookie_alone_reads_no_data(served: Served) -> None:
    """Cookies know no ports: another user's server on 127.0.0.1 is sent ours."""
    headers = served.log_in()
    headers[KEY_HEADER] = "wrong"
    assert served.ask("/v1/runs", **headers).status == 401
    del headers[KEY_HEADER]
    assert served.ask("/v1/runs", **headers).status == 401
    assert served.ask("/", **headers).status == 200


@pytest.mark.fault(52)
def test_it_listens_on_loopback_alone(served: Served) -> None:
    assert served.listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path", ["/static/..%2fserver.py", "/static/../guard.py", "/static/server.py", "/etc/passwd"]
)
def test_no_other_file_is_served(served: Served, path: str) -> None:
    assert served.ask(path, **served.log_in()).status == 404


def test_every_answer_has_the_headers(served: Served) -> None:
    for answer in (
        served.ask("/"),
        served.ask("/", **served.log_in()),
        served.ask("/v1/runs", **served.log_in()),
    ):
        policy = answer.headers["Content-Security-Policy"] or ""
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"


def test_the_pool_of_no_active_run_is_empty(served: Served) -> None:
    answer = served.ask("/v1/pool", **served.log_in())
    assert (answer.status, answer.json["hosts"]) == (200, [])


def test_a_run_is_found_by_its_id_alone(served: Served) -> None:
    headers = served.log_in()
    run = served.ask("/v1/runs", **headers).json["runs"][0]
    assert served.ask(f"/v1/runs/{run['run_id']}/history", **headers).json["goodput"] is None
    for strange in ("..%2f..%2fetc", "nobody", "%00"):
        assert served.ask(f"/v1/runs/{strange}/history", **headers).status == 404
    assert served.ask(f"/v1/runs/{run['run_id']}/secrets", **headers).status == 404
    assert served.ask(f"/v1/runs/{run['run_id']}/series?buckets=x", **headers).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(served: Served, method: str) -> None:
    answer = served.ask(
        "/v1/runs/t/kill", method, "{}", **served.log_in(), Origin=f"http://127.0.0.1:{served.port}"
    )
    assert answer.status == 405
    assert served.api.posted == []


def test_an_action_names_its_origin_and_is_one_that_is_known(acting: Served) -> None:
    headers, origin = acting.log_in(), f"http://127.0.0.1:{acting.port}"
    run_id = acting.api.runs[0]["run_id"]
    assert acting.ask(f"/v1/runs/{run_id}/kill", "POST", "{}", **headers).status == 403
    assert acting.ask(f"/v1/runs/{run_id}/stop", "POST", "{}", **headers, Origin=origin).status == 404
    assert acting.api.posted == []
    assert acting.ask(f"/v1/runs/{run_id}/kill", "POST", "{}", **headers, Origin=origin).status == 202
    assert [path for path, _ in acting.api.posted] == [f"/v1/runs/{run_id}/kill"]


class Stream:
    """One viewer."""

    def __init__(self, served: Served, query: str = "") -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        self.connection.request("GET", f"/v1/stream{query}", headers=served.log_in())
        self.response = self.connection.getresponse()

    def next(self) -> tuple[str, dict[str, Any]]:
        fields: dict[str, str] = {}
        while True:
            line = self.response.readline().decode().rstrip("\r\n")
            if not line and "data" in fields:
                return fields["event"], json.loads(fields["data"])
            name, _, value = line.partition(": ")
            fields[name] = value


def test_a_viewer_is_told_all_once_and_then_what_has_changed(served: Served) -> None:
    run_id = served.api.runs[0]["run_id"]
    viewer = Stream(served, f"?run={run_id}")
    kind, told = viewer.next()
    assert kind == "snapshot"
    assert set(told["runs"][run_id]["tasks"]) == {task["task"] for task in served.api.runs[0]["tasks"]}
    served.api.runs = [{**served.api.runs[0], "global_step": 123_456}]
    kind, told = viewer.next()
    assert (kind, told["runs"][run_id]) == ("delta", {"global_step": 123_456})
    viewer.connection.close()


def test_a_coordinator_that_goes_away_is_said_to_be_so(served: Served) -> None:
    viewer = Stream(served)
    assert viewer.next()[1]["away_since"] is None
    began = time.time()
    served.api.close()
    kind, told = viewer.next()
    assert kind == "delta"
    assert told["away_since"] >= began - 1
    viewer.connection.close()


def test_the_metrics_are_for_the_key_or_the_bearer_token_and_the_token_opens_nothing_else(
    served: Served,
) -> None:
    assert served.ask("/metrics").status == 401
    assert served.ask("/metrics", Authorization="Bearer wrong").status == 401
    assert served.ask("/metrics", Authorization="Bearer ").status == 401
    bearer = {"Authorization": "Bearer for-prometheus"}
    answer = served.ask("/metrics", **bearer)
    assert answer.status == 200
    assert (answer.headers["Content-Type"] or "").startswith("text/plain; version=")
    assert b"orch_coordinator_up 1.0" in answer.body
    for path in ("/", "/v1/runs", "/v1/stream"):
        assert served.ask(path, **bearer).status == 401
    assert served.ask("/metrics", Host="evil.example", **bearer).status == 403
    mine = served.log_in()
    assert served.ask("/metrics", **mine).status == 200
    assert served.ask("/metrics", Cookie=mine["Cookie"], Sec_Fetch_Site="same-origin").status == 401
    for site in ("cross-site", "same-site", "none"):
        assert served.ask("/metrics", **{**mine, "Sec-Fetch-Site": site}).status == 403
    assert served.ask("/metrics", Cookie=mine["Cookie"]).status == 403
    served.api.close()
    assert b"orch_coordinator_up 0.0" in served.ask("/metrics", **bearer).body


def test_the_bearer_token_is_drawn_once_and_is_the_users_alone(tmp_path: Path) -> None:
    token, path = token_file(str(tmp_path))
    assert len(token) >= 32
    assert (Path(path).stat().st_mode & 0o777, Path(path).read_text()) == (0o600, token)
    assert token_file(str(tmp_path)) == (token, path)
    Path(path).write_text("")
    assert token_file(str(tmp_path))[0] != ""


@pytest.mark.fault(52)
def test_two_hundred_half_open_connections_keep_nobody_out(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        silent = []
        for _ in range(300):
            one = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1")
            silent.append(one)
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{served.port}/")
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=10)
            assert caught.value.code == 401, "it is answered, as any who has no cookie"
        finally:
            for one in silent:
                one.close()

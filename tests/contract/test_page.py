"""The page's server: who is let in, what they are told, and what it does while no coordinator answers."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.datastructures import Headers

from orchestrator.cli.show.times import shown
from orchestrator.core.errors import UsageError
from orchestrator.head.node import page_access
from orchestrator.head.node.bearer import token_file
from orchestrator.head.node.page_access import TOKEN_LASTS_S, PageAccess
from orchestrator.head.node.paths import Paths
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.page import server, serving
from orchestrator.page.guard import (
    KEY_HEADER,
    LOCAL,
    TICKET_LASTS_S,
    TICKETS_MAX,
    Base,
    Keys,
    Tickets,
    base_of,
)
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

    def __init__(self, directory: Path, *, actions: bool = False, base: Base = LOCAL, port: int = 0) -> None:
        paths = Paths(str(directory / "state"), str(directory / "run"))
        paths.ensure()
        self.api = FakeApi(Path(paths.socket))
        self.api.runs = [run_document()]
        self.listener = server.listen(port)
        self.port = self.listener.getsockname()[1]
        self.keys = Keys(self.port, PageAccess(paths.state_dir), bearer="for-prometheus")
        self.opened = 0
        app = server.application(Source(paths), self.keys, actions=actions, opened=self._opened, base=base)
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

    def log_in(self, token: str = "", path: str = "", **headers: str) -> dict[str, str]:
        """Return the headers of a browser that has opened an address."""
        answer = self.ask(f"{path}/login?token={token or self.keys.access.new_token()}", **headers)
        assert answer.status == 200
        key = answer.body.decode().partition("url=./#key=")[2].partition('"')[0]
        cookie = (answer.headers["Set-Cookie"] or "").split(";")[0]
        return {"Cookie": cookie, KEY_HEADER: key, "Sec-Fetch-Site": "same-origin", **headers}


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
    served.keys.access.new_token()
    answer = served.ask(path, Sec_Fetch_Site="same-origin")
    assert answer.status == 401
    assert b"t-2026" not in answer.body
    assert "Set-Cookie" not in answer.headers


@pytest.mark.fault(52)
def test_a_token_works_once(served: Served) -> None:
    token = served.keys.access.new_token()
    first = served.ask(f"/login?token={token}")
    assert first.status == 200
    assert {"HttpOnly", "SameSite=strict"} <= {
        part.strip() for part in (first.headers["Set-Cookie"] or "").split(";")
    }
    assert served.ask(f"/login?token={token}").status == 401
    assert served.ask("/login?token=").status == 401, "the place of a used token is empty, and opens nothing"
    assert served.opened == 1


def test_where_no_bearer_token_was_drawn_an_empty_one_opens_nothing(tmp_path: Path) -> None:
    assert not Keys(1, PageAccess(str(tmp_path))).has_bearer(Headers({"authorization": "Bearer "}))


def test_a_ticket_downloads_once_soon_and_of_many_the_oldest_is_not_valid_any_more() -> None:
    at = [0.0]
    tickets = Tickets(now=lambda: at[0])
    oldest, *_, newest = [tickets.new("t-1", {"task": str(n)}) for n in range(TICKETS_MAX + 1)]
    assert tickets.redeem(newest) == ("t-1", {"task": str(TICKETS_MAX)})
    late = tickets.new("t-1", {})
    for at[0], ticket in ((0.0, oldest), (0.0, newest), (TICKET_LASTS_S, late)):
        with pytest.raises(UsageError, match="begun already, or too late"):
            tickets.redeem(ticket)


def test_a_token_ends_after_ten_minutes_and_others_shut_nobody_out(tmp_path: Path) -> None:
    at = [0.0]
    access = PageAccess(str(tmp_path), now=lambda: at[0])
    first, second = access.new_token(), PageAccess(str(tmp_path), now=lambda: at[0]).new_token()
    at[0] = TOKEN_LASTS_S - 1
    assert access.redeem(first)
    at[0] = TOKEN_LASTS_S + 1
    for late in (second, first, ""):
        assert not access.redeem(late)
    assert (tmp_path / page_access.FILE).stat().st_mode & 0o777 == 0o600
    known = json.loads((tmp_path / page_access.FILE).read_text())
    at[0] = 0.0
    (tmp_path / page_access.FILE).write_text(json.dumps({**known, "tokens": {"t": 600.0}, "boot": "another"}))
    assert not access.redeem("t"), "its ten minutes were counted since another boot"


def test_a_second_browser_comes_in_while_the_first_stays_and_none_outlives_the_server(tmp_path: Path) -> None:
    """Browsers go on asking at its port, which another user's server may take meanwhile."""
    with Served(tmp_path) as served:
        first, second = served.log_in(), served.log_in()
        for headers in (first, second):
            assert served.ask("/v1/runs", **headers).status == 200
        port = served.port
    with Served(tmp_path, port=port) as again:
        assert again.ask("/v1/runs", **first).status == 401, "what another server was sent lets nobody in"
        assert again.ask("/", **second).status == 401
        third = again.log_in()
        assert again.ask("/v1/runs", **third).status == 200
        again.keys.access.revoke_all()
        assert again.ask("/v1/runs", **third).status == 401
        assert again.ask("/v1/runs", **again.log_in()).status == 200


def test_a_share_reads_until_it_is_revoked_and_its_stream_ends_with_it(tmp_path: Path) -> None:
    with Served(tmp_path, actions=True) as served:
        owner, access = served.log_in(), PageAccess(str(tmp_path / "state"))
        anna, ben = access.share("Anna"), access.share("Ben")
        hers, his = served.log_in(anna.token), served.log_in(ben.token)
        assert served.ask("/v1/runs", **served.log_in(anna.token)).status == 200, (
            "as many browsers as open it"
        )
        assert served.opened == 1, "only the owner's browser is said to have come"
        assert (
            served.ask("/v1/runs", **hers).json["actions"],
            served.ask("/v1/runs", **owner).json["actions"],
        ) == (
            False,
            True,
        )
        assert b"data-actions" not in served.ask("/", **hers).body
        assert b"data-actions" in served.ask("/", **owner).body
        run_id, origin = served.api.runs[0]["run_id"], f"http://127.0.0.1:{served.port}"
        for verb in ("kill", "forget", "mark", "drain"):
            refused = served.ask(f"/v1/runs/{run_id}/{verb}", "POST", "{}", **hers, Origin=origin)
            assert (refused.status, b"only reads" in refused.body) == (403, True)
        assert served.api.posted == []
        mixed = {**hers, KEY_HEADER: owner[KEY_HEADER]}
        assert served.ask("/v1/runs", **mixed).status == 401, "cookie and key are one viewer's"
        patterns = f"/v1/runs/{run_id}/logs?regex=yes&q=a%2Bb"
        assert served.ask(patterns, **hers).status == 404, "one pattern can take for ever"
        assert served.ask(patterns, **owner).status == 200
        viewer = Stream(served, headers=hers)
        assert viewer.next()[0] == "snapshot"
        assert [share.note for share in access.shares()] == ["Anna", "Ben"]
        access.revoke(anna.id)
        assert viewer.response.read() is not None, "it ends"
        assert served.ask("/v1/runs", **hers).status == 401
        assert served.ask(f"/login?token={anna.token}").status == 401
        assert served.ask("/v1/runs", **his).status == 200
        with pytest.raises(UsageError, match="no share"):
            access.revoke(anna.id)


def test_a_share_shows_nothing_of_what_the_environment_of_a_script_holds(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.api.runs[0]["tasks"][0]["env"] = {"USER_KEY": "the owner's"}
        hers = served.log_in(PageAccess(str(tmp_path / "state")).share("Anna").token)
        for viewer, sees in ((served.log_in(), True), (hers, False)):
            assert (b"USER_KEY" in served.ask("/v1/runs", **viewer).body) is sees
            run_id = served.api.runs[0]["run_id"]
            _, first = Stream(served, f"?run={run_id}", headers=viewer).next()
            assert ("USER_KEY" in first["runs"][run_id]["tasks"]["worker:0"]["env"]) is sees


def test_a_share_ends_by_itself_with_the_pages_that_have_it(tmp_path: Path) -> None:
    at = [1000.0]
    with Served(tmp_path) as served:
        served.keys.access = access = PageAccess(str(tmp_path / "state"), clock=lambda: at[0])
        short, usual = access.share("Anna", 3600.0), access.share("Ben")
        hers, his = served.log_in(short.token), served.log_in(usual.token)
        assert [share.until for share in access.shares()] == [4600.0, 1000.0 + 7 * 86400]
        at[0] = 4599.0
        viewer = Stream(served, headers=hers)
        assert viewer.next()[0] == "snapshot"
        at[0] = 4600.0
        assert viewer.response.read() is not None, "it ends"
        assert [served.ask("/v1/runs", **headers).status for headers in (hers, his)] == [401, 200]
        assert served.ask(f"/login?token={short.token}").status == 401
        assert [share.note for share in access.shares()] == ["Ben"]


PROXIED = {"Host": "lab.example.org", "Sec_Fetch_Site": "same-origin"}


@pytest.mark.parametrize("path", ["/orch/of-anna", ""], ids=["the proxy passes its path on", "or not"])
def test_behind_a_proxy_with_a_path(tmp_path: Path, path: str) -> None:
    base = base_of("https://lab.example.org/orch/of-anna/")
    with Served(tmp_path, actions=True, base=base) as served:
        token = served.keys.access.new_token()
        answer = served.ask(f"{path}/login?token={token}", **PROXIED)
        cookie = [part.strip() for part in (answer.headers["Set-Cookie"] or "").split(";")]
        assert {"Secure", "Path=/orch/of-anna", "HttpOnly"} <= set(cookie)
        headers = served.log_in(path=path, **PROXIED)
        assert served.ask(f"{path}/", **headers).status == 200
        assert served.ask(f"{path}/static/page.js", **headers).status == 200
        assert served.ask(f"{path}/v1/runs", **headers).status == 200
        kill = f"{path}/v1/runs/{served.api.runs[0]['run_id']}/kill"
        for origin, status in (
            ("https://lab.example.org", 202),
            ("http://lab.example.org", 403),
            ("https://evil.example", 403),
            (f"http://127.0.0.1:{served.port}", 403),
        ):
            assert served.ask(kill, "POST", "{}", **headers, Origin=origin).status == status, origin
        # A proxy that names itself as the host: the browser's origin stays.
        own = {**headers, "Host": f"127.0.0.1:{served.port}", "Origin": "https://lab.example.org"}
        assert served.ask(kill, "POST", "{}", **own).status == 202
        for host in (
            "lab.example.org:8443",
            "evil.example",
            "orch.lab.example.org",
            "lab.example.org.evil.example",
        ):
            assert served.ask(f"{path}/", **{**headers, "Host": host}).status == 403
        assert served.ask("/", **served.log_in()).status == 200, "on this machine it is as it was"
        assert served.ask("/orch/of-annabel/", **headers).status == 404, (
            "a name that only begins so is another"
        )
        moved = served.ask("/orch/of-anna", **PROXIED)
        assert (moved.status, moved.headers["Location"]) == (307, "/orch/of-anna/")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lab.example.org/orch", "is no address"),
        ("ftp://lab.example.org", "is no address"),
        ("https://", "is no address"),
        ("https://lab.example.org:99999/", "is no address"),
        ("https://anna:secret@lab.example.org/", "is no address"),
        ("http://lab.example.org/orch", "is not https"),
        ("http://localhost.example.org/", "is not https"),
        ("https://lab.example.org/a?b=c", "has more than"),
        ("https://lab.example.org/a b", "has more than"),
        ("https://lab.example.org/a%2Fb", "has more than"),
    ],
)
def test_a_base_address_that_no_browser_could_use_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        base_of(text)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://LAB.example.org:443/x/", "lab.example.org"),
        ("https://lab.example.org:8443", "lab.example.org:8443"),
        ("http://localhost:8080/orch", "localhost:8080"),
        ("https://[2001:db8::1]/", "[2001:db8::1]"),
    ],
)
def test_a_base_address_is_the_host_that_a_browser_names(text: str, host: str) -> None:
    assert base_of(text).host == host


def test_a_link_and_a_share_come_from_other_commands_while_a_page_is_served(tmp_path: Path) -> None:
    env = {**os.environ, "ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "run")}

    def orch(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "orchestrator.cli.main", "ui", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    refused = orch("link")
    assert refused.returncode != 0
    assert "no page is served now" in refused.stderr
    (tmp_path / "run").mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "run" / "served-7").write_text("http://127.0.0.1:7/login")  # of a page that was killed
    assert page_access.served_at(str(tmp_path / "run")) == []
    address = "https://lab.example.org/orch/login"
    with page_access.served(str(tmp_path / "run"), 9, address):
        assert orch("link").stdout.startswith(f"{address}?token=")
        shared = orch("share", "--note", "Anna").stdout.strip()
        assert shared.startswith(f"{address}?token=")
        (share,) = PageAccess(str(tmp_path / "state")).shares()
        assert shared.endswith(share.token)
        until = shown(share.until)
        listed = orch("share", "--list").stdout.split()
        assert listed == ["ID", "UNTIL", "NOTE", share.id, *until.split(), "Anna"]
        assert share.until == pytest.approx(time.time() + 7 * 86400, abs=120)
        brief = orch("share", "--note", "Ben", "--for", "8h")
        assert f"works until {shown(PageAccess(str(tmp_path / 'state')).shares()[1].until)}" in brief.stderr
        assert "one minute to 365 days" in orch("share", "--for", "0s").stderr
        orch("share", "--revoke", PageAccess(str(tmp_path / "state")).shares()[1].id)
        assert orch("share", "--revoke", share.id).returncode == 0
        assert orch("share", "--list").stdout == "no shares\n"
        assert "there is no share" in orch("share", "--revoke", share.id).stderr
        assert "do not go together" in orch("share", "--list", "--revoke", "all").stderr
    assert page_access.served_at(str(tmp_path / "run")) == []


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

    def __init__(self, served: Served, query: str = "", headers: dict[str, str] | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        self.connection.request("GET", f"/v1/stream{query}", headers=headers or served.log_in())
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
    assert served.ask("/metrics", Authorization="Basic for-prometheus").status == 401
    assert served.ask("/metrics", Authorization="bearer for-prometheus").status == 200
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
    state_dir = tmp_path / "state"
    token, path = token_file(str(state_dir))
    assert state_dir.stat().st_mode & 0o777 == 0o700
    assert len(token) >= 32
    assert (Path(path).stat().st_mode & 0o777, Path(path).read_text()) == (0o600, token)
    assert token_file(str(state_dir)) == (token, path)
    Path(path).write_text("")
    assert token_file(str(state_dir))[0] != ""


def test_a_coordinator_is_away_since_its_last_answer(served: Served, tmp_path: Path) -> None:
    source = Source(Paths(str(tmp_path / "state"), str(tmp_path / "run")))
    answered_at = source.runs()["now"]
    served.api.close()
    for _ in range(2):
        told = source.runs()
        assert told["now"] > answered_at
        assert told["away_since"] == answered_at


def test_a_log_is_downloaded_with_a_ticket_in_the_place_of_the_key_and_once(
    served: Served, tmp_path: Path
) -> None:
    run_id, line = served.api.runs[0]["run_id"], b"1.000000 o hello\n"
    logs = RunLogs(str(tmp_path / "state"))
    for index, generation in ((0, 1), (0, 2), (1, 2)):
        logs.append(run_id, f"worker:{index}", generation, 0, line)
    viewer = served.log_in()
    path = f"/v1/runs/{run_id}/ticket?task=worker:0&generation=2"
    opened = served.ask(f"/download/{served.ask(path, **viewer).json['ticket']}", Cookie=viewer["Cookie"])
    assert (opened.status, opened.body) == (200, b"1970-01-01T00:00:01.000000Z worker:0/2 hello\n")
    assert opened.headers["Content-Disposition"] == f'attachment; filename="{run_id}-worker-0-2.log"'
    ticket = served.ask(path, **viewer).json["ticket"]
    for status in (200, 404):
        assert served.ask(f"/download/{ticket}", Cookie=viewer["Cookie"]).status == status
    assert served.ask(f"/download/{served.ask(path, **viewer).json['ticket']}").status == 401


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

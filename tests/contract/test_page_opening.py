"""`orch ui --open`: the owner's browser gets in, and nobody else learns how."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.contract.fake_agent import until

NOBODY = 65534

BROWSER = """
import json, os, pathlib, re, sys, time, urllib.request

told = pathlib.Path(sys.argv[1])

def spy():
    # Another user of this machine, who looks at all that he may.
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    lines = []
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_bytes())
        except OSError:
            continue
    seen = [line.decode(errors="replace") for line in lines if b"token=" in line]
    try:
        read = pathlib.Path(sys.argv[2].removeprefix("file://")).read_text()
    except OSError as e:
        read = type(e).__name__
    return {"seen": seen, "read": read, "asked": sum(b"page-" in line for line in lines)}

receiving, sending = os.pipe()
child = os.fork()
if child == 0:
    os.write(sending, json.dumps(spy()).encode())
    os._exit(0)
os.waitpid(child, 0)
found = json.loads(os.read(receiving, 1 << 20))
page = pathlib.Path(sys.argv[2].removeprefix("file://"))
modes = [oct(where.stat().st_mode & 0o777) for where in (page.parent, page)]
found.update(argv=sys.argv[2:], modes=modes, pid=os.getpid())
address = re.search('url=([^"]+)"', page.read_text())[1]
with urllib.request.urlopen(address) as answer:
    found.update(status=answer.status, cookie=answer.headers["Set-Cookie"].split(";")[0], body=answer.read().decode())
fresh = told.with_suffix(".new")
fresh.write_text(json.dumps({**found, "address": address}))
fresh.rename(told)
time.sleep(600)  # it is in the foreground until it is left
"""


class Proxy(BaseHTTPRequestHandler):
    """Passes requests below /lab/orch on to a page, without that path, and what it answers back as it comes."""

    port = 0

    def do_GET(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        kept = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        connection.request("GET", self.path.removeprefix("/lab/orch") or "/", headers=kept)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while part := answer.read1(1 << 16):
                self.wfile.write(part)
                self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


class Opened:
    """`orch ui --open` with a browser of the test's own."""

    def __init__(self, directory: Path, browser: str, *options: str) -> None:
        self.runtime = directory / "run"
        env = {
            **{name: value for name, value in os.environ.items() if name != "DISPLAY"},
            "ORCH_STATE_DIR": str(directory / "state"),
            "ORCH_RUNTIME_DIR": str(self.runtime),
            "BROWSER": browser,
        }
        command = [
            sys.executable,
            "-m",
            "orchestrator.cli.main",
            "ui",
            "--open",
            "--actions",
            "--port",
            "0",
            *options,
        ]
        self.env = env
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def pages(self) -> list[str]:
        return [path.name for path in self.runtime.glob("page-*")]

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=30)


@pytest.fixture
def away(tmp_path: Path) -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def status_of(address: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code


@pytest.mark.fault(104)
def test_row_104_another_user_learns_nothing_and_the_owner_gets_in(tmp_path: Path, away: list[int]) -> None:
    told = tmp_path / "told.json"
    script = tmp_path / "browser.py"
    script.write_text(BROWSER)
    opened = Opened(tmp_path, f"{sys.executable} {script} {told} %s")
    until(told.exists, timeout_s=60.0)
    found: dict[str, Any] = json.loads(told.read_text())
    away.append(found["pid"])
    assert [word for word in found["argv"] if "token" in word] == []
    assert found["modes"] == ["0o700", "0o600"]
    assert (found["seen"], found["asked"] > 0) == ([], True), (
        "it looked, and saw the browser's own command line"
    )
    if os.geteuid() == 0:
        assert found["read"] == "PermissionError"
    # The browser is still in the foreground, and the page answers it.
    assert (found["status"], found["address"]) == (200, opened.address)
    origin = opened.address.partition("/login")[0]
    assert status_of(f"{origin}/", Cookie=found["cookie"]) == 200
    assert status_of(opened.address) == 401, "it works once"
    until(lambda: opened.pages() == [])
    assert opened.end() == 0


@pytest.mark.fault(104)
def test_what_was_not_opened_is_removed_at_the_end(tmp_path: Path) -> None:
    opened = Opened(tmp_path, "/bin/true %s")
    until(opened.pages, timeout_s=60.0)
    assert opened.end() == 0
    assert opened.pages() == []


@pytest.mark.fault(104)
def test_a_real_browser_gets_from_the_file_to_the_page(tmp_path: Path) -> None:
    """Its cookie is `SameSite=Strict`, and a file is another site."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium here")
    from playwright.sync_api import sync_playwright

    opened = Opened(tmp_path, "/bin/true %s")
    until(opened.pages, timeout_s=60.0)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"file://{opened.runtime / opened.pages()[0]}")
        page.wait_for_url(lambda url: url.startswith("http") and "/login" not in url, timeout=60_000)
        page.wait_for_selector("main, #main, body[data-actions]", timeout=60_000)
        assert "401" not in page.inner_text("body")
        assert "403" not in page.inner_text("body")
        browser.close()
    assert opened.end() == 0


def test_a_browser_is_let_in_through_a_proxy_with_a_path_and_a_share_ends_when_it_is_revoked(
    tmp_path: Path,
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium here")
    from playwright.sync_api import sync_playwright

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    base = f"http://localhost:{proxy.server_address[1]}/lab/orch"
    opened = Opened(tmp_path, "/bin/true %s", "--base-url", base)
    until(opened.pages, timeout_s=60.0)
    (served,) = opened.runtime.glob("served-*")
    Proxy.port = int(served.name.removeprefix("served-"))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()

    def orch(*words: str) -> str:
        command = [sys.executable, "-m", "orchestrator.cli.main", "ui", *words]
        return subprocess.run(
            command, env=opened.env, capture_output=True, text=True, check=True
        ).stdout.strip()

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for address in (opened.address, orch("link"), orch("share", "--note", "Anna")):
            assert address.startswith(f"{base}/login?token=")
            page = browser.new_context().new_page()
            page.goto(address)
            page.get_by_text("There are no runs yet").wait_for(timeout=60_000)
            assert page.url == f"{base}/#/"
        share = orch("share", "--list").splitlines()[1].split()[0]
        orch("share", "--revoke", share)
        page.get_by_text("This browser has no access").wait_for(timeout=60_000)
        browser.close()
    proxy.shutdown()
    assert opened.end() == 0

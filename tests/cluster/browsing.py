"""The page in Chromium: `orch ui` of a cluster, and a browser that has opened its address."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from orchestrator.page.server import joined, read
from tests.cluster.cluster import Cluster

NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""What Chromium says of every request that is under way while an interface comes or goes, loopback or not."""
_NO_PAGE_YET = "Not attached to an active page"
"""What it says of a load while the page of such an error takes the place of what was cut."""
_ERROR_PAGE_MS = 200
"""How long that page may take until the next attempt."""


def visit(page: Any, address: str) -> None:
    """Open `address` with all that it loads, again if another test made or removed a host's interface meanwhile."""
    _load(page, lambda: page.goto(address))
    if "/login?" in address:
        page.wait_for_url(lambda url: "/login" not in url)  # the page of the login sends the browser on


def reload(page: Any) -> None:
    """Load the page again, as `visit` does."""
    _load(page, page.reload)


def _load(page: Any, load: Callable[[], object]) -> None:
    was_cut = False
    for _ in range(10):
        cut: list[str] = []

        def hear(request: Any, cut: list[str] = cut) -> None:
            if request.failure == NETWORK_CHANGED:
                cut.append(request.url)

        page.on("requestfailed", hear)
        try:
            load()
        except Exception as e:
            if NETWORK_CHANGED not in str(e) and not (was_cut and _NO_PAGE_YET in str(e)):
                raise
            cut.append(page.url)
            page.wait_for_timeout(_ERROR_PAGE_MS)
        finally:
            page.remove_listener("requestfailed", hear)
        if not cut:
            return
        was_cut = True
        load = page.reload if page.url.startswith("http") else load
    raise AssertionError(f"the network changed during each of ten attempts to load {page.url}")


def is_wrong(said: Any) -> bool:
    """Return whether a message of the console is an error of the page."""
    return bool(said.type == "error" and NETWORK_CHANGED not in said.text)


class Ui:
    """The server and a tab; what goes wrong in the tab is in `wrong`."""

    def __init__(self, cluster: Cluster, browser: Any, *options: str) -> None:
        command = [sys.executable, "-m", "orchestrator.cli.main", "ui", "--port", "0", *options]
        self._process = subprocess.Popen(
            command, env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        visit(self.page, self.address)

    def _hear(self, said: Any) -> None:
        # A coordinator or host that is busy for a moment is told to the page, which asks again; Chromium tells it too.
        if is_wrong(said) and not re.search(r"status of 50[23]", said.text):
            self.wrong.append(said.text)

    def go(self, *parts: str) -> None:
        origin = self.address.split("/login")[0]
        visit(self.page, f"{origin}/#/{'/'.join(parts)}")
        if parts and parts[0] == "r" and len(parts) == 2:
            self.page.wait_for_selector("[data-loaded]")

    def close(self) -> int:
        self.context.close()
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=10)


_SERVER = """
Object.assign(globalThis, {answers: {}, asked: [], streams: []});
globalThis.fetch = async (url, options = {}) => {
  const [path, query = ""] = String(url).split("?");
  const [run, what] = path.split("/").slice(-2);
  asked.push({what, run, query: Object.fromEntries(new URLSearchParams(query)), body: options.body ?? null});
  if (what === "stream" && answers.stream === undefined) {
    const body = new ReadableStream({start: (controller) => { streams.push(controller); }});
    return new Response(body, {status: 200});
  }
  const answer = answers[`${run}/${what}`] ?? answers[what] ?? {status: 404};
  return new Response(JSON.stringify(answer.body ?? answer), {status: answer.status ?? 200});
};
globalThis.send = (text) => streams.at(-1).enqueue(new TextEncoder().encode(text));
"""


@contextmanager
def bare_page(browser: Any) -> Iterator[Any]:
    """Open the page without `orch ui`: all that stands at the top level of its script can be called.

    A server within the tab answers with `answers[WHAT]` or `answers["RUN/WHAT"]`, remembers in `asked` what was
    asked, and streams what `send` is given.
    """
    page = browser.new_page(timezone_id="UTC", locale="en-US", viewport={"width": 1280, "height": 900})
    page.add_init_script(_SERVER)
    files = {
        "/index.html": ("text/html", read("index.html")),
        "/static/page.css": ("text/css", joined(".css")),
        "/static/page.js": ("text/javascript", joined(".js")),
    }

    def serve(route: Any) -> None:
        kind, text = files.get(urlsplit(route.request.url).path, ("text/plain", ""))
        route.fulfill(body=text, content_type=kind)

    page.route("**/*", serve)
    page.goto("http://page.test/index.html")
    page.wait_for_function("streams.length === 1")
    yield page
    page.close()

"""The page in Chromium: `orch ui` of a cluster, and a browser that has opened its address."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

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

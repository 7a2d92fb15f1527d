"""The page in Chromium: `orch ui` of a cluster, and a browser that has opened its address."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

from tests.cluster.cluster import Cluster


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
        self.page.goto(self.address)

    def _hear(self, said: Any) -> None:
        # A coordinator or host that is busy for a moment is told to the page, which asks again; Chromium tells it too.
        if said.type == "error" and not re.search(r"status of 50[23]", said.text):
            self.wrong.append(said.text)

    def go(self, *parts: str) -> None:
        origin = self.address.split("/login")[0]
        self.page.goto(f"{origin}/#/{'/'.join(parts)}")
        if parts and parts[0] == "r" and len(parts) == 2:
            self.page.wait_for_selector("[data-loaded]")

    def close(self) -> int:
        self.context.close()
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout=10)

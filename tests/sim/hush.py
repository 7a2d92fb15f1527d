"""Secrets are planted in each run, and searched in all that leaves a trace: frames, journals, logs, documents (I8)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from orchestrator.head.coordinator import status
from orchestrator.head.journal.states import unpacked
from orchestrator.protocol.channel import Decoder
from tests.sim.heap import Violation

if TYPE_CHECKING:
    from tests.sim.head import Head

NAME = "API_TOKEN"
MARK = "hush-hush"


def secrets_of(run_id: str) -> dict[str, str]:
    """Return the secrets of a run."""
    return {NAME: f"{MARK}-{run_id}"}


def check_frame(data: bytes) -> None:
    """Check a frame. Only an order to start a task may carry a secret, in its place for them."""
    if MARK.encode() not in data and b'"keep"' not in data:
        return
    ((message, _),) = Decoder().feed(data)
    if message.get("order") == "keep":
        message["record"]["state"] = unpacked(message["record"]["state"])
    if message.get("order") == "start" and message["secrets"] == secrets_of(message["run"]):
        message = {**message, "secrets": {}}
    if MARK in json.dumps(message):
        raise Violation("secret", f"a frame has a secret: {message}")


def check_documents(head: Head) -> None:
    """Check what `status` and `why` show of all runs."""
    runs = list(head.loop.runs.values())
    now = head.clock()
    shown = [status.document(runs, now=now)]
    shown += [status.why_document(run, head.journal.first_causes(run.run_id), now=now) for run in runs]
    shown += [{"events": head.journal.events(name=None, after=0)}]
    if MARK in json.dumps(shown):
        raise Violation("secret", "a document has a secret")


def check_files(directory: str) -> None:
    """Check all files of head and hosts, but for those that keep secrets."""
    for folder, _, names in os.walk(directory):
        for name in names if os.path.basename(folder) != "secrets" else ():
            with open(os.path.join(folder, name), "rb") as file:
                if MARK.encode() in file.read():
                    raise Violation("secret", f"{os.path.join(folder, name)} has a secret")

"""`orch notify test`: send a test message to the recipients of a cluster spec, or to your own."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any

import click

from orchestrator.cli.help import Group, json_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import UsageError

_EXAMPLES = [
    ("orch notify test cluster.yaml", "Send a message to everybody in its `notify:`"),
    ("orch notify test", "Send one to the recipients of your own notify.yaml"),
]


@click.group(cls=Group, examples=_EXAMPLES)
def command() -> None:
    """Tell people when a run fails, stalls or succeeds: `notify:` in the cluster spec, or a file of your own."""


def recipients(file: str | None, session: Session) -> tuple[str, list[str]]:
    """Return the file of the recipients, and their URLs. Raises SpecError, and UsageError if there are none."""
    from orchestrator.spec.own_notify import load_own
    from orchestrator.spec.plan import load_recipients

    if file is not None:
        urls = load_recipients(file)
        if not urls:
            raise UsageError(f"{file} has no `notify:`", hint="docs/notify.md shows how to write one")
        return file, urls
    own = session.paths.notify
    urls = list(load_own(own).to)
    if not urls:
        raise UsageError(
            f"there is no {own}", hint="write it, or name a cluster spec: `orch notify test cluster.yaml`"
        )
    return own, urls


def run(where: str, urls: list[str], now: str) -> dict[str, Any]:
    """Send the message to each recipient in turn. The document names them by their services."""
    from orchestrator.head.effects.delivery import deliver
    from orchestrator.spec.recipients import services

    head = socket.gethostname()
    sent = []
    for name, url in zip(services(urls), urls, strict=True):
        began = time.monotonic()
        problem = deliver(
            url,
            title=f"orch: a test from {head}",
            body=f"This is how orch on {head} reports on its runs. Nothing has happened.\n\n{now}",
            level="info",
        )
        took_s = round(time.monotonic() - began, 3)
        sent.append({"recipient": name, "delivered": problem is None, "problem": problem, "took_s": took_s})
    return {"schema": 1, "from": where, "recipients": sent}


@command.subcommand("test", examples=[*_EXAMPLES, ("orch notify test cluster.yaml --json", "For scripts")])
@click.argument("file", type=click.Path(), metavar="[FILE]", required=False)
@json_option()
def test_command(session: Session, file: str | None) -> int:
    """Send a test message to each recipient.

    Without FILE those of your own ~/.config/orch/notify.yaml. No coordinator is needed. Exit code 1 if nobody was
    reached, 4 if only some were.
    """
    from datetime import UTC, datetime

    where, urls = recipients(file, session)
    now = datetime.fromtimestamp(session.time(), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    document = run(where, urls, now)
    sent = document["recipients"]
    width = max(len(attempt["recipient"]) for attempt in sent)
    session.answer(document, *(f"{each['recipient']:<{width}}  {_outcome(each)}" for each in sent))
    reached = sum(attempt["delivered"] for attempt in sent)
    if reached < len(sent):
        session.hint("docs/notify.md says what each needs; the URL itself is never shown")
    return 0 if reached == len(sent) else 4 if reached else 1


def _outcome(attempt: Mapping[str, Any]) -> str:
    done = "taken" if attempt["delivered"] else f"not delivered: {attempt['problem']}"
    return f"{done} ({attempt['took_s']:.1f} s)"

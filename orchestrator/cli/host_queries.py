"""Shared by the commands that query hosts without a coordinator."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.session import Session
from orchestrator.core.errors import HostError, Refused

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan, Plan
    from orchestrator.head.links.query import Answer, Asker

TIMEOUT_S = 90.0
"""For all queries to a host. Measuring a large run's directory takes time."""


def plans_of(files: Sequence[str]) -> list[tuple[Plan, Mapping[str, str]]]:
    """Return the plans of cluster specs, each with the values of its secrets. Raises SpecError."""
    from orchestrator.spec.plan import load_plan

    return [load_plan(file) for file in files]


def asker(session: Session) -> Asker:
    """Return an Asker with the keys and transports of this session's coordinator."""
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.links.query import Asker

    return Asker(transports(session.paths), bundle.load)


def say_problems(session: Session, answers: Sequence[Answer[Any]]) -> list[str]:
    """Print why hosts could not be queried, and return their names."""
    failed = []
    for answer in answers:
        if answer.unheard is not None:
            session.warn(str(answer.unheard))
            session.hint(answer.unheard.hint)
            failed.append(answer.host.name)
    return failed


def carried_out(session: Session, host: HostPlan, command: str, stdin: str, *, within_s: float) -> str:
    """Run a fixed command on a host. Return why it failed; empty if it did not. A user's text is on stdin alone."""
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.reach.alarm import ALARMS

    try:
        channel = transports(session.paths)[host.transport].open(host, command)
        try:
            with ALARMS.after(within_s, channel.close):  # its disk may hang
                channel.write(stdin.encode())
                while channel.read(1 << 16):
                    pass
                text, code = channel.stderr_tail().strip(), channel.exit_status()
        finally:
            channel.close()
    except (HostError, OSError) as e:
        return str(e)
    return "" if code == 0 else text or f"it has failed, or not ended within {within_s:g} s"


def is_interactive(session: Session) -> bool:
    """Return whether a person can answer a question."""
    return sys.stdin.isatty() and session.err.isatty()


def confirm(session: Session, question: str, *, word: str = "") -> bool:
    """Ask on the terminal. Any answer except yes, or except the given word, is a no."""
    session.prompt(f"{question} [{f'type {word}' if word else 'y/N'}] ")
    answer = sys.stdin.readline().strip()
    return answer == word if word else answer.lower() in ("y", "yes")


def must_confirm(session: Session, question: str, *, otherwise: str) -> None:
    """Ask for a confirmation that --yes replaces. Raises Refused if it is not given."""
    if not is_interactive(session):
        raise Refused(f"no terminal to confirm on; {otherwise}", hint="add --yes")
    if not confirm(session, question):
        raise Refused(f"not confirmed; {otherwise}")

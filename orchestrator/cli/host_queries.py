"""What commands share that ask hosts themselves, without a coordinator: where to ask, and whether to go on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.session import Session

if TYPE_CHECKING:
    from orchestrator.adapters.transport import Transport
    from orchestrator.core.plan import Plan
    from orchestrator.daemon.connection.query import Answer, Asker

TIMEOUT_S = 90.0
"""For one host, its questions and all. The size of a large run's directory takes its time."""


def plans_of(files: Sequence[str]) -> list[tuple[Plan, Mapping[str, str]]]:
    """The plans of cluster specs, each with the values of its secrets. SpecError."""
    from orchestrator.spec.plan import load_plan

    return [load_plan(file) for file in files]


def asker(session: Session) -> Asker:
    """With the keys and transports that a coordinator of this session would have."""
    from pathlib import Path

    from orchestrator.adapters import bundle
    from orchestrator.adapters.local import LocalTransport
    from orchestrator.adapters.ssh.transport import SshTransport
    from orchestrator.daemon.connection.query import Asker

    transports: dict[str, Transport] = {
        "ssh": SshTransport(Path(session.paths.known_hosts)),
        "local": LocalTransport(),
    }
    return Asker(transports, bundle.load)


def say_problems(session: Session, answers: Sequence[Answer]) -> list[str]:
    """Name the hosts that could not be asked, and why; their names."""
    failed = []
    for answer in answers:
        if answer.problem is not None:
            hint = f"; {answer.problem.hint}" if answer.problem.hint else ""
            session.say(f"{answer.problem}{hint}")
            failed.append(answer.host.name)
    return failed


def is_somebody_there(session: Session) -> bool:
    """Whether a question could be answered."""
    return sys.stdin.isatty() and session.err.isatty()


def confirm(session: Session, question: str) -> bool:
    """Ask on the terminal; what is no yes is a no."""
    session.err.write(f"{question} [y/N] ")
    session.err.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")

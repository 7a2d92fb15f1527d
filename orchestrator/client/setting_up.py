"""Makes the virtual environment of a cluster spec on its hosts, for `orch setup` and before each start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.client.environment import Environment
from orchestrator.client.known_run import known_runs
from orchestrator.core.errors import JournalError, OrchestratorError, SomeHostsOnly
from orchestrator.core.plan import ENVIRONMENTS
from orchestrator.core.words import counted, duration, listed
from orchestrator.head.code import bundle
from orchestrator.head.coordinator.main import transports
from orchestrator.head.hosts.environments import Maker, SetUp
from orchestrator.head.hosts.wheels import Wheels
from orchestrator.reporting.findings import id_of
from orchestrator.spec.plan import load_environment


def set_up(file: str, environment: Environment) -> list[SetUp] | None:
    """Make the environment on hosts that lack it; None if the spec has none. Raises SpecError."""
    asked, hosts = load_environment(file)
    if asked is None:
        return None
    environment.paths.ensure()
    environment.say(f"{file}: setting up {listed([host.name for host in hosts])} …")
    wheels = Wheels(asked, environment.paths.wheels, environment.say)
    ways = transports(environment.paths)
    return Maker(asked, ways, bundle.load, wheels, environment.say, set(_used(environment))).make(hosts)


def _used(environment: Environment) -> Iterator[str]:
    """Yield the environments of all runs that have not ended, including queued ones."""
    try:
        runs = known_runs(environment)
    except JournalError:
        return
    for run in runs:
        if not run.phase.is_terminal:
            for host in run.plan.hosts:
                if host.is_set_up:
                    yield host.python.removeprefix(f"{ENVIRONMENTS}/").partition("/")[0]


def sentence(result: SetUp) -> str:
    """Return a sentence about the result on a host."""
    if result.problem is not None:
        return result.problem.message
    does = "is there" if result.state == "there" else f"was made in {duration(result.seconds)}"
    return f"{result.host}: {result.python} (Python {result.version}, by {result.by}) {does}"


def refuse(done: Sequence[SetUp], file: str) -> None:
    """If hosts have no environment, raise an error with their reasons; exit code 4 if other hosts have one."""
    failed = [(result.host, result.problem) for result in done if result.problem is not None]
    if not failed:
        return
    problems = [problem for _, problem in failed]
    text = "\n".join(problem.message for problem in problems)
    hint = "; ".join(dict.fromkeys(problem.hint for problem in problems if problem.hint))
    if len(failed) < len(done):
        count = len(done) - len(failed)
        others = f"{counted(count, 'host')} {'is' if count == 1 else 'are'} set up"
        rest = f"{others}: `orch setup {file}` again does the rest"
        raise SomeHostsOnly(text, hint="; ".join(filter(None, (hint, rest))))
    error = OrchestratorError(text, hint=hint or None)
    error.exit_code = problems[0].exit_code or 1
    raise error


def document(result: SetUp) -> dict[str, Any]:
    """Return the result on a host as a JSON document."""
    problem = result.problem
    return {
        "host": result.host,
        "state": result.state,
        "python": result.python,
        "version": result.version or None,
        "by": result.by or None,
        "seconds": round(result.seconds, 2),
        "id": id_of(problem.code) if problem is not None else None,
        "problem": problem.message if problem is not None else None,
        "hint": problem.hint if problem is not None else None,
    }

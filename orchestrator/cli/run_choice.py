"""Which run is meant: a name, an id, or the only one there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.render import is_active
from orchestrator.core.errors import OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.adapters.head.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])


def runs_of(client: Client) -> list[dict[str, Any]]:
    """All runs that the coordinator knows."""
    runs = client.get("/v1/status").get("runs")
    return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []


def find(runs: Iterable[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The run of that id, else the newest of that name; UsageError with what was perhaps meant."""
    candidates = [dict(run) for run in runs if name in (run.get("run_id"), run.get("name"))]
    if not candidates:
        raise no_such_run(name, [str(run.get("name")) for run in runs])
    # An active run is always newer than an ended one of its name.
    active = [run for run in candidates if is_active(run)]
    return (active or candidates)[-1]


def only_active(runs: Iterable[Mapping[str, Any]], verb: str) -> dict[str, Any]:
    """The one run that is active; UsageError where it must be named."""
    active = [dict(run) for run in runs if is_active(run)]
    if not active:
        raise OrchestratorError(f"no run is active; there is nothing to {verb}")
    if len(active) > 1:
        names = ", ".join(str(run.get("name")) for run in active)
        raise UsageError(f"{len(active)} runs are active: {names}", hint=f"name the one to {verb}")
    return active[0]


def with_host(runs: Iterable[Mapping[str, Any]], host: str, verb: str) -> dict[str, Any]:
    """The one active run that has the host; UsageError where there is none, or more."""
    active = [dict(run) for run in runs if is_active(run)]
    having = [run for run in active if host in hosts_of(run)]
    if active and not having:
        known = ", ".join(sorted({name for run in active for name in hosts_of(run)}))
        raise UsageError(f"no active run has a host {host!r}", hint=f"their hosts: {known}")
    if len(having) > 1:
        names = [str(run.get("name")) for run in having]
        raise UsageError(
            f"{len(having)} active runs have the host {host}: {', '.join(names)}",
            hint=f"say of which: `orch {verb} {host} --name {names[0]}`",
        )
    return only_active(having, verb)


def hosts_of(run: Mapping[str, Any]) -> list[str]:
    """The names of its hosts, spares too."""
    return [str(host.get("host")) for host in run.get("hosts") or []]


def complete_host(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 (click's signature)
    incomplete: str,
) -> list[str]:
    """Hosts of active runs for the shell's completion; none where no coordinator answers at once."""
    runs = [run for run in _runs_now(ctx) or [] if is_active(run)]
    return sorted({name for run in runs for name in hosts_of(run) if name.startswith(incomplete)})


def complete_task(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 (click's signature)
    incomplete: str,
) -> list[str]:
    """Tasks of active runs, in the same way."""
    tasks = [str(task["task"]) for run in _runs_now(ctx) or [] if is_active(run) for task in run["tasks"]]
    return [name for name in dict.fromkeys(tasks) if name.startswith(incomplete)]


def _runs_now(ctx: click.Context) -> list[Mapping[str, Any]] | None:
    """What a person who has pressed Tab can wait for; None where no coordinator answers at once."""
    from orchestrator.cli.session import Session

    session = ctx.find_object(Session) or Session.of_process()
    try:
        found = session.client().get("/v1/status", timeout_s=0.5).get("runs")
    except OrchestratorError:
        return None
    return found if isinstance(found, list) else []


def no_such_run(name: str, known: Iterable[str]) -> UsageError:
    """No run of that name; did you mean …?"""
    from difflib import get_close_matches

    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    if close:
        return UsageError(f"no run is named {name!r}", hint=f"did you mean {close[0]!r}?")
    hint = f"there are: {', '.join(names)}" if names else "there are no runs yet; `orch up FILE` starts one"
    return UsageError(f"no run is named {name!r}", hint=hint)


def complete_run(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 (click's signature)
    incomplete: str,
) -> list[str]:
    """Names for the shell's completion: from the coordinator if it answers at once, else from the disk."""
    from orchestrator.adapters.head.runlogs import RunLogs, run_name
    from orchestrator.cli.session import Session

    runs = _runs_now(ctx)
    if runs is None:
        session = ctx.find_object(Session) or Session.of_process()
        names = [run_name(run_id) for run_id in RunLogs(session.paths.state_dir).runs()]
    else:
        names = [str(run.get("name")) for run in runs]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def run_argument(*, nargs: int = 1) -> Callable[[_Command], _Command]:
    """The NAME argument of a command."""
    return click.argument(
        "name" if nargs == 1 else "names", required=False, nargs=nargs, shell_complete=complete_run
    )


def status_of(client: Client, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the coordinator now says of that very run."""
    found = client.get("/v1/status", {"name": str(run["run_id"])}).get("runs")
    return find(found if isinstance(found, list) else [], str(run["run_id"]))

"""Choose the run of a command: by name, by id, or the only one there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.render import is_active
from orchestrator.core.errors import OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.adapters.head.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Complete = Callable[[click.Context, click.Parameter, str], list[str]]

START_ONE = "`orch up FILE` starts one"
"""The hint where there is no run yet."""


def runs_of(client: Client) -> list[dict[str, Any]]:
    """Return all runs that the coordinator knows, oldest first."""
    runs = client.get("/v1/status").get("runs")
    return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []


def find(runs: Iterable[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the run of this id, or the newest run of this name. UsageError with a suggestion where there is none."""
    candidates = [dict(run) for run in runs if name in (run.get("run_id"), run.get("name"))]
    if not candidates:
        raise no_such_run(name, [str(run.get("name")) for run in runs])
    # An active run is always newer than an ended one of its name.
    active = [run for run in candidates if is_active(run)]
    return (active or candidates)[-1]


def find_or_newest(runs: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """Return the run of this name; without a name the newest active run, or the newest one."""
    if name is not None:
        return find(runs, name)
    if not runs:
        raise OrchestratorError("there are no runs yet", hint=START_ONE)
    return dict(([run for run in runs if is_active(run)] or list(runs))[-1])


def only_active(runs: Iterable[Mapping[str, Any]], command: str) -> dict[str, Any]:
    """Return the one active run. UsageError where several are active and `command` must name one."""
    active = [dict(run) for run in runs if is_active(run)]
    if not active:
        raise OrchestratorError("no run is active", hint="`orch status` shows the runs that have ended")
    if len(active) > 1:
        names = [str(run.get("name")) for run in active]
        raise UsageError(
            f"{len(active)} runs are active: {', '.join(names)}",
            hint=f"name one: `orch {command} {names[0]}`",
        )
    return active[0]


def with_host(runs: Iterable[Mapping[str, Any]], host: str, command: str) -> dict[str, Any]:
    """Return the one active run that has this host. UsageError where there is none, or more than one."""
    active = [dict(run) for run in runs if is_active(run)]
    having = [run for run in active if host in hosts_of(run)]
    if active and not having:
        known = ", ".join(sorted({name for run in active for name in hosts_of(run)}))
        raise UsageError(f"no active run has a host {host!r}", hint=f"hosts of the active runs: {known}")
    if len(having) > 1:
        names = [str(run.get("name")) for run in having]
        raise UsageError(
            f"{len(having)} active runs have the host {host}: {', '.join(names)}",
            hint=f"name one: `orch {command} {names[0]} {host}`",
        )
    return only_active(having, command)


def hosts_of(run: Mapping[str, Any]) -> list[str]:
    """Return the names of the run's hosts, spares included."""
    return [str(host.get("host")) for host in run.get("hosts") or []]


def no_such_run(name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the closest known one."""
    from difflib import get_close_matches

    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"known runs: {', '.join(names)}" if names else START_ONE
    )
    return UsageError(f"no run is named {name!r}", hint=hint)


def status_of(client: Client, run: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the coordinator for the current status of this very run."""
    found = client.get("/v1/status", {"name": str(run["run_id"])}).get("runs")
    return find(found if isinstance(found, list) else [], str(run["run_id"]))


# The arguments NAME, TASK and HOST, and their completion in the shell.


def run_argument(*, nargs: int = 1) -> Callable[[_Command], _Command]:
    """Declare the optional argument NAME."""
    return click.argument(
        "name" if nargs == 1 else "names", required=False, nargs=nargs, shell_complete=complete_run
    )


def run_and(last: str, complete: _Complete | None = None) -> Callable[[_Command], _Command]:
    """Declare `[NAME] LAST`: one word is LAST, two are the run's name and LAST."""

    def first_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        found = complete(ctx, param, incomplete) if complete is not None else []
        # Where a word is there already, click has taken it for LAST: now comes LAST itself.
        return found if ctx.params.get(last) is not None else [*complete_run(ctx, param, incomplete), *found]

    def declare(command: _Command) -> _Command:
        command = click.argument(last, shell_complete=complete)(command)
        return click.argument(
            "name", nargs=-1, metavar="[NAME]", callback=_at_most_one, shell_complete=first_words
        )(command)

    return declare


def _at_most_one(ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        raise click.UsageError(f"unexpected argument {words[1]!r}", ctx)
    return words[0] if words else None


def name_and_task(name: str | None, task: str | None) -> tuple[str | None, str | None]:
    """Tell NAME and TASK apart where one word is given: a task has a colon (worker:0), a run's name has none."""
    from orchestrator.core.plan import TaskId

    if name is not None and task is None and ":" in name:
        name, task = None, name
    if task is not None:
        try:
            TaskId.parse(task)
        except ValueError as e:
            raise UsageError(str(e)) from e
    return name, task


def complete_run(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 (click's signature)
    incomplete: str,
) -> list[str]:
    """Complete the names of runs: from the coordinator if it answers at once, else from the disk."""
    from orchestrator.adapters.head.runlogs import RunLogs, run_name
    from orchestrator.cli.session import Session

    runs = _runs_now(ctx)
    if runs is None:
        session = ctx.find_object(Session) or Session.of_process()
        names = [run_name(run_id) for run_id in RunLogs(session.paths.state_dir).runs()]
    else:
        names = [str(run.get("name")) for run in runs]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_host(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 (click's signature)
    incomplete: str,
) -> list[str]:
    """Complete the hosts of active runs. None where no coordinator answers at once."""
    runs = [run for run in _runs_now(ctx) or [] if is_active(run)]
    return sorted({name for run in runs for name in hosts_of(run) if name.startswith(incomplete)})


def complete_task(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001 (click's signature)
    incomplete: str,
) -> list[str]:
    """Complete the tasks of active runs. None where no coordinator answers at once."""
    tasks = [str(task["task"]) for run in _runs_now(ctx) or [] if is_active(run) for task in run["tasks"]]
    return [name for name in dict.fromkeys(tasks) if name.startswith(incomplete)]


def _runs_now(ctx: click.Context) -> list[Mapping[str, Any]] | None:
    """Return the runs if the coordinator answers within the patience of a person who pressed Tab, else None."""
    from orchestrator.cli.session import Session

    session = ctx.find_object(Session) or Session.of_process()
    try:
        found = session.client().get("/v1/status", timeout_s=0.5).get("runs")
    except OrchestratorError:
        return None
    return found if isinstance(found, list) else []

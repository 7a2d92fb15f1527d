"""The arguments of commands that name a run, a task or a host, and their completion in the shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.client.choice import find_or_newest, hosts_of, is_active
from orchestrator.core.errors import OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.head.records.runlogs import RunLogs

_Command = TypeVar("_Command", bound=Callable[..., Any])
_HOST_PATIENCE_S = 3.0
"""How long completion waits for hosts: a person has pressed Tab."""

_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def run_argument(*, nargs: int = 1) -> Callable[[_Command], _Command]:
    """Declare the optional argument NAME."""
    return click.argument(
        "name" if nargs == 1 else "names", required=False, nargs=nargs, shell_complete=complete_run
    )


def run_and(last: str, complete: _Complete | None = None) -> Callable[[_Command], _Command]:
    """Declare `[NAME] LAST`: one word is LAST, two are the run's name and LAST."""

    def first_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        candidates = complete(ctx, param, incomplete) if complete is not None else []
        # If there is a word already, click has taken it for LAST, and the word after it is LAST.
        return (
            candidates
            if ctx.params.get(last) is not None
            else [*complete_run(ctx, param, incomplete), *candidates]
        )

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
    """Tell NAME and TASK apart if there is only one word: a task has a colon (worker:0), a run's name has none."""
    from orchestrator.core.plan import TaskId

    if name is not None and task is None and ":" in name:
        name, task = None, name
    if task is not None:
        try:
            TaskId.parse(task)
        except ValueError as e:
            raise UsageError(str(e)) from e
    return name, task


def complete_run(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of runs: from the coordinator if it answers at once, else from the disk."""
    from orchestrator.head.records.runlogs import RunLogs, run_name

    runs = _runs_now(ctx)
    if runs is None:
        names = [run_name(run_id) for run_id in RunLogs(_session(ctx).paths.state_dir).runs()]
    else:
        names = [str(run.get("name")) for run in runs]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_host(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the hosts of active runs. None if no coordinator answers at once."""
    runs = [run for run in _runs_now(ctx) or [] if is_active(run)]
    return sorted({name for run in runs for name in hosts_of(run) if name.startswith(incomplete)})


def complete_task(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the tasks of active runs. None if no coordinator answers at once."""
    tasks = [str(task["task"]) for run in _runs_now(ctx) or [] if is_active(run) for task in run["tasks"]]
    return [name for name in dict.fromkeys(tasks) if name.startswith(incomplete)]


def complete_place(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the hosts and the tasks of active runs."""
    return [*complete_host(ctx, param, incomplete), *complete_task(ctx, param, incomplete)]


def complete_logged_task(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the tasks that have a log, of the named or the newest run; or else the tasks of active runs."""
    logs, run_id = _logged(ctx)
    tasks = logs.tasks(run_id) if run_id else []
    return [name for name in tasks if name.startswith(incomplete)] or complete_task(ctx, param, incomplete)


def complete_logged_host(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the hosts that have a log, of the named or the newest run; or else the hosts of active runs."""
    logs, run_id = _logged(ctx)
    hosts = logs.hosts(run_id) if run_id else []
    return [name for name in hosts if name.startswith(incomplete)] or complete_host(ctx, param, incomplete)


def _logged(ctx: click.Context) -> tuple[RunLogs, str | None]:
    """Return the logs on this machine, and their run."""
    from orchestrator.head.records.runlogs import RunLogs

    logs = RunLogs(_session(ctx).paths.state_dir)
    return logs, logs.newest(ctx.params.get("name"))


def complete_checkpoint(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the generations, steps and names of a run's checkpoints. Its host is asked."""
    # If there is a word already, click may have taken the run's name for the checkpoint.
    name = ctx.params.get("name") or ctx.params.get("checkpoint")
    try:
        run = find_or_newest(_runs_now(ctx) or [], name)
        path = f"/v1/runs/{run['run_id']}/checkpoints"
        checkpoints = _session(ctx).client().get(path, timeout_s=_HOST_PATIENCE_S).get("checkpoints") or []
    except OrchestratorError:
        return []
    words = [word for checkpoint in checkpoints for word in _words_for(checkpoint)]
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def _words_for(checkpoint: Mapping[str, Any]) -> list[str]:
    generation, step = checkpoint.get("generation"), checkpoint.get("global_step")
    named = [f"gen-{generation}"] if generation is not None else []
    return [*named, *([str(step)] if step is not None else []), str(checkpoint.get("name"))]


def _runs_now(ctx: click.Context) -> list[Mapping[str, Any]] | None:
    """Return the runs if the coordinator answers within the patience of a person who pressed Tab, else None."""
    try:
        runs = _session(ctx).client().get("/v1/status", timeout_s=0.5).get("runs")
    except OrchestratorError:
        return None
    return runs if isinstance(runs, list) else []


def _session(ctx: click.Context) -> Session:
    from orchestrator.cli.session import Session

    return ctx.find_object(Session) or Session.from_process()

"""`orch runs`: show the runs as experiments: when, how far, with which metrics, and what differed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import Command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import fitting
from orchestrator.cli.show.times import shown
from orchestrator.client.choice import no_such_run
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.core.state.run import Run

_WHERE = re.compile(r"\s*(\S+?)\s*(<=|>=|<|>|=)\s*(\S+)\s*")
_FOR_SCALE = "measured/"


def documents(session: Session, name: str | None) -> list[dict[str, Any]]:
    """Return an object for each run of this name, or with this id, newest first. Without a name: of all runs."""
    from orchestrator.client.client import Client
    from orchestrator.client.known_run import known_runs

    client = Client(environment=session)
    try:
        runs = client.status()["runs"]
    except CoordinatorUnreachable as e:
        recorded = client.recorded()
        if recorded is None:
            raise
        session.warn(f"{e}; this is the last recorded state")
        runs = recorded["runs"]
    chosen = [run for run in runs if name in (None, run["name"], run["run_id"])]
    if name is not None and not chosen:
        raise no_such_run(name, [str(run["name"]) for run in runs])
    try:
        known = known_runs(session)
    except OrchestratorError:  # of another version: what differed is not known
        known = []
    return [_document(run, _differed(session, known, str(run["run_id"]))) for run in reversed(chosen)]


def _document(run: Mapping[str, Any], differed: str | None) -> dict[str, Any]:
    metrics = {
        name: value
        for name, value in (run.get("metrics") or {}).items()
        if isinstance(value, (int, float)) and not name.startswith(_FOR_SCALE)
    }
    kept = (
        "name",
        "run_id",
        "phase",
        "started_at",
        "ended_at",
        "elapsed_s",
        "global_step",
        "steps_total",
        "restarts",
    )
    return {**{key: run.get(key) for key in kept}, "metrics": metrics, "differed": differed}


def _differed(session: Session, known: Sequence[Run], run_id: str) -> str | None:
    """Return what differs from the run of this name before it; empty if nothing, None if that is not known."""
    from orchestrator.client.comparing import with_run

    at = next((number for number, run in enumerate(known) if run.run_id == run_id), None)
    if at is None:
        return None
    older = [run for run in known[:at] if run.plan.name == known[at].plan.name]
    return with_run(session.paths, older[-1], known[at]).sentence if older else None


def condition(text: str) -> tuple[str, str, float]:
    """Return metric, comparison and number of a text such as `val_accuracy>0.9`. Raises UsageError."""
    match = _WHERE.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        return match[1], match[2], float(match[3])
    except ValueError:
        raise UsageError(
            f"--where {text!r} is no comparison", hint="for example --where 'val_accuracy>0.9'"
        ) from None


def _holds(run: Mapping[str, Any], wanted: tuple[str, str, float]) -> bool:
    name, comparison, number = wanted
    value = value_of(run, name)
    if value is None:
        return False
    return {
        "<": value < number,
        ">": value > number,
        "<=": value <= number,
        ">=": value >= number,
        "=": value == number,
    }[comparison]


def value_of(run: Mapping[str, Any], name: str) -> float | None:
    """Return a metric of a run, or its step; None if it has none."""
    value = run["global_step"] if name == "step" else run["metrics"].get(name)
    return None if value is None else float(value)


def is_better_small(name: str) -> bool:
    """Return whether less of a metric is better: of a loss and of an error."""
    return any(word in name.lower() for word in ("loss", "error", "mae", "mse", "rmse", "perplexity"))


def best_first(runs: Sequence[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Return the runs that have the metric, the best one first, then those without it. Raises UsageError."""
    having = [run for run in runs if value_of(run, metric) is not None]
    if not having:
        names = sorted({name for run in runs for name in run["metrics"]})
        raise UsageError(
            f"no run has a metric {metric!r}",
            hint=f"there are {', '.join(names)}" if names else "none of these runs has reported a metric",
        )
    having.sort(key=lambda run: value_of(run, metric) or 0.0, reverse=not is_better_small(metric))
    return having + [run for run in runs if value_of(run, metric) is None]


def _row(run: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, str]:
    total = f" of {run['steps_total']}" if run["steps_total"] and run["phase"] != "SUCCEEDED" else ""
    return {
        "RUN": str(run["run_id"]),
        "BEGAN": shown(run["started_at"]) if run["started_at"] is not None else "-",
        "PHASE": str(run["phase"]),
        "STEP": f"{run['global_step']}{total}" if run["global_step"] is not None else "-",
        **{name: f"{run['metrics'][name]:.4g}" for name in metrics if name in run["metrics"]},
        "DIFFERED": {None: "-", "": "nothing"}.get(run["differed"], str(run["differed"])),
    }


@click.command(
    cls=Command,
    about_runs=True,
    examples=[
        ("orch runs mnist", "All runs of a name, newest first, with what differed from the one before"),
        ("orch runs mnist --sort val_accuracy", "The best one first"),
        ("orch runs --where 'val_loss<0.1' --json", "Runs whose last loss is below 0.1, for scripts"),
    ],
)
@run_argument()
@click.option("--sort", metavar="METRIC", help="The best one first: a loss or an error from below.")
@click.option(
    "--where", "wheres", multiple=True, metavar="METRIC>NUMBER", help="Only these; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="Print a document, for scripts.")
@click.pass_obj
def command(
    session: Session, name: str | None, sort: str | None, wheres: tuple[str, ...], as_json: bool
) -> int:
    """Show the runs of NAME, or all, newest first: when, phase, steps, last metrics, and what differed.

    What differed is told against the run of the same name before it. `step` may be sorted and compared too.
    """
    wanted = [condition(text) for text in wheres]
    runs = documents(session, name)
    if sort is not None:
        runs = best_first(runs, sort)
    runs = [run for run in runs if all(_holds(run, each) for each in wanted)]
    if as_json:
        session.put_json({"schema": 1, "runs": runs})
        return 0
    if not runs:
        session.say("There are no such runs")
        return 0
    metrics = list(dict.fromkeys(metric for run in runs for metric in run["metrics"]))
    if sort in metrics:  # what is sorted by is not left out
        metrics = [str(sort), *(metric for metric in metrics if metric != sort)]
    columns = ("RUN", "BEGAN", "PHASE", "STEP", *metrics, "DIFFERED")
    right = frozenset({"STEP", *metrics})
    drop = [*reversed([metric for metric in metrics if metric != sort]), "BEGAN"]
    rows = [_row(run, metrics) for run in runs]
    for line in fitting(columns, rows, session.paint, width=session.width, right=right, drop=drop):
        session.put(line)
    return 0

"""`orch scale`: train a spec's script with several numbers of replicas, and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.cli.trials import to_its_end, trial_of
from orchestrator.core.errors import OrchestratorError, SpecError, UsageError
from orchestrator.core.plan import Measure, Plan
from orchestrator.core.words import counted, duration

if TYPE_CHECKING:
    from orchestrator.reporting.scaling import Measured, Row

_BAR = 24


class NotMeasured(OrchestratorError):
    """A size ended before its steps were measured."""

    exit_code = 1


def plans(file: str, sizes: Sequence[int], measure: Measure) -> tuple[list[Plan], dict[str, str]]:
    """Return the plan of each size, and the values of the secrets.

    Raises:
        SpecError: the spec is wrong, or the hosts have no place for a size. Nothing was started.
    """
    from orchestrator.spec.load import load_spec
    from orchestrator.spec.plan import load_plan, plan_spec
    from orchestrator.spec.sized import sized

    plan, secrets = load_plan(file)
    if not plan.runtime:
        raise SpecError("run.runtime is off: without the runtime no step is seen", hint="set it to on")
    spec, base = load_spec(file), Path(file).absolute().parent
    sized_plans = []
    for size in sizes:
        try:
            own = plan_spec(sized(spec, plan, size), base)
        except SpecError as e:
            raise SpecError(f"{counted(size, 'replica')}: {e}", hint=e.hint) from e
        sized_plans.append(
            replace(
                trial_of(own, plan, "scale", str(size)),
                restart=replace(own.restart, without_progress_max=0),
                options=replace(own.options, measure=measure),
            )
        )
    return sized_plans, secrets


def run(
    session: Session, file: str, sizes: Sequence[int], measure: Measure, *, timeout_s: float
) -> list[Measured]:
    """Train each size in turn, and return what was measured."""
    from orchestrator.both.trial_records import MEASURED_PREFIX
    from orchestrator.client.starting import ensure_coordinator
    from orchestrator.client.submit import held_snapshot
    from orchestrator.reporting.scaling import measured_of

    every, secrets = plans(file, sizes, measure)
    session.paths.ensure()
    results = []
    # All sizes share it, and the end of one would thin it.
    with held_snapshot(file, every[0], session.paths.state_dir) as code:
        ensure_coordinator(session)
        for size, plan in zip(sizes, every, strict=True):
            began = session.now()
            session.say(
                f"{counted(size, 'replica')} on {counted(len({t.host for t in plan.tasks}), 'host')}: "
                f"{measure.warmup} steps to warm up, {measure.steps} measured"
            )
            shown = to_its_end(session, plan, secrets, code.digest, doing="measured", timeout_s=timeout_s)
            metrics: Mapping[str, float] = shown.get("metrics") or {}
            own = [name for name in metrics if name.startswith(MEASURED_PREFIX)]
            measured = measured_of(size, {name.removeprefix(MEASURED_PREFIX): metrics[name] for name in own})
            if shown.get("phase") != "SUCCEEDED" or measured is None:
                raise NotMeasured(_why(shown, size), hint=f"`orch why {plan.name}`, `orch logs {plan.name}`")
            session.say(f"  {1000 * measured.step_s:.3g} ms a step; took {duration(session.now() - began)}")
            results.append(measured)
    return results


def _why(run: Mapping[str, Any], size: int) -> str:
    if run.get("phase") == "SUCCEEDED":
        return (
            f"{counted(size, 'replica')}: the script ended before its steps were measured: it must train by Keras's "
            "fit or report its steps by runtime.report, and take more steps than --warmup and --steps together"
        )
    return f"{counted(size, 'replica')}: {run.get('phase')}: {run.get('reason') or 'no reason is known'}"


def shown(rows: Sequence[Row], session: Session) -> str:
    """Return the table, with a bar for each speed-up."""
    head = [
        "replicas",
        "ms a step",
        "s an epoch",
        "examples/s",
        "speed-up",
        "efficiency",
        "input",
        "comm.",
        "loss",
    ]
    lines = [head] + [
        [
            str(row.replicas),
            f"{1000 * row.step_s:.3g} ({1000 * row.step_s_low:.3g} to {1000 * row.step_s_high:.3g})",
            _or_dash(row.epoch_s, "{:.3g}"),
            _or_dash(row.examples_per_s, "{:.0f}"),
            f"{row.speedup:.2f}x",
            f"{row.efficiency:.0%}",
            _or_dash(row.input_share, "{:.0%}"),
            _or_dash(row.communication_share, "{:.0%}"),
            _or_dash(row.loss, "{:.4g}"),
        ]
        for row in rows
    ]
    aligned = table(lines, session.paint, right=frozenset(head))
    most = max(row.replicas / rows[0].replicas for row in rows)
    bars = [
        f"{row.replicas:>8}  {'█' * round(_BAR * row.speedup / most):<{_BAR}}  "
        f"{row.speedup:.2f}x of {row.replicas / rows[0].replicas:g}x"
        for row in rows
    ]
    return "\n".join([*aligned, "", *bars])


def _or_dash(value: float | None, form: str) -> str:
    return form.format(value) if value is not None else "-"


@orch_command(
    examples=[
        ("orch scale cluster.yaml --replicas 1,2,4,8", "Compare four sizes, of 200 steps each"),
        ("orch scale cluster.yaml --replicas 1,2 --steps 50 --json", "Print the figures, for scripts"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--replicas", "sizes", required=True, metavar="N,N,…", help="The sizes, such as 1,2,4,8.")
@click.option("--steps", type=click.IntRange(10, 100_000), default=200, show_default=True)
@click.option(
    "--warmup", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Steps before."
)
@click.option("--timeout", "timeout_s", type=DURATION, default="1h", help="The timeout of each size.")
@json_option()
def command(session: Session, file: str, sizes: str, steps: int, warmup: int, timeout_s: float) -> None:
    """Train the script of FILE with each number of replicas in turn, and print the speed-up.

    Each size starts from scratch, saves in its own directory below `scale` in the checkpoint directory, and ends after
    its steps. The wait for input is found by repeating the steps with a batch from memory, and the communication by
    comparing two sizes. The efficiency is relative to the smallest size.
    """
    from orchestrator.reporting.scaling import table, verdict
    from orchestrator.spec.sized import sizes_of

    try:
        numbers = sizes_of(sizes)
    except ValueError as e:
        raise UsageError(str(e)) from None
    rows = table(run(session, file, numbers, Measure(steps, warmup), timeout_s=timeout_s))
    document = {"schema": 1, "sizes": [asdict(row) for row in rows], "verdict": verdict(rows)}
    session.answer(document, shown(rows, session), f"\n{verdict(rows)}")

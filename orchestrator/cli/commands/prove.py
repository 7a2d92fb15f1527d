"""`orch prove`: train a spec's script in one process and as in the spec, and compare step by step."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.commands import fetch
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.cli.trials import to_its_end, trial_of
from orchestrator.core.errors import OrchestratorError, SpecError
from orchestrator.core.plan import Plan, Prove
from orchestrator.core.words import counted, duration
from orchestrator.reporting.comparison import TOLERANCE, Incomparable, Record, Verdict, compare, rows

_SHOWN_MAX = 12


class NotProven(OrchestratorError):
    """A training ended without a record to compare."""

    exit_code = 1


def plans(file: str, steps: int, replicas: int | None) -> tuple[Plan, Plan, dict[str, str]]:
    """Return the plan for one process, the plan of the spec, and the values of the secrets.

    `replicas` replaces the number of replicas of the spec.

    Raises:
        SpecError: the spec is wrong, or its script cannot be proven. Nothing was started.
    """
    from orchestrator.spec.load import load_spec
    from orchestrator.spec.plan import load_plan, plan_spec
    from orchestrator.spec.sized import alone, sized

    plan, secrets = load_plan(file)
    if not plan.options.transparent:
        raise SpecError(
            f"{plan.script} cannot be proven: it is written for its strategy, so one process would not train the same",
            hint="`orch prove` compares an ordinary Keras script, under `transparent: true`, with itself",
        )
    spec, base = load_spec(file), Path(file).absolute().parent
    many = spec if replicas is None else sized(spec, plan, replicas)
    pair = []
    for which, each in (("alone", alone(spec)), ("together", many)):
        own = plan_spec(each, base)
        pair.append(
            replace(
                trial_of(own, plan, "prove", which),
                outputs=(),
                outputs_dir="",
                restart=replace(own.restart, without_progress_max=0, standby="off"),
                options=replace(own.options, prove=Prove(steps)),
            )
        )
    alone_plan, cluster_plan = pair
    return alone_plan, cluster_plan, secrets


def run(
    session: Session, file: str, steps: int, replicas: int | None, *, tolerance: float, timeout_s: float
) -> tuple[Record, Record, Verdict]:
    """Train both, and return their records and the verdict of their comparison."""
    from orchestrator.client.starting import ensure_coordinator
    from orchestrator.client.submit import held_snapshot

    alone_plan, cluster_plan, secrets = plans(file, steps, replicas)
    session.paths.ensure()
    # Both share it, and the end of the first would thin it.
    with held_snapshot(file, alone_plan, session.paths.state_dir) as taken:
        code = taken.digest
        ensure_coordinator(session)
        session.say(f"One process, {counted(steps, 'step')}")
        alone, last = _record(session, alone_plan, secrets, code, timeout_s)
        hosts = len({task.host for task in cluster_plan.tasks})
        session.say(
            f"{counted(len(cluster_plan.tasks), 'task')} on {counted(hosts, 'host')}, {counted(steps, 'step')}"
        )
        together, last_together = _record(session, cluster_plan, secrets, code, timeout_s)
    try:
        verdict = compare(alone, together, (last, last_together), tolerance=tolerance)
    except Incomparable as e:
        raise NotProven(str(e)) from None
    return alone, together, verdict


def _record(
    session: Session, plan: Plan, secrets: Mapping[str, str], code: str, timeout_s: float
) -> tuple[Record, Sequence[float]]:
    """Train a plan, and return the record of its chief."""
    from pydantic import TypeAdapter, ValidationError

    from orchestrator.both.trial_records import LAST_WEIGHTS, RECORD

    began = session.now()
    shown = to_its_end(session, plan, secrets, code, doing="proven", timeout_s=timeout_s)
    if shown.get("phase") != "SUCCEEDED":
        raise NotProven(
            f"{plan.name}: {shown.get('phase')}: {shown.get('reason') or 'no reason is known'}",
            hint=f"`orch why {plan.name}`, `orch logs {plan.name}`",
        )
    with tempfile.TemporaryDirectory(prefix="orch-prove-") as directory:
        wanted = fetch.Request(str(shown["run_id"]), [RECORD, LAST_WEIGHTS], str(plan.chief), directory)
        fetch.run(wanted, session)
        try:
            text = Path(directory, RECORD).read_bytes()
            last = array("f", Path(directory, LAST_WEIGHTS).read_bytes())
        except (OSError, ValueError):
            raise NotProven(
                f"{plan.name} ended without a record: {plan.script} must train by Keras's fit",
                hint=f"`orch logs {plan.name}`",
            ) from None
    try:
        record = TypeAdapter(Record).validate_json(text)
    except ValidationError as e:
        raise NotProven(f"{plan.name}: what it left is no record: {e.errors()[0]['msg']}") from None
    session.say(f"  {counted(len(record.steps), 'step')} recorded; took {duration(session.now() - began)}")
    return record, last


def shown(alone: Record, together: Record, verdict: Verdict, session: Session) -> str:
    """Return a table of the steps, and the largest differences."""
    head = ["step", "loss of 1", f"loss of {together.replicas}", "weights differ by"]
    every = list(rows(alone, together))
    near = every if len(every) <= _SHOWN_MAX else _some(every, verdict)
    lines = [head] + [
        [str(step), _figure(alone_loss), _figure(cluster_loss), "-" if share is None else f"{share:.1e}"]
        for step, alone_loss, cluster_loss, share in near
    ]
    shown_lines = table(lines, session.paint, right=frozenset(head))
    if len(near) < len(every):
        shown_lines.append(f"({counted(len(every) - len(near), 'step')} left out)")
    shown_lines.append("")
    if verdict.loss is not None:
        shown_lines.append(
            f"loss      differs by {verdict.loss.value:.2g} at most, at step {verdict.loss.step}"
        )
    if verdict.weights is not None:
        tensor = f", {verdict.weights.name}" if verdict.weights.name else ""
        shown_lines.append(
            f"weights   differ by {verdict.weights.value:.2g} at most, after step {verdict.weights.step}{tensor}"
        )
    return "\n".join(shown_lines)


def _some(every: list[Any], verdict: Verdict) -> list[Any]:
    """Return the first steps, those around the step at which they diverge, and the last ones."""
    around = verdict.parted_at or 1
    kept = {*range(1, 4), *range(around - 2, around + 3), *range(len(every) - 2, len(every) + 1)}
    return [row for row in every if row[0] in kept]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


@orch_command(
    examples=[
        ("orch prove cluster.yaml", "Compare the spec's workers with one process, over 20 steps"),
        ("orch prove cluster.yaml --replicas 4 --steps 100 --json", "Compare four replicas, for scripts"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--steps", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option(
    "--replicas", type=click.IntRange(1, 1000), help="The number of replicas. Default: that of the spec."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1),
    default=TOLERANCE,
    show_default=True,
    help="The tolerated difference of the loss, and of the weights' change.",
)
@click.option("--timeout", "timeout_s", type=DURATION, default="1h", help="The timeout of each training.")
@json_option()
def command(
    session: Session, file: str, steps: int, replicas: int | None, tolerance: float, timeout_s: float
) -> int:
    """Train the script of FILE in one process and as in the spec, from equal weights, and compare each step.

    Prints the largest differences of the loss and of the weights; or the step at which the two diverge, and why: the
    batch, other examples, BatchNormalization, Dropout, the gradient. The script must be an ordinary one, under
    `transparent: true`. Exit code 0 if both train the same, up to the order of sums; 1 if they diverge.
    """
    alone, together, verdict = run(session, file, steps, replicas, tolerance=tolerance, timeout_s=timeout_s)
    every = [
        dict(zip(("step", "loss_alone", "loss", "weights_share"), row, strict=True))
        for row in rows(alone, together)
    ]
    document = {"schema": 1, "equal": verdict.equal, **asdict(verdict), "each": every}
    session.answer(document, shown(alone, together, verdict, session), f"\n{verdict.sentence}")
    return 0 if verdict.equal else 1

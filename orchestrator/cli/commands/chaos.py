"""`orch chaos`: inject faults into a run, and print how it recovered."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from orchestrator.cli.fault_recovery import Outcome, watch_recovery
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.options import DURATION
from orchestrator.cli.run_choice import complete_host, complete_task, run_argument
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.client.choice import find, only_active, runs_of, status_of
from orchestrator.core.errors import Refused, UsageError, WaitTimedOut
from orchestrator.core.faults import KINDS
from orchestrator.core.words import duration
from orchestrator.head.api.client import Client

_POLL_EVERY_S = 0.1
_DRAWN = ("kill", "freeze", "kill-shim", "kill-agent", "cut")
"""The faults that --random draws from. Not `fill`: others use the disk too."""


def run(
    session: Session,
    name: str | None,
    faults: Sequence[tuple[str, str]],
    *,
    draw: int,
    seed: int,
    at_step: int | None,
    every_s: float,
    for_s: float,
    timeout_s: float,
) -> list[Outcome]:
    """Inject `faults` (kind and target), or `draw` random ones, each after the run has recovered from the last one."""
    if bool(faults) == bool(draw):
        raise UsageError(
            "give either faults or --random N",
            hint="`orch chaos --help` lists the faults; for example `orch chaos --kill worker:1`",
        )
    client = session.client()
    runs = runs_of(client)
    chosen = find(runs, name) if name else only_active(runs, "chaos")
    dice = random.Random(seed)
    outcomes: list[Outcome] = []
    for number in range(len(faults) or draw):
        due_at = session.now() + (every_s if number else 0)
        before = _wait(
            client, chosen, session, due_at, at_step=None if number else at_step, timeout_s=timeout_s
        )
        if faults:
            kind, target = faults[number]
        else:
            kind = dice.choice(_DRAWN)
            living = [task for task in before["tasks"] if task["phase"] == "RUNNING"]
            task = dice.choice(living or before["tasks"])
            target = str(task["task"] if KINDS[kind].of == "task" else task["host"])
        events = client.get("/v1/events", {"name": str(before["run_id"]), "after": 0}).get("events")
        after = max((event["seq"] for event in (events if isinstance(events, list) else [])), default=0)
        at = session.now()
        client.post(f"/v1/runs/{before['run_id']}/chaos", {"fault": kind, "target": target, "for_s": for_s})
        lasting = f" for {duration(for_s)}" if KINDS[kind].lasts else ""
        session.say(f"Injected: {kind} {target}{lasting}, at step {before['global_step']}")
        outcome = watch_recovery(
            client,
            before,
            kind=kind,
            target=target,
            after=after,
            at=at,
            session=session,
            for_s=for_s if KINDS[kind].lasts else 0.0,
            timeout_s=timeout_s,
        )
        outcomes.append(outcome)
        if not outcome.recovered:
            break
    return outcomes


def _wait(
    client: Client,
    chosen: Mapping[str, Any],
    session: Session,
    due_at: float,
    *,
    at_step: int | None,
    timeout_s: float,
) -> dict[str, Any]:
    """Wait until the run trains, has reached `at_step`, and the fault is due."""
    deadline = session.now() + timeout_s
    announced = due_at > session.now()  # a pause between two faults is not worth a line
    while True:
        status = status_of(client, chosen)
        if status["phase"] in ("SUCCEEDED", "FAILED", "KILLED"):
            raise Refused(f"{status['run_id']} has ended: {status['phase']}")
        step = status.get("global_step")
        late = at_step is not None and (step is None or step < at_step)
        if status["phase"] == "RUNNING" and step is not None and not late and session.now() >= due_at:
            return status
        if session.now() >= deadline:
            raise WaitTimedOut(f"{status['run_id']} is {status['phase']} at step {step}: {status['reason']}")
        if not announced:
            until = f"step {at_step}" if at_step is not None else "its first step"
            now = str(status["phase"]) if step is None else f"{status['phase']}, step {step}"
            session.say(f"Waiting for {until}; now {now}")
            announced = True
        session.pause(_POLL_EVERY_S)


def shown(outcomes: Sequence[Outcome], session: Session) -> str:
    """Return the table for people."""
    rows = [["FAULT", "AT STEP", "NOTICED AFTER", "TRAINING AFTER", "STEPS LOST", "WHAT HAPPENED"]]
    rows += [
        [
            f"{outcome.kind} {outcome.target}",
            str(outcome.step),
            _seconds(outcome.noticed_s),
            _seconds(outcome.again_s) if outcome.again_s != 0 else "not stopped",
            "-" if outcome.lost is None else str(outcome.lost),
            outcome.done,
        ]
        for outcome in outcomes
    ]
    return "\n".join(table(rows, session.paint))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


_COMPLETE = {"task": complete_task, "host": complete_host}


def _fault_options(command: Any) -> Any:
    for kind in reversed(list(KINDS.values())):
        option = click.option(
            f"--{kind.name}",
            kind.name.replace("-", "_"),
            multiple=True,
            metavar=kind.of.upper(),
            shell_complete=_COMPLETE[kind.of],
            help=f"{kind.does[0].upper()}{kind.does[1:]}.",
        )
        command = option(command)
    return command


@orch_command(
    acts=True,
    about_runs=True,
    examples=[
        ("orch chaos --kill worker:1", "Kill a task of the only active run, and measure its recovery"),
        ("orch chaos mnist --cut gpu-b --for 2m --at-step 500", "Cut a host off for two minutes at step 500"),
        ("orch chaos mnist --random 5 --seed 7", "Inject five random faults, the same ones each time"),
    ],
)
@run_argument()
@_fault_options
@click.option(
    "--random",
    "draw",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw N faults at random (never --fill).",
)
@click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Seed of --random.")
@click.option(
    "--at-step", type=click.IntRange(min=0), metavar="STEP", help="Inject the first fault at this step."
)
@click.option("--every", type=DURATION, default="10s", show_default=True, help="Pause between faults.")
@click.option(
    "--for", "lasting", type=DURATION, default="30s", show_default=True, help="Duration of faults that last."
)
@click.option(
    "--timeout", type=DURATION, default="10m", show_default=True, help="Time to recover from a fault."
)
@json_option("Print the table as a document.")
def command(session: Session, /, name: str | None, **options: Any) -> int:
    """Inject real faults into a run, one after the other, and measure its recovery from each.

    The run's spec must have `chaos: allowed`. Without NAME: the only active run. Exit code 1 if the run did not
    recover from a fault.
    """
    planned = [(kind, target) for kind in KINDS for target in options[kind.replace("-", "_")]]
    outcomes = run(
        session,
        name,
        planned,
        draw=options["draw"] or 0,
        seed=options["seed"],
        at_step=options["at_step"],
        every_s=options["every"],
        for_s=options["lasting"],
        timeout_s=options["timeout"],
    )
    document = {"schema": 1, "faults": [asdict(outcome) for outcome in outcomes]}
    session.answer(document, shown(outcomes, session))
    return 0 if all(outcome.recovered for outcome in outcomes) else 1

"""`orch up`: start a run, or attach to it if it is already running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.options import DURATION, inventory_option
from orchestrator.cli.session import Session
from orchestrator.cli.show import render
from orchestrator.cli.watching import Watch
from orchestrator.client.choice import is_active
from orchestrator.client.submit import Place, Start, Submitted, held_snapshot
from orchestrator.client.submit import submit as submit_file
from orchestrator.client.waiting import UNTOLD_MAX_S, is_untold, trains, wait_for_the_outputs
from orchestrator.core.errors import Refused, SpecError, UsageError
from orchestrator.core.plan import Plan
from orchestrator.core.words import duration
from orchestrator.head.api.client import Client
from orchestrator.reporting.log_level import LEVELS

if TYPE_CHECKING:
    from orchestrator.head.code.snapshots import Snapshot

Until = Literal["running", "end", "follow", "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest(Start):
    """The file, and the options of the command."""

    file: str
    until: Until
    timeout_s: float | None
    take_over: bool
    yes: bool
    engine: str | None
    level: str | None
    """With `follow`: only log lines of this level or above."""


def submit(request: UpRequest, session: Session, client: Client) -> Submitted:
    """Submit the plan of the file. --take-over first ends conflicting runs of other head nodes."""
    if request.engine is not None:
        from orchestrator.spec.plan import load_environment

        if load_environment(request.file)[0] is not None:
            raise UsageError(
                "`setup:` is for the hosts of the file",
                hint="what an engine lends has its packages in an image or a module: leave `setup:` out",
            )
    if request.engine == "slurm":
        from orchestrator.client import on_slurm

        job, created = on_slurm.submit(request.file, session, from_scratch=request.again)
        session.say(
            f"job {job.id} {'is submitted' if created else 'has this run already; nothing has changed'}"
        )
        on_slurm.run_environment(session, job.name)
        if request.until == "accepted":
            return Submitted(f"job {job.id}", job.name, created)
        return Submitted(on_slurm.wait_for_nodes(job, session), job.name, created)
    if request.engine == "k8s":
        return _submit_to_pods(request, session, client)
    return _submit_here(request, session, client)


def _submit_here(
    request: UpRequest,
    session: Session,
    client: Client,
    place: Place | None = None,
    code: Snapshot | None = None,
) -> Submitted:
    def before(coordinator: Mapping[str, Any], plan: Plan) -> None:
        from orchestrator.cli.handover import say_other_version

        say_other_version(session, coordinator)
        if request.take_over:
            from orchestrator.cli.taking_over import take_over
            from orchestrator.core.state.owner import Owner

            if "owner" not in coordinator:
                raise Refused(
                    "the running coordinator is of an older orch, and cannot take over a run",
                    hint="`orch coordinator restart` first; tasks go on",
                )
            take_over(session, plan, Owner(**coordinator["owner"]), yes=request.yes)

    return submit_file(request.file, session, client, request, before=before, place=place, code=code)


def _submit_to_pods(request: UpRequest, session: Session, client: Client) -> Submitted:
    """Create the pods, wait for them, and submit the run with them as its hosts."""
    from orchestrator.client import on_kubernetes
    from orchestrator.spec.kubernetes.hosts import in_pods
    from orchestrator.spec.plan import load_plan

    session.warn("--on k8s is experimental: docs/kubernetes.md says on what cluster it was tried")
    made, created = on_kubernetes.lend(request.file, session)
    what = "are asked for" if created else "are there already"
    session.say(f"{made.count} pods {what}: StatefulSet {made.name} in namespace {made.cluster.namespace}")
    plan = load_plan(request.file)[0]
    # Pods may take long, and people edit meanwhile.
    with held_snapshot(request.file, plan, session.paths.state_dir) as code:
        needed = sum(not host.spare for host in plan.hosts)
        try:
            # A run that has its pods is not asked about them: it may go on without one that never comes
            running = list(made.hosts) or on_kubernetes.wait_for_pods(
                made, needed, session, file=request.file, timeout_s=request.timeout_s
            )
        except KeyboardInterrupt:
            session.hint(on_kubernetes.goes_on(made))
            raise
        hosts = on_kubernetes.place(made, running)
        on_kubernetes.may_be_used(made, session, used=True)
        try:
            submitted = _submit_here(
                request,
                session,
                client,
                place=lambda plan: in_pods(plan, made.id, hosts, made.volume, made.first),
                code=code,
            )
        except BaseException as e:
            if isinstance(e, (Refused, SpecError)):
                on_kubernetes.may_be_used(made, session, used=False)
            if created:
                on_kubernetes.give_back_waiting(session, [made.name])
            elif not made.has_run:
                session.hint(on_kubernetes.goes_on(made))
            raise
        if submitted.finished:  # nothing has begun that would give them back
            on_kubernetes.give_back_waiting(session, [made.name])
        else:
            on_kubernetes.has_run(made, session, hosts)
    return submitted


def run(request: UpRequest, session: Session) -> dict[str, Any]:
    """Submit and wait. Return the run's last status with `created`; for `accepted` only its ids."""
    submitted = submit(request, session, session.client())
    client = session.client()  # that of the job, where there is one
    document = {"run_id": submitted.run_id, "name": submitted.name, "created": submitted.created}
    if submitted.finished:
        session.say(submitted.finished)
        if not session.wants_json:
            session.put(submitted.run_id)
        return {**document, "finished": submitted.finished}
    if submitted.changed:
        document["changed"] = submitted.changed
        does = "waits in the queue" if submitted.waits else "is already running"
        session.warn(f"{submitted.run_id} {does} with this plan, but with other code: {submitted.changed}")
        session.hint(
            f"it goes on with the code that it began with; `orch up {request.file} --restart` ends it at its next "
            f"checkpoint, and goes on with this; `orch diff {submitted.name} --full` shows the lines"
        )
    elif not submitted.created:
        known = submitted.changed is not None
        what = "nothing has changed" if known else "whether its code has changed is not known"
        does = "is already running with this plan"
        if submitted.waits:
            does = "waits in the queue with this plan"
        session.say(f"{submitted.run_id} {does}; {what}")
    if not session.wants_json:
        session.put(submitted.run_id)
    if request.until == "accepted":
        return document
    try:
        ended = _wait(request, session, client, document)
        return {**document, **wait_for_the_outputs(session, client, ended)}
    except KeyboardInterrupt:
        session.say(detached(submitted))
        # An interruption of --follow is no failure, since following only shows the run. With --wait it is one: the user
        # asked for an outcome and there is none.
        if request.until == "follow":
            return document
        raise


def _wait(
    request: UpRequest, session: Session, client: Client, document: dict[str, Any]
) -> Mapping[str, Any]:
    if request.until == "follow":
        from orchestrator.cli.following import follow

        return follow(
            session,
            client,
            document,
            timeout_s=request.timeout_s,
            logs_on_stderr=session.wants_json,
            attached=not document["created"],
            level=request.level,
        )

    def over(seen: Mapping[str, Any]) -> bool:
        return not is_active(seen) or (request.until == "running" and (trains(seen) or is_untold(seen)))

    return Watch(
        session,
        client,
        document,
        until=over,
        say=session.say,
        timeout_s=request.timeout_s,
        progress=True,
        from_now=not document["created"],
    ).to_its_end()


def detached(submitted: Submitted) -> str:
    """Return the message after Ctrl-C."""
    name = submitted.name
    return (
        f"\nDetached; {submitted.run_id} keeps running. Reattach:\n"
        f"  orch logs -f {name}\n  orch status {name}\n  orch kill {name}"
    )


def exit_code(document: Mapping[str, Any]) -> int:
    """Return the exit code of the outcome. A failure with its own exit code (5: a host refused the keys) keeps it."""
    if document.get("phase") not in ("FAILED", "KILLED"):
        return 0
    problem = document.get("problem") or {}
    return int(problem.get("exit_code") or 1)


@orch_command(
    acts=True,
    examples=[
        ("orch up cluster.yaml --follow", "Start the run, and show its progress and logs; Ctrl-C detaches"),
        ("orch up cluster.yaml --wait --timeout 12h", "Wait for the outcome, for scripts"),
        ("orch up cluster.yaml --dry-run", "Show the plan only"),
        ("orch up cluster.yaml --queue", "Wait until its GPUs are free, and begin then"),
        ("orch up cluster.yaml --again", "Train once more from step 0; what was trained before is kept"),
        ("orch up cluster.yaml --continue", "Train more of a run that has finished"),
        ("orch up cluster.yaml --restart", "Continue with the present code and spec, from the checkpoint"),
        ("orch up cluster.yaml --on slurm --follow", "Submit a job to Slurm, and train on its nodes"),
        (
            "orch up cluster.yaml --on k8s --follow",
            "Ask Kubernetes for pods, and train in them (experimental)",
        ),
        ("orch up cluster.yaml --take-over", "End the same run of another head node, and start it from here"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@inventory_option
@click.option("--wait", is_flag=True, help="Wait until the run ends; the exit code is its outcome.")
@click.option("--follow", is_flag=True, help="Like --wait, and show progress and logs. Ctrl-C detaches.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    help="With --follow: only log lines of this level, or more serious ones.",
)
@click.option("--detach", is_flag=True, help="Return once the coordinator has accepted the run.")
@click.option("--dry-run", is_flag=True, help="Show the plan; start nothing.")
@click.option(
    "--again",
    "--from-scratch",
    "again",
    is_flag=True,
    help="Start at step 0. Older checkpoints are set aside, and kept. --from-scratch is the same.",
)
@click.option(
    "--continue", "go_on", is_flag=True, help="Go on from the last checkpoint of a run that has finished."
)
@click.option(
    "--restart",
    is_flag=True,
    help="If the spec or the code has changed since the active run began: end it at its next checkpoint, and go on "
    "with these.",
)
@click.option(
    "--queue", is_flag=True, help="Wait until the GPUs are free that other runs hold, instead of exit code 6."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="End what another head node drives under this name or in this checkpoint directory, after showing it.",
)
@click.option("--yes", is_flag=True, help="With --take-over: do not ask.")
@click.option(
    "--on",
    "engine",
    type=click.Choice(["slurm", "k8s"]),
    help="Take nodes from Slurm, or pods from Kubernetes (experimental), as many as the file has hosts, or "
    "`slurm: {nodes: …}` or `kubernetes: {pods: …}` says.",
)
@click.option(
    "--no-check", is_flag=True, help="Do not check first whether the hosts are there and reach each other."
)
@click.option(
    "--wait-for-hosts", is_flag=True, help="Begin although a host does not answer, and wait for it."
)
@click.option("--timeout", "timeout_s", type=DURATION, help="Stop waiting after this time, with exit code 7.")
@json_option("Print one document at the end instead of the run's id.")
def command(
    session: Session, /, file: str, wait: bool, follow: bool, detach: bool, dry_run: bool, **options: Any
) -> int:
    """Start the run of FILE, wait until its first step, and print the run's id.

    Meanwhile it shows what the run waits for. Ctrl-C ends only this command; the run continues. If a script reports no
    step, and is neither connecting nor building a Keras model, the command waits for 30 s after the release.

    A run that is already running with this plan is left alone. Changes of its code are shown, and --restart applies
    them. A run that failed or was killed goes on from its last verified checkpoint. After a run that has finished, a
    change of the spec or the code begins a new training, from step 0 and in a place of its own; without a change
    nothing is begun. `orch kill` stops a run.

    If the file has `setup:`, its environment is first made on all hosts, as `orch setup` does.

    Before anything is started, orch checks that the hosts answer, and reach each other by their names and on the run's
    ports; exit code 6 if they do not (`orch doctor` checks more). With --wait-for-hosts a run begins that waits for
    hosts which are off.

    Each host is also asked which head nodes drive runs there. Exit code 6 if another head node, or a coordinator whose
    journal is lost, drives a run of this name or in this checkpoint directory, or did so less than 15 minutes ago.
    """
    if wait + follow + detach + dry_run > 1:
        raise UsageError("use only one of --wait, --follow, --detach and --dry-run")
    until: Until = "end" if wait else "follow" if follow else "accepted" if detach else "running"
    request = UpRequest(file=file, until=until, check=not options.pop("no_check"), **options)
    if request.level is not None and not follow:
        raise UsageError("--level is for --follow, which shows the logs")
    if dry_run:
        from orchestrator.cli.commands.plan import show

        show(file, session)
        return 0
    if (request.restart or request.queue) and request.engine is not None:
        raise UsageError("--restart and --queue are for runs on the hosts of the file")
    document = run(request, session)
    session.answer(document)
    _say_outcome(document, session)
    _say_place(document, session, file)
    return exit_code(document)


def _say_place(document: Mapping[str, Any], session: Session, file: str) -> None:
    """Print the line of the file that the hosts do not satisfy."""
    problem = document.get("problem") or {}
    if document.get("phase") == "FAILED" and problem.get("key"):
        from orchestrator.spec.load import located

        session.say(located(file, tuple(problem["key"].split(".")), "the hosts cannot satisfy this"))
        session.hint(
            f"change it, or the hosts; `orch validate --hosts {file}` checks again without starting anything"
        )


def _say_outcome(document: Mapping[str, Any], session: Session) -> None:
    name = document.get("name")
    phase = document.get("phase")
    if phase is None:
        return
    if phase == "RUNNING":
        does = f"trains (step {document.get('global_step')})"
        if not trains(document):
            does = f"has run for {duration(UNTOLD_MAX_S)}; its script has reported no step"
        session.say(f"{document.get('run_id')} {does}. Logs: orch logs -f {name}")
        return
    session.say(render.outcome(document, session.paint_err, width=session.width_err))
    if phase == "FAILED" and document.get("generation"):  # else no task was started
        session.hint(f"`orch logs {name}` shows its whole output")

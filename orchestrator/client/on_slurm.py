"""Submits a run to Slurm, waits for its nodes, and finds the runs that are on Slurm."""

from __future__ import annotations

import contextlib
import os
import sys

from orchestrator.both import durable
from orchestrator.client.environment import Environment
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, Refused, UsageError
from orchestrator.core.plan import Plan
from orchestrator.head.node import holder
from orchestrator.head.node.paths import Paths
from orchestrator.head.reach.slurm import commands, job
from orchestrator.spec.sbatch import Wish, batch_script

_POLL_S = 0.5


def wish_and_plan(file: str) -> tuple[Wish, Plan, dict[str, str]]:
    """Return a file's request to Slurm, its plan, and its secrets. Raises SpecError."""
    from orchestrator.spec.plan import load_plan, wish_of

    plan, secrets = load_plan(file)
    return wish_of(file, plan), plan, secrets


def script_of(file: str, environment: Environment) -> str:
    """Return the batch script of a file, as submitted from this machine."""
    wish, plan, _ = wish_and_plan(file)
    return batch_script(
        wish, python=sys.executable, state_dir=job.directory(environment.paths.state_dir, plan.name)
    )


def submit(file: str, environment: Environment, *, from_scratch: bool) -> tuple[job.Job, bool]:
    """Submit the run of a file. Return the job, and whether it is new. A queued or running job is left alone."""
    from orchestrator.client.submit import plan_document, snapshot
    from orchestrator.head.code.snapshots import SUBMITTED, Snapshots
    from orchestrator.spec.plan import load_recipients

    wish, plan, secrets = wish_and_plan(file)
    for host in plan.hosts:
        if host.transport == "local" and len(plan.hosts) > 1:
            raise UsageError(
                f"{host.name} has `transport: local`, and Slurm gives nodes",
                hint="leave it out, or write `slurm: {nodes: …}` in place of `hosts:`",
            )
    state_dir = job.directory(environment.paths.state_dir, plan.name)
    before = job.read(state_dir)
    if before is not None and job.end_of(before) is None:
        if from_scratch:
            raise Refused(f"job {before.id} has the run {plan.name}", hint=f"`orch kill {plan.name}` ends it")
        return before, False
    forget_secrets(environment)
    paths = job.prepare(state_dir)
    code = snapshot(file, plan, state_dir)
    Snapshots(state_dir).keep(SUBMITTED, code.digest)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(state_dir, "status.json"))  # of the previous job
    # A job that Slurm had accepted although sbatch failed must not begin with this one's plan
    token = os.urandom(8).hex()
    what = {
        "token": token,
        "plan": plan_document(plan),
        "secrets": secrets,
        "from_scratch": from_scratch,
        "requeue": wish.requeue,
        "code": code.digest,
        "recipients": load_recipients(file) if plan.notify else [],
    }
    durable.write_json(os.path.join(state_dir, job.SUBMITTED), what)
    script = os.path.join(state_dir, "batch.sh")
    text = batch_script(wish, python=sys.executable, state_dir=state_dir, token=token)
    durable.write(script, text.encode(), mode=0o700)
    try:
        job_id = commands.call("sbatch", "--parsable", script).strip().partition(";")[0]
    except commands.SlurmFailed as e:
        job.forget_secrets(state_dir)
        shows = f"if `squeue --name orch-{wish.name}` shows a job"
        e.hint = e.hint or f"{shows}, Slurm has accepted it all the same: `scancel` ends it"
        raise
    made = job.Job(job_id, plan.name, sys.executable, environment.time())
    durable.write_json(paths.job, made.to_json())
    return made, True


def wait_for_nodes(own_job: job.Job, environment: Environment) -> str:
    """Wait until the job has begun its run, and report what it waits for. Return the run's id."""
    for why in job.watch(own_job):
        environment.say(f"job {own_job.id} waits for its nodes: {why}")
    told = ""
    while True:
        try:
            ended = job.end_of(own_job)
            run_id = job.run_of(own_job, environment.paths.state_dir)
            if run_id is not None:
                return run_id
            if ended is not None:
                raise CoordinatorUnreachable(
                    f"job {own_job.id} has ended ({ended}) before the run began",
                    hint=f"its log: {environment.paths.state_dir}/batch.log",
                )
        except commands.SlurmFailed as e:
            if e.message != told:
                told = e.message
                environment.say(f"{told}; it is asked again")
        environment.pause(_POLL_S)


def cancel_waiting(environment: Environment) -> bool:
    """Cancel the job of these paths if it has no nodes yet. Return whether it was cancelled."""
    own_job = job.read(environment.paths.state_dir)
    if own_job is None or job.waiting(own_job) is None:
        return False
    commands.call("scancel", own_job.id)
    job.forget_secrets(environment.paths.state_dir)
    environment.say(f"job {own_job.id} had no nodes yet; it is cancelled")
    return True


def ended_with_secrets(environment: Environment) -> list[str]:
    """Return the runs on Slurm whose job ended without removing its secrets, for example by a kill."""
    ended = []
    for name in job.names(environment.paths.state_dir):
        state_dir = job.directory(environment.paths.state_dir, name)
        with contextlib.suppress(OrchestratorError):
            known = job.read(state_dir) if job.secrets_in(state_dir) else None
            if known is not None and job.end_of(known) is not None:
                ended.append(name)
    return ended


def forget_secrets(environment: Environment) -> None:
    """Remove the secrets that ended jobs have left."""
    for name in ended_with_secrets(environment):
        job.forget_secrets(job.directory(environment.paths.state_dir, name))


def chosen(environment: Environment, words: list[str]) -> Paths | None:
    """Return the directory of the run on Slurm that a command line means; None if it means none.

    It means a run that one of its words names, or else the only active run on Slurm.
    """
    known = job.names(environment.paths.state_dir)
    named = [name for name in known for word in words if word == name or word.startswith(f"{name}-20")]
    is_here = os.path.exists(environment.paths.socket) or holder.living(environment.paths.state_dir)
    if not named and not is_here:
        named = [name for name in known if _is_active(job.directory(environment.paths.state_dir, name))]
    if len(set(named)) != 1:
        return None
    return Paths(job.directory(environment.paths.state_dir, named[0]), environment.paths.runtime_dir)


def _is_active(state_dir: str) -> bool:
    own_job = job.read(state_dir)
    return own_job is not None and job.end_of(own_job) is None


def run_environment(environment: Environment, name: str) -> Environment:
    """Return the environment with the paths of a run on Slurm."""
    state_dir = job.directory(environment.paths.state_dir, name)
    environment.paths = Paths(state_dir, environment.paths.runtime_dir)
    return environment

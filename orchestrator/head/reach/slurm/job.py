"""A run's directory on a cluster: the job that has the run, the plan, our code, and the job's script and log.

It is the state directory of the coordinator in the job's batch step, and lies on a file system that all nodes share.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.both import durable
from orchestrator.core.errors import OrchestratorError
from orchestrator.head.code import bundle
from orchestrator.head.node.paths import Paths
from orchestrator.head.reach.slurm import commands


@dataclass(frozen=True, slots=True)
class Job:
    """The newest job of a run."""

    id: str
    name: str
    """The name of the run."""
    python: str
    """The Python of orch on the login node; the nodes use it too, over the shared file system."""
    submitted_at: float

    def to_json(self) -> dict[str, Any]:
        """Return the content of job.json."""
        return {"schema": 1, **asdict(self)}


def directory(state_dir: str, name: str) -> str:
    """Return the directory of the run of that name."""
    return os.path.join(state_dir, "slurm", name)


def names(state_dir: str) -> list[str]:
    """List the runs that were ever submitted from this state directory."""
    top = os.path.join(state_dir, "slurm")
    try:
        return sorted(name for name in os.listdir(top) if os.path.exists(os.path.join(top, name, "job.json")))
    except OSError:
        return []


def read(state_dir: str) -> Job | None:
    """Return the job of a run's directory; None for a state directory of another kind."""
    try:
        with open(os.path.join(state_dir, "job.json"), encoding="utf-8") as file:
            content = json.load(file)
        return Job(
            str(content["id"]), str(content["name"]), str(content["python"]), float(content["submitted_at"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise OrchestratorError(f"{state_dir}/job.json cannot be read: {e}") from e


def runtime_dir(allocation: str) -> str:
    """Return the directory of the coordinator's socket on the batch host. It is short, and on a local disk."""
    return f"/tmp/orch-slurm-{os.getuid()}-{allocation}"


def prepare(state_dir: str) -> Paths:
    """Make the directory, and put our code into it."""
    paths = Paths(state_dir, runtime_dir("none"))
    slurm = os.path.dirname(state_dir)
    # One by one: of several that are made at once, only the last one has the mode
    for place in (os.path.dirname(slurm), slurm, state_dir):
        os.makedirs(place, mode=0o700, exist_ok=True)
    paths.check()
    durable.write(paths.bundle, bundle.load().code.data)
    return paths


SUBMITTED = "submitted.json"
"""The plan and the secrets of a job that has not begun, or may begin again."""

BEGUN = "begun.json"
"""Which run a start of the job has begun."""


def secrets_in(state_dir: str) -> list[str]:
    """Return the files and directories of a run that hold secrets."""
    places = [os.path.join(state_dir, name) for name in ("secrets", "recipients")]
    held = [place for place in places if os.path.isdir(place) and os.listdir(place)]
    submitted = os.path.join(state_dir, SUBMITTED)
    return ([submitted] if os.path.exists(submitted) else []) + held


def forget_secrets(state_dir: str) -> None:
    """Remove the secrets of a run whose jobs need them no more."""
    for place in secrets_in(state_dir):
        if os.path.isdir(place):
            shutil.rmtree(place, ignore_errors=True)
        else:
            durable.remove(place)


def waiting(job: Job) -> str | None:
    """Return why the job has no nodes yet; None once it had some. Raises SlurmFailed."""
    known = commands.job(job.id)
    if known is None or known.get("JobState") not in ("PENDING", "CONFIGURING"):
        return None
    reason = known.get("Reason", "None")
    return "it is being scheduled" if reason == "None" else reason


def end_of(job: Job) -> str | None:
    """Return the state in which the job has ended; None while it has not. Raises SlurmFailed."""
    known = commands.job(job.id)
    if known is None:
        return "unknown to Slurm"
    state = known.get("JobState", "")
    return state if state in commands.OVER else None


def run_of(job: Job, state_dir: str) -> str | None:
    """Return the id of the run that the job's present start has begun; None if there is none. Raises SlurmFailed."""
    begun = durable.read_object(state_dir, BEGUN) or {}
    allocation = str(begun.get("allocation"))
    if allocation.partition(".")[0] != job.id:
        return None
    known = commands.job(job.id)
    is_present = known is None or commands.allocation_name(known) == allocation
    return str(begun["run_id"]) if is_present else None


def watch(job: Job, every_s: float = 1.0) -> Iterator[str]:
    """Yield why the job waits, whenever that changes, until it has nodes or has ended."""
    last = None
    while True:
        try:
            why = waiting(job)
        except commands.SlurmFailed as e:  # the controller may start again
            why = f"{e.message}; it is asked again"
        if why is None:
            return
        if why != last:
            last = why
            yield why
        time.sleep(every_s)

"""Calls Slurm's own programs with fixed arguments: squeue, scontrol, sbatch, scancel."""

from __future__ import annotations

import subprocess
from typing import Any

from orchestrator.core.errors import OrchestratorError

TIMEOUT_S = 20.0

ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "STOPPED", "TIMEOUT",
    }
)  # fmt: skip
"""States in which a job has no nodes any more, or is about to lose them."""

OVER = ENDED - {"COMPLETING", "REQUEUED", "PREEMPTED"}
"""States in which a job stays."""

QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""States of a job that is to begin, once more perhaps."""


class SlurmFailed(OrchestratorError):
    """A program of Slurm refused, or did not answer."""

    code = "slurm"


def call(*words: str, stdin: bytes | None = None) -> str:
    """Run a program, and return its output. Raises SlurmFailed with its last line."""
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as e:
        raise SlurmFailed(
            f"there is no {words[0]} on this machine", hint="run orch where Slurm's commands are installed"
        ) from e
    except subprocess.TimeoutExpired as e:
        raise SlurmFailed(f"{words[0]} did not answer: the Slurm controller may be down") from e
    except OSError as e:
        raise SlurmFailed(f"{words[0]} cannot be started: {e.strerror}") from e
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise SlurmFailed(f"{words[0]}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout.decode("utf-8", "replace")


def job(job_id: str) -> dict[str, str] | None:
    """Return the fields of `scontrol show job` for a job; None for one that the controller does not know.

    Raises:
        SlurmFailed: the controller does not answer.
    """
    try:
        if not job_id.isdecimal():
            raise SlurmFailed(f"not the number of a job: {job_id!r}")
        text = call("scontrol", "--oneliner", "show", "job", job_id)
    except SlurmFailed as e:
        if "Invalid job id" in e.message:
            return None
        raise
    return _fields(text.splitlines()[0]) if text.strip() else None


def hostnames(names: str) -> list[str]:
    """Return the nodes of a list such as n[1-3]. Raises SlurmFailed."""
    return call("scontrol", "show", "hostnames", names).split()


def kill_wait_s() -> float:
    """Return how long Slurm waits between SIGTERM and SIGKILL. Raises SlurmFailed."""
    for line in call("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "KillWait" and value.split()[:1] and value.split()[0].isdecimal():
            return float(value.split()[0])
    raise SlurmFailed("scontrol does not say KillWait")


def _fields(line: str) -> dict[str, str]:
    """Parse `Key=value Key=value`. A word without `=` continues the value before it."""
    fields: dict[str, str] = {}
    last = None
    for word in line.split():
        key, mark, value = word.partition("=")
        if mark and key[:1].isupper():
            fields[key] = value
            last = key
        elif last is not None:
            fields[last] += f" {word}"
    return fields


def allocation_name(fields: dict[str, str] | dict[str, Any]) -> str:
    """Return the name of a job's allocation, which differs after the job was requeued under the same number."""
    return f"{fields['JobId']}.{fields.get('Restarts', '0')}"

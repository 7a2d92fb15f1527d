"""Writes the batch script of a run: readable, and made of checked words and quoted paths only."""

from __future__ import annotations

import re
from dataclasses import dataclass

WARNING_S = 120
"""How long before the time limit the run is told to save. A checkpoint should fit in."""

_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:/@%+*=\[\]-]+)?")
_OURS = {
    "array", "batch", "chdir", "dependency-hold", "error", "hold", "job-name", "jobid", "no-kill", "nodes",
    "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal", "test-only",
    "wait", "wrap",
}  # fmt: skip
_OWN_SHARE = ("--exclusive", "--oversubscribe", "--cpus-per-task", "--cpus-per-gpu", "--mem", "--mem-per-cpu")


@dataclass(frozen=True, slots=True)
class Wish:
    """The request to Slurm."""

    name: str
    nodes: int
    gpus_per_node: int = 0
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    options: tuple[str, ...] = ()
    requeue: bool = False


def why_not(option: str) -> str | None:
    """Return why this cannot be an option of sbatch here; None if it can."""
    if not _OPTION.fullmatch(option):
        return "is written as --name or --name=value, without spaces and quotes"
    name = option[2:].partition("=")[0]
    return f"--{name} is set by orch" if name in _OURS else None


def directives(wish: Wish, log: str) -> list[tuple[str, str]]:
    """Return the options with a comment each."""
    for option in wish.options:
        reason = why_not(option)
        if reason is not None:
            raise ValueError(f"{option!r} {reason}")
    options = [
        (f"--job-name=orch-{wish.name}", ""),
        (f"--nodes={wish.nodes}", "one host each, spares included"),
        ("--ntasks-per-node=1", ""),
        ("--no-kill", "a node that fails does not end the others: a spare takes its tasks"),
        (f"--signal=USR1@{WARNING_S}", "time to save before the time limit; the keepers hear it"),
        ("--requeue" if wish.requeue else "--no-requeue", "a new start resumes from the last checkpoint"),
        ("--open-mode=append", ""),
        (f"--output={log}", ""),
    ]
    if wish.gpus_per_node:
        options.append((f"--gres=gpu:{wish.gpus_per_node}", "on every node"))
    named = (("partition", wish.partition), ("account", wish.account), ("time", wish.time))
    options += [(f"--{key}={value}", "") for key, value in named if value is not None]
    if not any(option.startswith(_OWN_SHARE) for option in wish.options):
        options.append(("--exclusive", "whole nodes; `options` may say otherwise"))
    return [*options, *((option, "") for option in wish.options)]


def batch_script(wish: Wish, *, python: str, state_dir: str, token: str = "") -> str:
    """Return the script. `python` and `state_dir` are quoted here, whatever they hold. `token`: see client.batch."""
    log = f"{state_dir}/batch.log"
    lines = ["#!/bin/bash", f"# orch runs {wish.name} in this job. `orch export slurm FILE` has printed it."]
    for option, comment in directives(wish, log):
        lines += [f"# {comment}"] if comment else []
        lines.append(f"#SBATCH {option}")
    lines += [
        "",
        "# The batch step starts a keeper on every node (one srun each), which is the parent of all tasks there,",
        "# and then the coordinator, here. Both outlive each other. The job ends with the run, and with its outcome.",
        "# The directory lies on a file system that all nodes share: journal, plan, logs, and the log of this script.",
        f"exec {_quoted(python)} -P -m orchestrator.client.batch {_quoted(state_dir)}"
        + (f" {token}" if token else ""),
    ]
    return "\n".join(lines) + "\n"


def _quoted(word: str) -> str:
    """Return the word as a shell reads it back: between single quotes nothing is special but the quote itself."""
    return "'" + word.replace("'", "'\\''") + "'"

"""Compares a run with its current cluster spec and code, or with another run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.conflicts import saves_where
from orchestrator.core.differences import Change, differences
from orchestrator.core.differences import sentence as of_spec
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.plan import TASK_TYPES, Plan
from orchestrator.core.state.run import Run
from orchestrator.head.code import codetree
from orchestrator.head.code.snapshots import Code, Snapshot, Snapshots, code_in
from orchestrator.head.node.paths import Paths
from orchestrator.reporting.code_changes import FileChange, changes
from orchestrator.reporting.code_changes import sentence as of_code
from orchestrator.spec.plan import load_plan

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
"""A word that begins an option; `-0.5` is a value."""


def parameters(plan: Plan) -> dict[str, str]:
    """Return what a person may have changed for a trial: the script's arguments, the environment, tasks, strategy.

    An option without a value is `yes`; an argument that belongs to none is `argument N`.
    """
    found: dict[str, str] = {}
    left = list(plan.args)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if not _OPTION.fullmatch(name):
            found[f"argument {sum(key.startswith('argument') for key in found) + 1}"] = word
        elif equals or not left or _OPTION.fullmatch(left[0].partition("=")[0]):
            found[name] = value if equals else "yes"
        else:
            found[name] = left.pop(0)
    counts = Counter(task.id.type for task in plan.tasks)
    return {**found, **plan.env, "strategy": plan.strategy, **{f"{of}s": str(n) for of, n in counts.items()}}


_OF_TASKS = ("strategy", *(f"{of}s" for of in TASK_TYPES))


def without_env(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a run, its plan or a comparison without what `env` of a spec says.

    Among parameters, no variable looks like an option or an argument, since letters, digits and _ are its name.

    >>> without_env({"parameters": {"--lr": "0.1", "USER_KEY": "x"}, "tasks": [{"env": {"USER_KEY": "x"}}]})
    {'parameters': {'--lr': '0.1'}, 'tasks': [{'env': {}}]}
    """

    def shown(key: str, value: Any) -> Any:
        if key == "env":
            return {}
        if key == "parameters" and isinstance(value, dict):
            return {
                name: each for name, each in value.items() if name in _OF_TASKS or re.search("^-| ", name)
            }
        if key == "spec" and isinstance(value, list):
            return [change for change in value if change["key"].partition(".")[0] != "env"]
        if isinstance(value, dict):
            return without_env(value)
        return [shown("", each) for each in value] if isinstance(value, list) else value

    return {key: shown(key, value) for key, value in document.items()}


@dataclass(frozen=True, slots=True)
class Package:
    """A package whose version on a host differs between two runs. None: not installed."""

    host: str
    name: str
    old: str | None
    new: str | None

    @property
    def sentence(self) -> str:
        """Return a sentence such as `gpu-a keras: 3.9.0 -> 3.10.1`."""
        return f"{self.host} {self.name}: {self.old or 'none'} -> {self.new or 'none'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences. None: unknown."""

    spec: tuple[Change, ...]
    code: tuple[FileChange, ...] | None
    packages: tuple[Package, ...] | None

    @property
    def is_same(self) -> bool:
        """Return whether there are no known differences."""
        return not (self.spec or self.code or self.packages)

    @property
    def sentence(self) -> str:
        """Return a sentence such as `train.py: 12 lines; args --lr: 0.1 -> 0.01`."""
        parts = [of_code(self.code or ()), of_spec(self.spec)]
        parts.append(", ".join(package.sentence for package in self.packages or ()))
        return "; ".join(part for part in parts if part)


def with_now(paths: Paths, run: Run, plan: Plan, taken: Snapshot | None = None) -> Comparison:
    """Compare a run with a plan and with the plan's code: the snapshot, or the working directory as it is now."""
    if taken is None:
        tree = codetree.manifest(plan.workdir, plan.script, plan.push_bytes_max, plan.withheld)
        now = code_in(plan.workdir, tree)
    else:
        now = code_in(taken.directory, taken.files)
    return Comparison(tuple(differences(run.submitted, plan)), _code(_of(paths, run), now), None)


def with_run(paths: Paths, old: Run, new: Run) -> Comparison:
    """Compare a run with another one."""
    code = _code(_of(paths, old), _of(paths, new))
    return Comparison(tuple(differences(old.submitted, new.submitted)), code, _packages(old, new))


def before_it(runs: list[Run], run: Run) -> Run | None:
    """Return the run that saved the checkpoint from which this one resumed; None if unknown."""
    if run.plan.checkpoint is None or run.from_scratch:
        return None
    for other in reversed(runs):
        if other.run_id == run.run_id or saves_where(other.plan) != saves_where(run.plan):
            continue
        if other.checkpoint is not None:
            return other
        if other.from_scratch or (other.seed is not None and other.seed.from_scratch):
            return None  # a training of its own, which has saved nothing
    return None


def plan_of_now(run: Run) -> tuple[str, Plan]:
    """Return the cluster spec from which a run was submitted, and its current plan."""
    file = next((host.spec for host in run.plan.hosts if host.spec), "")
    if not file:
        raise OrchestratorError(
            f"it is not known from which file {run.run_id} was started",
            hint="name a second run to compare with",
        )
    return file, load_plan(file)[0]


def document(comparison: Comparison) -> Mapping[str, Any]:
    """Return a comparison as a JSON document."""
    return {
        "same": comparison.is_same,
        "spec": [{"key": change.key, "old": change.old, "new": change.new} for change in comparison.spec],
        "code": None
        if comparison.code is None
        else [
            {"path": change.path, "change": change.change, "added": change.added, "removed": change.removed}
            for change in comparison.code
        ],
        "packages": None
        if comparison.packages is None
        else [
            {"host": change.host, "package": change.name, "old": change.old, "new": change.new}
            for change in comparison.packages
        ],
    }


def _of(paths: Paths, run: Run) -> Code | None:
    return Snapshots(paths.state_dir).code_of(run.run_id)


def _code(old: Code | None, new: Code | None) -> tuple[FileChange, ...] | None:
    if old is None or new is None:
        return None
    return tuple(changes(old.files, old.text, new.files, new.text))


def _packages(old: Run, new: Run) -> tuple[Package, ...]:
    """Compare the packages that the probes found, on hosts that both runs prepared."""
    packages = []
    for host in new.hosts:
        before = next((other.facts for other in old.hosts if other.name == host.name), None)
        if before is None or host.facts is None:
            continue
        known = (
            {"python": before.python, **before.versions},
            {"python": host.facts.python, **host.facts.versions},
        )
        packages += [
            Package(host.name, name, known[0].get(name), known[1].get(name))
            for name in dict.fromkeys([*known[0], *known[1]])
            if known[0].get(name) != known[1].get(name)
        ]
    return tuple(packages)

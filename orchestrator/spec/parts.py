"""The readable parts of a spec that has errors, so that its relations can be checked at the same time.

Each part is validated again without the keys that pydantic has rejected. `bad` names those keys: their values in the
part are placeholders, and a relation that needs one of them is not checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.core.plan import Ask
from orchestrator.core.strategy import STRATEGIES
from orchestrator.spec.diagnostics import closest
from orchestrator.spec.forms import SPLIT
from orchestrator.spec.models import (
    Host,
    Kubernetes,
    Restart,
    Run,
    Setup,
    Slurm,
    Ssh,
    Tasks,
    TaskType,
    TimingSpec,
)

LOCAL_ADDRESS = "127.0.0.1"

_UNKNOWN_MAX = 8

M = TypeVar("M", bound=BaseModel)

_PLACEHOLDERS: Mapping[type[BaseModel], Mapping[str, Any]] = {
    Host: {"name": "unnamed"},
    Run: {"strategy": next(iter(STRATEGIES)), "tasks": {}},
    Ssh: {},
    Setup: {"requirements": "unnamed"},
    Slurm: {},
    Kubernetes: {},
    TimingSpec: {},
    Restart: {},
}


@dataclass(frozen=True, slots=True)
class Part(Generic[M]):
    """A mapping of the spec, as far as it can be read."""

    value: M
    bad: frozenset[str]

    def good(self, *keys: str) -> bool:
        """Return whether the values of all these keys are valid."""
        return self.bad.isdisjoint(keys)


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of a spec, as far as they can be read."""

    hosts: tuple[Part[Host], ...]
    """Those of the file, or those that an engine is asked for."""
    slurm: Part[Slurm] | None
    kubernetes: Part[Kubernetes] | None
    has_hosts: bool
    is_empty: bool
    """The document is no mapping: all is said with that."""
    ssh: Part[Ssh]
    setup: Part[Setup] | None
    run: Part[Run]
    timing: Part[TimingSpec]
    restart: Part[Restart]
    env: Mapping[str, Any]
    """The names in run.env, with unchecked values."""
    secrets: Mapping[str, Any]
    base_dir: Path

    @property
    def all_local(self) -> bool:
        """Whether the whole run takes place on the head node."""
        return all(host.good("transport") and host.value.transport == "local" for host in self.hosts)


def parts_of(data: Any, base_dir: Path) -> Parts:
    """Return the parts of any document."""
    root = _mapping(data)
    hosts, run = root.get("hosts"), _mapping(root.get("run"))
    slurm = _part(Slurm, root["slurm"]) if root.get("slurm") is not None else None
    pods = _part(Kubernetes, root["kubernetes"]) if root.get("kubernetes") is not None else None
    nodes = engine_hosts(slurm.value if slurm else None, pods.value if pods else None) if not hosts else ()
    written = tuple(_part(Host, host) for host in hosts) if isinstance(hosts, list) else ()
    return Parts(
        hosts=written or tuple(Part(node, frozenset()) for node in nodes),
        slurm=slurm,
        kubernetes=pods,
        has_hosts="hosts" in root,
        is_empty=not root,
        ssh=_part(Ssh, root.get("ssh", {})),
        setup=_part(Setup, root["setup"]) if root.get("setup") is not None else None,
        run=_part(Run, root.get("run")),
        timing=_part(TimingSpec, run.get("timing", {})),
        restart=_part(Restart, run.get("restart", {})),
        env=_mapping(run.get("env")),
        secrets=_mapping(run.get("secrets")),
        base_dir=base_dir,
    )


def _mapping(data: Any) -> Mapping[str, Any]:
    return data if isinstance(data, dict) else {}


def _part(model: type[M], data: Any) -> Part[M]:
    if not isinstance(data, dict):
        return Part(model.model_validate(_PLACEHOLDERS[model]), frozenset(model.model_fields))
    try:
        return Part(model.model_validate(data), frozenset())
    except ValidationError as error:
        bad = frozenset(str(item["loc"][0]) for item in error.errors(include_url=False, include_input=False))
        good = {key: value for key, value in data.items() if key not in bad}
        return Part(model.model_validate({**_PLACEHOLDERS[model], **good}), bad | _meant(model, bad))


def _meant(model: type[BaseModel], bad: frozenset[str]) -> frozenset[str]:
    """Return the keys that unknown keys are probably misspellings of: their default values must not be used."""
    unknown = bad - model.model_fields.keys()
    if len(unknown) > _UNKNOWN_MAX:
        return frozenset(model.model_fields)
    return frozenset(meant for key in unknown if (meant := closest(key, model.model_fields)))


def engine_hosts(slurm: Slurm | None, pods: Kubernetes | None) -> tuple[Host, ...]:
    """Return placeholder hosts for those that an engine will lend. Their real names are not known yet."""
    if slurm is not None and slurm.nodes is not None:
        return _lent("node", slurm.nodes, slurm.spares, slurm.gpus_per_node, slurm.slots)
    if pods is not None and pods.pods is not None:
        return _lent("pod", pods.pods, pods.spares, pods.gpus_per_pod, pods.slots)
    return _lent("node", 0, slurm.spares, slurm.gpus_per_node, slurm.slots) if slurm is not None else ()


def _lent(what: str, count: int, spares: int, gpus: int, slots: int) -> tuple[Host, ...]:
    return tuple(
        Host.model_construct(name=f"{what}-{i + 1}", gpus=tuple(range(gpus)), slots=slots, spare=i >= count)
        for i in range(count + spares)
    )


def asks(run: Run) -> Iterator[Ask]:
    """Yield the requests of the tasks for slots and GPUs."""
    for type_, tasks in tasks_of(run).items():
        gpus = tasks.gpus if isinstance(tasks.gpus, int) else None
        names = tuple(word for word in tasks.on if isinstance(word, str))
        yield Ask(
            type_,
            tasks.replicas,
            gpus,
            split=tasks.gpus == SPLIT,
            on=names,
            labels=tuple(pair for pair in tasks.on if not isinstance(pair, str)),
            gpu_bytes=tasks.gpu_memory,
            memory_bytes=tasks.memory,
            together=tasks.together,
        )


def room_of(host: Host) -> dict[str, Any]:
    """Return what a host has for tasks, as fields of its plan."""
    return {
        "gpus": host.gpus,
        "slots": host.slots,
        "tasks_max": host.slots if "slots" in host.model_fields_set and host.transport == "ssh" else None,
        "labels": host.labels,
        "spare": host.spare,
    }


def tasks_of(run: Run) -> Mapping[TaskType, Tasks]:
    """Return the tasks of the spec. For a strategy of one task they may be left out."""
    strategy = STRATEGIES.get(run.strategy)
    if not run.tasks and strategy is not None and strategy.one_task:
        return {"worker": Tasks()}
    return run.tasks


def absolute(written: str, base_dir: Path) -> str:
    """Return a path on the head node with ~ expanded, resolved against the directory of the spec's file."""
    return os.path.normpath(os.path.join(base_dir, os.path.expanduser(written)))

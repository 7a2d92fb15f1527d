"""Whether the hosts fit together: a gang computes one gradient, so its members must agree in their software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from orchestrator.core.plan import CheckpointPlan, Gpu, Plan, lease_in_words
from orchestrator.core.state.host import Host
from orchestrator.core.state.run import Problem
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import listed

MAY_DIFFER = ("numpy",)
"""Of the packages that hosts are asked for, those that need not be the same."""


def differences(hosts: Sequence[Host]) -> Problem | None:
    """Return how the hosts differ, as a sentence and a table; None if they agree. Python's patch level may differ."""
    rows = {"python": [".".join(host.facts.python.split(".")[:2]) if host.facts else "" for host in hosts]}
    asked = dict.fromkeys(package for host in hosts if host.facts for package in host.facts.versions)
    for package in (name for name in asked if name not in MAY_DIFFER):
        rows[package] = [(host.facts.versions.get(package) if host.facts else None) or "-" for host in hosts]
    activated = [host.facts.activated if host.facts else {} for host in hosts]
    for name in sorted({name for variables in activated for name in variables}):
        rows[f"{name} after `activate`"] = [variables.get(name, "-") for variables in activated]
    rows["code"] = [host.facts.code[:12] if host.facts else "" for host in hosts]
    differing = {name: values for name, values in rows.items() if len(set(values)) > 1}
    if not differing:
        return None
    names = [host.name for host in hosts]
    differing_words = "; ".join(
        f"{what} ({_who_has_what(names, values)})" for what, values in differing.items()
    )
    return Problem(
        code="hosts-differ",
        message=f"the hosts differ in {differing_words}",
        hint="the working directory changed while it was pushed: `orch up` again"
        if "code" in differing
        else "let `activate` do the same on all hosts: the same modules or environment must be installed"
        if any("`activate`" in what for what in differing)
        else "install the same versions on all hosts, or name another Python per host with `python:`",
        exit_code=6,
        table=(("host", *differing), *zip(names, *differing.values(), strict=True)),
    )


def _who_has_what(names: Sequence[str], values: Sequence[str]) -> str:
    by_value: dict[str, list[str]] = {}
    for name, value in zip(names, values, strict=True):
        by_value.setdefault(value, []).append(name)
    return ", ".join(f"{value} on {listed(having)}" for value, having in by_value.items())


def unshared(checkpoint: CheckpointPlan | None, hosts: Sequence[Host]) -> Problem | None:
    """Return which hosts see which checkpoint directory; None if all see the same one.

    Each host was asked what the run has written there; the first of them wrote it.
    """
    seen: dict[str, list[str]] = {}
    for host in hosts:
        if host.facts is not None and host.facts.checkpoint_share:
            seen.setdefault(host.facts.checkpoint_share, []).append(host.name)
    if checkpoint is None or not checkpoint.shared or len(seen) < 2:
        return None
    groups = " | ".join(", ".join(names) for names in seen.values())
    return Problem(
        code="not-shared",
        message=f"{checkpoint.dir} is not one directory on all hosts: what is written on one is not read "
        f"on the others ({groups})",
        hint="mount the same file system there on every host, or write `checkpoint: {shared: false}`: then the "
        "head node carries checkpoints between them",
        exit_code=6,
    )


GPU_IN_USE = "gpu-in-use"
"""The code of the problem that processes of somebody else compute on GPUs of the run."""

SHARE_MISSING = "share-missing"
"""The code of the problem that a host does not see the checkpoint directory that the run shares."""

NO_CODE = "no-code"
"""The code of the problem that a host has not got the run's code."""

GPU_LEASED = "gpu-leased"
"""The code of the problem that another run has the lease of GPUs of this one."""

HELD_BY_OTHERS = (GPU_IN_USE, GPU_LEASED)

OF_THE_HOST = ("no-space", "not-writable", "checkpoint-dir")
"""Codes of problems that a host has for a while, of any run: a full disk, a file system that is not mounted."""


def leased(holders: Sequence[tuple[Gpu, str]]) -> Problem | None:
    """Return why the run cannot have its GPUs on a host: the leases of other runs; None if there are none."""
    if not holders:
        return None
    return Problem(
        code=GPU_LEASED,
        message="; ".join(f"{lease_in_words(lease)} is held by {who}" for lease, who in holders),
        held=tuple(holders),
        hint="`orch up --queue` waits for it; or ask them, or give the run other GPUs",
        exit_code=6,
    )


def gpus(
    plan: Plan,
    name: str,
    present: Sequence[str] | None,
    in_use: Sequence[Mapping[str, object]],
    why_none: str | None = None,
    instances: Mapping[str, int] = MappingProxyType({}),
) -> Problem | None:
    """Return why the run cannot have the GPUs that the spec gives it on this host; None if it can.

    Args:
        present: The UUIDs that the driver shows; None if there is none.
        in_use: `gpu`, `pid`, `user` and `name` of each process that computes on one, of the probe.
        why_none: Why there is no GPU; None if unknown: then no problem is reported.
        instances: The GPU that each MIG instance is a part of, by the instance's UUID.
    """
    if present is None:
        return _no_gpu(plan, name, why_none) if why_none is not None else None
    placed = {gpu for task in plan.tasks if task.host == name for gpu in task.gpus}
    named = set(plan.host(name).gpus) if plan.host(name).spare else placed
    wanted = {_number(gpu, present) for gpu in named}
    lists = "`nvidia-smi -L` there lists them"
    for gpu in sorted(wanted, key=str, reverse=True):
        if gpu not in instances and gpu not in range(len(present)):
            shows = (
                f"{len(present)}, counted from 0" if isinstance(gpu, int) else listed([*present, *instances])
            )
            what = f"the run is to have {'GPU ' if isinstance(gpu, int) else ''}{gpu}, and its driver shows {shows}"
            hint = f"correct `gpus` of this host in the cluster spec; {lists}"
        elif parts := [uuid for uuid, whole in instances.items() if whole == gpu]:
            what = f"the run is to have GPU {gpu}, which is divided into MIG instances: {listed(parts)}"
            hint = f"name an instance by its UUID: `gpus: [{parts[0]}]`; {lists}"
        else:
            continue
        return Problem(code="gpu-missing", message=what, hint=hint, exit_code=6)
    taken = [process for process in in_use if process["gpu"] in wanted]
    if not taken:
        return None
    processes = "; ".join(
        f"GPU {process['gpu']} by {'a process' if process['pid'] is None else 'pid'} {process['pid'] or ''}".rstrip()
        + f" of {process['user'] or 'a user who cannot be seen from there'} ({process['name']})"
        for process in taken
    )
    return Problem(
        code=GPU_IN_USE,
        message=f"in use by somebody else: {processes}",
        held=tuple(
            (gpu, f"{process['user'] or 'a user'}, no run of orch")
            for process in taken
            for gpu in named
            if _number(gpu, present) == process["gpu"]
        ),
        hint="nothing of others is ever killed: wait, ask them, or give the run other GPUs "
        "(`gpus: [1, 2]` lists them)",
        exit_code=6,
    )


def _number(gpu: Gpu, present: Sequence[str]) -> Gpu:
    return present.index(gpu) if isinstance(gpu, str) and gpu in present else gpu


def _no_gpu(plan: Plan, name: str, why: str) -> Problem | None:
    placed = {gpu for task in plan.tasks if task.host == name for gpu in task.gpus}
    wanted = sorted(placed | set(plan.host(name).gpus), key=str)
    if not wanted:
        return None
    numbers = f"GPU {wanted[0]}" if len(wanted) == 1 else f"the GPUs {', '.join(map(str, wanted))}"
    return Problem(
        code="gpu-missing",
        message=f"the spec says that it has {numbers}, and it has none: {why}",
        hint="remove `gpus` of this host from the cluster spec, or install its driver: `nvidia-smi -L` there must list "
        "them",
        exit_code=6,
    )


def no_tensorflow(plan: Plan, name: str, version: str | None, *, imported: bool) -> Problem | None:
    """Return why the tasks of this host would fail at their first import; None if they would not.

    Args:
        plan: The plan.
        name: The host.
        version: Of TensorFlow in the run's Python there; None if it is missing.
        imported: Whether the script imports it in any case.
    """
    strategy = STRATEGIES[plan.strategy]
    needed = imported or (strategy.needs_tensorflow and plan.runtime)
    if version is not None or not needed or "PYTHONPATH" in plan.env:
        return None
    host = plan.host(name)
    who = "the script imports it" if imported else f"{plan.strategy} needs it"
    package = "'tensorflow[and-cuda]'" if host.gpus else "'tensorflow'"
    return Problem(
        code="no-tensorflow",
        message=f"{host.python} has no TensorFlow, and {who}",
        hint=f"{host.way_to_install(package)}; or name the Python that has it as `python` of this host in the cluster "
        "spec",
        exit_code=6,
    )


def own_name(plan: Plan, own: Mapping[str, str | None]) -> Problem | None:
    """Return why gloo would fail on this host; None if it would not. It listens where the host's name resolves to.

    Horovod 0.28 obeys HOROVOD_GLOO_IFACE only in part (not for its process sets, of which one is that of all ranks), so
    nothing in the environment helps: with 127.0.1.1, as Debian writes it, the other hosts connect to themselves.

    Args:
        own: `name`, what it resolves to (`address`), and `why` that is no place to listen, of the probe.
    """
    if not STRATEGIES[plan.strategy].gloo:
        return None
    name, address, why = own.get("name"), own.get("address"), own.get("why")
    if why:
        text = f"gloo listens where the host's own name resolves to, and {name} is no such place: {why}"
    elif len(plan.hosts_used) > 1 and ((address or "").startswith("127.") or address == "::1"):
        text = (
            f"its own name, {name}, resolves to {address}: gloo, by which {plan.strategy} connects the ranks, would "
            "listen there, and the other hosts would connect to themselves"
        )
    else:
        return None
    hint = f"give {name} the host's address in its /etc/hosts (`getent hosts {name}` there shows what it finds now)"
    return Problem(code="own-name", message=text, hint=hint)

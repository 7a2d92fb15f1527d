"""Turns a cluster spec into a plan: fills in defaults, makes paths absolute, places tasks, and removes secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.both.script import module_file
from orchestrator.core.errors import SpecError
from orchestrator.core.launching.environment import replicas
from orchestrator.core.launching.placement import place
from orchestrator.core.plan import (
    Ask,
    CheckpointPlan,
    HostPlan,
    NotifyPlan,
    Options,
    Plan,
    QueuePlan,
    RestartPolicy,
    TaskPlan,
    Timing,
)
from orchestrator.core.strategy import STRATEGIES
from orchestrator.spec.gpu_split import split
from orchestrator.spec.load import load_inventory, load_spec, located
from orchestrator.spec.models import ClusterSpec, Host, Kubernetes, Run, Slurm
from orchestrator.spec.parts import LOCAL_ADDRESS, absolute, asks, engine_hosts, room_of, tasks_of
from orchestrator.spec.recipients import services
from orchestrator.spec.restoring import restoring
from orchestrator.spec.sbatch import Wish
from orchestrator.spec.secrets import secret_files, secret_names, secret_values, urls
from orchestrator.spec.setup import Environment, environment

if TYPE_CHECKING:
    from orchestrator.spec.kubernetes.hosts import PodWishes


def load_plan(path: str | Path) -> tuple[Plan, dict[str, str]]:
    """Return the plan of a cluster.yaml, and the values of its secrets by name.

    Raises:
        SpecError: the spec is wrong; the message has one line per diagnostic.
    """
    spec = load_spec(path)
    file = Path(path).absolute()
    plan = plan_spec(spec, file.parent)
    hosts = tuple(replace(host, spec=str(file)) for host in plan.hosts)
    top = os.path.join(plan.workdir, "")
    inside = [
        path_inside for path_inside in secret_files(spec, file.parent, file) if path_inside.startswith(top)
    ]
    withheld = tuple(path_inside.removeprefix(top) for path_inside in inside)
    plan = replace(plan, hosts=hosts, withheld=withheld)
    if plan.checkpoint is not None:
        found = restoring(os.path.join(plan.workdir, plan.script), plan.root)
        is_ours = plan.options.transparent
        nothing = found.why_nothing_transparent if is_ours else found.why_nothing(plan.script)
        rescues = found.with_orch and not is_ours
        plan = replace(plan, no_restore=nothing, rescues=rescues, no_handover=found.no_handover)
    return plan, secret_values(spec, file.parent)


def load_hosts(path: str | Path) -> tuple[HostPlan, ...]:
    """Return the hosts of a cluster spec, or of an inventory alone. Raises SpecError."""
    inventory = load_inventory(path)
    if inventory is None:
        return load_plan(path)[0].hosts
    file, nothing_runs = Path(path).absolute(), Run.model_construct(python=None, activate=None)
    spec = ClusterSpec.model_construct(hosts=inventory.hosts, ssh=inventory.ssh, run=nothing_runs)
    hosts = _hosts(spec, file.parent)
    return tuple(replace(host, spec=str(file)) for host in hosts)


def load_environment(path: str | Path) -> tuple[Environment | None, tuple[HostPlan, ...]]:
    """Return the environment of a cluster.yaml, and its hosts with the Pythons that make it. Raises SpecError."""
    spec = load_spec(path)
    file = Path(path).absolute()
    hosts = _hosts(spec, file.parent)
    return environment(spec, file.parent), tuple(replace(host, spec=str(file)) for host in hosts)


def plan_spec(spec: ClusterSpec, base_dir: Path) -> Plan:
    """Return the plan of a checked spec. Relative paths are resolved against the directory of its file.

    Raises:
        SpecError: the tasks cannot be placed on the hosts.
    """
    run = spec.run
    hosts, wanted, problems = split(_hosts(spec, base_dir), asks(run))
    tasks: tuple[TaskPlan, ...] = ()
    if not problems:
        tasks, problems = place(hosts, wanted, equal_gpus=STRATEGIES[run.strategy].equal_gpus)
    if problems:
        raise SpecError(
            "\n".join(f"run.tasks.{problem.task_type}: {problem.message}" for problem in problems)
        )
    made = environment(spec, base_dir)
    if made is not None:
        hosts = tuple(replace(host, python=made.python(host)) for host in hosts)
    secrets = secret_names(spec)
    fewest = _fewest(run, wanted)
    workdir = os.path.realpath(absolute(run.workdir, base_dir))
    return Plan(
        name=spec.name,
        strategy=run.strategy,
        hosts=hosts,
        tasks=tasks,
        script=run.script or os.path.relpath(module_file(workdir, run.module or ""), workdir),
        module=run.module or "",
        args=run.args,
        workdir=workdir,
        push_bytes_max=run.push_limit,
        log_bytes_max=run.log_limit,
        summary_bytes_max=run.summary_limit,
        output_bytes_max=run.output_limit,
        outputs=run.outputs,
        outputs_dir=str(base_dir / f"{spec.name}-outputs") if run.outputs else "",
        env={name: value for name, value in run.env.items() if name not in secrets},
        secrets=secrets,
        ports=run.ports,
        checkpoint=_checkpoint(run, base_dir),
        restart=_restart(run),
        timing=Timing(**{f"{key}_s": seconds for key, seconds in run.timing}),
        replicas_min=fewest,
        notify=_notify(run, base_dir),
        runtime=run.runtime,
        chaos=run.chaos == "allowed",
        time_limit_s=run.time_limit,
        needs=tuple(wanted) if spec.hosts else (),
        queue=QueuePlan(run.queue.priority, run.queue.max_wait, run.queue.preempt) if run.queue else None,
        options=_options(run, replicas(tasks, run.replicas_on_cpu) if fewest else None),
    )


def _checkpoint(run: Run, base_dir: Path) -> CheckpointPlan | None:
    asked = run.checkpoint
    if asked is None:
        return None
    return CheckpointPlan(
        absolute(asked.dir, base_dir),
        asked.keep,
        asked.shared,
        asked.copy_limit,
        every_s=asked.every if isinstance(asked.every, float) else None,
        every_steps=asked.every if isinstance(asked.every, int) else None,
        group=asked.group,
    )


RESCUE_AUTO_S = 600.0
"""No survivor is waited for longer, however much would be lost. The bound is the time that the lost steps took."""


def _restart(run: Run) -> RestartPolicy:
    asked = run.restart
    rescue_s = (
        asked.rescue if isinstance(asked.rescue, float) else {"auto": RESCUE_AUTO_S}.get(asked.rescue, 0.0)
    )
    return RestartPolicy(
        *(asked.without_progress_max, asked.backoff, asked.backoff_max),
        *(run.on_stall, run.on_nonfinite, asked.standby),
        rescue_s=rescue_s,
    )


def _fewest(run: Run, wanted: Iterable[Ask]) -> dict[str, int]:
    """Return, by type, how many tasks must remain, where that is fewer than all."""
    asked = {ask.type: ask.replicas for ask in wanted}
    return {
        type_: tasks.replicas_min
        for type_, tasks in tasks_of(run).items()
        if tasks.replicas_min is not None and tasks.replicas_min < asked[type_]
    }


def load_recipients(path: str | Path) -> list[str]:
    """Return the URLs of a cluster.yaml's `notify:`, which the plan does not hold. Raises SpecError."""
    notify = load_spec(path).run.notify
    return urls(notify, Path(path).absolute().parent) if notify is not None else []


def _notify(run: Run, base_dir: Path) -> NotifyPlan | None:
    if run.notify is None:
        return None
    to = services(urls(run.notify, base_dir))
    return NotifyPlan(on=run.notify.on, to=to, lines=run.notify.lines)


def wish_of(path: str | Path, plan: Plan) -> Wish:
    """Return the request to Slurm for this plan. Raises SpecError."""
    slurm = load_spec(path).slurm or Slurm()
    gpus = max((len(host.gpus) for host in plan.hosts), default=0)
    asked = slurm.model_dump(include={"partition", "account", "time", "options", "requeue"})
    return Wish(name=plan.name, nodes=len(plan.hosts), gpus_per_node=gpus, **asked)


def pod_wishes_of(path: str | Path) -> PodWishes:
    """Return the request to Kubernetes. Raises SpecError if the file names no image."""
    from orchestrator.spec.kubernetes.hosts import PodWishes

    asked = load_spec(path).kubernetes or Kubernetes()
    if asked.image is None:
        raise SpecError(
            located(
                str(path), ("kubernetes", "image"), "is missing: the image that has Python and the libraries"
            ),
            hint="such as `kubernetes: {image: tensorflow/tensorflow:2.19.0}`",
        )
    return PodWishes(**{field.name: getattr(asked, field.name) for field in fields(PodWishes)})


def _options(run: Run, replicas_planned: int | None) -> Options:
    same = {field.name for field in fields(Options)} & Run.model_fields.keys() - {"serve", "prove"}
    return Options(
        **run.model_dump(include=same),
        communication_timeout_s=run.communication_timeout,
        serve=run.serve and "serve" in STRATEGIES[run.strategy].options,
        replicas_planned=replicas_planned,
        proves=run.prove if run.transparent and run.prove != "off" else False,
    )


def _hosts(spec: ClusterSpec, base_dir: Path) -> tuple[HostPlan, ...]:
    hosts = spec.hosts or engine_hosts(spec.slurm, spec.kubernetes)
    return tuple(_host(host, spec, base_dir) for host in hosts)


def _host(host: Host, spec: ClusterSpec, base_dir: Path) -> HostPlan:
    local = host.transport == "local"
    address = LOCAL_ADDRESS if local else host.address or host.name
    plain = HostPlan(
        name=host.name,
        transport=host.transport,
        address=address,
        data_address=host.data_address or address,
        # On the head it is orch's own: users install their packages into the same environment.
        python=host.python or spec.run.python or (sys.executable if local else "python3"),
        **room_of(host),
        activate=spec.run.activate,
    )
    if local:
        return plain
    ssh = spec.ssh
    jump = host.proxy_jump or ssh.proxy_jump
    identity_file = host.identity_file or ssh.identity_file
    known_hosts = host.known_hosts or ssh.known_hosts
    return replace(
        plain,
        user=host.user or ssh.user,
        port=host.port or ssh.port,
        identity_file=absolute(identity_file, base_dir) if identity_file else None,
        known_hosts=absolute(known_hosts, base_dir) if known_hosts else None,
        proxy_jump=jump,
    )

"""The rules between the values of a spec, and between the spec and the files beside it.

Each check yields places and sentences. It ignores only values that are invalid themselves, so a wrong port of one
host does not hide that two others have the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from orchestrator.core.gpu_split import split
from orchestrator.core.launch import ports_needed
from orchestrator.core.placement import COMPUTING_TYPES, Ask, place
from orchestrator.core.plan import HostPlan, Plan, TaskPlan
from orchestrator.core.sbatch import why_not
from orchestrator.core.strategy import STRATEGIES, Strategy
from orchestrator.core.words import counted
from orchestrator.spec.diagnostics import Loc
from orchestrator.spec.durations import as_written
from orchestrator.spec.forms import SPLIT, RecipientFile, env_name_diagnostic
from orchestrator.spec.models import Run, TimingSpec
from orchestrator.spec.parts import LOCAL_ADDRESS, Parts, absolute, asks, tasks_of
from orchestrator.spec.recipient_files import file_refusal
from orchestrator.spec.secrets import read_secret

Said = Iterator[tuple[Loc, str]]

_SSH_KEYS = ("address", "user", "port", "identity_file", "known_hosts", "proxy_jump")
_ONE_ONLY = ("chief", "evaluator")


def relations(parts: Parts) -> Said:
    """Yield everything that is wrong between values."""
    for check in (
        _machines_somewhere,
        _names,
        _machines,
        _local_hosts,
        _types,
        _fewest,
        _split,
        _options,
        _strategy_options,
        _places,
        _timing,
        _restart,
        _files,
        _checkpoint,
        _env,
        _notify,
    ):
        yield from check(parts)


def _machines_somewhere(parts: Parts) -> Said:
    """Check that there are hosts, or what an engine is asked for in their place, and not both."""
    slurm, pods = parts.slurm, parts.kubernetes
    if parts.is_empty:
        return
    counted_by = [
        (engine, key)
        for engine, key, part, count in (
            ("slurm", "nodes", slurm, slurm and slurm.value.nodes),
            ("kubernetes", "pods", pods, pods and pods.value.pods),
        )
        if part is not None and count is not None and part.good(key)
    ]
    if parts.has_hosts:
        for place in counted_by:
            yield place, f"as many {place[1]} are taken as there are hosts; leave one of the two out"
    elif len(counted_by) > 1:
        yield counted_by[1], "stands in place of hosts, as slurm.nodes does; leave one of the two out"
    elif not counted_by and slurm is None and pods is None:
        yield ("hosts",), "is missing: the machines"
    elif not counted_by and slurm is not None and slurm.good("nodes"):
        yield ("slurm", "nodes"), "is missing: how many nodes hold tasks, since there are no hosts"
    elif not counted_by and slurm is None and pods is not None and pods.good("pods"):
        yield ("kubernetes", "pods"), "is missing: how many pods hold tasks, since there are no hosts"
    if slurm is not None and slurm.good("options"):
        for i, option in enumerate(slurm.value.options):
            if (reason := why_not(option)) is not None:
                yield ("slurm", "options", i), reason


def _names(parts: Parts) -> Said:
    first: dict[str, int] = {}
    for i, host in enumerate(parts.hosts):
        if host.good("name") and first.setdefault(host.value.name, i) != i:
            yield ("hosts", i, "name"), f"hosts[{first[host.value.name]}] has this name already"


def _machines(parts: Parts) -> Said:
    """Check that no machine is listed twice: tasks would be placed on GPUs that are not free."""
    first: dict[tuple[str, int], tuple[int, str]] = {}
    for i, part in enumerate(parts.hosts):
        host = part.value
        if not part.good("name", "address", "port", "transport"):
            continue
        local = host.transport == "local"
        address = LOCAL_ADDRESS if local else (host.address or host.name)
        port = 0 if local else host.port or parts.ssh.value.port or 22
        before, name = first.setdefault((address.lower(), port), (i, host.name))
        if before != i and not (name == host.name and host.address is None):
            again = "this machine" if local else f"address {address}, port {port}"
            key = "transport" if local else "address"
            yield (
                ("hosts", i, key),
                f"the same machine as hosts[{before}]: {again}; give one host more `slots`",
            )


def _local_hosts(parts: Parts) -> Said:
    remote = any(host.good("transport") and host.value.transport == "ssh" for host in parts.hosts)
    for i, part in enumerate(parts.hosts):
        host = part.value
        if not part.good("transport") or host.transport != "local":
            continue
        for key in _SSH_KEYS:
            if getattr(host, key) is not None:
                yield ("hosts", i, key), "a local host is used without SSH; leave it out"
        if remote and part.good("data_address") and host.data_address is None:
            said = f"the other hosts cannot reach {LOCAL_ADDRESS}; add data_address: this machine's address for them"
            yield ("hosts", i, "transport"), said


def _types(parts: Parts) -> Said:
    run = parts.run.value
    if not parts.run.good("strategy", "tasks"):
        return
    strategy = STRATEGIES[run.strategy]
    tasks_by_type = tasks_of(run)
    for type_, tasks in tasks_by_type.items():
        if type_ not in strategy.task_types:
            known = ", ".join(strategy.task_types)
            yield ("run", "tasks", type_), f"{strategy.name} has no {type_}; it has {known}"
        if type_ in _ONE_ONLY and tasks.replicas > 1:
            yield ("run", "tasks", type_, "replicas"), f"TensorFlow takes one {type_}; got {tasks.replicas}"
        if strategy.one_task and tasks.replicas > 1:
            said = f"{strategy.name} is one task with all its devices; got {tasks.replicas} replicas"
            meant = f"; did you mean {strategy.for_more_tasks}?" if strategy.for_more_tasks else ""
            yield ("run", "tasks", type_, "replicas"), said + meant
    for one_of in strategy.required_types:
        if tasks_by_type.keys().isdisjoint(one_of):
            yield ("run", "tasks"), f"{strategy.name} needs a {' or a '.join(one_of)}"


def _fewest(parts: Parts) -> Said:
    """Check replicas_min, the number of tasks with which the run may continue."""
    run = parts.run.value
    if not parts.run.good("strategy", "tasks"):
        return
    strategy = STRATEGIES[run.strategy]
    for type_, tasks in tasks_of(run).items():
        loc: Loc = ("run", "tasks", type_, "replicas_min")
        if tasks.replicas_min is None or type_ not in strategy.task_types:
            continue
        if type_ not in strategy.shrinks:
            able = [
                f"{row.name} ({', '.join(sorted(row.shrinks))})" for row in STRATEGIES.values() if row.shrinks
            ]
            yield (
                loc,
                f"{strategy.name} cannot go on with fewer {type_} tasks; replicas_min is for {', '.join(able)}",
            )
        elif tasks.gpus != SPLIT and tasks.replicas_min > tasks.replicas:
            yield loc, f"replicas_min ({tasks.replicas_min}) must not be above replicas ({tasks.replicas})"


def _split(parts: Parts) -> Said:
    """Check `gpus: split`, which finds the number of tasks and their GPUs by itself."""
    run = parts.run.value
    if not parts.run.good("strategy", "tasks"):
        return
    tasks_by_type = tasks_of(run)
    if all(tasks.gpus != SPLIT for tasks in tasks_by_type.values()):
        return
    able = [row.name for row in STRATEGIES.values() if row.equal_gpus]
    for type_, tasks in tasks_by_type.items():
        loc: Loc = ("run", "tasks", type_)
        if tasks.gpus != SPLIT:
            if type_ in COMPUTING_TYPES and tasks.gpus is not None:
                yield (
                    (*loc, "gpus"),
                    f"leave it out: by `gpus: split` the {type_} gets as many as each worker",
                )
        elif run.strategy not in able:
            yield (*loc, "gpus"), f"split is for {', '.join(able)}; the strategy is {run.strategy}"
        elif type_ != "worker":
            yield (*loc, "gpus"), "split is written for worker; a chief gets as many GPUs as each worker then"
        elif "replicas" in tasks.model_fields_set:
            yield (*loc, "replicas"), "leave it out: by `gpus: split` the hosts' GPUs say how many there are"


def _options(parts: Parts) -> Said:
    """Check for options that contradict each other."""
    run = parts.run.value
    if not parts.run.good("strategy"):
        return
    row = STRATEGIES[run.strategy]
    if run.transparent and not row.transparent:
        able = ", ".join(name for name, each in STRATEGIES.items() if each.transparent)
        yield ("run", "transparent"), f"works with {able}; the strategy is {row.name}"
    if run.transparent and not run.runtime:
        yield ("run", "transparent"), "needs the runtime, which is off"
    if run.transparent and "evaluator" in tasks_of(run):
        yield (
            ("run", "tasks", "evaluator"),
            "an ordinary script knows nothing of evaluating: with `transparent: true` it would train there too; "
            "leave the evaluator out",
        )
    if "batch" in run.model_fields_set and not run.transparent:
        yield ("run", "batch"), "is for transparent scripts; any other script sets its own batch"
    if run.on_shrink != "ignore":
        yield from _on_shrink(parts, row)
    if run.keras is not None and run.keras not in row.kerases:
        yield ("run", "keras"), f"{row.name} trains with Keras {row.kerases[0]} only; got {run.keras}"
    if run.keras == 3 and str(parts.env.get("TF_USE_LEGACY_KERAS")).lower() in ("1", "true"):
        yield ("run", "keras"), "3, and env has TF_USE_LEGACY_KERAS, which chooses Keras 2; keep one"
    if row.needs_runtime and not run.runtime:
        yield ("run", "runtime"), f"{row.name} needs the runtime; it cannot be off"
    if not run.runtime and run.serve and "serve" in row.options:
        yield (
            ("run", "runtime"),
            "with `runtime: off` the script must start its own servers: add `serve: off`",
        )


def _on_shrink(parts: Parts, row: Strategy) -> Said:
    """Check that something may shrink, and that it can be made up for."""
    run, loc = parts.run.value, ("run", "on_shrink")
    if not row.shrinks - row.alone:
        able = ", ".join(name for name, each in STRATEGIES.items() if each.shrinks - each.alone)
        yield loc, f"is for strategies whose replicas share a batch and may be fewer: {able}"
    elif parts.run.good("tasks") and all(
        tasks.replicas_min in (None, tasks.replicas) for tasks in tasks_of(run).values()
    ):
        yield loc, "nothing may shrink: give the tasks a replicas_min below their replicas"
    if run.on_shrink == "scale_lr" and run.transparent and run.keras == 2:
        yield loc, "scale_lr of a transparent script needs Keras 3; hold_batch works with both"


def _strategy_options(parts: Parts) -> Said:
    """Check for options that only other strategies have, and for those that this strategy requires."""
    run = parts.run.value
    if not parts.run.good("strategy"):
        return
    row = STRATEGIES[run.strategy]
    for key in run.model_fields_set - row.options:
        able = [name for name, each in STRATEGIES.items() if key in each.options]
        if able and getattr(run, key) is not None:
            yield ("run", key), f"is for {', '.join(able)}; the strategy is {row.name}"
    for key, meant in row.needs.items():
        if getattr(run, key) is None and parts.run.good(key):
            yield ("run", "strategy"), f"{row.name} needs `{key}:`, {meant}"


def _places(parts: Parts) -> Said:
    """Check that there are enough slots, GPUs and ports for the tasks."""
    run = parts.run
    if not parts.hosts or not run.good("tasks"):
        return
    if not all(host.good("slots", "gpus", "spare") for host in parts.hosts):
        return
    hosts = tuple(
        HostPlan(
            name=host.value.name if host.good("name") else f"hosts[{i}]",
            data_address=_data_address(parts, i),
            gpus=host.value.gpus,
            slots=host.value.slots,
            spare=host.value.spare,
        )
        for i, host in enumerate(parts.hosts)
    )
    equal_gpus = run.good("strategy") and STRATEGIES[run.value.strategy].equal_gpus
    hosts, wanted, problems = split(hosts, asks(run.value))
    tasks: tuple[TaskPlan, ...] = ()
    if not problems:
        tasks, problems = place(hosts, wanted, equal_gpus=equal_gpus)
        yield from _fewest_of_split(run.value, wanted)
    for problem in problems:
        key = "replicas" if problem.kind == "slots" else "gpus"
        yield ("run", "tasks", problem.task_type, key), problem.message
    if run.value.replicas_on_cpu and (given := [task for task in tasks if task.gpus]):
        said = f"is for tasks without GPUs, and {given[0].id} on {given[0].host} has {len(given[0].gpus)}"
        yield ("run", "replicas_on_cpu"), f"{said}, which would idle; leave it out"
    if run.good("strategy") and STRATEGIES[run.value.strategy].gpu_by_local_rank:
        yield from _one_gpu_each(tasks, STRATEGIES[run.value.strategy])
    if not run.good("ports") or len({host.name for host in hosts}) < len(hosts):
        return
    first, last = run.value.ports
    needed = ports_needed(Plan(name="", strategy="", hosts=hosts, tasks=tasks, script=""))
    if last - first + 1 < needed:
        said = "two for each task of the fullest machine, as every generation takes new ones"
        yield ("run", "ports"), f"{last - first + 1} ports are too few; {needed} are needed: {said}"


def _fewest_of_split(run: Run, wanted: Iterable[Ask]) -> Said:
    """Check replicas_min against the number of tasks into which the hosts are cut."""
    for ask in wanted:
        tasks = next(given for type_, given in tasks_of(run).items() if type_ == ask.type)
        if tasks.gpus == SPLIT and (tasks.replicas_min or 0) > ask.replicas:
            yield (
                ("run", "tasks", ask.type, "replicas_min"),
                f"replicas_min ({tasks.replicas_min}) must not be above the {counted(ask.replicas, ask.type)} that "
                "`gpus: split` makes",
            )


def _one_gpu_each(tasks: tuple[TaskPlan, ...], strategy: Strategy) -> Said:
    """Check that no rank gets more than one GPU: it computes on one, and the others would idle."""
    ranks = [task for task in tasks if task.id.type in strategy.task_types]
    most = max(ranks, key=lambda task: len(task.gpus), default=None)
    if most is not None and len(most.gpus) > 1:
        said = f"a rank uses one GPU, and {most.id} on {most.host} would have {len(most.gpus)}"
        yield (
            ("run", "tasks", most.id.type, "gpus"),
            f"{said}; write `gpus: 1`, and a host's GPUs as its `slots`",
        )


def _data_address(parts: Parts, i: int) -> str:
    part = parts.hosts[i]
    if not part.good("transport", "address", "data_address", "name"):
        return f"hosts[{i}]"
    host = part.value
    return host.data_address or (LOCAL_ADDRESS if host.transport == "local" else host.address or host.name)


def _timing(parts: Parts) -> Said:
    timing, good = parts.timing.value, parts.timing.good
    if good("heartbeat", "unreachable_after") and timing.unreachable_after < 3 * timing.heartbeat:
        yield (
            ("run", "timing", _written(timing, "unreachable_after", "heartbeat")),
            f"unreachable_after ({_duration(timing, 'unreachable_after')}) must be at least three times heartbeat "
            f"({_duration(timing, 'heartbeat')}): two heartbeats may be lost on the way",
        )
    if good("unreachable_after", "lost_after") and timing.lost_after <= timing.unreachable_after:
        yield (
            ("run", "timing", _written(timing, "lost_after", "unreachable_after")),
            f"lost_after ({_duration(timing, 'lost_after')}) must be more than unreachable_after "
            f"({_duration(timing, 'unreachable_after')}): SSH trouble alone is not a lost host",
        )


def _written(timing: TimingSpec, *keys: str) -> str:
    """Return the first of these keys that is set in the file, else the first."""
    return next((key for key in keys if key in timing.model_fields_set), keys[0])


def _duration(part: BaseModel, key: str) -> str:
    default = "" if key in part.model_fields_set else ", the default"
    return as_written(getattr(part, key)) + default


def _restart(parts: Parts) -> Said:
    restart = parts.restart.value
    if parts.restart.good("backoff", "backoff_max") and restart.backoff > restart.backoff_max:
        backoff, most = _duration(restart, "backoff"), _duration(restart, "backoff_max")
        key = "backoff" if "backoff" in restart.model_fields_set else "backoff_max"
        yield ("run", "restart", key), f"backoff ({backoff}) must not be above backoff_max ({most})"


def _files(parts: Parts) -> Said:
    if not parts.run.good("workdir"):
        return
    run = parts.run.value
    workdir = absolute(run.workdir, parts.base_dir)
    if not os.path.isdir(workdir):
        yield ("run", "workdir"), f"no such directory: {workdir}"
    elif parts.run.good("script"):
        script, top = os.path.join(workdir, run.script), os.path.realpath(workdir)
        if os.path.commonpath([top, os.path.realpath(script)]) != top:
            yield (
                ("run", "script"),
                f"{run.script} is a symlink that leaves workdir ({workdir}); it would not be pushed",
            )
        elif not os.path.isfile(script):
            yield ("run", "script"), f"no such file in workdir ({workdir}): {run.script}"


def _checkpoint(parts: Parts) -> Said:
    run: Run = parts.run.value
    if run.checkpoint is None or not parts.run.good("checkpoint"):
        return
    loc: Loc = ("run", "checkpoint", "dir")
    if not run.runtime and "every" in run.checkpoint.model_fields_set:
        yield (
            ("run", "checkpoint", "every"),
            "needs the runtime, which is off: the script itself decides when to save",
        )
    if not run.checkpoint.shared and "evaluator" in (run.tasks or {}):
        yield (
            ("run", "checkpoint", "shared"),
            "false: an evaluator reads what the chief saves, and would not see it on another host",
        )
    if not parts.all_local:
        if not os.path.isabs(run.checkpoint.dir):
            yield loc, "must be an absolute path: it is a directory of the hosts, the same on each"
    elif parts.run.good("workdir"):
        top = os.path.realpath(absolute(run.workdir, parts.base_dir))
        found = os.path.realpath(absolute(run.checkpoint.dir, parts.base_dir))
        if os.path.commonpath([top, found]) == top:
            yield loc, "lies inside workdir, and would be pushed with the code; choose a directory outside it"


def _env(parts: Parts) -> Said:
    for name in parts.env:
        if said := env_name_diagnostic(name):
            yield ("run", "env", name), said
    for name, written in parts.secrets.items():
        if said := env_name_diagnostic(name):
            yield ("run", "secrets", name), said
        elif name in parts.env:
            yield ("run", "secrets", name), f"{name} stands in env too; keep one"
        if isinstance(written, str):
            try:
                read_secret(written, parts.base_dir)
            except ValueError as error:
                yield ("run", "secrets", name), str(error)


def _notify(parts: Parts) -> Said:
    """Check the files that hold a recipient's URL."""
    notify = parts.run.value.notify
    if notify is None or not parts.run.good("notify"):
        return
    for number, to in enumerate(notify.to):
        if isinstance(to, RecipientFile) and (said := file_refusal(to, parts.base_dir)):
            yield ("run", "notify", "to", number), said

"""The rules between strategy, tasks, and the hosts on which they are placed. The checks are as in `relations`."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.launching.environment import ports_needed
from orchestrator.core.launching.placement import COMPUTING_TYPES, place
from orchestrator.core.plan import Ask, HostPlan, Plan, TaskPlan
from orchestrator.core.strategy import STRATEGIES, Strategy
from orchestrator.core.words import counted
from orchestrator.spec.diagnostics import Diagnostics, Loc, did_you_mean
from orchestrator.spec.forms import SPLIT
from orchestrator.spec.gpu_split import split
from orchestrator.spec.models import Run
from orchestrator.spec.parts import LOCAL_ADDRESS, Parts, asks, room_of, tasks_of

_ONE_ONLY = ("chief", "evaluator")


def task_relations(parts: Parts) -> Diagnostics:
    """Yield everything that is wrong between strategy, tasks and hosts."""
    of_tasks = (_types, _fewest, _split, _on) if parts.run.good("strategy", "tasks") else ()
    for check in (*of_tasks, _options, _strategy_options, _places):
        yield from check(parts)


def _types(parts: Parts) -> Diagnostics:
    run = parts.run.value
    strategy = STRATEGIES[run.strategy]
    tasks_by_type = tasks_of(run)
    for type_, tasks in tasks_by_type.items():
        if type_ not in strategy.task_types:
            known = ", ".join(strategy.task_types)
            yield ("run", "tasks", type_), f"{strategy.name} has no {type_}; it has {known}"
        if type_ in _ONE_ONLY and tasks.replicas > 1:
            yield ("run", "tasks", type_, "replicas"), f"TensorFlow takes one {type_}; got {tasks.replicas}"
        if strategy.one_task and tasks.replicas > 1:
            text = f"{strategy.name} is one task with all its devices; got {tasks.replicas} replicas"
            meant = f"; did you mean {strategy.for_more_tasks}?" if strategy.for_more_tasks else ""
            yield ("run", "tasks", type_, "replicas"), text + meant
    for one_of in strategy.required_types:
        if tasks_by_type.keys().isdisjoint(one_of):
            yield ("run", "tasks"), f"{strategy.name} needs a {' or a '.join(one_of)}"


def _fewest(parts: Parts) -> Diagnostics:
    """Check replicas_min, the number of tasks with which the run may continue."""
    run = parts.run.value
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


def _split(parts: Parts) -> Diagnostics:
    """Check `gpus: split`, which finds the number of tasks and their GPUs by itself."""
    run = parts.run.value
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


def _on(parts: Parts) -> Diagnostics:
    """Check that `on:` names hosts of the file that hold tasks."""
    known = [part.value.name for part in parts.hosts if not part.good("spare") or not part.value.spare]
    if not all(part.good("name") for part in parts.hosts):
        return
    for type_, tasks in tasks_of(parts.run.value).items():
        for number, name in enumerate(tasks.on):
            if isinstance(name, str) and name not in known:
                hint = did_you_mean(name, known) or f"; there are {', '.join(known[:8]) or 'none'}"
                yield ("run", "tasks", type_, "on", number), f"no host of this name holds tasks{hint}"


def _options(parts: Parts) -> Diagnostics:
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
    if "prove" in run.model_fields_set and not run.transparent:
        yield (
            ("run", "prove"),
            "is for transparent scripts; nothing says what one process would train of any other",
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


def _on_shrink(parts: Parts, row: Strategy) -> Diagnostics:
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


def _strategy_options(parts: Parts) -> Diagnostics:
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


def _places(parts: Parts) -> Diagnostics:
    """Check that there are enough slots, GPUs and ports for the tasks."""
    run = parts.run
    if not parts.hosts or not run.good("tasks"):
        return
    if not all(host.good("slots", "gpus", "spare", "labels") for host in parts.hosts):
        return
    hosts = tuple(
        HostPlan(
            name=host.value.name if host.good("name") else f"hosts[{i}]",
            data_address=_data_address(parts, i),
            **room_of(host.value),
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
        key = {"slots": "replicas", "hosts": "on"}.get(problem.kind, "gpus")
        yield ("run", "tasks", problem.task_type, key), problem.message
    several = next((task for task in tasks if len(task.gpus) > 1 and "MIG-" in str(task.gpus)), None)
    if several is not None:
        text = f"a process can use one MIG instance, and {several.id} on {several.host} would have {len(several.gpus)}"
        yield (
            ("run", "tasks", several.id.type, "gpus"),
            f"{text}; write `gpus: 1`, and their number as `slots`",
        )
    if run.value.replicas_on_cpu and (given := [task for task in tasks if task.gpus]):
        text = f"is for tasks without GPUs, and {given[0].id} on {given[0].host} has {len(given[0].gpus)}"
        yield ("run", "replicas_on_cpu"), f"{text}, which would idle; leave it out"
    if run.good("strategy") and STRATEGIES[run.value.strategy].gpu_by_local_rank:
        yield from _one_gpu_each(tasks, STRATEGIES[run.value.strategy])
    if not run.good("ports") or len({host.name for host in hosts}) < len(hosts):
        return
    first, last = run.value.ports
    needed = ports_needed(Plan(name="", strategy="", hosts=hosts, tasks=tasks, script=""))
    if last - first + 1 < needed:
        text = "two for each task of the fullest machine, as every generation takes new ones"
        yield ("run", "ports"), f"{last - first + 1} ports are too few; {needed} are needed: {text}"


def _fewest_of_split(run: Run, wanted: Iterable[Ask]) -> Diagnostics:
    """Check replicas_min against the number of tasks into which the hosts are cut."""
    for ask in wanted:
        tasks = next(given for type_, given in tasks_of(run).items() if type_ == ask.type)
        if tasks.gpus == SPLIT and (tasks.replicas_min or 0) > ask.replicas:
            yield (
                ("run", "tasks", ask.type, "replicas_min"),
                f"replicas_min ({tasks.replicas_min}) must not be above the {counted(ask.replicas, ask.type)} that "
                "`gpus: split` makes",
            )


def _one_gpu_each(tasks: tuple[TaskPlan, ...], strategy: Strategy) -> Diagnostics:
    """Check that no rank gets more than one GPU: it computes on one, and the others would idle."""
    ranks = [task for task in tasks if task.id.type in strategy.task_types]
    most = max(ranks, key=lambda task: len(task.gpus), default=None)
    if most is not None and len(most.gpus) > 1:
        text = f"a rank uses one GPU, and {most.id} on {most.host} would have {len(most.gpus)}"
        yield (
            ("run", "tasks", most.id.type, "gpus"),
            f"{text}; write `gpus: 1`, and a host's GPUs as its `slots`",
        )


def _data_address(parts: Parts, i: int) -> str:
    part = parts.hosts[i]
    if not part.good("transport", "address", "data_address", "name"):
        return f"hosts[{i}]"
    host = part.value
    return host.data_address or (LOCAL_ADDRESS if host.transport == "local" else host.address or host.name)

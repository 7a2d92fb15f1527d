"""Changes the number of replicas of a cluster spec, to measure it at several sizes."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.errors import SpecError
from orchestrator.core.plan import Plan
from orchestrator.core.strategy import STRATEGIES
from orchestrator.spec.models import ClusterSpec, Run, Tasks
from orchestrator.spec.parts import tasks_of


def sized(spec: ClusterSpec, plan: Plan, replicas: int) -> ClusterSpec:
    """Return the spec with so many replicas in all: GPUs where its tasks have some, else tasks or logical CPUs.

    Args:
        spec: as it was written.
        plan: its plan, for the GPUs that a task gets.

    Raises:
        SpecError: that number cannot be cut into tasks like those of the spec.
    """
    run = spec.run
    strategy = STRATEGIES[run.strategy]
    computing = [task for task in plan.tasks if task.id.type in ("chief", "worker")]
    gpus = max((len(task.gpus) for task in computing), default=0)
    each = gpus or run.replicas_on_cpu or 1
    if strategy.one_task:
        chosen: dict[str, object] = (
            {"tasks": {"worker": Tasks(gpus=replicas)}} if gpus else {"replicas_on_cpu": replicas}
        )
        return _with(spec, run, chosen)
    if replicas > each and replicas % each:
        raise SpecError(
            f"{replicas} replicas cannot be cut into tasks of {each}",
            hint=f"give --replicas multiples of {each}, or numbers below it",
        )
    count, own = max(1, replicas // each), min(each, replicas)
    tasks = dict(tasks_of(run))
    size: dict[str, object] = {"gpus": own} if gpus else {}
    workers = count - ("chief" in tasks)
    if "chief" in tasks:
        tasks["chief"] = tasks["chief"].model_copy(update=size)
    worker = tasks.get("worker", Tasks()).model_copy(
        update={"replicas": workers, "replicas_min": None, **size}
    )
    rest = {type_: given for type_, given in tasks.items() if type_ not in ("worker", "evaluator")}
    if workers:
        rest["worker"] = worker
    fields: dict[str, object] = {"tasks": rest}
    if run.replicas_on_cpu:
        fields["replicas_on_cpu"] = own
    # With `gpus: split` a host holds more tasks than its `slots` say.
    hosts = [host.model_copy(update={"slots": plan.host(host.name).slots}) for host in spec.hosts]
    return _with(spec.model_copy(update={"hosts": hosts}), run, fields)


def alone(spec: ClusterSpec) -> ClusterSpec:
    """Return the spec of one plain process of an ordinary script, on its first host: no strategy, nothing replaced."""
    own = {"strategy": "single", "transparent": False, "batch": None, "replicas_on_cpu": None, "tasks": {}}
    return _with(spec, spec.run, own)


def _with(spec: ClusterSpec, run: Run, changes: Mapping[str, object]) -> ClusterSpec:
    return spec.model_copy(update={"run": run.model_copy(update=changes)})


def sizes_of(text: str) -> list[int]:
    """Return the sizes that a person named, such as `1,2,4,8`, in order. ValueError with a sentence."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ValueError(f"sizes are numbers with commas between, such as 1,2,4; got {text!r}") from None
    if sizes[0] < 1 or sizes[-1] > 1000:
        raise ValueError(f"a size is between 1 and 1000 replicas; got {text!r}")
    return sizes

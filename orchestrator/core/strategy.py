"""What a strategy means: its task types, who leads, who shares whose fate. One table, no `if` elsewhere.

Source: TensorFlow's distribute documentation, and what was seen when processes were killed: a mirrored gang
never takes a worker back, so one death restarts all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from orchestrator.core.plan import TaskId, TaskPlan


class Wiring(Enum):
    """How the processes of a strategy learn of each other."""

    TF_CONFIG = "TF_CONFIG"
    RANKS = "ranks"
    """ORCH_RANK and its kin, with the names that torch made common beside them."""
    HOROVOD = "Horovod"
    """The ranks, and HOROVOD_RANK and its kin, as `horovodrun` would give them; the rendezvous is beside rank 0."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table."""

    name: str
    task_types: tuple[str, ...]
    """Which task types it knows."""
    required_types: tuple[tuple[str, ...], ...]
    """Of each inner tuple, one type must be present."""
    wiring: Wiring
    alone: frozenset[str] = frozenset()
    """Types whose tasks are restarted by themselves; the rest shares one fate."""
    served: frozenset[str] = frozenset()
    """Types that run a server and never end by themselves: reaped when the chief is done."""
    equal_gpus: bool = False
    """Mirrored replicas: with unequal GPU counts "the behavior is undefined" (TensorFlow's own words)."""
    shrinks: frozenset[str] = frozenset()
    """Types of which a generation may have fewer than the spec asks for."""
    when_fewer: str = ""
    """What that means for the training; `{share}` is what is left, as a fraction."""
    one_task: bool = False
    """All its replicas are devices of one process."""
    gpu_by_local_rank: bool = False
    """A task uses one GPU, which its script picks by its local rank: it sees all of the run's GPUs of its host."""
    gloo: bool = False
    """Its library always is gloo, which listens where the host's own name resolves to."""
    needs_runtime: bool = False
    """The runtime does for it what nobody else would: it cannot be off."""
    tpu: bool = False
    """It computes on the TPU that the spec names."""
    transparent: bool = False
    """An ordinary Keras script can be run within its scope."""
    kerases: tuple[int, ...] = (2, 3)
    """Major versions of Keras that train under it."""


def _one_task(name: str, *, transparent: bool = False, tpu: bool = False) -> Strategy:
    return Strategy(
        name=name,
        task_types=("worker",),
        required_types=(("worker",),),
        wiring=Wiring.NONE,
        one_task=True,
        transparent=transparent,
        tpu=tpu,
        needs_runtime=tpu,
    )


_ROWS = (
    Strategy(
        name="multi_worker_mirrored",
        task_types=("chief", "worker", "evaluator"),
        required_types=(("chief", "worker"),),
        wiring=Wiring.TF_CONFIG,
        equal_gpus=True,
        alone=frozenset({"evaluator"}),
        shrinks=frozenset({"worker"}),
        when_fewer="the global batch is {share} of what it was",
        transparent=True,
    ),
    Strategy(
        name="parameter_server",
        task_types=("chief", "worker", "ps", "evaluator"),
        required_types=(("chief",), ("worker",), ("ps",)),
        wiring=Wiring.TF_CONFIG,
        alone=frozenset({"worker", "evaluator"}),
        served=frozenset({"worker", "ps"}),
        shrinks=frozenset({"worker"}),
        when_fewer="each pass over the data takes longer",
    ),
    Strategy(
        name="processes",
        task_types=("worker",),
        required_types=(("worker",),),
        wiring=Wiring.RANKS,
        shrinks=frozenset({"worker"}),
        when_fewer="the global batch is {share} of what it was, unless the script scales it",
    ),
    Strategy(
        name="horovod",
        task_types=("worker",),
        required_types=(("worker",),),
        wiring=Wiring.HOROVOD,
        shrinks=frozenset({"worker"}),
        when_fewer="the global batch is {share} of what it was, unless the script scales it",
        gpu_by_local_rank=True,
        gloo=True,
        needs_runtime=True,
        kerases=(2,),
    ),
    _one_task("mirrored", transparent=True),
    _one_task("central_storage", transparent=True),
    _one_task("tpu", tpu=True),
    _one_task("single"),
)

STRATEGIES = MappingProxyType({row.name: row for row in _ROWS})


def chief_of(tasks: Iterable[TaskPlan]) -> TaskId:
    """The task whose checkpoints and exit code stand for the run: the chief, else worker:0."""
    return min(task.id for task in tasks)

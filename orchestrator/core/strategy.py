"""The table of strategies: task types, which task leads, which are restarted together. No `if` on names elsewhere.

To add a strategy, add its row here and, where its processes need help that no row can say, a module in `task/` that
the row names. A test runs a made-up row through spec, launch and core, and checks that no other module names one.

Source: TensorFlow's distribute documentation, and what was seen when processes were killed: a mirrored gang
never takes a worker back, so one death restarts all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from orchestrator.core.launching import wiring
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras")
_PACKAGES = (*_FRAMEWORKS, "numpy")


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table."""

    name: str
    task_types: tuple[str, ...]
    """Which task types it knows."""
    required_types: tuple[tuple[str, ...], ...]
    """Of each inner tuple, one type must be present."""
    wiring: wiring.Wiring = wiring.none
    """How its processes learn of each other."""
    alone: frozenset[str] = frozenset()
    """Types whose tasks are restarted by themselves; the rest shares one fate."""
    needed: frozenset[str] = frozenset()
    """Types without whose tasks no other task can step: while others step, these live, seen from here or not."""
    served: frozenset[str] = frozenset()
    """Types that run a server and never end by themselves: reaped when the chief is done."""
    equal_gpus: bool = False
    """Mirrored replicas: with unequal GPU counts "the behavior is undefined" (TensorFlow's own words)."""
    shrinks: frozenset[str] = frozenset()
    """Task types that a generation may have fewer of than the spec asks for."""
    when_fewer: str = ""
    """What that means for the training; `{share}` is what is left, as a fraction."""
    one_task: bool = False
    """All its replicas are devices of one process."""
    for_more_tasks: str = ""
    """The strategy that somebody may have meant who asks a strategy of one task for more."""
    gpu_by_local_rank: bool = False
    """A task uses one GPU, which its script picks by its local rank: it sees all of the run's GPUs of its host."""
    gloo: bool = False
    """Its library always is gloo, which listens where the host's own name resolves to."""
    needs_runtime: bool = False
    """The runtime does for it what nobody else would: it cannot be off."""
    runtime_module: str = ""
    """The module of `task/` whose PART helps its processes; empty if none does."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of every task, under the user's own."""
    without_gpus: frozenset[str] = frozenset()
    """Types that see no GPU, whatever they were given."""
    options: frozenset[str] = frozenset()
    """Keys of `run:` in the cluster spec that are for it, and for no other that does not name them."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Keys of `run:` that it cannot do without, each with what stands there."""
    needs_tensorflow: bool = False
    """Its processes are TensorFlow's, whatever the script imports."""
    tf_class: str = ""
    """TensorFlow's class, where the runtime builds it or knows what Keras does under it."""
    standby: bool = True
    """Whether the next generation's tasks may wait at their gates beside the present ones, and gain by it."""
    rescues: bool = False
    """Each of its tasks holds the whole training, and can hand it over when a peer has died."""
    transparent: bool = False
    """An ordinary Keras script can be run within its scope."""
    kerases: tuple[int, ...] = (2, 3)
    """Major versions of Keras that train under it."""
    frameworks: tuple[str, ...] = _FRAMEWORKS
    """What takes long to import: where the script imports it, its process does so before its gate."""
    packages: tuple[str, ...] = _PACKAGES
    """Hosts are asked for their versions, and must have the same. A script that lacks one cannot begin."""

    def gives(self) -> frozenset[str]:
        """Return the variables that each task gets at its release: its wiring is asked, with a plan of two tasks."""
        tasks = tuple(TaskPlan(TaskId(self.task_types[0], index), "a") for index in range(2))
        plan = Plan("given", self.name, (HostPlan("a"),), tasks, "train.py")
        addresses = wiring.Addresses({task.id: "a:1" for task in tasks})
        return frozenset(self.wiring(plan, addresses, tasks[0].id)) - {wiring.CPU_OPERATIONS}


_ROWS = (
    Strategy(
        name="multi_worker_mirrored",
        task_types=("chief", "worker", "evaluator"),
        required_types=(("chief", "worker"),),
        wiring=wiring.tf_config,
        equal_gpus=True,
        alone=frozenset({"evaluator"}),
        needed=frozenset({"chief", "worker"}),
        shrinks=frozenset({"worker"}),
        when_fewer="the global batch is {share} of what it was",
        options=frozenset({"communication", "communication_timeout", "bytes_per_pack"}),
        needs_tensorflow=True,
        tf_class="MultiWorkerMirroredStrategy",
        rescues=True,
        transparent=True,
    ),
    Strategy(
        name="parameter_server",
        task_types=("chief", "worker", "ps", "evaluator"),
        required_types=(("chief",), ("worker",), ("ps",)),
        wiring=wiring.tf_config,
        alone=frozenset({"worker", "evaluator"}),
        needed=frozenset({"chief", "ps"}),
        served=frozenset({"worker", "ps"}),
        shrinks=frozenset({"worker"}),
        when_fewer="each pass over the data takes longer",
        runtime_module="server",
        # Without it gRPC waits for a peer that is gone, and the chief never learns that a ps has died.
        env=MappingProxyType({"GRPC_FAIL_FAST": "use_caller"}),
        # A parameter server holds variables; the GPUs of its host belong to a worker
        without_gpus=frozenset({"ps"}),
        options=frozenset({"serve"}),
        needs_tensorflow=True,
        tf_class="ParameterServerStrategy",
    ),
    Strategy(
        name="processes",
        standby=False,  # its scripts do not import TensorFlow, and nothing else is imported at the gate
        task_types=("worker",),
        required_types=(("worker",),),
        wiring=wiring.ranks,
        shrinks=frozenset({"worker"}),
        when_fewer="the global batch is {share} of what it was, unless the script scales it",
    ),
    Strategy(
        name="horovod",
        standby=False,  # its library is loaded by the script, after the gate
        task_types=("worker",),
        required_types=(("worker",),),
        wiring=wiring.horovod_ranks,
        needed=frozenset({"worker"}),
        shrinks=frozenset({"worker"}),
        when_fewer="the global batch is {share} of what it was, unless the script scales it",
        gpu_by_local_rank=True,
        gloo=True,
        runtime_module="horovod_ranks",
        packages=(*_PACKAGES, "horovod"),
        needs_runtime=True,
        kerases=(2,),
    ),
    Strategy(
        name="mirrored",
        task_types=("worker",),
        required_types=(("worker",),),
        one_task=True,
        for_more_tasks="multi_worker_mirrored",
        options=frozenset({"communication_timeout", "bytes_per_pack"}),
        needs_tensorflow=True,
        tf_class="MirroredStrategy",
        transparent=True,
    ),
    Strategy(
        name="central_storage",
        task_types=("worker",),
        required_types=(("worker",),),
        one_task=True,
        for_more_tasks="multi_worker_mirrored",
        needs_tensorflow=True,
        tf_class="CentralStorageStrategy",
        transparent=True,
    ),
    Strategy(
        name="tpu",
        standby=False,  # a process that loads the TPU's library may hold the device
        task_types=("worker",),
        required_types=(("worker",),),
        one_task=True,
        needs_tensorflow=True,
        runtime_module="tpu",
        needs_runtime=True,
        options=frozenset({"tpu"}),
        needs=MappingProxyType({"tpu": "the TPU's name, grpc://address:port, or `local` on a TPU VM"}),
    ),
    Strategy(
        name="single",
        task_types=("worker",),
        required_types=(("worker",),),
        one_task=True,
        for_more_tasks="multi_worker_mirrored",
    ),
)

_BY_NAME = {row.name: row for row in _ROWS}
STRATEGIES: Mapping[str, Strategy] = MappingProxyType(_BY_NAME)
"""The rows by their names."""

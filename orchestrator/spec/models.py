"""The keys of cluster.yaml, as pydantic models. Nothing here touches the outside world.

The types of single values are in forms.py. Relations between values are in relations.py: pydantic would check them
only once everything else is right, but all errors must be reported together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.core.plan import (
    COPY_BYTES_MAX,
    LOG_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    PUSH_BYTES_MAX,
    SUMMARY_BYTES_MAX,
)
from orchestrator.reporting.notices import BY_DEFAULT
from orchestrator.spec.checks import duration, path_of, size, some
from orchestrator.spec.forms import (
    GPUS_MAX,
    Activate,
    Address,
    Argument,
    DataAddress,
    Every,
    Gpus,
    Image,
    KubernetesContext,
    KubernetesName,
    Labels,
    Module,
    Name,
    NoticeKind,
    On,
    OnOff,
    Pattern,
    Port,
    Ports,
    ProxyJump,
    Python,
    PythonVersion,
    Quantity,
    Recipient,
    Rescue,
    Script,
    SlurmOption,
    SlurmWord,
    Stall,
    Standby,
    Strategy,
    TaskGpus,
    Tpu,
    User,
)

_HOSTS_MAX = 1000

TaskType = Literal["chief", "worker", "ps", "evaluator"]


class _Model(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # the input may hold a secret value of env
    )


class Host(_Model):
    """One machine."""

    name: Name
    """The name of the host, here and in all output."""
    address: Address | None = None
    """The address that SSH connects to. Default: the name. It is looked up in ~/.ssh/config."""
    gpus: Gpus = ()
    """How many GPUs it has, or the numbers of those that may be used. Default: none."""
    data_address: DataAddress | None = None
    """The address that the other tasks connect to, if that is on another network than SSH. Default: the address."""
    user: User | None = None
    """The user to log in as. Default: that of `ssh`, then of ~/.ssh/config."""
    port: Port | None = None
    """The port of its sshd. Default: that of `ssh`, then of ~/.ssh/config, then 22."""
    spare: bool = False
    """A spare holds no task until another host is lost."""
    transport: Literal["ssh", "local"] = "ssh"
    """`local` runs the tasks on the head node itself, without SSH."""
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    """How many tasks it may hold, of all runs together. Not written: one of each run, and its GPUs are what counts."""
    labels: Labels = ()
    """What `on:` of tasks can ask for, such as {gpu: a100, room: 2}."""
    python: Python | None = None
    """The Python of this host, if it differs from that of `run`."""
    identity_file: Annotated[str, path_of("a private key")] | None = None
    """The private key for this host, if it differs from that of `ssh`."""
    known_hosts: Annotated[str, path_of("a known_hosts file")] | None = None
    """The file with this host's key, if it differs from that of `ssh`."""
    proxy_jump: ProxyJump | None = None
    """The bastion in front of this host, if it differs from that of `ssh`; `none` for no bastion."""


class Ssh(_Model):
    """How hosts are reached. A host's own keys take precedence."""

    user: User | None = None
    """The user to log in as. Default: that of ~/.ssh/config, then yours."""
    identity_file: Annotated[str, path_of("a private key")] | None = None
    """The private key. Default: that of ~/.ssh/config, then your agent's keys."""
    known_hosts: Annotated[str, path_of("a known_hosts file")] | None = None
    """The file with the hosts' keys. Unknown keys are refused; `orch trust` adds them."""
    proxy_jump: ProxyJump | None = None
    """A bastion in front of the hosts, as [user@]host[:port]. One hop."""
    port: Port | None = None
    """The port of the hosts' sshd. Default: that of ~/.ssh/config, then 22."""


class Slurm(_Model):
    """The request of `orch up --on slurm` to Slurm."""

    nodes: Annotated[int, Field(ge=1, le=_HOSTS_MAX)] | None = None
    """How many nodes hold tasks. In place of `hosts`; with `hosts`, as many are taken as there are hosts."""
    spares: Annotated[int, Field(ge=0, le=_HOSTS_MAX)] = 0
    """How many more nodes are taken, each of which holds no task until another is lost."""
    gpus_per_node: Annotated[int, Field(ge=0, le=GPUS_MAX)] = 0
    """How many GPUs each node gives. With `hosts`: as many as the host with the most."""
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    """How many tasks a node may hold."""
    partition: SlurmWord | None = None
    """The partition. Default: the cluster's."""
    account: SlurmWord | None = None
    """The account to charge. Default: yours."""
    time: SlurmWord | None = None
    """The time limit, as Slurm writes it: 12:00:00, 2-00:00:00. Two minutes before it, the run saves."""
    requeue: bool = False
    """Whether the job is queued again after a time limit, a preemption or a lost batch host, and the run continued."""
    options: Annotated[tuple[SlurmOption, ...], Field(strict=False, max_length=50)] = ()
    """Further options of sbatch, such as --qos=long or --constraint=a100."""


class Kubernetes(_Model):
    """The request of `orch up --on k8s` to Kubernetes: pods that serve as hosts."""

    pods: Annotated[int, Field(ge=1, le=_HOSTS_MAX)] | None = None
    """How many pods hold tasks. In place of `hosts`; with `hosts`, as many are taken as there are hosts."""
    spares: Annotated[int, Field(ge=0, le=_HOSTS_MAX)] = 0
    """How many more pods are taken, each of which holds no task until another is lost."""
    gpus_per_pod: Annotated[int, Field(ge=0, le=GPUS_MAX)] = 0
    """How many GPUs each pod gets (nvidia.com/gpu). With `hosts`: as many as the host with the most."""
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    """How many tasks a pod may hold."""
    image: Image | None = None
    """The image that has Python and what the script imports; nothing of orch."""
    namespace: KubernetesName | None = None
    """The namespace. Default: that of kubectl's context."""
    context: KubernetesContext | None = None
    """The context of kubectl, which says what cluster. Default: the current one when the pods are asked for."""
    claim: KubernetesName | None = None
    """A PersistentVolumeClaim that is there, for `checkpoint: dir`. Default: one is made, and kept."""
    storage: Quantity = "20Gi"
    """The size of a claim that is made."""
    shm: Quantity = "2Gi"
    """The size of /dev/shm."""
    cpu: Quantity | None = None
    """The CPUs of each pod, as request and as limit."""
    memory: Quantity | None = None
    """The memory of each pod, as request and as limit; /dev/shm counts."""
    pod: dict[str, Any] | None = None
    """A patch of the pod template in Kubernetes' own words, `{metadata: {…}, spec: {…}}`: tolerations, node selector,
    security context, pull secrets, annotations. The container is named `task`. `orch export k8s` heeds it too."""


class Setup(_Model):
    """A virtual environment that `orch up` and `orch setup` make on each host, and that the tasks use."""

    requirements: Annotated[str, path_of("a file")]
    """What it holds, as a requirements file of pip, relative to this file."""
    python: PythonVersion | None = None
    """The version of its Python, which the host must have, or uv. Default: that of the host's `python`."""
    offline: bool = False
    """Whether the head collects the wheels and pushes them, for hosts that do not reach a package index."""


class Tasks(_Model):
    """The tasks of one type."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many there are."""
    replicas_min: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many must be left for the run to continue when a host is lost and there is no spare. Default: all."""
    gpus: TaskGpus = None
    """The number of GPUs for each. Default: chief and worker share their host's GPUs, ps and evaluator get none.
    `split` for workers that must have equally many, on hosts with different numbers: each host is cut into tasks."""
    on: On = ()
    """The hosts that may hold them, by name, as [gpu-a, gpu-b], or by labels, as {gpu: a100}. Default: all."""
    gpu_memory: Annotated[int, size(1, 10**13)] | None = None
    """How much memory each of their GPUs must have, such as 40GB, as the driver says."""
    memory: Annotated[int, size(1, 10**13)] | None = None
    """How much of its host's memory each of them needs, such as 64GB: as much must be free, as the kernel says."""
    together: bool | None = None
    """`true`: on as few hosts as possible. `false`: one a host at most. Default: spread, as the slots allow."""


class Checkpoint(_Model):
    """Where the training saves."""

    dir: Annotated[str, path_of("a directory")]
    """A directory that every host sees under this path. Each generation has a directory of its own in it."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many generations' directories are kept."""
    shared: bool = True
    """False: each host has its own directory there, and checkpoints are transferred through the head node."""
    every: Every = "auto"
    """How often `transparent`, `orchestrator.keras.Checkpoint()` and `runtime.should_save()` save: a time such as 10m,
    `500 steps`, or `auto`: as often as costs least, by the measured cost of a save and the failures that the run has
    seen, and at most 1 % of the time."""
    copy_limit: Annotated[int, size(1, 10**15)] = COPY_BYTES_MAX
    """The largest checkpoint that is transferred through the head node, such as 50GB."""
    group: Annotated[str, Field(pattern=r"^[^-/:,\s][^/:,\x00-\x1f]*$", max_length=100)] | None = None
    """The group of users who share `dir`, by its name or number on the hosts. Default: nobody else may write there."""


class Restart(_Model):
    """When to try again, and when to give up."""

    without_progress_max: Annotated[int, Field(ge=0, le=1000)] = 5
    """How many failures in a row without a newer checkpoint end the run. 0 and 1: the first one does."""
    backoff: Annotated[float, duration(0)] = 5.0
    """The wait before a second restart without progress; it doubles each time."""
    backoff_max: Annotated[float, duration(0)] = 300.0
    """The longest wait."""
    standby: Standby = "auto"
    """Whether the next generation's processes are started, and have imported TensorFlow, before anything fails. It
    takes some 400 MB of memory a task and no GPU memory; `auto` does so where four times as much is free."""
    rescue: Rescue = "auto"
    """Whether a task that survives the death of another one writes its state before it is stopped, so that no step is
    lost: `auto`, `off`, or how long that may take at most, as 30s, which is what `auto` means. It needs several workers
    of `multi_worker_mirrored`, and `transparent: true` or a line in the script: `orch status` says which."""


class TimingSpec(_Model):
    """How long the run waits for things, as 500ms, 5s, 1.5m, 2h, or a number of seconds."""

    heartbeat: Annotated[float, duration(0.1, 60)] = 2.0
    """How often the hosts report."""
    unreachable_after: Annotated[float, duration(0.3)] = 10.0
    """The silence after which a host is shown as unreachable; nothing else happens. At least three heartbeats."""
    lost_after: Annotated[float, duration(0.4)] = 60.0
    """The silence after which a host counts as lost. More than unreachable_after."""
    stall_after: Stall = None
    """How long training may make no progress; `auto` (the default) derives it from the run's own pace."""
    start_after: Annotated[float, duration(1)] = 300.0
    """How long the tasks may take to join, and then to connect to each other. Then those that are missing, or do not
    reach each other, are named, and the start is tried again."""
    kill_grace: Annotated[float, duration(0, 3600)] = 10.0
    """How long a task may take to stop before it is killed."""


class Queue(_Model):
    """That the run waits for its GPUs where others hold them, as with `orch up --queue`."""

    priority: Literal["low", "normal", "high"] = "normal"
    """Who begins first. Within a priority: who came first."""
    max_wait: Annotated[float, duration(1, 10**8)] | None = None
    """After which it gives up, such as 12h. Default: never."""
    preempt: bool = False
    """Whether runs that came from the queue with a lower priority make way: each ends at a checkpoint, returns to the
    queue, and goes on later."""


class Notify(_Model):
    """Who gets which messages. Also the content of a file of your own, for all of your runs."""

    on: Annotated[tuple[NoticeKind, ...], Field(strict=False), some()] = BY_DEFAULT
    """Of which events. Default: failed, stalled, nonfinite, quarantined, succeeded, disk-full."""
    to: Annotated[tuple[Recipient, ...], Field(strict=False, max_length=20, repr=False), some()]
    """The recipients: URLs as apprise knows them, such as ntfy://TOPIC, or `{file: PATH}` for a file with one."""
    lines: Annotated[int, Field(ge=0, le=50)] = 10
    """How many of a task's last lines a message carries. 0: none leave this machine."""


class Run(_Model):
    """What is trained, and how."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["script"]}, {"required": ["module"]}]}
    )

    strategy: Strategy
    """The strategy that the script uses."""
    script: Script | None = None
    """The training script, relative to workdir."""
    module: Module | None = None
    """Instead of a script: the module that trains, such as pkg.train, run in workdir as `python -m` runs it."""
    args: Annotated[tuple[Argument, ...], Field(strict=False)] = ()  # YAML gives a list
    """The script's arguments."""
    workdir: Annotated[str, path_of("a directory")] = "."
    """The directory that is pushed to every host, relative to this file."""
    push_limit: Annotated[int, size(1, 10**13)] = PUSH_BYTES_MAX
    """How much of workdir may be pushed, such as 500MB. `.gitignore` and `.orchignore` say what is left out."""
    log_limit: Annotated[int, size(1, 10**13)] = LOG_BYTES_MAX
    """How much of each task's logs is copied to the head node, such as 500MB."""
    summary_limit: Annotated[int, size(1, 10**13)] = SUMMARY_BYTES_MAX
    """How much `orch tensorboard` fetches of what each task writes."""
    outputs: Annotated[tuple[Pattern, ...], Field(strict=False, max_length=100)] = ()
    """Files to fetch when the run has ended, such as model.keras or *.csv, into NAME-outputs beside this file."""
    output_limit: Annotated[int, size(1, 10**13)] = OUTPUT_BYTES_MAX
    """How much of what each task leaves is fetched."""
    python: Python | None = None
    """The Python of the hosts. Default: python3; on the head node itself, orch's own."""
    activate: Activate | None = None
    """One line that the login shell of each host runs first, such as `module load tf/2.21` or
    `source ~/env/bin/activate`. The checks, `setup` and the tasks get the environment that it makes."""
    env: Annotated[dict[str, Argument], Field(repr=False)] = {}
    """The environment of every task. A value whose name looks secret (TOKEN, PASSWORD, …) is never shown."""
    secrets: dict[str, Argument] = {}
    """Environment variables, each with a file on the head node that holds the value. Only you may read the file."""
    tasks: dict[TaskType, Tasks] = {}
    """The tasks by their type. A strategy of one task needs none."""
    transparent: bool = False
    """Whether the script is an ordinary Keras script, which the runtime runs within the strategy's scope."""
    batch: Literal["global", "per_replica"] | None = None
    """What the batch size of a transparent script means. `global`: that of all replicas together."""
    replicas_on_cpu: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many logical CPU devices a task gets for its strategy, if it has no GPUs."""
    communication: Literal["auto", "ring", "nccl"] = "auto"
    """How multi_worker_mirrored reduces gradients."""
    communication_timeout: Annotated[float, duration(1)] | None = None
    """The timeout of a collective. It must be longer than the longest step, evaluation and first trace."""
    bytes_per_pack: Annotated[int, size(1, 10**12)] | None = None
    """How much of the gradients goes into one collective, such as 50MB, so that the first are sent while the others are
    still computed. Default: all at once."""
    keras: Literal[2, 3] | None = None
    """The major version of Keras. 2: the script uses tf_keras (this sets TF_USE_LEGACY_KERAS)."""
    children: OnOff = True
    """Whether Keras 3 is patched in each Python that the script starts, too. `off`: they are left alone."""
    serve: OnOff = True
    """Whether orch runs the servers of worker and ps under parameter_server. `off`: the script starts them itself."""
    tpu: Tpu | None = None
    """For the strategy tpu: the TPU's name, grpc://address:port, or `local` on a TPU VM."""
    ports: Ports = (20000, 20999)
    """The ports that the tasks listen on. Each generation takes different ones."""
    checkpoint: Checkpoint | None = None
    """Where the training saves. Without it, every restart begins at step 0."""
    restart: Restart = Restart()
    """When to try again, and when to give up."""
    timing: TimingSpec = TimingSpec()
    """How long the run waits for things."""
    queue: Queue | None = None
    """Wait until the GPUs are free, instead of failing at once."""
    time_limit: Annotated[float, duration(1, 10**8)] | None = None
    """How long the run may take, such as 12h: it ends at a checkpoint before that. `orch up` goes on from there."""
    on_stall: Literal["restart", "notify"] = "restart"
    """What to do when training makes no progress for stall_after: restart from the checkpoint, or only say so."""
    on_nonfinite: Literal["notify", "stop", "rollback"] = "notify"
    """What to do when a metric that the chief reports is NaN or infinite: say so, end the run, or go back to the
    checkpoint before that step (at most three times without getting beyond it; then the run ends)."""
    notify: Notify | None = None
    """Who is told when it fails, stalls or succeeds."""
    on_shrink: Literal["hold_batch", "scale_lr", "ignore"] = "ignore"
    """What a run does that goes on with fewer workers (replicas_min): it holds the global batch; or each replica keeps
    its batch, and the learning rate follows by the linear rule, with warm-up where it grows back. A script that is
    not transparent is told only."""
    prove: Standby = "auto"
    """Whether steps of a transparent script are proved equal to those of one process, by their gradients; the run ends
    at one that is not. `on`: the first step of each `fit`. `auto`: of the first `fit`, and of those of other models as
    far as it takes a tenth of the run's time. It costs about two steps of one process, and the tracing of three."""
    chaos: Literal["allowed", "refused"] = "refused"
    """Whether `orch chaos` may inject faults into this run."""
    runtime: OnOff = True
    """`off` starts the script without the runtime: orch sees whether it lives, but not its progress."""


Hosts = Annotated[list[Host], Field(min_length=1, max_length=_HOSTS_MAX)]


class Inventory(_Model):
    """A file of hosts, for several specs."""

    version: Literal[1] = 1
    hosts: Hosts
    ssh: Ssh = Ssh()
    setup: Setup | None = None


class ClusterSpec(_Model):
    """A cluster.yaml: the hosts, and what they train."""

    version: Literal[1]
    """The version of this format."""
    name: Name
    """The run's name."""
    hosts: Hosts = []
    """The machines where tasks may run. They are placed on what is free, in this order where all is. On Slurm,
    `slurm: {nodes: …}` may stand in their place."""
    inventory: Annotated[str, path_of("a file of hosts")] | None = None
    """A file with `hosts`, for several specs; its `ssh` and `setup` hold where this file has none. Relative paths in it
    are of its own directory."""
    slurm: Slurm | None = None
    """What `orch up --on slurm` asks of Slurm."""
    kubernetes: Kubernetes | None = None
    """What `orch up --on k8s` asks of Kubernetes. `pods` may stand in place of `hosts`. Experimental."""
    ssh: Ssh = Ssh()
    """How hosts are reached."""
    setup: Setup | None = None
    """The environment in which the tasks run, made on each host. `python` of a host is then what it is made with."""
    run: Run
    """What is trained, and how."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of cluster.yaml, for editors."""
    schema: dict[str, Any] = _untitled(ClusterSpec.model_json_schema())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "orch cluster spec"}
    return {**head, **schema}


def _untitled(schema: Any) -> Any:
    """Remove pydantic's titles, each of which only repeats its key."""
    if isinstance(schema, dict):
        return {key: _untitled(value) for key, value in schema.items() if key != "title"}
    return [_untitled(value) for value in schema] if isinstance(schema, list) else schema

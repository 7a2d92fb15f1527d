"""What people write in cluster.yaml, as pydantic models. Nothing here touches the world.

Every text that could become an option, a shell word or a terminal's control sequence is refused here, although
nothing of it ever reaches a shell: two locks are better than one. Relations between values are in relations.py,
since they must be told together with everything else, and pydantic checks them only when all else is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from orchestrator.core.strategy import STRATEGIES
from orchestrator.spec.complaints import did_you_mean, shown
from orchestrator.spec.durations import PATTERN as DURATION_PATTERN
from orchestrator.spec.durations import parse_duration, show_duration

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
SAID = "said"
"""The type of an error whose message is a sentence of ours already."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_OURS = ("TF_CONFIG", "CUDA_VISIBLE_DEVICES")
_GPUS_MAX = 128
_HOSTS_MAX = 1000
_DURATION_FORMS = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]


def complain(sentence: str) -> PydanticCustomError:
    """An error whose message is this sentence."""
    return PydanticCustomError(SAID, "{sentence}", {"sentence": sentence})


@dataclass(frozen=True, eq=False)
class _Checked:
    """A check of ours in a field's annotation, with what the JSON schema says of it.

    Either after pydantic's own check of the type, or `instead` of it.
    """

    check: Callable[[Any], Any]
    json: Mapping[str, Any]
    instead: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if self.instead:
            return core_schema.no_info_plain_validator_function(self.check)
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return dict(self.json)


def _text(pattern: str, sentence: str, *, max_length: int = 255) -> _Checked:
    """Text of one form. The sentence says which, and the value is shown."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if len(value) > max_length or not compiled.fullmatch(value):
            raise complain(f"{sentence}; got {shown(value)}")
        return value

    schema = {"type": "string", "pattern": f"^(?:{pattern})$", "maxLength": max_length}
    return _Checked(check, schema)


def _path(what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not value or value.startswith("-") or not value.isprintable():
            raise complain(
                f"must be the path of {what}, without control characters and not beginning with a dash"
            )
        return value

    return AfterValidator(check)


def _duration(min_s: float, max_s: float = 7 * 86400.0) -> _Checked:
    def check(value: object) -> float:
        return _seconds(value, min_s, max_s)

    return _Checked(check, {"anyOf": _DURATION_FORMS}, instead=True)


def _seconds(value: object, min_s: float, max_s: float) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        got = "" if isinstance(value, (dict, list)) else f"; got {shown(value)}"
        raise complain(f"{error}{got}") from None
    if not min_s <= seconds <= max_s:
        between = f"between {show_duration(min_s)} and {show_duration(max_s)}"
        raise complain(f"must be {between}; got {show_duration(seconds)}")
    return seconds


def _stall(value: object) -> float | None:
    """`auto` is None: judged by the run's own pace."""
    return None if value is None or value == "auto" else _seconds(value, 1, 7 * 86400.0)


def _gpus(value: object) -> tuple[int, ...]:
    sentence = f"must be a count of GPUs (0 to {_GPUS_MAX}) or a list of their numbers, such as [0, 1, 3]"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _GPUS_MAX:
        return tuple(range(value))
    if isinstance(value, list) and all(type(gpu) is int and 0 <= gpu < 1024 for gpu in value):
        if len(set(value)) < len(value):
            raise complain("lists a GPU twice")
        return tuple(value)
    raise complain(sentence if isinstance(value, (dict, list)) else f"{sentence}; got {shown(value)}")


def _ports(value: object) -> tuple[int, int]:
    match = (
        re.fullmatch(r"([0-9]{1,9}) ?- ?([0-9]{1,9})", value, re.ASCII) if isinstance(value, str) else None
    )
    if match is None:
        raise complain(f"must be a range of ports such as 20000-20999; got {shown(value)}")
    first, last = int(match[1]), int(match[2])
    if first < 1024 or last > 65535:
        raise complain(f"ports go from 1024 (below it they need root) to 65535; got {first}-{last}")
    if first > last:
        raise complain(f"the first port is above the last; did you mean {last}-{first}?")
    return first, last


def _strategy(value: str) -> str:
    if value not in STRATEGIES:
        hint = did_you_mean(value, STRATEGIES)
        raise complain(f"must be one of {', '.join(STRATEGIES)}; got {shown(value)}{hint}")
    return value


def _on_off(value: object) -> bool:
    """YAML 1.1 has made a boolean of on and off already, where they stand without quotes."""
    known = {"on": True, "off": False}.get(value) if isinstance(value, str) else value
    if not isinstance(known, bool):
        got = "" if isinstance(value, (dict, list)) or value is None else f"; got {shown(value)}"
        raise complain(f"must be on or off{got}")
    return known


def _relative(value: str) -> str:
    steps = value.split("/")
    if not value or value.startswith(("-", "/", "~")) or ".." in steps or not value.isprintable():
        raise complain(f"must be a path inside workdir, such as train.py or src/train.py; got {shown(value)}")
    return value


def _argument(value: str) -> str:
    if "\0" in value:
        raise complain("must not hold a NUL character")
    return value


def env_name_complaint(name: str) -> str | None:
    """Why a name cannot be set in `env` or `secrets`; None where it can."""
    if not _ENV_NAME.fullmatch(name):
        return (
            "not a name for an environment variable: letters, digits and _ only, not beginning with a digit"
        )
    if name.startswith("ORCH_") or name in _OURS:
        return f"{name} is set by orch for each task, and cannot be set here"
    return None


Name = Annotated[
    str,
    _text(
        NAME_PATTERN[1:-1],
        "must be 1 to 63 lower-case letters, digits and dashes, with no dash at either end",
        max_length=63,
    ),
]
Address = Annotated[
    str,
    _text(
        r"[A-Za-z0-9:\[][A-Za-z0-9._:%\]-]*",
        "must be a host name or an IP address",
    ),
]
User = Annotated[str, _text(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*", "must be a user name", max_length=64)]
ProxyJump = Annotated[
    str,
    _text(
        r"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?",
        "must be one host to go through, as [user@]host[:port], or none",
    ),
]
Python = Annotated[
    str,
    _text(
        r"[A-Za-z0-9_][A-Za-z0-9_.+-]*|/[A-Za-z0-9_./+-]*[A-Za-z0-9_.+-]",
        "must be a command such as python3, or an absolute path of letters, digits and _ . / + -",
        max_length=1024,
    ),
]
Tpu = Annotated[
    str,
    _text(
        r"(grpc://)?[A-Za-z0-9][A-Za-z0-9._:,/-]*",
        "must be the name of a TPU, grpc://address:port, or local",
    ),
]
Port = Annotated[int, Field(ge=1, le=65535)]
Gpus = Annotated[
    tuple[int, ...],
    _Checked(
        _gpus,
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": _GPUS_MAX},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True},
            ]
        },
        instead=True,
    ),
]
Ports = Annotated[
    tuple[int, int], _Checked(_ports, {"type": "string", "pattern": "^[0-9]+ ?- ?[0-9]+$"}, instead=True)
]
Stall = Annotated[
    float | None, _Checked(_stall, {"anyOf": [{"const": "auto"}, *_DURATION_FORMS]}, instead=True)
]
Argument = Annotated[str, AfterValidator(_argument)]
TaskType = Literal["chief", "worker", "ps", "evaluator"]


class _Model(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # a value of env may be in it
    )


class Host(_Model):
    """One machine."""

    name: Name
    """What the host is called here, and in everything that is shown."""
    address: Address | None = None
    """What SSH connects to; the default is the name. It passes through ~/.ssh/config."""
    gpus: Gpus = ()
    """How many GPUs it has, or the numbers of those that may be used. Default: none."""
    data_address: Address | None = None
    """What the other tasks connect to, where that is another network than SSH's. Default: the address."""
    user: User | None = None
    """The user to log in as. Default: that of `ssh`, then of ~/.ssh/config."""
    port: Port | None = None
    """The port of its sshd. Default: that of `ssh`, then of ~/.ssh/config, then 22."""
    spare: bool = False
    """A spare holds no task until another host is lost."""
    transport: Literal["ssh", "local"] = "ssh"
    """`local` runs the tasks on the head node itself, without SSH."""
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    """How many tasks it may hold."""
    python: Python | None = None
    """The Python of this host, where it differs from that of `run`."""
    identity_file: Annotated[str, _path("a private key")] | None = None
    """The private key for this host, where it differs from that of `ssh`."""
    known_hosts: Annotated[str, _path("a known_hosts file")] | None = None
    """The file with this host's key, where it differs from that of `ssh`."""
    proxy_jump: ProxyJump | None = None
    """The bastion in front of this host, where it differs from that of `ssh`; `none` for none."""


class Ssh(_Model):
    """How hosts are reached; a host may say otherwise for itself."""

    user: User | None = None
    """The user to log in as. Default: that of ~/.ssh/config, then yours."""
    identity_file: Annotated[str, _path("a private key")] | None = None
    """The private key. Default: that of ~/.ssh/config, then your agent's keys."""
    known_hosts: Annotated[str, _path("a known_hosts file")] | None = None
    """The file with the hosts' keys. Unknown keys are refused; `orch trust` adds them."""
    proxy_jump: ProxyJump | None = None
    """A bastion in front of the hosts, as [user@]host[:port]. One hop."""
    port: Port | None = None
    """The port of the hosts' sshd. Default: that of ~/.ssh/config, then 22."""


class Tasks(_Model):
    """The tasks of one type."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many there are."""
    replicas_min: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How many must be left for the run to go on when a host is lost and no spare is there. Default: all."""
    gpus: Annotated[int, Field(ge=0, le=_GPUS_MAX)] | None = None
    """GPUs for each. Default: chief and worker share their host's, ps and evaluator have none."""


class Checkpoint(_Model):
    """Where the training saves."""

    dir: Annotated[str, _path("a directory")]
    """A directory that every host sees under this path. Each generation has its own directory in it."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many generations' directories are kept."""
    shared: bool = True
    """False: each host has its own directory there, and the head node carries checkpoints between them."""


class Restart(_Model):
    """When to try again, and when to give up."""

    without_progress_max: Annotated[int, Field(ge=0, le=1000)] = 5
    """Restarts in a row without a newer checkpoint, before the run is given up."""
    backoff: Annotated[float, _duration(0)] = 5.0
    """The wait before a second restart without progress; it doubles each time."""
    backoff_max: Annotated[float, _duration(0)] = 300.0
    """The longest wait."""


class TimingSpec(_Model):
    """How long the run waits for things, as 500ms, 5s, 1.5m, 2h, or a number of seconds."""

    heartbeat: Annotated[float, _duration(0.1, 60)] = 2.0
    """How often the hosts report."""
    unreachable_after: Annotated[float, _duration(0.3)] = 10.0
    """Silence after which a host is shown as unreachable; nothing else happens. At least three heartbeats."""
    lost_after: Annotated[float, _duration(0.4)] = 60.0
    """Silence after which a host counts as lost. More than unreachable_after."""
    stall_after: Stall = None
    """How long the position may stand still; `auto` (the default) judges it by the pace that the run has shown."""
    start_after: Annotated[float, _duration(1)] = 300.0
    """How long the tasks have to join, before it is said who is missing and the start is tried again."""
    kill_grace: Annotated[float, _duration(0, 3600)] = 10.0
    """How long a task that is stopped may take, before it is killed."""


class Run(_Model):
    """What is trained, and how."""

    strategy: Annotated[str, _Checked(_strategy, {"enum": list(STRATEGIES)})]
    """The strategy that the script uses."""
    script: Annotated[str, AfterValidator(_relative)]
    """The training script, relative to workdir."""
    args: Annotated[tuple[Argument, ...], Field(strict=False)] = ()  # a list in the file, never changed here
    """The script's arguments."""
    workdir: Annotated[str, _path("a directory")] = "."
    """The directory that is pushed to every host, relative to this file."""
    python: Python | None = None
    """The Python of the hosts. Default: python3; on the head node itself, orch's own."""
    env: Annotated[dict[str, Argument], Field(repr=False)] = {}
    """Environment of every task. A value whose name looks secret (TOKEN, PASSWORD, …) is never shown."""
    secrets: dict[str, Annotated[str, AfterValidator(_argument)]] = {}
    """Environment names, each with a file on the head node whose content is the value. Nobody else may read it."""
    tasks: dict[TaskType, Tasks] = {}
    """The tasks by their type. A strategy of one task needs none."""
    transparent: bool = False
    """The script is an ordinary Keras script: the runtime runs it within the strategy's scope."""
    batch: Literal["global", "per_replica"] | None = None
    """Of a transparent script: what its batch size means. `global` is that of all replicas together."""
    replicas_on_cpu: Annotated[int, Field(ge=1, le=64)] | None = None
    """How many logical CPU devices a task has for its strategy, where there are no GPUs."""
    communication: Literal["auto", "ring", "nccl"] = "auto"
    """What multi_worker_mirrored reduces gradients by."""
    communication_timeout: Annotated[float, _duration(1)] | None = None
    """When a collective is given up: longer than the longest step, evaluation and first trace."""
    keras: Literal[2, 3] | None = None
    """2: the script uses tf_keras (sets TF_USE_LEGACY_KERAS)."""
    serve: Annotated[bool, _Checked(_on_off, {"enum": [True, False, "on", "off"]}, instead=True)] = True
    """parameter_server: orch runs the servers of worker and ps. `off`: the script starts them itself."""
    tpu: Tpu | None = None
    """Of the strategy tpu: the TPU's name, grpc://address:port, or `local` on a TPU VM."""
    ports: Ports = (20000, 20999)
    """The ports that the tasks listen on. Each generation takes others."""
    checkpoint: Checkpoint | None = None
    """Where the training saves. Without it, every restart begins at step 0."""
    restart: Restart = Restart()
    """When to try again, and when to give up."""
    timing: TimingSpec = TimingSpec()
    """How long the run waits for things."""
    on_stall: Literal["restart", "notify"] = "restart"
    """When the position stands still for longer than stall_after: restart from the checkpoint, or only say it."""
    chaos: Literal["allowed", "refused"] = "refused"
    """Whether `orch chaos` may hurt this run."""
    runtime: Annotated[bool, _Checked(_on_off, {"enum": [True, False, "on", "off"]}, instead=True)] = True
    """`off` starts the script plain: only its life is watched, not its progress."""


class ClusterSpec(_Model):
    """A cluster.yaml: the hosts, and what they train."""

    version: Literal[1]
    """The version of this format."""
    name: Name
    """The run's name."""
    hosts: Annotated[list[Host], Field(min_length=1, max_length=_HOSTS_MAX)]
    """The machines. Tasks are placed in this order."""
    ssh: Ssh = Ssh()
    """How hosts are reached."""
    run: Run
    """What is trained, and how."""


def json_schema() -> dict[str, Any]:
    """The JSON schema of cluster.yaml, for editors."""
    schema: dict[str, Any] = _untitled(ClusterSpec.model_json_schema())
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "orch cluster spec"}
    return {**head, **schema}


def _untitled(schema: Any) -> Any:
    """Without pydantic's titles: each only says its key again."""
    if isinstance(schema, dict):
        return {key: _untitled(value) for key, value in schema.items() if key != "title"}
    return [_untitled(value) for value in schema] if isinstance(schema, list) else schema

"""The types of the values in cluster.yaml: for each, a type for pydantic, its check, and its part of the JSON schema.

Text that could act as an option, as shell syntax or as a terminal's control sequence is refused here. None of it ever
reaches a shell; this is a second line of defence.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from orchestrator.core.plan import Gpu
from orchestrator.core.strategy import STRATEGIES
from orchestrator.reporting.notices import NOTICES
from orchestrator.spec import recipients
from orchestrator.spec.checks import DURATION_FORMS, Checked, between, diagnose, text_of
from orchestrator.spec.diagnostics import did_you_mean, shown
from orchestrator.spec.durations import as_written, parse_duration

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)

_OURS = ("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

GPUS_MAX = 128

_UUID = re.compile(r"^(GPU-[0-9a-f-]{36}|MIG-(GPU-)?[0-9a-f-]{36}(/[0-9]{1,3}){0,2})$")
"""As `nvidia-smi -L` shows a GPU, and an instance of a divided one."""

SPLIT = "split"
"""Instead of a number of GPUs: hosts are cut into tasks that have equally many."""


def _without_port(hint: str) -> AfterValidator:
    """Refuse `host:port`. An IPv6 address has more than one colon, or brackets."""

    def check(value: str) -> str:
        host, colon, port = value.rpartition(":")
        if colon and (":" not in host or host.endswith("]")):
            way_out = hint.format(host=host.strip("[]"), port=port)
            raise diagnose(
                f"must be a host name or an IP address without a port; got {shown(value)}; {way_out}"
            )
        return value

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class RecipientFile:
    """A recipient whose URL stands in a file of the user's, as the values of `secrets` do."""

    path: str


def checked_recipient(value: object) -> str | RecipientFile:
    """Return a recipient. No error shows any part of it but the name of the service."""
    if isinstance(value, dict):
        path = value.get("file")
        if set(value) != {"file"} or not isinstance(path, str) or not path.isprintable() or not path:
            raise diagnose("must be a URL such as ntfy://TOPIC, or {file: PATH}")
        return RecipientFile(path)
    if not isinstance(value, str):
        raise diagnose("must be a URL such as ntfy://TOPIC, or {file: PATH}")
    if sentence := recipients.refusal(value):
        raise diagnose(sentence)
    return value


def _stall(value: object) -> float | None:
    """Parse stall_after. `auto` becomes None: the run's own pace decides."""
    return (
        None
        if value is None or value == "auto"
        else between(1.0, 7 * 86400.0, value, parse_duration, as_written)
    )


def _gpus(value: object) -> tuple[Gpu, ...]:
    sentence = (
        f"must be a count of GPUs (0 to {GPUS_MAX}) or a list of their numbers, such as [0, 1, 3], or of the UUIDs "
        "that `nvidia-smi -L` shows (GPU-…, MIG-…)"
    )
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= GPUS_MAX:
        return tuple(range(value))
    by_uuid = isinstance(value, list) and all(isinstance(gpu, str) and _UUID.fullmatch(gpu) for gpu in value)
    if isinstance(value, list) and (by_uuid or all(type(gpu) is int and 0 <= gpu < 1024 for gpu in value)):
        if len(set(value)) < len(value):
            raise diagnose("lists a GPU twice")
        return tuple(value)
    raise diagnose(sentence if isinstance(value, (dict, list)) else f"{sentence}; got {shown(value)}")


def _task_gpus(value: object) -> int | str | None:
    """Parse the GPUs of a task. None leaves the number to the hosts."""
    if value is None or value == SPLIT:
        return value if value is None else SPLIT
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= GPUS_MAX:
        return value
    sentence = f"must be a number of GPUs (0 to {GPUS_MAX}), or {SPLIT}"
    raise diagnose(sentence if isinstance(value, (dict, list)) else f"{sentence}; got {shown(value)}")


def _ports(value: object) -> tuple[int, int]:
    match = (
        re.fullmatch(r"([0-9]{1,9}) ?- ?([0-9]{1,9})", value, re.ASCII) if isinstance(value, str) else None
    )
    if match is None:
        raise diagnose(f"must be a range of ports such as 20000-20999; got {shown(value)}")
    first, last = int(match[1]), int(match[2])
    if first < 1024 or last > 65535:
        raise diagnose(f"ports go from 1024 (below it they need root) to 65535; got {first}-{last}")
    if first > last:
        raise diagnose(f"the first port is above the last; did you mean {last}-{first}?")
    return first, last


def _strategy(value: str) -> str:
    if value not in STRATEGIES:
        hint = did_you_mean(value, STRATEGIES)
        raise diagnose(f"must be one of {', '.join(STRATEGIES)}; got {shown(value)}{hint}")
    return value


def _on_off(value: object) -> bool:
    """Parse `on` and `off`. Without quotes, YAML 1.1 has already made booleans of them."""
    known = {"on": True, "off": False}.get(value) if isinstance(value, str) else value
    if not isinstance(known, bool):
        got = "" if isinstance(value, (dict, list)) or value is None else f"; got {shown(value)}"
        raise diagnose(f"must be on or off{got}")
    return known


def _standby(value: object) -> str:
    """Parse `auto`, `on` and `off`. Without quotes, YAML 1.1 has already made booleans of the last two."""
    known = ("on" if value else "off") if isinstance(value, bool) else value
    if known not in ("auto", "on", "off"):
        got = "" if isinstance(value, (dict, list)) or value is None else f"; got {shown(value)}"
        raise diagnose(f"must be auto, on or off{got}")
    return str(known)


def _rescue(value: object) -> float | str:
    """Parse `auto`, `off`, and how long. Without quotes, YAML 1.1 has already made a boolean of the second."""
    if value is False or value in ("auto", "off"):
        return str(value or "off")
    try:
        seconds = parse_duration(value)
    except ValueError:
        got = "" if isinstance(value, (dict, list)) or value is None else f"; got {shown(value)}"
        raise diagnose(f"must be auto, off, or a time such as 30s{got}") from None
    return between(1.0, 3600.0, seconds, parse_duration, as_written)


def _notice(value: object) -> str:
    if value not in NOTICES:
        got = "" if isinstance(value, (dict, list)) or value is None else f"; got {shown(value)}"
        raise diagnose(f"must be one of {', '.join(NOTICES)}{got}{did_you_mean(value, NOTICES)}")
    return str(value)


_STEPS_PATTERN = r"^[1-9][0-9]{0,11} ?steps?$"
_STEPS = re.compile(r"([1-9][0-9]{0,11}) ?steps?", re.ASCII)


def _every(value: object) -> float | int | str:
    """Parse `auto`, a time (a float, in seconds), or `500 steps` (an integer). A bare number could be either."""
    if value == "auto":
        return "auto"
    if isinstance(value, str) and (match := _STEPS.fullmatch(value)):
        return int(match[1])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise diagnose(f"must have a unit: {value}s or {value} steps")
    try:
        seconds = parse_duration(value)
    except ValueError:
        got = "" if isinstance(value, (dict, list)) or value is None else f"; got {shown(value)}"
        raise diagnose(
            f"must be auto, a time such as 10m, or a number of steps such as 500 steps{got}"
        ) from None
    return between(1.0, 7 * 86400.0, seconds, parse_duration, as_written)


def _relative(value: str) -> str:
    steps = value.split("/")
    if not value or value.startswith(("-", "/", "~")) or ".." in steps or not value.isprintable():
        raise diagnose(f"must be a path inside workdir, such as train.py or src/train.py; got {shown(value)}")
    return value


def _pattern(value: str) -> str:
    if not value or value.startswith(("#", "~")) or ".." in value.split("/") or not value.isprintable():
        raise diagnose(
            f"must be a file that the script writes, or a pattern such as *.csv; got {shown(value)}"
        )
    return value


ARGUMENT_BYTES_MAX = 1 << 17
"""MAX_ARG_STRLEN of Linux, for one argument or one `NAME=value`, with the NUL at its end."""


def _argument(value: str) -> str:
    if "\0" in value:
        raise diagnose("must not hold a NUL character")
    if (size := len(os.fsencode(value))) >= ARGUMENT_BYTES_MAX:
        raise diagnose(
            f"holds {size} bytes, and Linux gives a program no text of {ARGUMENT_BYTES_MAX} or more; write it "
            "into a file of workdir, and give its name"
        )
    return value


_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)


def _labels(value: object) -> tuple[tuple[str, str], ...]:
    """Return the labels of a mapping, each value as text: `room: 2` and `room: "2"` are the same label."""
    sentence = "must be labels, such as {gpu: a100, room: 2}: letters, digits, and . _ / - between them"
    if not isinstance(value, dict) or not value:
        raise diagnose(sentence)
    words = {str(key): _label(each) for key, each in value.items()}
    for word in (*words, *words.values()):
        if not _LABEL.fullmatch(word):
            raise diagnose(f"{sentence}; got {shown(word)}")
    return tuple(sorted(words.items()))


def _label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _on(value: object) -> tuple[str, ...] | tuple[tuple[str, str], ...]:
    if isinstance(value, dict):
        return _labels(value)
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise diagnose(
            "must be the names of hosts, such as [gpu-a, gpu-b], or labels of them, such as {gpu: a100}"
        )
    return tuple(value)


def env_name_diagnostic(name: str) -> str | None:
    """Return why a name cannot be set in `env` or `secrets`; None if it can."""
    if not _ENV_NAME.fullmatch(name):
        return (
            "not a name for an environment variable: letters, digits and _ only, not beginning with a digit"
        )
    if name.startswith("ORCH_") or name in _OURS:
        return f"{name} is set by orch for each task, and cannot be set here"
    return None


Name = Annotated[
    str,
    text_of(
        NAME_PATTERN[1:-1],
        "must be 1 to 63 lower-case letters, digits and dashes, with no dash at either end",
        max_length=63,
    ),
]

_ADDRESS = text_of(
    r"(?!.*\.\.|.*[^.]{64})[A-Za-z0-9:\[][A-Za-z0-9._:%\]-]*", "must be a host name or an IP address"
)

Address = Annotated[str, _ADDRESS, _without_port("write `address: {host}` and `port: {port}`")]
DataAddress = Annotated[str, _ADDRESS, _without_port("the tasks' ports are those of `run.ports`")]

_LOGIN = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
User = Annotated[
    str, text_of(rf"{_LOGIN}(\\{_LOGIN})?", "must be a user name, such as ml or CORP\\ml", max_length=64)
]

ProxyJump = Annotated[
    str,
    text_of(
        r"([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?",
        "must be one host to go through, as [user@]host[:port], or none",
    ),
]

Python = Annotated[
    str,
    text_of(
        r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*|~?/[A-Za-z0-9_./+@ -]*[A-Za-z0-9_.+@-]",
        "must be a command such as python3, or a path from / or ~/ of letters, digits, spaces and _ . / + @ -",
        max_length=1024,
    ),
]

Activate = Annotated[
    str,
    text_of(
        r"[^\x00-\x1f\x7f]+", "must be one line for a shell, without control characters", max_length=2000
    ),
]

PythonVersion = Annotated[
    str, text_of(r"3\.1[0-9]", 'must be a version in quotes, such as "3.11", from 3.10 on')
]

Tpu = Annotated[
    str,
    text_of(
        r"(grpc://)?[A-Za-z0-9][A-Za-z0-9._:,/-]*", "must be the name of a TPU, grpc://address:port, or local"
    ),
]

Port = Annotated[int, Field(ge=1, le=65535)]

Gpus = Annotated[
    tuple[Gpu, ...],
    Checked(
        _gpus,
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": GPUS_MAX},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "uniqueItems": True},
                {"type": "array", "items": {"type": "string", "pattern": _UUID.pattern}, "uniqueItems": True},
            ]
        },
        instead=True,
    ),
]

TaskGpus = Annotated[
    int | str | None,
    Checked(
        _task_gpus,
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": GPUS_MAX},
                {"const": SPLIT},
                {"type": "null"},
            ]
        },
        instead=True,
    ),
]

Ports = Annotated[
    tuple[int, int], Checked(_ports, {"type": "string", "pattern": "^[0-9]+ ?- ?[0-9]+$"}, instead=True)
]

Stall = Annotated[
    float | None, Checked(_stall, {"anyOf": [{"const": "auto"}, *DURATION_FORMS]}, instead=True)
]

_LABELS_FORM = {
    "type": "object",
    "additionalProperties": {"type": ["string", "integer", "number", "boolean"]},
    "minProperties": 1,
}

Labels = Annotated[tuple[tuple[str, str], ...], Checked(_labels, _LABELS_FORM, instead=True)]

On = Annotated[
    tuple[str, ...] | tuple[tuple[str, str], ...],
    Checked(
        _on,
        {"anyOf": [{"type": "array", "items": {"type": "string"}, "minItems": 1}, _LABELS_FORM]},
        instead=True,
    ),
]

Argument = Annotated[str, AfterValidator(_argument)]
Strategy = Annotated[str, Checked(_strategy, {"enum": list(STRATEGIES)})]
OnOff = Annotated[bool, Checked(_on_off, {"enum": [True, False, "on", "off"]}, instead=True)]
NoticeKind = Annotated[str, Checked(_notice, {"enum": list(NOTICES)}, instead=True)]
Recipient = Annotated[
    str | RecipientFile,
    Checked(
        checked_recipient,
        {
            "anyOf": [
                {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9+.-]*:"},
                {
                    "type": "object",
                    "properties": {"file": {"type": "string"}},
                    "required": ["file"],
                    "additionalProperties": False,
                },
            ]
        },
        instead=True,
    ),
]
Pattern = Annotated[str, Field(max_length=255), AfterValidator(_pattern)]
Standby = Annotated[str, Checked(_standby, {"enum": ["auto", True, False, "on", "off"]}, instead=True)]
Rescue = Annotated[
    float | str,
    Checked(_rescue, {"anyOf": [{"enum": ["auto", "off", False]}, *DURATION_FORMS]}, instead=True),
]
Every = Annotated[
    float | int | str,
    Checked(
        _every,
        {"anyOf": [{"const": "auto"}, {"type": "string", "pattern": _STEPS_PATTERN}, DURATION_FORMS[1]]},
        instead=True,
    ),
]
Script = Annotated[str, AfterValidator(_relative)]
Module = Annotated[
    str,
    text_of(
        r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*",
        "must be a module as `python -m` takes it, such as pkg.train (a file is named by `script`)",
    ),
]


SlurmWord = Annotated[
    str,
    text_of(
        r"[A-Za-z0-9_][A-Za-z0-9_.,:@+-]*",
        "must be one word of letters, digits and . , : @ + - _, as Slurm names it",
        max_length=128,
    ),
]

SlurmOption = Annotated[
    str,
    text_of(
        r"--[a-z][a-z0-9-]*(=[A-Za-z0-9_.,:/@%+*=\[\]-]+)?",
        "must be a long option of sbatch, as --name or --name=value, without spaces and quotes",
    ),
]

KubernetesName = Annotated[
    str,
    text_of(
        r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
        "must be a name of Kubernetes: at most 63 small letters, digits and dashes",
    ),
]
KubernetesContext = Annotated[
    str, text_of(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]*", "must be a context of kubectl: one word without spaces")
]
Quantity = Annotated[
    str,
    text_of(
        r"[1-9][0-9]*(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?",
        "must be a quantity of Kubernetes, such as 2 or 20Gi",
    ),
]
Image = Annotated[
    str, text_of(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "must be an image, such as tensorflow/tensorflow:2.19.0")
]

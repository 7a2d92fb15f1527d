"""A TF_CONFIG that somebody wrote by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from orchestrator.core.errors import UsageError
from orchestrator.spec.foreign.layout import DEPTH_MAX, Layout, Machine, distinct, machine_of, training_of

_TYPES = ("chief", "worker", "ps", "evaluator")


def tf_config(text: str, words: Sequence[str]) -> Layout:
    """Return the layout of TF_CONFIG's JSON and a command.

    Raises UsageError if it is no JSON object with a cluster.
    """
    depth = 0
    for bracket in re.finditer(r"[][{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > DEPTH_MAX:
            line, at = (
                text.count("\n", 0, bracket.start()) + 1,
                bracket.start() - text.rfind("\n", 0, bracket.start()),
            )
            raise UsageError(f"TF_CONFIG, line {line}, column {at}: nested more than {DEPTH_MAX} deep")
    try:
        document = json.loads(text)
    except ValueError as e:
        raise UsageError(f"TF_CONFIG is no JSON: {e}") from e
    cluster = document.get("cluster") if isinstance(document, dict) else None
    if not isinstance(cluster, dict) or not cluster:
        raise UsageError(
            "TF_CONFIG has no cluster", hint='as in {"cluster": {"worker": ["10.0.0.1:12345"]}, "task": …}'
        )
    machines: list[Machine] = []
    tasks: dict[str, int] = {}
    for task, addresses in cluster.items():
        role = "chief" if task == "master" else task
        if role not in _TYPES or not isinstance(addresses, list) or not addresses:
            raise UsageError(f"TF_CONFIG: cluster.{task} is no list of addresses of {', '.join(_TYPES)}")
        tasks[role] = len(addresses)
        machines += [machine_of(_host(address, task)) for address in addresses]
    strategy = "parameter_server" if "ps" in tasks else "multi_worker_mirrored"
    return Layout(
        "TF_CONFIG",
        distinct(machines),
        strategy,
        tasks,
        training_of(words),
        remarks=(
            "orch gives the tasks their ports and places them itself, in the order of `hosts`; the ports and the order "
            "of TF_CONFIG are not kept",
        ),
    )


def _host(address: object, task: str) -> str:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"TF_CONFIG: {address!r} of {task} is no host:port")
    return host.strip("[]")

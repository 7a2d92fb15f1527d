"""Writes a layout as a commented cluster.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator

import yaml

from orchestrator.spec.foreign.layout import LOCAL, Layout, Machine, Training


def cluster_yaml(layout: Layout, name: str) -> str:
    """Return the text of the file. A comment marks each line that must be completed or checked."""
    return "\n".join(_lines(layout, name)) + "\n"


def hosts_yaml(layout: Layout) -> str:
    """Return the hosts, as they stand in a spec or in an inventory."""
    hosts = [f"  - {{{', '.join(_host(machine))}}}" for machine in layout.machines]
    return "\n".join(["hosts:", *hosts]) + "\n"


def _lines(layout: Layout, name: str) -> Iterator[str]:
    if layout.schema is not None:
        yield f"# yaml-language-server: $schema={layout.schema}"
    yield f"# Made from {layout.origin} by `{layout.command}`. Look through it, then:"
    yield "#   orch doctor FILE              finds what would keep it from training on these hosts"
    yield "#   orch up FILE --follow         starts it"
    for remark in layout.remarks:
        yield f"# Note: {remark}."
    if len(layout.machines) > 1 and any(map(_is_here, layout.machines)):
        yield "# Note: localhost is this machine: add its `data_address`, by which the other hosts reach it."
    yield ""
    yield "version: 1"
    yield f"name: {name}"
    yield ""
    yield f"inventory: {_text(layout.inventory)}" if layout.inventory else hosts_yaml(layout).rstrip()
    yield ""
    yield "run:"
    yield f"  strategy: {layout.strategy}"
    if layout.transparent:
        yield "  transparent: true         # the script makes no strategy for these workers: orch puts its fit into one"
    yield from _training(layout.training)
    yield "  tasks:"
    for task, replicas in layout.tasks.items():
        gpus = f", gpus: {layout.gpus_each}" if layout.gpus_each is not None else ""
        yield f"    {task}: {{replicas: {replicas}{gpus}}}"
    yield "  checkpoint:"
    if layout.checkpoint is None:
        yield f"    dir: /shared/{name}    # fill in: a directory that every host sees; or add `shared: false`"
    else:
        yield f"    dir: {_text(layout.checkpoint)}"
    if not layout.shared:
        yield "    shared: false    # each host has its own, and the head node carries checkpoints between them"


def _host(machine: Machine) -> Iterator[str]:
    yield f"name: {_text(machine.name)}"
    if _is_here(machine):
        yield "transport: local"
    elif machine.address is not None:
        yield f"address: {_text(machine.address)}"
    for key in ("data_address", "gpus", "slots", "user", "identity_file", "proxy_jump", "port", "python"):
        value = getattr(machine, key)
        if isinstance(value, tuple):
            yield f"{key}: [{', '.join(map(str, value))}]"
        elif value is not None and (key, value) != ("slots", 1):
            yield f"{key}: {_text(value) if isinstance(value, str) else value}"


def _is_here(machine: Machine) -> bool:
    return (machine.address or machine.name) in LOCAL


def _training(training: Training | None) -> Iterator[str]:
    if training is None:
        yield "  script: train.py          # fill in: relative to this file, or to `workdir`"
        yield "  # python: /opt/tf/bin/python   the hosts' Python with TensorFlow; the default is python3"
        return
    yield f"  {'script' if training.script.endswith('.py') else 'module'}: {_text(training.script)}"
    if training.args:
        yield f"  args: [{', '.join(_quoted(arg) for arg in training.args)}]"
    if training.python is not None:
        yield f"  python: {_text(training.python)}"
    else:
        yield "  # python: /opt/tf/bin/python   the hosts' Python with TensorFlow; the default is python3"
    if training.env:
        yield "  env:"
        for key, value in training.env.items():
            yield f"    {key}: {_quoted(value)}"


def _text(text: str) -> str:
    """Return a text as YAML reads it back: in quotes where YAML would read something else, such as for `no`."""
    plain = text.replace("-", "").replace("_", "").replace("/", "").replace(".", "")
    is_plain = (
        plain.isascii() and plain.isalnum() and not text.startswith("-") and yaml.safe_load(text) == text
    )
    return text if is_plain else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # YAML knows no pairs of \\u escapes

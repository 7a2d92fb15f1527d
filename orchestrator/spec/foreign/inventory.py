"""Lists of machines that other tools keep: Ansible's inventories, Ray's cluster files, ~/.ssh/config."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from orchestrator.core.errors import UsageError
from orchestrator.spec.foreign.layout import Layout, Machine, distinct, name_of, training_of

_ADDRESS = ("ansible_host", "ansible_ssh_host")
_USER = ("ansible_user", "ansible_ssh_user")
_PORT = ("ansible_port", "ansible_ssh_port")


def ansible(text: str, group: str | None, words: Sequence[str]) -> Layout:
    """Return the layout of an inventory, as INI or YAML; of one group of it where one is named."""
    groups = _ansible_yaml(text) if text.lstrip().startswith(("all:", "---")) else _ansible_ini(text)
    if group is not None and group not in groups:
        raise UsageError(f"the inventory has no group {group!r}; it has {', '.join(groups) or 'none'}")
    chosen = [groups[group]] if group is not None else groups.values()
    machines = [_machine(name, facts) for hosts in chosen for name, facts in hosts.items()]
    unique = {machine.name: machine for machine in machines}
    return _one_task_each("an Ansible inventory", list(unique.values()), words)


def _machine(name: str, facts: Mapping[str, object]) -> Machine:
    def first(keys: Sequence[str]) -> str | None:
        return next((str(facts[key]) for key in keys if facts.get(key)), None)

    address, port = first(_ADDRESS) or name, first(_PORT)
    return Machine(
        name_of(name),
        address if address != name_of(name) else None,
        user=first(_USER),
        port=int(port) if port and port.isdecimal() else None,
    )


def _ansible_ini(text: str) -> dict[str, dict[str, dict[str, object]]]:
    """Return by group the hosts with their variables; `:vars` of a group count for its hosts."""
    groups: dict[str, dict[str, dict[str, object]]] = {}
    shared: dict[str, dict[str, object]] = {}
    section = "ungrouped"
    for line in text.splitlines():
        words = shlex.split(line.split(" #")[0], comments=True) if line.strip()[:1] not in ("#", ";") else []
        if not words:
            continue
        if words[0].startswith("["):
            section = line.strip().strip("[]")
        elif section.endswith(":vars"):
            key, _, value = " ".join(words).partition("=")
            shared.setdefault(section.removesuffix(":vars"), {})[key.strip()] = value.strip()
        elif not section.endswith(":children"):
            facts = {key: value for key, equals, value in (w.partition("=") for w in words[1:]) if equals}
            for name in _expanded(words[0]):
                groups.setdefault(section, {})[name] = {**facts}
    for group, hosts in groups.items():
        for name, own in hosts.items():
            hosts[name] = {**shared.get("all", {}), **shared.get(group, {}), **own}
    return groups


def _expanded(name: str) -> Iterator[str]:
    """Yield the names of a range.

    >>> list(_expanded("gpu-[01:03].lab"))
    ['gpu-01.lab', 'gpu-02.lab', 'gpu-03.lab']
    """
    begin, bracket, rest = name.partition("[")
    span, closed, end = rest.partition("]")
    first, _, last = span.partition(":")
    if not (bracket and closed and first.isdecimal() and last.isdecimal()):
        yield name
        return
    for number in range(int(first), min(int(last), int(first) + 9999) + 1):
        yield f"{begin}{number:0{len(first)}}{end}"


def _ansible_yaml(text: str) -> dict[str, dict[str, dict[str, object]]]:
    document = _yaml(text, "the inventory")
    groups: dict[str, dict[str, dict[str, object]]] = {}

    def walk(name: str, group: object, inherited: Mapping[str, object]) -> None:
        if not isinstance(group, dict):
            return
        known = {**inherited, **(group.get("vars") or {})}
        for host, facts in (group.get("hosts") or {}).items():
            for one in _expanded(str(host)):
                groups.setdefault(name, {})[one] = {**known, **(facts or {})}
        for child, content in (group.get("children") or {}).items():
            walk(str(child), content, known)

    for name, group in document.items():
        walk(str(name), group, {})
    return groups


def ray(text: str, words: Sequence[str]) -> Layout:
    """Return the layout of a Ray cluster file whose provider is `local`: machines with SSH."""
    document = _yaml(text, "Ray's cluster file")
    provider = document.get("provider") if isinstance(document.get("provider"), dict) else {}
    assert isinstance(provider, dict)
    named = [provider.get("head_ip"), *(provider.get("worker_ips") or ())]
    hosts = [str(host) for host in named if host]
    if provider.get("type") != "local" or not hosts:
        raise UsageError(
            "Ray's cluster file names no machines",
            hint="only `provider: {type: local, head_ip: …, worker_ips: […]}` does; a cloud makes its machines itself",
        )
    user = (document.get("auth") or {}).get("ssh_user")
    machines = [Machine(name_of(host), host if name_of(host) != host else None, user=user) for host in hosts]
    return _one_task_each("a Ray cluster file", machines, words)


def ssh_config(text: str, chosen: Sequence[str], words: Sequence[str]) -> Layout:
    """Return the layout of the hosts in an ssh_config: the chosen ones, or all that are no pattern.

    Only the names are taken, since orch reads address, user, port and key there itself.
    """
    known = [
        name
        for line in text.splitlines()
        for key, *names in [line.replace("=", " ", 1).split() or [""]]
        if key.lower() == "host"
        for name in names
        if not set(name) & set("*?!")
    ]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise UsageError(f"ssh_config has no Host {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    machines = [Machine(name_of(name), name if name_of(name) != name else None) for name in chosen or known]
    return _one_task_each("ssh_config", machines, words)


def _one_task_each(origin: str, machines: Sequence[Machine], words: Sequence[str]) -> Layout:
    if not machines:
        raise UsageError(f"{origin} names no hosts")
    found = distinct(machines)
    remarks = ("nothing says how many GPUs the hosts have: `gpus:` is to be filled in",)
    return Layout(
        origin, found, "multi_worker_mirrored", {"worker": len(found)}, training_of(words), remarks=remarks
    )


def _yaml(text: str, what: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise UsageError(f"{what} is no YAML: {' '.join(str(e).split())}") from e
    if not isinstance(document, dict):
        raise UsageError(f"{what} is no mapping")
    return document

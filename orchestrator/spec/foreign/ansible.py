"""Reads Ansible's inventories, as INI or YAML: groups of hosts, groups within groups, and the variables of both."""

from __future__ import annotations

import ast
import ipaddress
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.core.errors import UsageError
from orchestrator.spec.foreign.layout import (
    DEPTH_MAX,
    VALUES_MAX,
    Layout,
    Machine,
    mapping,
    name_of,
    one_task_each,
    yaml_mapping,
)

_ADDRESS = ("ansible_host", "ansible_ssh_host")
_USER = ("ansible_user", "ansible_ssh_user")
_PORT = ("ansible_port", "ansible_ssh_port")
_KEY = ("ansible_ssh_private_key_file", "ansible_private_key_file")
_OPTIONS = ("ansible_ssh_common_args", "ansible_ssh_extra_args")
_JUMP = re.compile(r"(?:-J\s*|-o\s*ProxyJump[= ])([\w.@+:-]+)")
_USED = (*_ADDRESS, *_USER, *_PORT, *_KEY, *_OPTIONS, "ansible_connection")
_RANGE_MAX = 10_000
_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?")
_WITH_PORT = re.compile(r"((?:[^:\[\]]|\[[^\]]*\])+):(\d+)")
_ENCRYPTED = "$ANSIBLE_VAULT;"

Facts = dict[str, object]


@dataclass(slots=True)
class _Inventory:
    hosts: dict[str, dict[str, Facts]] = field(default_factory=dict)
    """The hosts by group, each with its own variables."""
    vars: dict[str, Facts] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    """What is left out, and why."""
    _found: dict[str, dict[str, Facts]] = field(default_factory=dict)
    _merged: int = 0
    _added: int = 0

    def used(self, facts: Mapping[str, object], of: str) -> Facts:
        """Return the variables that are used here, but for those of which only Ansible knows the value."""
        used = {key: facts[key] for key in _USED if key in facts}
        for key, text in [(key, str(value)) for key, value in used.items()]:
            if text.startswith(_ENCRYPTED) or "{{" in text:
                what = "encrypted" if text.startswith(_ENCRYPTED) else f"a template, {text[:60]!r}"
                self.remarks[f"{key} of {of} is left out: it is {what}, which only Ansible can read"] = None
                del used[key]
        return used

    def set_vars(self, group: str, facts: Mapping[str, object]) -> None:
        """Set variables of a group: those that are used here."""
        self.vars.setdefault(group, {}).update(self.used(facts, group))

    def add(self, group: str, name: str, facts: Mapping[str, object], where: str) -> None:
        """Add a host, or a range of hosts, to a group. `where`: the place, for errors."""
        used = self.used(facts, name)
        for host in _expanded(name, where):
            hosts = self.hosts.setdefault(group, {})
            hosts[host] = {**hosts.get(host, {}), **used}
            self._added += 1
            if self._added > VALUES_MAX:
                raise UsageError(f"{where}: more than {VALUES_MAX} hosts")

    def groups(self) -> list[str]:
        """Return all groups in the order in which they were first named."""
        named = [*self.hosts, *self.children, *(name for names in self.children.values() for name in names)]
        return [name for name in dict.fromkeys(named) if name != "all"]

    def hosts_of(self, group: str, above: tuple[str, ...] = ()) -> dict[str, Facts]:
        """Return the hosts of a group and of its children, with all variables; the nearest definition wins."""
        if group in above or len(above) > DEPTH_MAX:
            what = "is a child of itself" if group in above else f"is nested more than {DEPTH_MAX} deep"
            raise UsageError(f"the inventory's group {group!r} {what}")
        if group in self._found:
            return self._found[group]  # two groups may share a child
        hosts: dict[str, Facts] = {}
        inner = [self.hosts_of(child, (*above, group)) for child in dict.fromkeys(self._children_of(group))]
        for found in [*inner, self.hosts.get(group, {})]:
            self._merged += len(found)
            if self._merged > VALUES_MAX:
                raise UsageError(
                    f"the inventory's group {group!r}: more than {VALUES_MAX} hosts in all groups together"
                )
            for host, facts in found.items():
                hosts[host] = {**hosts.get(host, {}), **facts}
        own = self.vars.get(group, {})
        self._found[group] = {host: {**own, **facts} for host, facts in hosts.items()}
        return self._found[group]

    def _children_of(self, group: str) -> list[str]:
        if group != "all":
            return self.children.get(group, [])
        below = {name for parent, names in self.children.items() if parent != "all" for name in names}
        return [name for name in self.groups() if name not in below]


Beside = Callable[[str, str], Sequence[str]]
"""Returns the texts of those in `group_vars` or `host_vars` beside the inventory, by the name of a group or host."""


def ansible(
    text: str, group: str | None, words: Sequence[str], beside: Beside = lambda _kind, _name: ()
) -> Layout:
    """Return the layout of an inventory, or of one group of it."""
    text = text.removeprefix("\ufeff")
    if text.startswith(_ENCRYPTED):
        raise UsageError("the inventory is encrypted", hint="`ansible-vault view FILE` shows it: import that")
    inventory = _of_yaml(text) if _is_yaml(text) else _of_ini(text)
    for name in ("all", *inventory.groups()):
        inventory.set_vars(name, _read_beside(inventory, beside, "group_vars", name))
    own = {
        host: inventory.used(_read_beside(inventory, beside, "host_vars", host), host)
        for hosts in inventory.hosts.values()
        for host in hosts
    }
    for hosts in inventory.hosts.values():
        hosts.update({host: {**facts, **own[host]} for host, facts in hosts.items()})
    if group not in (None, "all") and group not in inventory.groups():
        raise UsageError(
            f"the inventory has no group {group!r}; it has {', '.join(inventory.groups()) or 'none'}"
        )
    every = inventory.hosts_of("all")
    chosen = every if group is None else inventory.hosts_of(group)
    machines = [_machine(name, every[name]) for name in chosen]
    given = [(key, str(every[name][key])) for name in chosen for key in _OPTIONS if key in every[name]]
    left_out = dict.fromkeys(key for key, text in given if _JUMP.sub("", text).strip(" '\""))
    remarks = [
        *inventory.remarks,
        *(f"{key} is left out but for its bastion: write it into ~/.ssh/config" for key in left_out),
    ]
    return one_task_each("an Ansible inventory", machines, words, remarks)


def _read_beside(inventory: _Inventory, beside: Beside, kind: str, name: str) -> Facts:
    facts: Facts = {}
    for text in beside(kind, name):
        if text.startswith(_ENCRYPTED):
            inventory.remarks[f"{kind}/{name} is left out: it is encrypted, which only Ansible can read"] = (
                None
            )
        elif text.strip(" -\n"):
            facts |= yaml_mapping(text, f"{kind}/{name}")
    return facts


def _machine(name: str, facts: Facts) -> Machine:
    def first(keys: Sequence[str]) -> str | None:
        return next((str(facts[key]) for key in keys if facts.get(key)), None)

    is_here = facts.get("ansible_connection") == "local"
    address, port = "localhost" if is_here else first(_ADDRESS) or name, first(_PORT)
    if port is not None and not (port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536):
        raise UsageError(f"the inventory's host {name}: {port[:20]!r} is no port")
    return Machine(
        name_of(name),
        address if address != name_of(name) else None,
        user=first(_USER),
        port=int(port) if port else None,
        identity_file=first(_KEY),
        proxy_jump=next(
            (jump[1] for key in _OPTIONS if (jump := _JUMP.search(str(facts.get(key, ""))))), None
        ),
    )


def _is_yaml(text: str) -> bool:
    """Return whether the first line with content is YAML: a mapping's key, or the mark of a document."""
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and line[0] not in "#;"), "")
    return first.startswith(("---", "{")) or bool(re.match(r"[^\s\[=]+:(?:\s|$)", first))


def _of_ini(text: str) -> _Inventory:
    """Return the inventory of `[group]`, `[group:vars]` and `[group:children]` sections."""
    inventory, section, kind = _Inventory(), "ungrouped", ""
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if (head := _SECTION.fullmatch(line)) is not None or (line[0] == "[" and line[-1] == "]"):
            section, kind = (head[1], head[2] or "") if head is not None else ("", "?")
            if kind not in ("", "vars", "children"):
                raise UsageError(
                    f"line {number} of the inventory: {line!r} is no [group], [group:vars] or [group:children]"
                )
            continue
        if kind == "vars":  # Ansible takes a backslash, or a quotation mark within, as it is there
            key, _, value = line.partition("=")
            inventory.set_vars(section, {key.strip(): _unquoted(value.strip())})
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError as e:
            raise UsageError(f"line {number} of the inventory: {str(e).lower()}") from e
        if kind == "children":
            inventory.children.setdefault(section, []).append(words[0])
        else:
            facts: Facts = {key: value for key, sign, value in (w.partition("=") for w in words[1:]) if sign}
            given = _WITH_PORT.fullmatch(words[0])
            name, port = (given[1], given[2]) if given is not None else (words[0], "")
            facts |= {"ansible_port": port} if port and "ansible_port" not in facts else {}
            inventory.add(section, name, facts, f"line {number} of the inventory")
    return inventory


def _unquoted(value: str) -> str:
    try:
        inner = ast.literal_eval(value) if value[:1] in ("'", '"') else value
    except (SyntaxError, ValueError):
        return value
    return inner if isinstance(inner, str) else value


def _expanded(name: str, where: str) -> Iterator[str]:
    """Yield the names of ranges, of numbers or letters, with a step. `where`: the place, for errors.

    >>> list(_expanded("gpu-[01:03].lab", "line 1")), list(_expanded("r[a:b]-[1:5:2]", "line 1"))
    (['gpu-01.lab', 'gpu-02.lab', 'gpu-03.lab'], ['ra-1', 'ra-3', 'ra-5', 'rb-1', 'rb-3', 'rb-5'])
    """
    if name[:1] == "[" and name[-1:] == "]" and _is_ipv6(name[1:-1]):
        yield name[1:-1]
        return
    range_ = re.search(r"\[(\d{1,9}|[A-Za-z]):(\d{1,9}|[A-Za-z])(?::(\d{1,9}))?\]", name)
    if range_ is None and re.search(r"\[\d+:\d+", name) is None:
        yield name
        return
    first, last, step = (range_[1], range_[2], int(range_[3] or 1)) if range_ else ("1", "0", 0)
    letters = first.isalpha()
    begin, end = (1, 0) if letters != last.isalpha() else map(ord if letters else int, (first, last))
    if range_ is None or not (0 <= end - begin < _RANGE_MAX and step):
        raise UsageError(f"{where}: {name[:80]!r} is no range of hosts")
    for number in range(begin, end + 1, step):
        this = chr(number) if letters else f"{number:0{len(first)}}"
        yield from _expanded(name[: range_.start()] + this + name[range_.end() :], where)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _of_yaml(text: str) -> _Inventory:
    inventory = _Inventory()

    def walk(name: str, content: object) -> None:
        group = mapping(content, f"the inventory's group {name!r}")
        inventory.hosts.setdefault(name, {})
        inventory.set_vars(name, mapping(group.get("vars"), f"the inventory's vars of {name!r}"))
        for host, facts in mapping(group.get("hosts"), f"the inventory's hosts of {name!r}").items():
            given = mapping(facts, f"the inventory's host {host!r}")
            inventory.add(name, str(host), given, f"the inventory's group {name!r}")
        for child, inner in mapping(group.get("children"), f"the inventory's children of {name!r}").items():
            inventory.children.setdefault(name, []).append(str(child))
            walk(str(child), inner)

    for name, content in yaml_mapping(text, "the inventory").items():
        walk(str(name), content)
    return inventory

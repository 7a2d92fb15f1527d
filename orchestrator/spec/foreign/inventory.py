"""Reads lists of machines that other tools keep: Ray's cluster files, ~/.ssh/config."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from orchestrator.core.errors import UsageError
from orchestrator.spec.foreign.layout import Layout, Machine, mapping, name_of, one_task_each, yaml_mapping


def ray(text: str, words: Sequence[str]) -> Layout:
    """Return the layout of a Ray cluster file whose provider is `local`: machines with SSH."""
    document = yaml_mapping(text, "Ray's cluster file")
    provider = mapping(document.get("provider"), "`provider` of Ray's cluster file")
    workers = provider.get("worker_ips") or []
    if not isinstance(workers, list):
        raise UsageError(f"`worker_ips` of Ray's cluster file is no list: {workers!r}")
    hosts = [str(host) for host in (provider.get("head_ip"), *workers) if host]
    if provider.get("type") != "local" or not hosts:
        raise UsageError(
            "Ray's cluster file names no machines",
            hint="only `provider: {type: local, head_ip: …, worker_ips: […]}` does; a cloud makes its machines itself",
        )
    given = mapping(document.get("auth"), "`auth` of Ray's cluster file").get("ssh_user")
    user = str(given) if given else None
    machines = [Machine(name_of(host), host if name_of(host) != host else None, user=user) for host in hosts]
    return one_task_each("a Ray cluster file", machines, words)


def ssh_config(text: str, chosen: Sequence[str], words: Sequence[str]) -> Layout:
    """Return the layout of the hosts in an ssh_config: the chosen ones, or all that are no pattern.

    Only the names are taken, since orch reads address, user, port and key there itself.
    """
    known = names_of(text)
    includes = any(line.lower().lstrip().startswith("include") for line in text.splitlines())
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise UsageError(
            f"ssh_config has no Host {', '.join(unknown)}; it has {', '.join(known) or 'none'}",
            hint="files that it includes are not read: name them by --file" if includes else "",
        )
    machines = [Machine(name_of(name), name if name_of(name) != name else None) for name in chosen or known]
    return one_task_each("ssh_config", machines, words)


def names_of(text: str) -> list[str]:
    """Return the hosts that an ssh_config names, without patterns and comments.

    >>> names_of("Host a b-? # two\\n  Port 1\\nHost=c\\n")
    ['a', 'c']
    """
    lines = [line.replace("=", " ", 1).replace('"', " ").split() or [""] for line in text.splitlines()]
    named: list[str] = []
    for key, *names in lines:
        if key.lower() == "host":
            named += itertools.takewhile(lambda name: not name.startswith("#"), names)
    return [name for name in named if not set(name) & set("*?!")]

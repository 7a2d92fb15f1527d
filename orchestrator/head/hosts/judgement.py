"""Turns the answers of examined hosts into findings. Pure functions."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from orchestrator.core.launching.environment import endpoint, ports_needed
from orchestrator.core.plan import Gpu, Plan
from orchestrator.core.words import counted, duration, listed, size
from orchestrator.head.links.clock import HostClock
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.driving import KnownRun
from orchestrator.protocol.orders.hosts import Directory, GpuState, Health, Imported, Owner, Seen
from orchestrator.reporting.findings import Finding, Level, finding

SLOW_NAME_S = 2.0
SLOW_IMPORT_S = 15.0
SLOW_WRITE_BYTES_PER_S = 20e6
SLOW_BYTES_PER_S = 100e6
"""Below a Gigabit Ethernet, all but what its headers take."""
OPEN_FILES_MIN = 4096
FREE_BYTES_MIN = 1 << 30
SAVES_MIN = 2
"""A save is written beside the one before, and the next one before any is removed."""
FREE_FILES_MIN = 10_000
PROCESSES_MIN = 2048
STARTUPS_MIN = 3
"""Logins at once: of the coordinator, of a command of yours, and one that begins anew."""
ATTRIBUTES_MAX_S = 60
"""What NFS keeps of a file without asking again, unless its mount says otherwise."""


@dataclass(frozen=True, slots=True)
class AnsweredHost:
    """A host that has answered. `asked_at` and `answered_at` are Unix time of the head."""

    name: str
    hello: Greeting
    health: Health
    token: str = ""
    asked_at: float = 0.0
    answered_at: float = 0.0
    round_trip_s: float | None = None
    secret: str = ""
    runs: tuple[KnownRun, ...] = ()

    @property
    def machine(self) -> tuple[object, ...]:
        """Return a value that is the same for two names of one machine, and differs between machines and containers."""
        return self.hello["boot_id"], self.hello["host_dir"], self.hello["host_dir_device"]


def is_name(address: str) -> bool:
    """Return whether an address has to be resolved.

    >>> is_name("gpu-a"), is_name("10.0.0.7"), is_name("[fd00::7]")
    (True, False, False)
    """
    try:
        ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return True
    return False


def judge_hosts(plan: Plan, met: Mapping[str, AnsweredHost], *, whole: bool) -> list[Finding]:
    """Return what is wrong with single hosts, and which names mean the same host. `whole`: also check what may fail."""
    findings = [*_twice(met.values()), *_gpus_differ(plan, met)]
    if whole:
        findings += [*_round_trips(met.values()), *_users(plan, met), *_writes(plan, met.values())]
        findings += _machines(met.values())
    for host in met.values():
        findings += _ports(plan, host)
        if whole:
            findings += [
                *_clock(host),
                *_disks(plan, host),
                *_limits(host),
                *_proxies(plan, host),
                *_gpus(plan, host),
                *_hidden(plan, host),
            ]
            findings += [*_ssh(host), *_checkpoints(plan, host)]
    return findings


def _twice(met: Iterable[AnsweredHost]) -> Iterator[Finding]:
    first: dict[tuple[object, ...], str] = {}
    for host in met:
        other = first.setdefault(host.machine, host.name)
        if other != host.name:
            text = f"{other} and {host.name} are one machine: they have the same boot id and the same host directory"
            yield finding("host.twice", text, other, host.name)


def judge_imports(plan: Plan, imported: Mapping[str, Imported | None]) -> list[Finding]:
    """Return how the import of TensorFlow went, and whether it sees the GPUs of the spec."""
    findings, fine = [], []
    for name, result in imported.items():
        # A process sees one MIG instance, however many are named.
        gpus = 1 if "MIG-" in str(plan.host(name).gpus) else len(plan.host(name).gpus)
        if result is None:
            text = f"{name}: it is not known whether TensorFlow can be imported: the host did not answer"
            findings.append(finding("python.import-slow", text, name))
        elif result["why"] is not None:
            findings.append(
                finding("python.import-fails", f"{name}: `import tensorflow` fails: {result['why']}", name)
            )
        elif result["gpus"] is None or result["seconds"] > SLOW_IMPORT_S:
            ended = "has not ended after" if result["gpus"] is None else "takes"
            text = f"{name}: `import tensorflow` {ended} {duration(result['seconds'])}"
            findings.append(finding("python.import-slow", text, name))
        else:
            fine.append(f"{duration(result['seconds'])} on {name}")
        if result is not None and result["gpus"] is not None and result["gpus"] < gpus:
            text = (
                f"{name}: TensorFlow sees {result['gpus']} of the {counted(gpus, 'GPU')} that the spec names"
            )
            findings.append(finding("gpu.unseen", text, name))
    if fine:
        findings.append(finding("python.imports", f"`import tensorflow` takes {listed(fine)}"))
    return findings


def judge_bandwidths(rates: Mapping[tuple[str, str], float | str]) -> list[Finding]:
    """Return how much hosts send each other, by (sender, receiver): bytes a second, or why nothing came."""
    findings = []
    measured = sorted((rate, pair) for pair, rate in rates.items() if isinstance(rate, float))
    usual = measured[len(measured) // 2][0] if measured else 0.0
    for (sender, receiver), rate in rates.items():
        if isinstance(rate, str):
            text = f"{receiver}: what {sender} sends it could not be measured: {rate}"
            findings.append(finding("net.bandwidth", text, receiver, sender, level="warning"))
        elif rate < max(SLOW_BYTES_PER_S, usual / 3):
            text = (
                f"{sender} sends {receiver} {_bits(rate)} only; {_bits(usual)} is usual between these hosts"
            )
            findings.append(finding("net.bandwidth-low", text, receiver, sender))
    if measured:
        text = listed([f"{sender} sends {receiver} {_bits(rate)}" for rate, (sender, receiver) in measured])
        findings.append(finding("net.bandwidth", text))
    return findings


def _bits(bytes_per_s: float) -> str:
    """Return a bandwidth as networks are sold.

    >>> _bits(117e6), _bits(1.2e9), _bits(5e6)
    ('0.94 Gbit/s', '9.6 Gbit/s', '0.04 Gbit/s')
    """
    gigabits = bytes_per_s * 8 / 1e9
    return f"{gigabits:.2f} Gbit/s" if gigabits < 1 else f"{gigabits:.3g} Gbit/s"


def _writes(plan: Plan, met: Iterable[AnsweredHost]) -> Iterator[Finding]:
    """Yield how fast the checkpoint directory is written, and where it is slow."""
    rates = sorted(
        (rate, host.name) for host in met if (rate := host.health.get("write_bytes_per_s")) is not None
    )
    if plan.checkpoint is None or not rates:
        return
    speeds = listed([f"{size(rate)}/s on {name}" for rate, name in rates])
    slow = rates[0][0] < SLOW_WRITE_BYTES_PER_S
    text = f"{plan.checkpoint.dir} is written, and synced, with {speeds}"
    yield finding("storage.slow" if slow else "storage.speed", text, rates[0][1] if slow else None)


def _round_trips(met: Iterable[AnsweredHost]) -> list[Finding]:
    taken = sorted(
        ((host.round_trip_s, host.name) for host in met if host.round_trip_s is not None), reverse=True
    )
    times = listed([f"{seconds * 1000:.1f} ms to {name} and back" for seconds, name in taken])
    return [finding("ssh.round-trip", f"an order takes {times}")] if taken else []


def _machines(met: Iterable[AnsweredHost]) -> list[Finding]:
    """Return how much memory hosts have, and how tasks are ended there; nothing of hosts that do not say it."""
    groups = {True: "by control groups", False: "by their processes: no control group can be made"}
    text = [
        f"{host.name} has {size(memory)} of memory ({size(free)} free), and ends tasks {groups[host.health['cgroups']]}"
        for host in met
        if (memory := host.health.get("memory_bytes")) is not None
        and (free := host.health.get("memory_free_bytes")) is not None
        and "cgroups" in host.health
    ]
    return [finding("host.machine", "; ".join(text))] if text else []


def _ssh(host: AnsweredHost) -> Iterator[Finding]:
    startups, slow = host.health["startups"], host.hello.get("slow", {})
    if startups is not None and startups < STARTUPS_MIN:
        text = f"{host.name}: its sshd drops logins once {counted(startups, 'other')} are under way (MaxStartups)"
        yield finding("ssh.limits", text, host.name, level="warning")
    if "printed" in host.hello:
        text = f"{host.name}: the rc files of its login shell print {host.hello['printed']!r}"
        yield finding("ssh.rc-files", text, host.name, level="warning")
    if "shell_s" in slow:
        text = f"{host.name}: the rc files of its login shell take {duration(slow['shell_s'])}"
        yield finding("ssh.rc-files", text, host.name, level="warning")


def _checkpoint_directory(plan: Plan, host: AnsweredHost) -> Directory | None:
    wanted = plan.checkpoint.dir if plan.checkpoint is not None else None
    return next((each for each in host.health["directories"] if each["path"] == wanted), None)


def _checkpoints(plan: Plan, host: AnsweredHost) -> Iterator[Finding]:
    directory = _checkpoint_directory(plan, host)
    if directory is None:
        return
    path = directory["path"]
    for place, owner in ((path, directory["owner"]), (f"{path}/.orch", directory["own"])):
        if owner is not None and not owner["writable"]:
            text = f"{host.name}: {place} belongs to {_user(owner)}, and orch is {_me(host)} there"
            yield finding("storage.owner", text, host.name)
    if directory.get("others"):
        yield finding(
            "storage.others", f"{host.name}: {directory['others']} may write into {path}", host.name
        )
    elif "others" in directory and directory["exists"] and plan.checkpoint is not None:
        whose = f" and the group {plan.checkpoint.group}" if plan.checkpoint.group else ""
        text = f"{host.name}: only {_me(host)}{whose}, and root, may write into {path}"
        yield finding("storage.writers", text, host.name)
    harm = list(_harm(directory["nfs"]))
    if harm:
        yield finding("storage.nfs", f"{host.name}: the NFS mount of {path} has {listed(harm)}", host.name)


def _user(owner: Owner) -> str:
    return f"{owner['user']} (uid {owner['uid']}, mode {owner['mode']:04o})"


def _me(host: AnsweredHost) -> str:
    return f"{host.hello['user']} (uid {host.health['uid']})"


def _harm(options: Iterable[str]) -> Iterator[str]:
    """Yield the options of an NFS mount that harm checkpoints, each with what it does."""
    for option in dict.fromkeys(options):
        name, _, value = option.partition("=")
        if name in ("soft", "softerr"):
            yield f"`{option}` (a server that is slow makes a write fail)"
        elif name == "nolock" or (name == "local_lock" and value != "none"):
            yield f"`{option}` (a lock does not hold for the other hosts)"
        elif name in ("acregmax", "acdirmax") and value.isdecimal() and int(value) > ATTRIBUTES_MAX_S:
            yield f"`{option}` (what others save is seen up to {value} s late)"


def _users(plan: Plan, met: Mapping[str, AnsweredHost]) -> list[Finding]:
    """Return whether the hosts write into one checkpoint directory as several users."""
    if plan.checkpoint is None or not plan.checkpoint.shared:
        return []
    hosts: dict[int, list[AnsweredHost]] = {}
    for name in plan.hosts_used:
        if name in met:
            hosts.setdefault(met[name].health["uid"], []).append(met[name])
    if len(hosts) < 2:
        return []
    users = "; ".join(f"{_me(all_[0])} on {listed([host.name for host in all_])}" for all_ in hosts.values())
    seen = [_checkpoint_directory(plan, host) for all_ in hosts.values() for host in all_]
    owner = next((each["owner"] for each in seen if each is not None and each["owner"] is not None), None)
    whose = f"; it belongs to {_user(owner)}" if owner is not None else ""
    return [finding("storage.users", f"the hosts write {plan.checkpoint.dir} as {users}{whose}")]


def _ports(plan: Plan, host: AnsweredHost) -> Iterator[Finding]:
    first, last = plan.ports
    free, needed = host.health["ports_free"], ports_needed(plan)
    if free < needed and host.name in plan.hosts_used:
        text = (
            f"{host.name}: {free} of the ports {first}-{last} are free, and the run needs {needed}; busy are "
            f"{listed([str(port) for port in host.health['ports_busy']])}"
        )
        yield finding("net.ports-busy", text, host.name)
    outgoing = host.health["outgoing"]
    if outgoing is not None and first <= outgoing[1] and outgoing[0] <= last:
        range_ = f"its range of outgoing connections, {outgoing[0]}-{outgoing[1]}"
        text = f"{host.name}: `ports: {first}-{last}` lies in {range_}"
        yield finding("net.ports-outgoing", text, host.name)


def _gpus_of(plan: Plan, host: AnsweredHost) -> list[tuple[Gpu, GpuState]]:
    """Return the GPUs of a host that the spec gives to the run, as it names them."""
    gpus = host.health.get("gpus", [])
    named = set(plan.host(host.name).gpus)
    return [
        (i if i in named else gpu["uuid"], gpu) for i, gpu in enumerate(gpus) if {i, gpu.get("uuid")} & named
    ]


def _hidden(plan: Plan, host: AnsweredHost) -> Iterator[Finding]:
    """Yield that an administrator keeps GPUs of the run for others: tasks get their GPUs from the spec alone."""
    planned, text = set(plan.host(host.name).gpus), host.health.get("visible_gpus")
    if text is None or plan.host(host.name).transport not in ("ssh", "local"):
        return
    visible = visible_gpus(text)
    both = [{i, gpu.get("uuid", i)} for i, gpu in enumerate(host.health.get("gpus", []))]
    if planned <= set(visible).union(*(names for names in both if names.intersection(visible))):
        return
    given = listed([str(gpu) for gpu in plan.host(host.name).gpus])
    said = f"{host.name}: its login shell sets CUDA_VISIBLE_DEVICES={text}, and the spec gives the run GPU {given}"
    hint = f"write `gpus: [{', '.join(map(str, visible))}]` of {host.name}, or have that line taken away"
    yield finding("gpu.hidden", said, host.name, hint=hint)


def visible_gpus(text: str) -> tuple[Gpu, ...]:
    """Return what CUDA shows a process of that CUDA_VISIBLE_DEVICES: up to the first word that names no GPU.

    >>> visible_gpus("2,3"), visible_gpus("1,-1,0"), visible_gpus("")
    ((2, 3), (1,), ())
    """
    words = (word.strip() for word in text.split(","))
    names = takewhile(lambda word: word.isdecimal() or word.startswith(("GPU-", "MIG-")), words)
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _gpus_differ(plan: Plan, met: Mapping[str, AnsweredHost]) -> list[Finding]:
    hosts: dict[str, list[str]] = {}
    for host in met.values():
        for name in dict.fromkeys(gpu["name"] for _, gpu in _gpus_of(plan, host)):
            hosts.setdefault(name, []).append(host.name)
    if len(hosts) < 2:
        return []
    cards = "; ".join(f"{name} on {listed(names)}" for name, names in hosts.items())
    return [finding("gpu.differs", f"the GPUs of the run differ: {cards}")]


def _gpus(plan: Plan, host: AnsweredHost) -> Iterator[Finding]:
    for number, gpu in _gpus_of(plan, host):
        if gpu["ecc_errors"]:
            text = (
                f"{host.name}: GPU {number} has had {counted(gpu['ecc_errors'], 'uncorrected memory error')}"
            )
            yield finding("gpu.unwell", text, host.name)
        if gpu["xids"]:
            text = f"{host.name}: the driver has reported errors of GPU {number} since the boot: Xid "
            yield finding("gpu.unwell", text + ", ".join(map(str, gpu["xids"])), host.name)
        if gpu["slowed"]:
            text = f"{host.name}: the hardware slows GPU {number} down, for {gpu['slowed']}"
            yield finding("gpu.unwell", text, host.name)


def _clock(host: AnsweredHost) -> list[Finding]:
    clock = HostClock()
    clock.add_sample(host.health["time"], host.asked_at, host.answered_at)
    return [finding("host.clock", f"{host.name}: {clock.sentence}", host.name)] if clock.is_off else []


def _disks(plan: Plan, host: AnsweredHost) -> Iterator[Finding]:
    temporary = plan.env.get("TMPDIR")
    data = plan.checkpoint.dir if plan.checkpoint is not None else None
    for directory in host.health["directories"]:
        path, free, files = directory["path"], directory["free_bytes"], directory["free_files"]
        if path == temporary and directory["why"] is None and not directory["exists"]:
            text = f"{host.name}: {path}, the TMPDIR of `env:`, does not exist"
            yield finding("storage.missing", text, host.name)
        if directory["why"] is not None:
            yield finding("storage.read-only", f"{host.name}: {path}: {directory['why']}", host.name)
        elif directory["read_only"]:
            text = f"{host.name}: {path} lies on a file system that is read-only"
            yield finding("storage.read-only", text, host.name)
        save = (host.health.get("save_bytes") or 0) if path == data else 0
        if free is not None and free < max(FREE_BYTES_MIN, SAVES_MIN * save):
            takes = f", and its newest checkpoint takes {size(save)}" if save else ""
            yield finding("storage.space", f"{host.name}: {path} has {size(free)} left{takes}", host.name)
        if files is not None and files < FREE_FILES_MIN:
            text = f"{host.name}: {path} has room for {files} more files only"
            yield finding("storage.space", text, host.name)
        if directory["noexec"] and path != data:
            text = f"{host.name}: {path} lies on a file system that is mounted with noexec"
            yield finding("storage.noexec", text, host.name)


def _limits(host: AnsweredHost) -> Iterator[Finding]:
    files = host.health["open_files"]
    if files is not None and files < OPEN_FILES_MIN:
        yield finding("host.open-files", f"{host.name}: {files} files may be open at once", host.name)
    processes = host.health["processes"]
    if processes is not None and processes < PROCESSES_MIN:
        text = f"{host.name}: {_me(host)} may have {processes} processes, threads included"
        yield finding("host.processes", text, host.name)
    if host.hello["warning"]:
        yield finding("host.ends-at-logout", f"{host.name}: {host.hello['warning']}", host.name)


def _proxies(plan: Plan, host: AnsweredHost) -> list[Finding]:
    proxies = host.health["proxies"]
    if not proxies or len(plan.hosts_used) < 2:
        return []
    settings = ", ".join(f"{name}={value}" for name, value in proxies.items())
    text = f"{host.name}: tasks get {settings}; no_grpc_proxy keeps it out of connections between the hosts"
    return [finding("net.proxy", text, host.name)]


def judge_pairs(
    plan: Plan, met: Mapping[str, AnsweredHost], seen: Mapping[str, Sequence[Seen]]
) -> tuple[list[Finding], dict[str, str]]:
    """Return what is wrong between hosts, and the addresses to use where those of the plan do not work.

    An address replaces a name where all hosts that were asked have reached that same host by it.
    """
    findings: list[Finding] = []
    addresses: dict[str, str] = {}
    if len(met) > 1:
        unheard = [name for name in met if name not in seen]
        findings += [
            finding(
                "net.blocked",
                f"{name}: it is not known whether it reaches its peers: it did not answer",
                name,
                level="warning",
            )
            for name in unheard
        ]
    for peer in met:
        address = plan.host(peer).peer_address
        attempts = {
            name: [result for result in results if result["host"] == peer]
            for name, results in seen.items()
            if name != peer
        }
        judged = _judge_peer(plan, peer, address, attempts)
        better = _better(address, attempts) if any(result.level == "error" for result in judged) else None
        if better is not None:
            addresses[peer] = better
            judged = [_replaced(result, better) for result in judged]
        findings += judged
    return findings, addresses


def _better(address: str, attempts: Mapping[str, Sequence[Seen]]) -> str | None:
    """Return the other address by which all hosts reached it; None if there is none."""
    fine = [
        {
            result["address"]
            for result in results
            if result["outcome"] == "fine" and result["address"] != address
        }
        for results in attempts.values()
    ]
    common = set.intersection(*fine) if fine else set()
    return min(common, default=None)


def _replaced(original: Finding, address: str) -> Finding:
    text = f"{original.message}; its peers are given {address}, by which they reach it"
    hint = f"write `data_address: {address}` of {original.peer}, and it is not looked for again"
    found = finding(original.id, text, original.host, original.peer, level="warning", hint=hint)
    return replace(
        found, own_why="nothing waits for it: TF_CONFIG has that address, which each start looks for again"
    )


def _judge_peer(plan: Plan, peer: str, address: str, attempts: Mapping[str, Sequence[Seen]]) -> list[Finding]:
    """Return why a host is not reached by the address in the plan: one finding for all hosts with the same result."""
    same: dict[tuple[str, str], list[str]] = {}
    for name, results in attempts.items():
        mine = next((result for result in results if result["address"] == address), None)
        what = _what(peer, address, mine)
        if what is not None:
            same.setdefault(what, []).append(name)
    used = set(plan.hosts_used)
    findings = []
    for (which, text), names in same.items():
        matters = peer in used and not used.isdisjoint(names)
        level: Level | None = None if matters else "warning"
        findings.append(finding(which, f"{listed(names)}: {text}", names[0], peer, level=level))
    return findings


def _what(peer: str, address: str, seen: Seen | None) -> tuple[str, str] | None:
    """Return the id and the sentence; None if the host was reached."""
    if seen is None:
        return "net.blocked", f"did not reach {peer} ({address}) in time"
    outcome, why = seen["outcome"], seen["why"] or "no reason was given"
    if outcome == "fine":
        if seen["resolve_s"] <= SLOW_NAME_S:
            return None
        return "net.name-slow", f"takes {duration(seen['resolve_s'])} to resolve {address} ({peer})"
    if outcome == "no-name":
        return "net.name-unresolved", f"cannot resolve {address}, the address of {peer} in TF_CONFIG ({why})"
    resolved = seen["resolved"]
    if resolved and all(is_loopback(name) for name in resolved):
        where = (
            f"resolves to {resolved[0]} there" if is_name(address) else "is an address of each host itself"
        )
        return "net.name-loopback", f"cannot reach {peer} by {address}, which {where}"
    place = endpoint(resolved[0] if resolved else address, seen["port"] or 0)
    if is_name(address):
        place = f"{place} ({address})"
    if outcome == "cut":
        return "net.large-packets", f"connects to {peer} at {place}, and large packets do not arrive: {why}"
    return "net.blocked", f"cannot connect to {peer} at {place}, where its agent listens: {why}"


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False

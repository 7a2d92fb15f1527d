"""Finds the sshds on the way to a host of the plan, by the spec first, and then by ~/.ssh/config.

paramiko's parser supports neither `Include` nor every `Match`, and would run the command of a `Match exec` in the
coordinator. So the text is prepared here: included files are inserted, and a block whose condition we cannot evaluate
matches no host, with a warning.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.core.errors import HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.algorithms import KEYWORDS
from orchestrator.head.reach.ssh.known_hosts import SSH_PORT, known_name

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
"""The files under ~/.ssh that are tried where neither the spec nor ~/.ssh/config names a key."""

_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"

_SETTING = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NOBODY = "Host orch-cannot-judge-this-block"
_MATCH_KNOWN = {"all", "canonical", "final", "host", "originalhost", "user", "localuser"}
_INCLUDE_DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class ConfigText:
    """An ssh_config file with its includes in place."""

    text: str
    warnings: tuple[str, ...]
    sources: tuple[Path, ...]
    """Files that were read, and directories that were searched: the text is stale once one of them changes."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One sshd on the way: the host's own, or its bastion's."""

    address: str
    port: int
    user: str
    key_name: str
    """Its name in known_hosts."""
    identity_files: tuple[Path, ...]
    identity_explicit: bool
    """Whether the spec or ssh_config names the files: then a missing one is reported."""
    identities_only: bool
    """Whether to offer only those keys of the SSH agent that belong to the files."""
    known_hosts: tuple[Path, ...]
    """The user's files with host keys, or the spec's."""
    bastion: bool = False
    system_known_hosts: tuple[Path, ...] = ()
    revoked_keys: tuple[Path, ...] = ()
    """Files of keys that are refused for every host."""
    agent: str | None = None
    """The socket of the SSH agent (IdentityAgent): `none` for no agent, None for the one in the environment."""
    not_done: tuple[str, ...] = ()
    """The settings of ssh_config for it that orch does not follow, a sentence each."""
    certificates: tuple[Path, ...] = ()
    """Files of certificates over our keys, in addition to those beside a key's file."""
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """The settings of ssh_config about algorithms, by keyword."""
    proxy_command: str | None = None
    """The ProxyCommand of ssh_config that connects to it, as the shell gets it."""

    def __str__(self) -> str:
        place = self.address if self.port == SSH_PORT else f"{self.address} port {self.port}"
        return f"bastion {place}" if self.bastion else place

    @property
    def alias(self) -> str | None:
        """The HostKeyAlias of ssh_config; None if there is none."""
        return None if self.key_name == known_name(self.address, self.port) else self.key_name


@dataclass(frozen=True, slots=True)
class Route:
    """The way to a host."""

    host: HostPlan
    target: Hop
    bastions: tuple[Hop, ...] = ()
    """The bastions, in the order in which they are connected to."""

    @property
    def hops(self) -> tuple[Hop, ...]:
        return (*self.bastions, self.target)


Lookup = Callable[[str], Mapping[str, object]]
"""Returns the settings of ssh_config for a name: keys in lower case, `identityfile` a list."""


def read_config(paths: list[Path], home: Path) -> ConfigText:
    """Read the files in this order, as ssh reads the user's before the system's. Missing ones count as empty."""
    reader = _Reader(home)
    lines: list[str] = []
    for path in paths:
        # Settings before the first Host of a file hold for all hosts, in the second file too.
        lines += ["Host *", *reader.lines(path, "Host *", 0)]
    return ConfigText("\n".join(lines) + "\n", tuple(reader.warnings), tuple(reader.sources))


class _Reader:
    def __init__(self, home: Path) -> None:
        self._home = home
        self.warnings: list[str] = []
        self.sources: list[Path] = []

    def lines(self, path: Path, block: str, depth: int) -> list[str]:
        """Return the file's lines; `block` is the Host or Match line that it was included under."""
        self.sources.append(path)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self.warnings.append(f"{path}: {error.strerror}; read as empty")
            return []
        lines: list[str] = []
        is_certified = False
        for number, line in enumerate(text.splitlines(), 1):
            line = _without_comment(line.strip())
            if not line:
                continue
            setting = _SETTING.fullmatch(line)
            if setting is None:
                self.warnings.append(f"{path}:{number}: skipped: not a keyword and a value")
                continue
            keyword, value = setting[1].lower(), setting[2]
            if keyword == "include":
                lines += self._include(path, number, value, block, depth)
                continue
            if keyword in ("host", "match"):
                block = line = self._block(path, number, keyword, line, value)
                is_certified = False
            if keyword == "certificatefile":
                if is_certified:
                    self.warnings.append(
                        f"{path}:{number}: skipped: orch takes one CertificateFile of a block"
                    )
                is_certified = True
            lines.append(line)
        return lines

    def _include(self, path: Path, number: int, value: str, block: str, depth: int) -> list[str]:
        if depth >= _INCLUDE_DEPTH_MAX:
            self.warnings.append(f"{path}:{number}: skipped: more than {_INCLUDE_DEPTH_MAX} Includes deep")
            return []
        lines: list[str] = []
        for pattern in _words(value):
            wanted = _expand(pattern, self._home)
            if not wanted.is_absolute():
                base = self._home / ".ssh" if path.is_relative_to(self._home) else path.parent
                wanted = base / wanted
            self.sources.append(wanted.parent)
            for file in sorted(wanted.parent.glob(wanted.name)):
                lines += self.lines(file, block, depth + 1)
        return [*lines, block]

    def _block(self, path: Path, number: int, keyword: str, line: str, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError:
            self.warnings.append(f"{path}:{number}: the block is ignored: unbalanced quotes")
            return _NOBODY
        if keyword == "host":
            return line
        while words:
            criterion = words.pop(0).lower().removeprefix("!")
            if criterion not in _MATCH_KNOWN:
                self.warnings.append(
                    f"{path}:{number}: the block is ignored: orch does not support Match {criterion}"
                )
                return _NOBODY
            if criterion not in ("all", "canonical", "final"):
                if not words:
                    self.warnings.append(
                        f"{path}:{number}: the block is ignored: Match {criterion} has no value"
                    )
                    return _NOBODY
                words.pop(0)
        return line


def route(host: HostPlan, lookup: Lookup, home: Path) -> Route:
    """Return the hops to `host`. Raises HostUnfit where orch does not support the way."""
    name = host.address or host.name
    settings = lookup(name)
    target = _hop(host, name, settings, home, user=host.user, port=host.port)
    jump = host.proxy_jump or str(settings.get("proxyjump") or "none")
    if jump.lower() == "none":
        return Route(host, target if host.proxy_jump else _by_command(host, name, target, settings))
    return Route(host, target, _bastions(host, jump, lookup, home, [target]))


def _bastions(host: HostPlan, jump: str, lookup: Lookup, home: Path, beyond: list[Hop]) -> tuple[Hop, ...]:
    """Return the bastions on the way, in the order in which they are connected to.

    As with ssh, a bastion may have a ProxyJump of its own. `Host *` with a ProxyJump also matches the bastion, so a
    bastion is never reached through itself or through the hops `beyond` it.
    """
    before, _, last = jump.rpartition(",")
    match = re.fullmatch(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:\[\]]+)(?::(\d{1,5}))?/?", last)
    if match is None:
        raise HostUnfit(host.name, f"{last!r} does not name a bastion", hint="write it as [user@]name[:port]")
    name = match[2].strip("[]")
    settings = lookup(name)
    # A cluster.yaml alone must be enough: where no user is named for the bastion, the host's user counts.
    user = match[1] or str(settings.get("user") or host.user or "") or None
    port = int(match[3]) if match[3] else None
    hop = _hop(host, name, settings, home, user=user, port=port, bastion=True)
    if any((hop.address, hop.port) == (beyond_hop.address, beyond_hop.port) for beyond_hop in beyond):
        return ()
    own = before or str(settings.get("proxyjump") or "none")
    if own.lower() != "none":
        return (*_bastions(host, own, lookup, home, [*beyond, hop]), hop)
    return (_by_command(host, name, hop, settings),)


def _by_command(host: HostPlan, name: str, hop: Hop, settings: Mapping[str, object]) -> Hop:
    """Return the hop with its ProxyCommand, if ssh_config has one. The command is the person's own; what stands in the
    spec is put into it only where no shell reads it as anything but a word."""
    command = str(settings.get("proxycommand") or "none")
    if command.lower() == "none":
        return hop
    values = {
        "%": "%",
        "h": hop.address,
        "n": name,
        "p": str(hop.port),
        "r": hop.user,
        "u": getpass.getuser(),
    }

    def value(token: re.Match[str]) -> str:
        text = values.get(token[1])
        if text is None or not re.fullmatch(r"[A-Za-z0-9_.:@+%][A-Za-z0-9_.:@+%-]*", text):
            why = "does not know" if text is None else f"does not hand {text!r} to a shell for"
            raise HostUnfit(
                host.name,
                f"the ProxyCommand of ssh_config for {name} has %{token[1]}: orch {why} that",
                hint="write another token or the value itself, or `proxy_jump: none` in the spec to connect directly",
            )
        return text

    return replace(hop, proxy_command=re.sub(r"%(.?)", value, command))


def _hop(
    host: HostPlan,
    name: str,
    settings: Mapping[str, object],
    home: Path,
    *,
    user: str | None,
    port: int | None,
    bastion: bool = False,
) -> Hop:
    address = str(settings.get("hostname", name))
    if "@" in address or address.count(":") == 1 or address.startswith("-") or not address:
        raise HostUnfit(
            host.name,
            f"{address!r} is not an address",
            hint="write a name or an IP address; user and port have their own fields",
        )
    configured = str(settings.get("port", SSH_PORT))
    port = port or (int(configured) if configured.isdecimal() else SSH_PORT)
    alias = settings.get("hostkeyalias")
    agent = str(settings.get("identityagent") or "")
    files = [host.identity_file] if host.identity_file else [*map(str, _listed(settings.get("identityfile")))]
    known_hosts = _files(settings, "userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2", home)
    return Hop(
        address=address,
        port=port,
        user=user or str(settings.get("user") or getpass.getuser()),
        key_name=str(alias).lower() if alias else known_name(address, port),
        identity_files=tuple(
            _expand(file, home) for file in files or [f"~/.ssh/{key}" for key in DEFAULT_KEYS]
        ),
        identity_explicit=bool(files),
        identities_only=str(settings.get("identitiesonly", "no")).lower() == "yes",
        known_hosts=(_expand(host.known_hosts, home),) if host.known_hosts else known_hosts,
        bastion=bastion,
        system_known_hosts=_files(settings, "globalknownhostsfile", _SYSTEM_KNOWN_HOSTS, home),
        revoked_keys=_files(settings, "revokedhostkeys", "none", home),
        agent=_agent(agent, home) if agent else None,
        not_done=_not_done(name, settings),
        certificates=tuple(_expand(str(file), home) for file in _listed(settings.get("certificatefile"))),
        algorithms=_algorithms(settings),
    )


def _agent(socket: str, home: Path) -> str | None:
    """Return the socket that IdentityAgent names, as ssh reads it: a path, a variable, `SSH_AUTH_SOCK` or `none`."""
    if socket.upper() == "SSH_AUTH_SOCK":
        return None
    if socket.lower() == "none":
        return "none"
    if re.fullmatch(r"\$\w+", socket):
        return os.environ.get(socket[1:], "none")
    return str(_expand(socket.strip('"'), home))


_NOT_DONE: Mapping[str, tuple[frozenset[str], str]] = {
    "setenv": (
        frozenset(),
        "it is not in the environment of tasks: write it under `env` of the cluster spec",
    ),
    "bindaddress": (frozenset(), "the kernel chooses the address"),
    "bindinterface": (frozenset(), "the kernel chooses the interface"),
    "addressfamily": (frozenset({"any"}), "all addresses of a name are tried"),
    "pkcs11provider": (frozenset({"none"}), "put its keys into the SSH agent: `ssh-add -s`"),
    "canonicalizehostname": (frozenset({"no"}), "write the whole name"),
    "stricthostkeychecking": (
        frozenset({"yes", "ask"}),
        "orch always refuses an unknown key: see `orch trust`",
    ),
}
"""Settings of ssh that orch does not follow: the values without effect, and what to do or what orch does instead."""


def _not_done(name: str, settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return a warning for each setting of ssh_config for a name that orch does not follow."""
    texts = []
    for keyword, (harmless, instead) in _NOT_DONE.items():
        value = settings.get(keyword)
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
        if text and text.lower() not in harmless:
            texts.append(
                f"ssh_config sets {keyword} {text} for {name}, which orch does not follow: {instead}"
            )
    port = str(settings.get("port", SSH_PORT))
    if not port.isdecimal():
        texts.append(f"ssh_config sets port {port} for {name}, which is not a port: {SSH_PORT} is used")
    return tuple(texts)


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if value else []


def _without_comment(line: str) -> str:
    """Return a line without its comment, which begins at a word with # outside of quotes, as ssh reads it.

    >>> _without_comment("Port 2222 # NAT"), _without_comment('IdentityFile "~/a #1" #'), _without_comment("User a#b")
    ('Port 2222', 'IdentityFile "~/a #1"', 'User a#b')
    """
    quoted = False
    for at, letter in enumerate(line):
        quoted ^= letter == '"'
        if letter == "#" and not quoted and (at == 0 or line[at - 1].isspace()):
            return line[:at].rstrip()
    return line


def _files(settings: Mapping[str, object], keyword: str, default: str, home: Path) -> tuple[Path, ...]:
    words = _words(str(settings.get(keyword) or default))
    return tuple(_expand(word, home) for word in words if word.lower() != "none")


def _algorithms(settings: Mapping[str, object]) -> dict[str, str]:
    chosen = {keyword: str(settings[keyword]) for keyword in KEYWORDS if settings.get(keyword)}
    older = settings.get("pubkeyacceptedkeytypes")  # its name until OpenSSH 8.5
    return {"pubkeyacceptedalgorithms": str(older), **chosen} if older else chosen


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def _expand(path: str, home: Path) -> Path:
    path = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), path)
    return home / path[2:] if path.startswith("~/") else Path(path).expanduser()

"""A lab of hosts on one machine, each with a real sshd, strict host keys and its own directories.

As root, a host is a network namespace on a bridge, and the head is the machine itself. A host's link can then be cut,
and packets can be dropped for single pairs or directions. Otherwise a host is an sshd on a high loopback port, and
nothing can be cut; ORCH_LAB=loopback selects this for root too. All names contain the process id, so several labs can
run side by side. A lab also removes what a crashed lab has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import ipaddress
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.core.plan import HostPlan
from tests.patience import comes

READY_S = 20.0
AT_ONCE = 8
"""How many sshds start at once: each waits for its port, and two hundred in a row would take a minute."""

FIRST_HOST = 10
"""Of a network: the addresses below are the head's."""

FIRST_UID = 61_000

_numbers = itertools.count()


def can_cut() -> bool:
    """Return whether hosts are namespaces, whose links can be cut."""
    return os.geteuid() == 0 and os.environ.get("ORCH_LAB") != "loopback"


def missing() -> list[str]:
    """Return the programs that the lab needs and this machine lacks."""
    needed = ["sshd", "ssh-keygen"] + (["ip", "iptables", "nsenter", "unshare"] if can_cut() else [])
    return [name for name in needed if _find(name) is None]


def need_lab() -> None:
    """Fail in CI, and skip the test elsewhere, if there can be no lab."""
    lacking = missing()
    if not lacking:
        return
    reason = f"NO LAB: {', '.join(lacking)} not found; install openssh-server, iproute2, iptables, util-linux"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class LabHost:
    """A host of the lab, with its sshd, its link, and its directories."""

    def __init__(self, lab: Lab, index: int, options: Mapping[str, str]) -> None:
        self._lab = lab
        self._options = dict(options)
        self._sshd: subprocess.Popen[bytes] | None = None
        self._own: Path | None = None
        self._has_own_mounts = False
        self._named: str | None = None
        self.index = index
        self.name = f"host-{index}"
        self.dir = lab.dir / self.name
        self.home = self.dir / "home"
        self.host_dir = self.dir / "orch-host"
        self.home.mkdir(parents=True)
        self.host_key = self.dir / "ssh_host_ed25519_key"
        _keygen(self.host_key)
        self.namespace = f"{lab.tag}h{index}" if lab.can_cut else None
        self.address = lab.address_of(index) if lab.can_cut else "127.0.0.1"
        self.port = 22 if lab.can_cut else _free_port()
        self._link = f"{lab.tag}v{index}"

    @property
    def log(self) -> Path:
        return self.dir / "sshd.log"

    @property
    def known_hosts_line(self) -> str:
        type_, key, *_ = self.host_key.with_suffix(".pub").read_text().split()
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{name} {type_} {key}\n"

    def plan(self, **changes: object) -> HostPlan:
        """Return the host as in a plan."""
        fields: dict[str, object] = {
            "name": self.name,
            "address": self.address,
            "data_address": self.address,
            "user": getpass.getuser(),
            "port": self.port,
            "identity_file": str(self._lab.identity_file),
            "known_hosts": str(self._lab.known_hosts),
            "python": "python3",
        }
        return HostPlan(**{**fields, **changes})  # type: ignore[arg-type]

    def connect_link(self) -> None:
        """Make the namespace and its link to the bridge."""
        assert self.namespace is not None
        inside = f"{self._lab.tag}e{self.index}"
        _batch(
            f"netns add {self.namespace}",
            f"link add {self._link} type veth peer name {inside}",
            f"link set {inside} netns {self.namespace} name eth0",
            f"link set {self._link} master {self._lab.bridge} up",
        )
        _batch(
            "link set lo up",
            f"addr add {self.address}/{self._lab.prefix} dev eth0",
            "link set eth0 up",
            namespace=self.namespace,
        )

    def run(self, *command: str) -> None:
        """Run a command in the host's network."""
        _run(*self.enter(), *command)

    def popen(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in the host's network. The caller must end it."""
        return subprocess.Popen([*self.enter(), *command], stdout=subprocess.PIPE)

    def start_sshd(self, **options: str) -> None:
        """Start its sshd. `options` are sshd_config keywords, which later starts keep."""
        self._options |= options
        config = self.dir / "sshd_config"
        config.write_text("".join(f"{key} {value}\n" for key, value in self._settings().items()))
        sshd = _find("sshd")
        assert sshd is not None
        command = [
            *self.enter(),
            *self._with_own(),
            *self._with_name(),
            sshd,
            "-D",
            "-f",
            str(config),
            "-E",
            str(self.log),
        ]
        # A connection of the sshd before may hold the port for a moment.
        comes(lambda: self._came_up(command), READY_S, 0.1)
        if self._sshd is None or self._sshd.poll() is not None:
            raise RuntimeError(f"sshd of {self.name} does not come up: {self.log.read_text()}")

    def own_directory(self, path: Path) -> Path:
        """Mount a directory of its own over the shared `path`, and return it. This restarts sshd."""
        self._need_cut()
        path.mkdir(parents=True, exist_ok=True)
        self._own = path
        (self.dir / "own").mkdir(exist_ok=True)
        self.restart_sshd()
        return self.dir / "own"

    @contextlib.contextmanager
    def own_mounts(self) -> Iterator[None]:
        """Give it a mount namespace of its own meanwhile, for `mount` and `unmount`. This restarts sshd."""
        self._need_cut()
        self._has_own_mounts = True
        self.restart_sshd()
        try:
            yield
        finally:
            self._has_own_mounts = False
            self.restart_sshd()

    def mount(self, source: Path, target: Path) -> None:
        """Mount a directory on that host alone, also for all that runs there."""
        _run(*self._in_mounts(), "mount", "--bind", str(source), str(target))

    def unmount(self, target: Path) -> None:
        """Unmount a directory on that host alone, although files there are open."""
        _run(*self._in_mounts(), "umount", "-l", str(target))

    def listed(self, directory: Path) -> list[str]:
        """Return the names in a directory as that host sees it."""
        found = subprocess.run(
            [*self._in_mounts(), "ls", "-A", str(directory)], capture_output=True, text=True, check=True
        )
        return found.stdout.split()

    def _in_mounts(self) -> list[str]:
        assert self._sshd is not None
        return ["nsenter", f"--mount=/proc/{self._sshd.pid}/ns/mnt", "--"]

    def own_accounts(self, *names: str) -> None:
        """Give it users with homes of their own, whom only its own /etc/passwd knows. This restarts sshd."""
        self._need_cut()
        lines = [Path("/etc/passwd").read_text()]
        for uid, name in enumerate(names, FIRST_UID):
            home = self.dir / name
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
            lines.append(f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n")
        (self.dir / "own").write_text("".join(lines))
        self._own = Path("/etc/passwd")
        for directory in (self._lab.dir, self.dir):
            directory.chmod(0o755)
        self.restart_sshd(SetEnv=f"PATH={self._path}")

    def own_name(self, name: str) -> None:
        """Give it a hostname of its own, which resolves to its address in its own /etc/hosts. This restarts sshd."""
        self._need_cut()
        (self.dir / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {name}\n")
        self._named = name
        self.restart_sshd()

    def rename(self, name: str) -> None:
        """Change its own hostname under all that runs there, as `hostnamectl` does."""
        assert self._sshd is not None
        assert self._named is not None
        _run("nsenter", f"--uts=/proc/{self._sshd.pid}/ns/uts", "--", "hostname", name)

    def chooses_its_directory(self) -> None:
        """Let orch choose the host's directory in its home, as on a host of users. This restarts sshd."""
        self.restart_sshd(SetEnv=f"HOME={self.home} PATH={self._path}")

    def stop_sshd(self) -> None:
        """Stop sshd. Open sessions stay open."""
        if self._sshd is not None:
            self._sshd.kill()
            self._sshd.wait()
            self._sshd = None

    def restart_sshd(self, **options: str) -> None:
        """Restart sshd, with other sshd_config keywords."""
        self.stop_sshd()
        self.start_sshd(**options)

    def new_host_key(self) -> None:
        """Give it another host key, like a host that was installed anew."""
        self.host_key.unlink()
        self.host_key.with_suffix(".pub").unlink()
        _keygen(self.host_key)
        self.restart_sshd()

    def cut(self) -> None:
        """Cut its link, so that packets are lost silently in both directions."""
        self._need_cut()
        _run("ip", "link", "set", self._link, "down")

    def heal(self) -> None:
        """Restore its link, and remove the rules of `drop`."""
        self._need_cut()
        _run("ip", "link", "set", self._link, "up")
        self.run("iptables", "-F")

    def drop(self, *, source: str | None = None, to: str | None = None) -> None:
        """Drop packets from the address `source`, and packets to the address `to`."""
        self._need_cut()
        if source is not None:
            self.run("iptables", "-A", "INPUT", "-s", source, "-j", "DROP")
        if to is not None:
            self.run("iptables", "-A", "OUTPUT", "-d", to, "-j", "DROP")

    def _need_cut(self) -> None:
        if not self._lab.can_cut:
            pytest.skip("only root can cut a host: without namespaces there is no link")

    def enter(self) -> list[str]:
        """Return the words before a command that has to run in the host's network."""
        # `ip netns exec` would also mount a separate /sys, and the host would have no control groups.
        return [] if self.namespace is None else ["nsenter", f"--net=/run/netns/{self.namespace}", "--"]

    def _with_own(self) -> list[str]:
        if self._own is None:
            return ["unshare", "-m"] if self._has_own_mounts else []
        mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
        return ["unshare", "-m", "sh", "-c", mount, str(self.dir / "own"), str(self._own)]

    def _with_name(self) -> list[str]:
        if self._named is None:
            return []
        start = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
        return ["unshare", "-m", "-u", "sh", "-c", start, str(self.dir / "hosts"), self._named]

    @property
    def _path(self) -> str:
        return f"{self._lab.dir / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

    def _settings(self) -> dict[str, str]:
        environment = {"ORCH_HOST_DIR": self.host_dir, "HOME": self.home, "PATH": self._path}
        return {
            "Port": str(self.port),
            "ListenAddress": self.address,
            "HostKey": str(self.host_key),
            "AuthorizedKeysFile": str(self._lab.dir / "authorized_keys"),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "SetEnv": " ".join(f"{key}={value}" for key, value in environment.items()),
            **self._options,
        }

    def _came_up(self, command: list[str]) -> bool:
        """Start sshd once, and return whether it answers."""
        with self.log.open("ab") as log:
            self._sshd = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._lab.record(self._sshd.pid)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._sshd.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1.0):
                return self._sshd.poll() is None
            time.sleep(0.02)
        return False


class Lab:
    """Hosts, a client key, and a known_hosts file with the key of every host.

    Args:
        n_hosts: the number of hosts.
        options: sshd_config keywords for single hosts, by their index.
    """

    def __init__(self, n_hosts: int, options: Mapping[int, Mapping[str, str]] | None = None) -> None:
        need_lab()
        sweep_crashed()
        self.can_cut = can_cut()
        self.tag = f"o{os.getpid():x}{_letter(next(_numbers))}"
        self.bridge = f"{self.tag}b"
        self.dir = Path(tempfile.mkdtemp(prefix=f"orch-lab-{os.getpid()}-"))
        self._pids: list[tuple[int, str]] = []
        self._recording = threading.Lock()
        self._network = ipaddress.IPv4Network("127.0.0.0/8")
        self.hosts: list[LabHost] = []
        self.identity_file = self.dir / "id_ed25519"
        self.known_hosts = self.dir / "known_hosts"
        try:
            self._record_owner()
            self._make(n_hosts, options or {})
        except BaseException:
            self.close()
            raise

    def _make(self, n_hosts: int, options: Mapping[int, Mapping[str, str]]) -> None:
        _keygen(self.identity_file)
        shutil.copy(self.identity_file.with_suffix(".pub"), self.dir / "authorized_keys")
        (self.dir / "bin").mkdir()
        (self.dir / "bin" / "python3").symlink_to(os.path.realpath(sys.executable))
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # sshd needs it for its privilege separation
        if self.can_cut:
            self._make_bridge(n_hosts)
        for index in range(n_hosts):
            self.hosts.append(LabHost(self, index, options.get(index, {})))
        if self.can_cut:
            for host in self.hosts:
                host.connect_link()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(LabHost.start_sshd, self.hosts))
        self.trust_all()

    def host(self, index: int) -> LabHost:
        return self.hosts[index]

    def trust_all(self) -> None:
        """Write known_hosts with the key that each host has now."""
        self.known_hosts.write_text("".join(host.known_hosts_line for host in self.hosts))

    def address_of(self, index: int) -> str:
        return str(self._network[index + FIRST_HOST])

    @property
    def prefix(self) -> int:
        """How many bits of a host's address are its network's."""
        return self._network.prefixlen

    @property
    def head_address(self) -> str:
        """The head's address for the hosts."""
        return str(self._network[1]) if self.can_cut else "127.0.0.1"

    def record(self, pid: int) -> None:
        """Remember a process by its identity, also for the lab that cleans up after a crash."""
        with self._recording:
            self._pids.append((pid, _start_time(pid)))
            _write(self.dir / "pids.json", self._pids)

    def close(self) -> None:
        """End all processes of the lab, and remove its networks and files."""
        for host in self.hosts:
            host.stop_sshd()
        _remove(self.dir, self._pids, self.tag if self.can_cut else None)

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _record_owner(self) -> None:
        tag = self.tag if self.can_cut else None
        _write(self.dir / "owner.json", {"pid": os.getpid(), "started": _start_time(os.getpid()), "tag": tag})

    def _make_bridge(self, n_hosts: int) -> None:
        with _locked("subnets"):
            self._network = free_network(n_hosts)
            _batch(
                f"link add {self.bridge} type bridge",
                f"addr add {self.head_address}/{self.prefix} dev {self.bridge}",
                f"link set {self.bridge} up",
            )


def sweep_crashed() -> None:
    """Remove what the labs of dead processes have left."""
    with _locked("sweep"):
        for directory in Path(tempfile.gettempdir()).glob("orch-lab-*-*"):
            try:
                owner = json.loads((directory / "owner.json").read_text())
                if _start_time(owner["pid"]) == owner["started"]:
                    continue
            except (OSError, ValueError):
                continue  # it is being made, or is another user's
            recorded = directory / "pids.json"
            pids = json.loads(recorded.read_text()) if recorded.exists() else []
            _remove(directory, [(pid, started) for pid, started in pids], owner["tag"])


def _remove(directory: Path, pids: list[tuple[int, str]], tag: str | None) -> None:
    for pid, started in pids:
        if started and _start_time(pid) == started:
            os.kill(pid, signal.SIGKILL)
    for pid in _marked(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if tag is not None:
        namespaces = _namespaces(tag)
        # The processes that hold a namespace were started in it: sshd's children and their descendants.
        for pid in _inside(namespaces):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _batch(*(f"netns del {namespace}" for namespace in namespaces), force=True)
        # The kernel removes a namespace later, and its link would stay until then.
        _batch(*(f"link del {link}" for link in _links(tag)), force=True)
    shutil.rmtree(directory, ignore_errors=True)


def _marked(directory: Path) -> Iterator[int]:
    """Yield the processes whose ORCH_HOST_DIR is in this lab: those that were started over its sshds."""
    marker = f"ORCH_HOST_DIR={directory}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(item.startswith(marker) for item in (entry / "environ").read_bytes().split(b"\0")):
                    yield int(entry.name)


def _inside(namespaces: list[str]) -> Iterator[int]:
    """Yield the processes whose network is one of these namespaces."""
    wanted = set()
    for namespace in namespaces:
        with contextlib.suppress(OSError):
            wanted.add(os.stat(f"/run/netns/{namespace}").st_ino)
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino in wanted:
                    yield int(entry)


def _namespaces(tag: str) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    return [name for name in names if name.startswith(f"{tag}h")]


def _links(tag: str) -> list[str]:
    return [
        link for link in os.listdir("/sys/class/net") if link.startswith((f"{tag}v", f"{tag}e", f"{tag}b"))
    ]


def free_network(n_hosts: int) -> ipaddress.IPv4Network:
    """Return a network that nothing here uses: a /24, or as much as so many hosts need."""
    used = subprocess.run(["ip", "-4", "route", "show"], capture_output=True, text=True, check=True).stdout
    taken = []
    for word in used.split():
        with contextlib.suppress(ValueError):
            taken.append(ipaddress.IPv4Network(word, strict=False))
    prefix = min(24, 32 - (n_hosts + FIRST_HOST + 1).bit_length())
    for high in range(200, 256):
        for wanted in ipaddress.IPv4Network(f"10.{high}.0.0/16").subnets(new_prefix=prefix):
            if not any(wanted.overlaps(network) for network in taken if network.prefixlen):
                return wanted
    raise RuntimeError(f"no free 10.x.y.0/{prefix} for the lab")


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    # The name contains the user, since another user's file could not be opened.
    path = Path(tempfile.gettempdir()) / f"orch-lab-{name}-{os.getuid()}.lock"
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_time(pid: int) -> str:
    """Return when a process started, in the kernel's clock ticks; empty where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _letter(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return digits[number // 36 % 36] + digits[number % 36]


def _write(path: Path, value: object) -> None:
    # The file is replaced atomically, since another lab may read it at any moment.
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _find(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def _keygen(path: Path) -> None:
    """Write a new key and its public half, as ssh-keygen does, without a process for each of hundreds of hosts."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b" lab\n")


def _batch(*lines: str, namespace: str | None = None, force: bool = False) -> None:
    """Let one `ip` do all of them, in a network namespace; with `force`, the others where one fails."""
    command = ["ip", *(["-n", namespace] if namespace else []), *(["-force"] if force else []), "-batch", "-"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode and not force:
        raise RuntimeError(f"ip: {done.stderr.strip()}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

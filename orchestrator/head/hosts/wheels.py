"""Collects wheels on the head node, for hosts without a package index: once for all hosts that need the same ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from hashlib import file_digest

from orchestrator.both import durable, process
from orchestrator.core.words import counted
from orchestrator.head.links.conversation import OrderRefused, refused
from orchestrator.protocol.orders.preparation import EnvironmentState
from orchestrator.spec.setup import Environment

KEPT_MAX = 3
KEPT_S = 86400.0
"""The newest KEPT_MAX collections stay, so that hosts that come later get the same versions. Each also stays for KEPT_S
after its last use, since another process may be pushing it."""


LIST = "orch-wheels.json"
"""In a collection: the SHA-256 of each wheel. One without it was interrupted, or made by whatever called itself pip."""


class Wheels:
    """The wheels of one environment. Hosts ask from threads of their own."""

    def __init__(self, environment: Environment, directory: str, progress: Callable[[str], None]) -> None:
        self._environment = environment
        self._directory = directory
        self._progress = progress
        self._lock = threading.Lock()

    def fitting(self, host: EnvironmentState) -> dict[str, tuple[str, str]]:
        """Return the path and SHA-256 of each wheel that such a host needs, by its name. Raises OrderRefused."""
        version = ".".join(host["python"].split(".")[:2])
        name = f"{self._environment.key('')}-{version}-{host['libc']}-{host['machine']}"
        place = os.path.join(self._directory, name.replace("/", "_"))
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        with self._lock, open(f"{self._directory}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._progress("waits for another `orch setup` that collects wheels …")
                fcntl.flock(lock, fcntl.LOCK_EX)
            wheels = _whole(place)
            if not wheels:
                self._collect(place, version, host)
                wheels = _whole(place)
            os.utime(place)
            return {name: (os.path.join(place, name), digest) for name, digest in wheels.items()}

    def _collect(self, place: str, version: str, host: EnvironmentState) -> None:
        known = sorted(filter(os.DirEntry.is_dir, os.scandir(self._directory)), key=_asked_at)
        interrupted = [entry for entry in known if entry.name[0] == "."]
        old = [entry for entry in known if entry not in interrupted][: 1 - KEPT_MAX]
        for entry in (*interrupted, *(entry for entry in old if time.time() - _asked_at(entry) > KEPT_S)):
            shutil.rmtree(entry.path, ignore_errors=True)
        self._progress(f"collecting wheels for Python {version} on {host['machine']} ({host['libc']}) …")
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".") as fresh:
            whole = os.path.join(fresh, "whole")
            os.mkdir(whole)
            argv = [*_pip(), "download", "--dest", whole, "-r", self._environment.file, "--no-input"]
            argv += ["--disable-pip-version-check", "--progress-bar", "off", "--only-binary", ":all:"]
            argv += ["--implementation", "cp", "--python-version", version]
            for platform in platforms(host["libc"], host["machine"]):
                argv += ["--platform", platform]
            ended = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                env=process.environ_without_here(os.environ),
            )
            wheels = _digests(whole)
            if ended.returncode != 0 or not wheels:
                raise _failed(ended.stderr, host)
            durable.write_json(os.path.join(whole, LIST), wheels)
            durable.sync_tree(whole)
            shutil.rmtree(place, ignore_errors=True)  # it was not whole
            durable.place(whole, place)
        self._progress(f"collected {counted(len(wheels), 'wheel')}")


def _digests(place: str) -> dict[str, str]:
    """Return the SHA-256 of each wheel of a collection."""
    digests = {}
    for name in sorted(os.listdir(place)):
        if name != LIST:
            with open(os.path.join(place, name), "rb") as file:
                digests[name] = file_digest(file, "sha256").hexdigest()
    return digests


def _whole(place: str) -> dict[str, str]:
    """Return the wheels of a collection that holds what it held when it was made; none of any other, or of none."""
    listed = durable.read_object(place, LIST)
    return listed if listed and listed == _digests(place) else {}


def _asked_at(collection: os.DirEntry[str]) -> float:
    return collection.stat().st_mtime


def _failed(output: str, host: EnvironmentState) -> OrderRefused:
    errors = [line.partition(": ")[2] for line in output.splitlines() if line.startswith("ERROR: ")]
    last = errors[-1] if errors else (output.strip().splitlines() or ["it said nothing"])[-1]
    hint = (
        "the package may have no wheel for this platform: build one (`pip wheel`), and add `--find-links DIR` to the "
        "requirements; or correct them"
    )
    where = f"{host['machine']} with {host['libc']}"
    return refused("no-wheel", f"no wheels for {where} on the head node: pip: {last}", hint)


def _pip() -> list[str]:
    argv = [sys.executable, "-P", "-m", "pip"]
    environ = process.environ_without_here(os.environ)
    if subprocess.run([*argv, "--version"], capture_output=True, check=False, env=environ).returncode == 0:
        return argv
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip is None:
        hint = f"install it: `{sys.executable} -m ensurepip`, or `uv pip install pip`"
        raise refused("no-wheel", "the head node has no pip, which collects the wheels", hint)
    return [pip]


def platforms(libc: str, machine: str) -> list[str]:
    """Return the tags of the wheels that fit a host, the newest first.

    >>> platforms("musl", "aarch64")
    ['musllinux_1_2_aarch64', 'musllinux_1_1_aarch64', 'linux_aarch64']
    >>> platforms("glibc-2.18", "x86_64")[:3]
    ['manylinux_2_18_x86_64', 'manylinux_2_17_x86_64', 'manylinux2014_x86_64']
    """
    if not libc.startswith("glibc-"):
        kinds = ["musllinux_1_2", "musllinux_1_1"]
    else:
        minor = int(libc.removeprefix("glibc-").split(".")[1])
        kinds = [f"manylinux_2_{number}" for number in range(minor, 4, -1)]
        for number, alias in ((5, "manylinux1"), (12, "manylinux2010"), (17, "manylinux2014")):
            if f"manylinux_2_{number}" in kinds:
                kinds.insert(kinds.index(f"manylinux_2_{number}") + 1, alias)
    return [f"{kind}_{machine}" for kind in (*kinds, "linux")]

"""A machine that systemd has booted, for tests of our unit: process 1 of namespaces of its own.

Its root is this machine's, under an overlay in memory: nothing that happens there is left. What a machine would do at
its boot is masked but for the bus, logins and the journal, so that it is up in a second. Needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.patience import patient

SYSTEMD = Path("/lib/systemd/systemd")
BOOT_S = 30.0

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("unshare", "nsenter", "mount", "pivot_root", "systemctl", "dbus-daemon")
_STARTED = ("systemd-journald", "dbus", "systemd-logind", "systemd-user-sessions", "systemd-tmpfiles-setup.")
"""Beginnings of the names of units that a boot pulls in and that stay."""

_IN_MEMORY = {"run": "755", "tmp": "1777", "dev": "755"}
"""Directories that are empty at a boot, and their modes."""

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def need_systemd() -> None:
    """Skip, loudly, where no systemd can be booted."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if os.geteuid() != 0:
        pytest.skip("NO SYSTEMD HERE: only root can boot one, in namespaces of its own")
    if not SYSTEMD.exists() or lacking:
        pytest.skip(f"NO SYSTEMD HERE: {', '.join(lacking) or SYSTEMD} not found; install systemd and dbus")


class SystemdLab:
    """A booted machine. `run` runs a command in it."""

    def __init__(self) -> None:
        need_systemd()
        self.dir = Path(tempfile.mkdtemp(prefix="orch-systemd-"))
        self._cgroup = _cgroups() / self.dir.name
        self._pid: int | None = None
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    def _boot(self) -> None:
        self._cgroup.mkdir()
        # In a cgroup of its own before its namespaces are made: that one is then the root of what it sees.
        enter = f'echo $$ > "{self._cgroup}/cgroup.procs"; exec "$@"'
        inside = ["unshare", "-m", "-p", "-u", "-i", "-n", "-C", "--fork", "--", sys.executable, __file__]
        with (self.dir / "log").open("wb") as log:
            outer = subprocess.Popen(
                ["sh", "-c", enter, "sh", *inside, str(self.dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + BOOT_S
        state = "nothing"
        while time.monotonic() < deadline and outer.poll() is None:
            self._pid = self._pid or _child(outer.pid)
            if self._pid is not None and _name(self._pid) == "systemd":
                state = self.run("systemctl", "is-system-running").stdout.strip()
                if state in ("running", "degraded"):
                    return
            time.sleep(0.05)
        said = (self.dir / "log").read_text(errors="replace")[-2000:]
        pytest.skip(f"NO SYSTEMD HERE: it cannot be booted in namespaces on this machine ({state}): {said}")

    def run(
        self, *command: str, environ: dict[str, str] | None = None, timeout: float = 90.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there, as root, with `environ` and nothing else."""
        assert self._pid is not None
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w", "--"]
        variables = {"PATH": _PATH, "HOME": "/root", **(environ or {})}
        return subprocess.run(
            [*enter, "env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patient(timeout),
            check=False,
        )

    def close(self) -> None:
        """End all of it: with process 1 the kernel ends every other."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while self._cgroup.exists() and time.monotonic() < deadline:
            for directory, _, _ in os.walk(self._cgroup, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:
                    time.sleep(0.05)  # its processes are just ending
        shutil.rmtree(self.dir, ignore_errors=True)


def _cgroups() -> Path:
    unified = Path("/sys/fs/cgroup/unified")
    return unified if unified.exists() else Path("/sys/fs/cgroup")


def _child(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _become_systemd(directory: Path) -> None:
    """Make the root, and become systemd in it. Runs as process 1 of the new namespaces."""
    _mount("--make-rprivate", "/")
    memory, root = directory / "memory", directory / "memory/root"
    memory.mkdir()
    _mount("-t", "tmpfs", "memory", str(memory))
    for name in ("root", "upper", "work"):
        (memory / name).mkdir()
    layers = f"lowerdir=/,upperdir={memory}/upper,workdir={memory}/work"
    _mount("-t", "overlay", "-o", layers, "overlay", str(root))
    _furnish(root)
    _mask(root / "etc/systemd/system")
    os.chdir(root)
    (root / "old").mkdir()
    subprocess.run(["pivot_root", ".", "old"], check=True)
    os.chroot(".")
    os.chdir("/")
    subprocess.run(["umount", "-l", "/old"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
    environ = {"container": "orch-lab", "PATH": _PATH}
    os.execve(SYSTEMD, [str(SYSTEMD), "--system", "--show-status=no", "--log-target=console"], environ)


def _furnish(root: Path) -> None:
    """Give the root what the kernel gives a machine."""
    _mount("-t", "proc", "proc", str(root / "proc"))
    _mount("-t", "sysfs", "-o", "ro", "sysfs", str(root / "sys"))
    _mount("-t", "cgroup2", "cgroup2", str(root / "sys/fs/cgroup"))
    for name, mode in _IN_MEMORY.items():
        _mount("-t", "tmpfs", "-o", f"mode={mode}", name, str(root / name))
    for path in _hidden():
        os.makedirs(f"{root}{path}", exist_ok=True)
        _mount("--rbind", str(path), f"{root}{path}")
    for name in _DEVICES:
        (root / "dev" / name).touch()
        _mount("--bind", f"/dev/{name}", str(root / "dev" / name))
    for name in ("pts", "shm"):
        (root / "dev" / name).mkdir()
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", str(root / "dev/pts"))
    _mount("-t", "tmpfs", "shm", str(root / "dev/shm"))
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    (root / "dev/fd").symlink_to("/proc/self/fd")


def _hidden() -> list[Path]:
    """Return the directories of Python and of ourselves that the root does not show.

    An overlay shows one file system and nothing that is mounted on it, and what is in memory is empty.
    """
    wanted = [Path(path).resolve() for path in (Path(__file__).parents[2], sys.prefix, sys.base_prefix)]
    device = Path("/").stat().st_dev
    return [path for path in wanted if path.stat().st_dev != device or path.parts[1] in _IN_MEMORY]


def _mask(units: Path) -> None:
    """Keep the boot to a few units: nothing of this machine's is started, and no hardware is looked for."""
    shutil.rmtree(units)
    units.mkdir()
    pulled = {
        unit.name
        for directory in Path("/lib/systemd/system").glob("*.target.wants")
        for unit in directory.iterdir()
        if not unit.name.startswith(_STARTED) and not unit.name.endswith(".target")
    }
    for name in pulled:
        (units / name).symlink_to("/dev/null")
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    generators = units.with_name("system-generators")
    generators.mkdir(exist_ok=True)
    for generator in Path("/lib/systemd/system-generators").iterdir():
        (generators / generator.name).unlink(missing_ok=True)
        (generators / generator.name).symlink_to("/dev/null")  # they look for disks, swap and init scripts


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    _become_systemd(Path(sys.argv[1]))

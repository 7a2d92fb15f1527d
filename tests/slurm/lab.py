"""A Slurm cluster on one machine: a controller here, and nodes that are namespaces with a real slurmd each.

A node has its own network, process ids, host name and mounts, and shares the file system with all others, as a cluster
with a shared home does. It can lose its power, its slurmd, or its cable. GPUs are false: terminals stand in for their
device files, which is all that Slurm looks at. Names hold the process id, so several labs can run side by side.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.patience import comes

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "ip", "unshare", "nsenter")
READY_S = 60.0
_labs = itertools.count()

_FIRST_PROCESS = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""
"""Reaps what has lost its parent, as the first process of any host does."""


def why_none() -> str | None:
    """Return why there can be no lab here; None where there can."""
    if os.geteuid() != 0:
        return "NO SLURM LAB: only root may make namespaces"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return (
            f"NO SLURM LAB: {', '.join(lacking)} not found; install slurmctld, slurmd, slurm-client and munge"
        )
    return None


def need_slurm() -> None:
    """Skip the test where there can be no lab. `.ci/run` installs what it needs."""
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)


class SlurmLab:
    """The controller and its nodes, for the time of a `with`."""

    def __init__(self, count: int = 3, *, gpus: int = 2) -> None:
        number = os.getpid() * 4 + next(_labs) % 4
        self.tag = f"o{number % 0xFFFFF:x}k"
        self.count, self.gpus = count, gpus
        self.dir = Path(tempfile.mkdtemp(prefix="orch-slurm-"))
        self.dir.chmod(0o755)
        self._net = f"10.214.{number % 250 + 1}"
        self._ports = (20000 + number % 5000, 26000 + number % 5000)
        self._bridge = f"{self.tag}br"
        self._first: dict[int, int] = {}
        """The first process of each node, as this machine numbers it."""
        self._inits: dict[int, subprocess.Popen[bytes]] = {}
        self.conf = self.dir / "slurm.conf"
        self.environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.spool = Path("/sys/fs/cgroup")

    def name(self, index: int) -> str:
        """Return the name of a node, counted from 1."""
        return f"{self.tag}n{index}"

    def __enter__(self) -> SlurmLab:
        """Start all daemons, and wait until every node is idle."""
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        self.close()

    # -- what tests do -------------------------------------------------------------------------------------

    def run(self, *words: str, timeout_s: float = 30.0) -> str:
        """Run one of Slurm's programs on the login node, and return what it printed."""
        done = subprocess.run(
            words, env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def power_off(self, index: int) -> None:
        """Take the power from a node: it is gone at once, with all that it ran."""
        init = self._inits.pop(index)
        os.kill(self._first.pop(index), signal.SIGKILL)
        init.wait(10)

    def power_on(self, index: int) -> None:
        """Start a node again."""
        self._node(index)

    def kill_slurmd(self, index: int) -> None:
        """Kill a node's slurmd only. Its steps live on."""
        self.on(
            index,
            "kill",
            "-KILL",
            self.on(index, "cat", str(self.dir / f"slurmd.{self.name(index)}.pid")).strip(),
        )

    def start_slurmd(self, index: int) -> None:
        """Start a node's slurmd."""
        (self.dir / f"slurmd.{self.name(index)}.pid").unlink(missing_ok=True)
        self.on(index, "slurmd", "-N", self.name(index))

    def cut(self, index: int) -> None:
        """Pull a node's cable."""
        _call("ip", "link", "set", f"{self.tag}v{index}", "down")

    def mend(self, index: int) -> None:
        """Plug it in again."""
        _call("ip", "link", "set", f"{self.tag}v{index}", "up")

    def on(self, index: int, *words: str) -> str:
        """Run a program on a node, beside Slurm."""
        inside = ["nsenter", "-t", str(self._first[index]), "-n", "-p", "-u", "-m", "--", *words]
        done = subprocess.run(
            inside, env=self.environ, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def processes(self, index: int) -> dict[int, str]:
        """Return the command lines on a node by this machine's pids, but for its first process and slurmd's own."""
        return {
            pid: text
            for pid, text in _command_lines().items()
            if _in_same_namespace(pid, self._first[index])
            and pid != self._first[index]
            and not text.startswith(("slurmd ", "slurmstepd"))
        }

    def lives(self, index: int, pid: int) -> bool:
        """Return whether a process lives on a node, by the pid that it has there."""
        return str(pid) in self.on(index, "ls", "/proc").split()

    def job(self, job_id: str) -> dict[str, str]:
        """Return some of what the controller says of a job."""
        line = self.run("scontrol", "--oneliner", "show", "job", job_id)
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def wait_idle(self) -> None:
        """Wait until every node may be given to a job."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                nodes = self.run("sinfo", "-h", "-N", "-p", "low", "-t", "idle", "-o", "%N").split()
                if len(set(nodes)) >= self.count:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the nodes do not come up:\n{self.run('sinfo', '-N', '-l')}")

    def start_now(self, job_id: str) -> None:
        """Let a job that was queued again start at once: Slurm holds it back for two minutes."""
        deadline = time.monotonic() + 3 * READY_S
        while time.monotonic() < deadline:
            job = self.job(job_id)
            # A restart is counted before it begins
            if job["Restarts"] != "0" and job["JobState"] == "RUNNING":
                return
            with contextlib.suppress(AssertionError):
                self.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
            time.sleep(0.3)

    def wait_empty(self) -> None:
        """Wait until there is no job any more, not even one that is ending."""
        assert comes(lambda: not self.run("squeue", "-h"), READY_S, 0.05), self.run("squeue")
        self.wait_idle()

    def cancel_all(self) -> None:
        """End every job, and wait until the nodes are free."""
        self.run("scancel", "--user", "root")
        self.wait_empty()

    # -- how it is made ------------------------------------------------------------------------------------

    def _start(self) -> None:
        (self.dir / "state").mkdir(0o700)
        for index in range(1, self.count + 1):
            (self.dir / "spool" / self.name(index)).mkdir(parents=True)
        key = self.dir / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.conf.write_text(self._configuration())
        track = (
            "IgnoreSystemd=yes\nCgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n"
        )
        (self.dir / "cgroup.conf").write_text(track)
        hosts = [f"{self._net}.1 {self.tag}head"]
        hosts += [f"{self._net}.{10 + i} {self.name(i)}" for i in range(1, self.count + 1)]
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(hosts) + "\n")
        if self.gpus:
            line = f"NodeName={self.tag}n[1-{self.count}] Name=gpu File=/dev/tty[1-{self.gpus}]\n"
            (self.dir / "gres.conf").write_text(line)
        _call("ip", "link", "add", self._bridge, "type", "bridge")
        _call("ip", "addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        _call("ip", "link", "set", self._bridge, "up")
        self._daemon(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.dir}/munge.socket",
            f"--pid-file={self.dir}/munged.pid", f"--log-file={self.dir}/munged.log",
            f"--seed-file={self.dir}/munge.seed",
        )  # fmt: skip
        self._await(self.dir / "munge.socket")
        self._daemon(
            "unshare", "--uts", "sh", "-c", 'hostname "$1"; exec slurmctld -D -c', "sh", f"{self.tag}head"
        )
        # A node that registers while nobody listens stays unknown until the controller asks, which may be a minute.
        assert comes(self._is_controlled, READY_S, 0.05), "slurmctld does not answer"
        for index in range(1, self.count + 1):
            self._node(index)
        self.wait_idle()

    def _is_controlled(self) -> bool:
        with contextlib.suppress(AssertionError):
            return " is UP" in self.run("scontrol", "ping")
        return False

    def _configuration(self) -> str:
        track = "cgroup" if Path("/sys/fs/cgroup/freezer").is_dir() else "linuxproc"
        lines = [
            f"ClusterName={self.tag}",
            # By its number a job has its place in /tmp, which is one for all labs of this machine.
            f"FirstJobId={1_000_000 + os.getpid() % 60_000 * 1000}",
            f"SlurmctldHost={self.tag}head({self._net}.1)",
            "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge", "CredType=cred/munge", "MpiDefault=none",
            f"AuthInfo=socket={self.dir}/munge.socket",
            f"SlurmctldPort={self._ports[0]}", f"SlurmdPort={self._ports[1]}",
            f"SlurmctldPidFile={self.dir}/slurmctld.pid", f"SlurmdPidFile={self.dir}/slurmd.%n.pid",
            f"StateSaveLocation={self.dir}/state", f"SlurmdSpoolDir={self.dir}/spool/%n",
            f"SlurmctldLogFile={self.dir}/slurmctld.log", f"SlurmdLogFile={self.dir}/slurmd.%n.log",
            "SlurmctldParameters=enable_configless", "SlurmdParameters=config_overrides",
            f"ProctrackType=proctrack/{track}", "TaskPlugin=task/none", "SwitchType=switch/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory", "SchedulerType=sched/backfill",
            "SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=2",
            "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none",
            "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "JobRequeue=1", "ReturnToService=2",
            "SlurmctldTimeout=10", "SlurmdTimeout=10", "MessageTimeout=5", "BatchStartTimeout=10", "KillWait=5",
            "MinJobAge=300", "InactiveLimit=0", "PropagateResourceLimits=NONE",
            *(["GresTypes=gpu"] if self.gpus else []),
        ]  # fmt: skip
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        lines += [
            f"NodeName={self.name(i)} NodeAddr={self._net}.{10 + i} NodeHostname={self.name(i)} CPUs=8"
            f" RealMemory=4000{gres}"
            for i in range(1, self.count + 1)
        ]
        lines += [
            "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=INFINITE",
            "PartitionName=polite Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 MaxTime=INFINITE",
            "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE",
        ]
        return "\n".join(lines) + "\n"

    def _node(self, index: int) -> None:
        namespace = f"{self.tag}s{index}"
        if not Path(f"/run/netns/{namespace}").exists():
            link, inner = f"{self.tag}v{index}", f"{self.tag}e{index}"
            _call("ip", "netns", "add", namespace)
            _call("ip", "link", "add", link, "type", "veth", "peer", "name", inner)
            _call("ip", "link", "set", inner, "netns", namespace, "name", "eth0")
            _call("ip", "link", "set", link, "master", self._bridge, "up")
            _call("ip", "-n", namespace, "link", "set", "lo", "up")
            _call("ip", "-n", namespace, "addr", "add", f"{self._net}.{10 + index}/24", "dev", "eth0")
            _call("ip", "-n", namespace, "link", "set", "eth0", "up")
        up = self.dir / f"{index}.up"
        up.unlink(missing_ok=True)
        begin = 'hostname "$1"; mount --bind "$2/hosts" /etc/hosts; touch "$3"; exec python3 -I -S -c "$4"'
        init = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{namespace}", "--", "unshare", "--uts", "--mount", "--pid", "--fork",
             "--kill-child", "--mount-proc", "sh", "-c", begin, "node", self.name(index), str(self.dir), str(up),
             _FIRST_PROCESS],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._inits[index] = init
        self._await(up)
        children = Path(f"/proc/{init.pid}/task/{init.pid}/children").read_text().split()
        self._first[index] = int(children[0])
        self.start_slurmd(index)

    def _daemon(self, *words: str) -> None:
        with open(self.dir / "daemons.out", "ab") as out:
            daemon = subprocess.Popen(
                words,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._daemons.append(daemon)

    def _await(self, path: Path) -> None:
        deadline = time.monotonic() + READY_S
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} does not come"
            time.sleep(0.01)

    def close(self) -> None:
        """End every process of the lab by the pids that it has started, and take the network down."""
        for index in list(self._inits):
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(self._first.pop(index), signal.SIGKILL)
            self._inits.pop(index).wait(10)
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait(10)
        for index in range(1, self.count + 1):
            for words in (("link", "del", f"{self.tag}v{index}"), ("netns", "del", f"{self.tag}s{index}")):
                subprocess.run(["ip", *words], capture_output=True, check=False)
            _remove_groups(self.name(index))
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


def _remove_groups(node: str) -> None:
    for top in Path("/sys/fs/cgroup").glob(f"*/slurm_{node}"):
        for directory, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _command_lines() -> dict[int, str]:
    return dict(_each_command_line())


def _each_command_line() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                if text:
                    yield int(entry.name), text


def _in_same_namespace(pid: int, first: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{first}/ns/pid")
    except OSError:
        return False


def with_home(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the environment of somebody whose home directory is that one."""
    return {**environ, "HOME": str(home)}

"""Which directory is a host's own: real agents and shims in name spaces of names, processes and mounts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import process
from orchestrator.head.links import bootstrap
from orchestrator.head.reach.local import LocalChannel
from orchestrator.host.system.presence import sign_of
from tests.contract.agent_harness import RUN, Client, clean
from tests.patience import comes, patient

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root can make name spaces"
)

FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)\n"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Machine:
    """A machine: its own name, its own processes and, if it is given one, its own boot id."""

    def __init__(self, home: Path, name: str, *, boot: str | None = None) -> None:
        self.home = home
        begin = f'hostname "$0"; {f"mount --bind {self._boot_file(boot)} {_BOOT_ID};" if boot else ""} exec sleep 1d'
        spaces = ["unshare", "-m", "-u", "-p", "--fork", "--mount-proc", "--kill-child=KILL"]
        process.load_prctl()
        self._first = subprocess.Popen(
            [*spaces, "sh", "-c", begin, name], preexec_fn=partial(process.die_with_parent, os.getpid())
        )
        self.clients: list[Client] = []
        try:
            comes(lambda: self._inside_pid() is not None and self.name == name, patient(10.0))
            if boot:
                comes(lambda: self.run("cat", _BOOT_ID).strip() == boot, patient(10.0))
        except BaseException:
            self.off()  # nobody else knows of it yet
            raise

    def _boot_file(self, boot: str) -> Path:
        path = self.home.parent / f"boot-{boot}"
        path.write_text(f"{boot}\n")
        return path

    def _inside_pid(self) -> int | None:
        below = [
            who.pid for who in process.descendants(self._first.pid) if process.command(who.pid) == "sleep"
        ]
        return below[0] if below else None

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self._inside_pid()), "-m", "-u", "-p"]

    def run(self, *words: str) -> str:
        """Run a command on it, and return its output."""
        return subprocess.run([*self._enter(), *words], check=True, capture_output=True, text=True).stdout

    @property
    def name(self) -> str:
        """Its name at present."""
        return self.run("hostname").strip()

    def connect(self) -> Client:
        """Start an agent on it, as a connection does."""
        child = subprocess.Popen(
            [*self._enter(), "sh", "-c", bootstrap.COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
        )
        client = Client(self.home / ".local/state/orch-host", channel=LocalChannel(child))
        self.clients.append(client)
        client.ok("watch", heartbeat_s=0.1)
        return client

    def off(self) -> None:
        """Lose the power: every process of it ends at once."""
        inside = self._inside_pid()
        # Its first process, where it has begun: `unshare` then waits until all others have ended, and only then ends.
        # To kill `unshare` at once would leave them dying, and what follows would meet a machine that is half there.
        if inside is not None:
            os.kill(inside, signal.SIGKILL)
        else:
            self._first.kill()
        self._first.wait(20)
        for client in self.clients:
            client.channel.close()
            client.channel._child.wait(20)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    path = (tmp_path / "home").resolve()
    path.mkdir()
    yield path
    clean(path / ".local/state/orch-host")


@pytest.fixture
def machine(home: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(name: str, **options: Any) -> Machine:
        made.append(Machine(home, name, **options))
        return made[-1]

    yield make
    for each in made:
        each.off()


def train(agent: Client, generation: int = 1) -> int:
    """Start a task that runs for ever, and return its pid on its machine."""
    assert "ok" in agent.start(agent.push(train=FOREVER), generation=generation)
    agent.until_phase("ready")
    agent.ok("release", generation=generation, task="worker:0", env={}, seed=None)
    return int(agent.until_phase("running")["pid"])


def forget_sign(host_dir: str) -> None:
    """Let the time pass after which a machine that is not seen counts as gone."""
    sign = sign_of(host_dir)
    assert sign is not None
    os.utime(sign, (time.time() - 600, time.time() - 600))


def is_stopped(who: process.Identity) -> bool:
    """Return whether a signal has stopped the process."""
    stat = process.stat_of(who.pid)
    return stat is not None and stat.state == "T"


@pytest.mark.fault(109)
@pytest.mark.parametrize("boot", [None, "11111111-aaaa"])
def test_a_host_that_gets_another_name_keeps_its_run(
    machine: Callable[..., Machine], boot: str | None
) -> None:
    host = machine("gpu-a", boot=boot)
    first = host.connect()
    pid, directory = train(first), first.hello["host_dir"]
    first.close()
    for name in ("gpu-b", "localhost", "gpu-a"):
        host.run("hostname", name)
        again = host.connect()
        assert (again.hello["hostname"], again.hello["host_dir"]) == (name, directory)
        assert again.until_phase("running")["pid"] == pid
        assert again.start(again.push(train=FOREVER))["ok"]["already"], "it is not started beside itself"
        again.close()
    last = host.connect()
    assert last.ok("sweep", generation_max=1)["left"] == []
    assert last.until_phase("exited")["exit"]["ordered"]
    assert not os.path.isdir(os.path.join(directory, "hosts"))


@pytest.mark.fault(110)
@pytest.mark.parametrize("boots", [(None, None), ("11111111-aaaa", "22222222-bbbb")], ids=["kernel", "boots"])
@pytest.mark.parametrize("connected", [True, False])
def test_copies_of_one_image_with_a_shared_home_are_two_hosts(
    machine: Callable[..., Machine], boots: tuple[str | None, str | None], *, connected: bool
) -> None:
    one, two = machine("gpu", boot=boots[0]), machine("gpu", boot=boots[1])
    first = one.connect()
    pid = train(first)
    if not connected:
        first.close()  # only the shim is there
    second = two.connect()
    assert second.hello["host_dir"] != first.hello["host_dir"]
    assert second.ok("sweep", generation_max=9)["left"] == []
    beside = train(second, generation=2)
    second.close()
    first.close()
    for host, trained, client in ((one, pid, first), (two, beside, second)):
        again = host.connect()
        assert again.hello["host_dir"] == client.hello["host_dir"]
        assert again.until_phase("running")["pid"] == trained


@pytest.mark.fault(110)
@pytest.mark.parametrize("name", ["gpu", "renamed-meanwhile"])
@pytest.mark.parametrize("passed", [True, False])
def test_after_a_reboot_a_host_finds_its_directory_and_what_became_of_its_tasks(
    machine: Callable[..., Machine], name: str, *, passed: bool
) -> None:
    before = machine("gpu", boot="11111111-aaaa")
    first = before.connect()
    train(first)
    before.off()
    if passed:
        forget_sign(first.hello["host_dir"])
    after = machine(name, boot="22222222-bbbb")
    again = after.connect()
    assert again.hello["host_dir"] == first.hello["host_dir"]
    assert again.until_phase("exited")["exit"]["cause"] == "rebooted"
    signs = [file for file in os.listdir(again.hello["host_dir"]) if file.startswith("machine.")]
    assert signs == ["machine.2"]


def test_a_container_that_is_started_again_need_not_wait(machine: Callable[..., Machine]) -> None:
    before = machine("gpu")
    first = before.connect()
    train(first)
    before.off()
    began = time.monotonic()
    again = machine("gpu").connect()
    assert again.hello["host_dir"] == first.hello["host_dir"]
    assert time.monotonic() - began < patient(8.0), "under one kernel the lock tells at once"


@pytest.mark.fault(110)
def test_machines_that_share_a_home_and_come_at_once_have_a_directory_each(
    machine: Callable[..., Machine],
) -> None:
    machines = [machine(name) for name in ("gpu", "gpu", "gpu", "other", "third")]
    with ThreadPoolExecutor(5) as pool:
        clients = list(pool.map(Machine.connect, machines))
    directories = [client.hello["host_dir"] for client in clients]
    assert len(set(directories)) == 5
    for client in clients:
        client.close()
    assert [host.connect().hello["host_dir"] for host in machines] == directories


@pytest.mark.fault(109)
def test_the_directory_of_the_version_before_is_kept_by_a_host_that_was_renamed(
    machine: Callable[..., Machine], home: Path
) -> None:
    base = home / ".local/state/orch-host"
    (base / "runs" / RUN).mkdir(parents=True)
    (base / "host").write_text(f"old-name {Path('/etc/machine-id').read_text().strip()}")
    assert machine("new-name").connect().hello["host_dir"] == str(base)


@pytest.mark.fault(110)
def test_a_machine_that_was_silent_for_long_leaves_the_directory_to_the_one_that_took_it(
    machine: Callable[..., Machine],
) -> None:
    one = machine("gpu", boot="11111111-aaaa")
    first = one.connect()
    outside = process.identity(first.pid)
    assert outside is not None
    inside = process.descendants(first.pid)
    for who in inside:
        process.signal(who, signal.SIGSTOP)
    # `nsenter`, which waits for them, stops itself once it has seen that. Continued before then, it would stop after.
    comes(lambda: is_stopped(outside), patient(10.0))
    forget_sign(first.hello["host_dir"])
    second = machine("gpu", boot="22222222-bbbb").connect()
    assert second.hello["host_dir"] == first.hello["host_dir"]
    for who in (*inside, outside):
        process.signal(who, signal.SIGCONT)
    while first.hear():
        pass
    assert "another one has taken its orch directory" in first.channel.stderr_tail()
    third = one.connect()
    assert third.hello["host_dir"] != second.hello["host_dir"]

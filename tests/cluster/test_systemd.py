"""The coordinator as a unit of a real systemd: restricted, ready when it says so, begun anew when it hangs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.head.node.systemd import UNIT
from tests.cluster.systemd_lab import SystemdLab
from tests.contract.fake_agent import until
from tests.patience import comes

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import os, sys, time
status = open("/proc/self/status").read()
print("no new privileges:", status.partition("NoNewPrivs:")[2].split()[0])
open("/usr/orch-test" if sys.argv[1] == "usr" else "/tmp/orch-test", "w")
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[SystemdLab]:
    made = SystemdLab()
    yield made
    made.close()


class Service:
    """`orch` on that machine, with the coordinator as a unit of the machine or of root's own manager."""

    def __init__(self, machine: SystemdLab, kind: str) -> None:
        self.machine = machine
        self.options = ["--system"] if kind == "system" else []
        self.dir = f"/var/lib/orch-{kind}"
        self.environ = {
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "ORCH_STATE_DIR": f"{self.dir}/state",
            "ORCH_RUNTIME_DIR": f"/tmp/orch-{kind}",  # where it lies without XDG_RUNTIME_DIR
            "ORCH_HOST_DIR": f"{self.dir}/host",
            "XDG_RUNTIME_DIR": "/run/user/0",
        }

    def orch(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "orchestrator.cli.main", *arguments]
        done = self.machine.run(*command, environ=self.environ)
        assert done.returncode == 0, f"orch {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def show(self, *names: str) -> dict[str, str]:
        """Properties of the unit, as systemd has them."""
        scope = [] if self.options else ["--user"]
        command = ["systemctl", *scope, "show", UNIT, *(f"-p{name}" for name in names)]
        lines = self.machine.run(*command, environ=self.environ).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.orch("coordinator", "status", "--json")))

    def spec(self, *args: str) -> str:
        """Return a spec of one task on this machine, in a file that can be read there too."""
        code = f"{self.dir}/code"
        self.write(f"{code}/train.py", SCRIPT)
        document = {
            "version": 1,
            "name": args[0],
            "hosts": [{"name": "here", "transport": "local"}],
            "run": {
                "strategy": "single",
                "script": "train.py",
                "args": list(args[1:]),
                "workdir": code,
                "runtime": "off",
                "python": sys.executable,
            },
        }
        self.write(f"{self.dir}/{args[0]}.yaml", yaml.safe_dump(document))
        return f"{self.dir}/{args[0]}.yaml"

    def write(self, path: str, text: str) -> None:
        done = self.machine.run("sh", "-c", 'mkdir -p "$(dirname "$0")" && printf %s "$1" > "$0"', path, text)
        assert done.returncode == 0, done.stderr


ONE_KIND = pytest.mark.parametrize(
    "service", ["system", pytest.param("user", marks=pytest.mark.long)], indirect=True
)
"""Where the two units differ in nothing that the test shows."""


@pytest.fixture(params=["system", "user"])
def service(machine: SystemdLab, request: pytest.FixtureRequest) -> Iterator[Service]:
    made = Service(machine, request.param)
    if request.param == "user":
        started = machine.run("systemctl", "start", "user@0.service")
        if started.returncode != 0:
            pytest.skip(f"NO USER MANAGER HERE: install libpam-systemd: {started.stderr}")
    made.orch("service", "install", *made.options)
    yield made
    made.orch("kill", "--all", "--force")
    made.orch("service", "uninstall", *made.options)


def test_it_is_restricted_and_tasks_on_this_machine_run_all_the_same(service: Service) -> None:
    pid = service.status()["pid"]  # it answers as soon as `install` is back: it was waited for
    shown = service.show("ActiveState", "Type", "MainPID", "NoNewPrivileges", "ProtectSystem", "WatchdogUSec")
    is_system = bool(service.options)
    assert shown == {
        "ActiveState": "active",
        "Type": "notify",
        "MainPID": str(pid),
        "NoNewPrivileges": "yes",
        "ProtectSystem": "full" if is_system else "no",
        "WatchdogUSec": "2min",
    }
    environ = service.machine.run("cat", f"/proc/{pid}/status", f"/proc/{pid}/environ").stdout
    assert "NoNewPrivs:\t1" in environ

    service.orch("up", service.spec("free", "tmp", "0"), "--wait")
    assert "no new privileges: 1" in service.orch("logs", "free")
    assert service.machine.run("test", "-e", "/tmp/orch-test").returncode == 0, "it has the machine's /tmp"
    if is_system:
        spec = service.spec("usr", "usr", "0")
        command = [sys.executable, "-m", "orchestrator.cli.main", "up", spec, "--wait"]
        assert service.machine.run(*command, environ=service.environ).returncode == 1
        assert "Read-only file system" in service.orch("logs", "usr")


@ONE_KIND
def test_one_that_hangs_is_begun_anew_and_its_tasks_go_on(service: Service) -> None:
    unit = service.orch("service", "status", *service.options, "--json")
    drop_in = f"{json.loads(unit)['unit']}.d/quick.conf"
    service.write(drop_in, "[Service]\nWatchdogSec=2\nTimeoutAbortSec=2\nRestartSec=0\n")
    scope = [] if service.options else ["--user"]
    for verb in (["daemon-reload"], ["restart", UNIT]):
        assert service.machine.run("systemctl", *scope, *verb, environ=service.environ).returncode == 0
    service.orch("up", service.spec("long", "tmp", "600"), "--detach")
    _until(lambda: _task(service)["pid"] is not None, "the task", 30.0)
    task = _task(service)
    before = service.status()
    _until(lambda: False, "", 4.0)  # two watchdogs long: it lives, and says so
    assert service.status()["pid"] == before["pid"]

    assert service.machine.run("kill", "-STOP", str(before["pid"])).returncode == 0
    _until(
        lambda: service.show("MainPID", "NRestarts")["NRestarts"] == "1", "a restart by the watchdog", 30.0
    )
    _until(lambda: _answers(service, before["pid"]), "the next coordinator", 30.0)
    assert service.status()["epoch"] == before["epoch"] + 1
    _until(lambda: _task(service).get("heartbeat_age_s") is not None, "the task is adopted", 30.0)
    assert (_task(service)["pid"], _task(service)["generation"]) == (task["pid"], task["generation"])
    service.machine.run("rm", "-r", os.path.dirname(drop_in))


def _task(service: Service) -> dict[str, Any]:
    return dict(json.loads(service.orch("status", "long", "--json"))["runs"][-1]["tasks"][0])


def _answers(service: Service, before: int) -> bool:
    command = [sys.executable, "-m", "orchestrator.cli.main", "coordinator", "status", "--json"]
    done = service.machine.run(*command, environ=service.environ)
    return done.returncode == 0 and json.loads(done.stdout)["pid"] != before


def _until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    assert comes(condition, seconds, 0.1) or not what, f"not in {seconds:g} s: {what}"


ESCAPE = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "4321"], {})  # no marker, no session, no parent
    os._exit(0)
os.wait()
print("escaped", flush=True)
time.sleep(600)
"""
UID = 1234
LOGIN = """\
group=/sys/fs/cgroup/user.slice/user-1234.slice/session-9.scope
mkdir -p $group && echo $$ > $group/cgroup.procs
exec setpriv --reuid 1234 --regid 1234 --clear-groups -- "$@"
"""


class Login:
    """A user without rights, in the group of a login, as sshd would start his commands."""

    def __init__(self, machine: SystemdLab) -> None:
        self.machine = machine
        python = Path(sys.executable)
        closed = {str(part) for path in (python.resolve(), ROOT) for part in path.parents}
        machine.run("chmod", "a+rx", *sorted(closed))  # in the machine's overlay alone
        assert machine.run("useradd", "-m", "-u", str(UID), "ana").returncode == 0
        self.environ = {
            "HOME": "/home/ana",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
            "XDG_RUNTIME_DIR": "/home/ana/run",  # a login by key without pam_systemd has no other
        }

    def run(self, *command: str) -> str:
        done = self.machine.run("sh", "-c", LOGIN, "sh", *command, environ=self.environ)
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def orch(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "orchestrator.cli.main", *arguments)

    def escaped(self) -> list[str]:
        return self.machine.run("pgrep", "-u", "ana", "-f", "sleep 4321").stdout.split()


@pytest.fixture(scope="module")
def login(machine: SystemdLab) -> Login:
    return Login(machine)


@pytest.mark.fault(7)
@pytest.mark.parametrize("lingers", [False, True])
def test_a_user_without_root_has_control_groups_where_his_own_systemd_outlives_his_logins(
    machine: SystemdLab, login: Login, lingers: bool
) -> None:
    if lingers:
        started = machine.run("loginctl", "enable-linger", "ana")
        if started.returncode != 0:
            pytest.skip(f"NO USER MANAGER HERE: {started.stderr}")
        until(lambda: machine.run("test", "-S", f"/run/user/{UID}/bus").returncode == 0)
    login.run("mkdir", "-p", "-m", "700", "/home/ana/run", "/home/ana/code")
    login.run("sh", "-c", 'printf %s "$0" > /home/ana/code/train.py', ESCAPE)
    document = {
        "version": 1,
        "name": "t",
        "hosts": [{"name": "here", "transport": "local"}],
        "run": {
            "strategy": "single",
            "script": "train.py",
            "workdir": "/home/ana/code",
            "runtime": "off",
            "python": sys.executable,
            "timing": {"kill_grace": "0s"},
        },
    }
    login.run("sh", "-c", 'printf %s "$0" > /home/ana/t.yaml', yaml.safe_dump(document))
    login.orch("up", "/home/ana/t.yaml", "--detach")
    until(lambda: "escaped" in login.orch("logs", "t"))
    (sleep,) = login.escaped()
    group = machine.run("cat", f"/proc/{sleep}/cgroup").stdout.splitlines()[-1]
    assert ("user@1234.service/app.slice/orch-" in group) == lingers, group
    shim = machine.run("pgrep", "-u", "ana", "-f", r"\.pyz shim ").stdout.split()
    machine.run("kill", "-9", *shim)
    said = login.orch("kill", "t")
    by = "cgroup" if lingers else "marker"
    assert f"here: no leftover processes, ports free (checked by {by})" in said
    unseen = "a process that outlived its shim and has another environment or user would not be found"
    assert (unseen in said) != lingers
    assert login.escaped() == ([] if lingers else [sleep]), "what the marker cannot see is said"
    machine.run("kill", *login.escaped())
    login.orch("coordinator", "stop")

"""Processes that begin with TensorFlow or orch imported: forks of one that has done it, which all test processes share.

An import of TensorFlow takes 5 seconds of CPU, and the tests start it hundreds of times. The runtime imports it at its
gate, before the release, so a script that runs in a fork meets what it meets after the gate of a cold start.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.lean import ROOT, python_for

CHOOSES_BEFORE_THE_IMPORT = re.compile(r"environ\[[^\]]+\] *=[^=]|environ\.(setdefault|update|pop)|putenv")
"""A script with this decides what an import of TensorFlow does: it gets a start of its own."""
READ_LATE = re.compile(r"ORCH_.*|PYTEST_.*|TF_CONFIG|CUDA_VISIBLE_DEVICES|PYTHONPATH|OLDPWD|PWD")
"""Variables that the import of TensorFlow does not read. All others must be those of the parent."""
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}

SERVER = r"""
import contextlib, gc, json, os, selectors, signal, socket, struct, sys
listening = socket.socket(fileno=int(sys.argv[1]))
gc.disable()
for name in sys.argv[2:]:
    __import__(name)
gc.enable()
gc.freeze()
children, controls = {}, set()
woken, wake = os.pipe()
for end in (woken, wake):
    os.set_blocking(end, False)
signal.set_wakeup_fd(wake)
signal.signal(signal.SIGCHLD, lambda *_: None)
ready = selectors.DefaultSelector()
ready.register(listening, selectors.EVENT_READ)
ready.register(woken, selectors.EVENT_READ)

def accept():
    control, _ = listening.accept()
    if struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] != os.getuid():
        return control.close()
    controls.add(control)
    ready.register(control, selectors.EVENT_READ)
    control.send(b"ready")

def reap():
    os.read(woken, 4096)
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with children.pop(pid) as told, contextlib.suppress(OSError):  # nobody may want to know
                told.send(str(os.waitstatus_to_exitcode(status)).encode())

pid = 1
while pid:
    for key, _ in ready.select():
        if key.fileobj is listening:
            accept()
            continue
        if key.fileobj is woken:
            reap()
            continue
        asked, fds, _, _ = socket.recv_fds(key.fileobj, 1 << 20, 4)
        if not asked:
            ready.unregister(key.fileobj)
            controls.remove(key.fileobj)
            key.fileobj.close()
            if not controls:
                os._exit(0)
            continue
        pid = os.fork()
        if not pid:
            break
        children[pid] = socket.socket(fileno=fds[0])
        with contextlib.suppress(OSError):
            children[pid].send(str(pid).encode())
        for fd in fds[1:]:
            os.close(fd)
asked = json.loads(asked)
signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
ready.close()
for left in (listening, *controls, *children.values()):
    left.close()
for fd in (woken, wake, fds[0]):
    os.close(fd)
os.dup2(fds[1], 1)
os.dup2(fds[2], 2)
for fd in fds[1:3]:
    os.close(fd)
os.environ.clear()
os.environ.update(asked["env"])
if fds[3:]:
    os.set_inheritable(fds[3], True)
    os.environ["ORCH_FD"] = str(fds[3])
os.chdir(asked["cwd"])
if "numpy" in sys.modules:  # else each fork would draw the same
    sys.modules["numpy"].random.seed()
sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.argv = ["-c", *asked["args"]]
code = asked["code"]
del selectors, struct, listening, controls, children, ready, key, accept, reap, pid, asked
exec(code)
"""
ALONE = (
    "import os, runpy, sys; del sys.argv[0]; sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0])); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""What `python SCRIPT…` does."""


def suits(script: Path, env: dict[str, str]) -> bool:
    """Return whether a fork is what a start of its own would be for this script."""
    if python_for(script) == sys.executable:
        return False  # it needs more than TensorFlow, or none of it
    known = [{**_usual(), **more} for more in ({}, LEGACY)]
    return _begins_with(env) in map(_early, known) and not CHOOSES_BEFORE_THE_IMPORT.search(
        script.read_text()
    )


def _begins_with(env: dict[str, str]) -> dict[str, str]:
    """Return what TensorFlow is imported with, which an option of the runtime may change."""
    is_old = json.loads(env.get("ORCH_RUNTIME", "{}")).get("keras") == 2
    return {**_early(env), **(LEGACY if is_old else {})}


def _usual() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _early(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not READ_LATE.fullmatch(name)}


def forked(
    code: str,
    script: Path,
    *args: str,
    env: dict[str, str],
    cwd: Path | None = None,
    stderr: IO[bytes] | None = None,
    link: socket.socket | None = None,
) -> Forked:
    """Run the code with the script's path and these arguments in a fork; without `stderr`, into a pipe."""
    is_legacy = LEGACY.items() <= _begins_with(env).items()
    parent = _parent(python_for(script), is_legacy=is_legacy)
    told = None if stderr is None else stderr.fileno()
    return parent.fork(code, str(script), *args, env=env, cwd=cwd, stderr=told, link=link)


COMMANDS = (
    "orchestrator.cli.main",
    "orchestrator.cli.commands.up",
    "orchestrator.head.coordinator.main",
    "tests.warm",
)
"""With what they import, most that any command needs: half a second of CPU, and a coordinator 1.5 s."""
COMMAND = """
import os, sys
sys.path[:] = filter(None, sys.path)
from tests.warm import coordinators_are_forks
coordinators_are_forks({parent!r})
from orchestrator.cli.main import main
main()
"""
STARTS_ALONE = "ORCH_TEST_COLD"
"""The variable with which no command is a fork: who measures wants what users have."""
READ_BY_PYTHON = re.compile(r"PYTHON.*|LC_.*|LANG.*|LD_.*|MALLOC_.*|PATH")
"""Variables that Python reads when it starts. With others than ours a command gets a start of its own."""


def command(*arguments: str, env: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `orch` with these arguments in a fork of a process that has imported its modules.

    A coordinator that it starts is another fork of that process.
    """
    orch = [sys.executable, "-m", "orchestrator.cli.main", *arguments]
    if STARTS_ALONE in os.environ or _for_python(env) != _for_python(os.environ):
        return subprocess.run(orch, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    parent = _commands()
    process = parent.fork(COMMAND.format(parent=parent.name), *arguments, env=env)
    try:
        out, err = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(orch, process.wait(), out, err)


def coordinators_are_forks(parent: str) -> None:
    """Let this process start coordinators as forks of the parent with that name, in a session of their own."""
    from types import SimpleNamespace

    from orchestrator.client import starting

    def start(command: list[str], *, stdout: int, env: dict[str, str], cwd: str, **given: object) -> object:
        usual = starting.coordinator_command()
        if command[: len(usual)] != usual:
            return subprocess.Popen(command, stdout=stdout, env=env, cwd=cwd, **given)  # type: ignore[call-overload]
        code = "import os\nos.setsid()\n" + COMMAND.format(parent=parent)
        words = command[usual.index("coordinator") :]
        return Parent(parent).fork(code, *words, env=env, cwd=Path(cwd), stdout=stdout, stderr=stdout)

    vars(starting)["subprocess"] = SimpleNamespace(DEVNULL=subprocess.DEVNULL, Popen=start)


def _for_python(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if READ_BY_PYTHON.fullmatch(name)}


@functools.cache
def _commands() -> Parent:
    return SharedParent(sys.executable, *COMMANDS, env=dict(os.environ))


class Forked:
    """What the tests need of subprocess.Popen, of a process whose parent is another one."""

    def __init__(self, pid: int, told: socket.socket, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._told = told
        self._read: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code."""
        if self._code(timeout) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read what it writes to the end, and wait for its end."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        readers = [
            threading.Thread(target=self._read_all, args=(name,), daemon=True)
            for name in self._read
            if getattr(self, name) is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if ends_at is None else max(0.0, ends_at - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(None if ends_at is None else max(0.0, ends_at - time.monotonic()))
        return "".join(self._read["stdout"]), "".join(self._read["stderr"])

    def _read_all(self, name: str) -> None:
        file: IO[str] = getattr(self, name)
        with contextlib.suppress(ValueError, OSError):  # closed meanwhile
            self._read[name].extend(file)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = int(self._told.recv(100) or -signal.SIGKILL)  # or its parent is gone
                    self._told.close()
        return self.returncode


class Parent:
    """A process that has imported, by the name of its socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.connect("\0" + name)
        if self._control.recv(100) != b"ready":
            raise ConnectionResetError(f"{name} has just ended")

    def fork(
        self,
        code: str,
        *args: str,
        env: dict[str, str],
        cwd: Path | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        link: socket.socket | None = None,
    ) -> Forked:
        """Run the code as `python -c CODE ARGS…` would; without files, into pipes. `link` becomes its ORCH_FD."""
        (out, theirs_out), (err, theirs_err) = map(_ends, (stdout, stderr))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = [theirs.fileno(), theirs_out, theirs_err, *([link.fileno()] if link is not None else [])]
        asked = {"code": code, "args": args, "env": env, "cwd": str(cwd or Path.cwd())}
        with self._lock:
            socket.send_fds(self._control, [json.dumps(asked).encode()], given)
        for fd in (theirs_out, theirs_err):
            os.close(fd)
        theirs.close()
        return Forked(int(ours.recv(100)), ours, out, err)

    def close(self) -> None:
        self._control.close()


def _ends(file: int | None) -> tuple[IO[str] | None, int]:
    """Return what is read here, if anything, and where a fork writes."""
    if file is not None:
        return None, os.dup(file)
    ours, theirs = os.pipe()
    return os.fdopen(ours), theirs


class SharedParent(Parent):
    """One that has imported these modules, for all test processes of this run. It ends with the last of them."""

    def __init__(self, python: str, *modules: str, env: dict[str, str]) -> None:
        what = python, *modules, *(f"{name}={value}" for name, value in sorted(_early(env).items()))
        name = "orch-tests-" + _digest(*what)
        self._process: subprocess.Popen[bytes] | None = None  # None where another test process has started it
        while True:
            try:
                return super().__init__(name)
            except OSError:  # there is none, or it ends with the last that has used it
                assert self._process is None, f"{modules} cannot be imported"
            self._start(name, python, *modules, env=env)

    def _start(self, name: str, python: str, *modules: str, env: dict[str, str]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            try:
                listening.bind("\0" + name)
            except OSError:  # another test process was first, and will listen
                time.sleep(0.01)
                return
            listening.listen()
            self._process = subprocess.Popen(
                [python, "-c", SERVER, str(listening.fileno()), *modules],
                env=env,
                cwd=ROOT,
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def close(self) -> None:
        super().close()
        if self._process is not None:
            self._process.wait(20)


def _digest(*what: str) -> str:
    """Of this run of the tests, and of its control group: `tests.cpu_times` counts what each test process asks for."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    return hashlib.sha256("\n".join([run, Path("/proc/self/cgroup").read_text(), *what]).encode()).hexdigest()


@functools.cache
def _parent(python: str, *, is_legacy: bool) -> Parent:
    early = {**_early(_usual()), **(LEGACY if is_legacy else {}), "CUDA_VISIBLE_DEVICES": ""}
    return SharedParent(python, "numpy", "tensorflow", "tf_keras" if is_legacy else "keras", env=early)

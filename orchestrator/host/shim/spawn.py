"""Starts a task's process: its argv, its environment, and what the child must do before it execs.

It forks and execs without subprocess. The shim has only one thread, and the child must do things for which subprocess
would need Python code in the child anyway: die with its parent, join the control group, and report what failed.
"""

from __future__ import annotations

import errno
import os
import signal
import zlib

from orchestrator.both import process
from orchestrator.both.value import Value
from orchestrator.host.system import workdir
from orchestrator.host.system.cgroup import Cgroup
from orchestrator.protocol import wired

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

_FAILED = 127


class StartFailed(Exception):
    """The process could not be started. str() gives the reason as a sentence."""


def task_argv(start: dict[str, Any]) -> list[str]:
    """Return the command, with or without the runtime."""
    python = os.path.expanduser(str(start["python"]))
    runtime = [str(start["bundle"]), "run"] if start["hold"] else []
    return [python, *runtime, str(start["script"]), *map(str, start["args"])]


def task_env(
    start: dict[str, Any],
    inherited: dict[str, str],
    secrets: dict[str, str],
    release_env: dict[str, str],
    generation_dir: str,
) -> dict[str, str]:
    """Return the environment: that of the login, of the order and of the release, the secrets, and the marker."""
    env = login_environment(inherited)
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.update({str(name): str(value) for name, value in start["env"].items()})
    env.update(release_env)
    env.update(secrets)
    peers = env.get("no_grpc_proxy")
    others = inherited.get("no_grpc_proxy") or env.get("no_proxy")
    if peers and others and peers != others:
        env["no_grpc_proxy"] = f"{peers},{others}"
    paths = [str(start["bundle"]), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    env.update(marker(start, generation_dir))
    env["ORCH_SCRIPT"] = _identity_of_script(start)
    place = os.path.dirname(os.path.expanduser(str(start["python"])))
    env["PATH"] = _with_first(place, env.get("PATH", os.defpath))
    return env


def _identity_of_script(start: dict[str, Any]) -> str:
    """Return what changes with the script's code, its arguments and its variables, and is otherwise the same."""
    ours = ("ORCH_", "CUDA_", "no_grpc_proxy")
    own = [[name, value] for name, value in sorted(start["env"].items()) if not name.startswith(ours)]
    given = repr([start["code"], start["script"], start["args"], own])
    return f"{zlib.crc32(given.encode()):08x}"


def login_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what a task inherits of the login's environment, before a shim of Python has changed it."""
    if inherited.get("ORCH_LOGIN"):
        inherited = kept(inherited["ORCH_LOGIN"])
    # A task of another run may have started the agent (tests do that), and its marker must not be inherited; nor what
    # a login file has left of another launcher: TensorFlow would wait for the peers of a stale TF_CONFIG.
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith("ORCH_") and name not in wired.ALL
    }


def kept(text: str) -> dict[str, str]:
    """Return an environment that the start of the agent has kept: NUL-separated, in base64."""
    import binascii

    lines = os.fsdecode(binascii.a2b_base64(text)).split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _with_first(place: str, path: str) -> str:
    """Return a PATH that finds `python` and `python3` in this directory, where it has them: a script may call them."""
    for name in ("python", "python3") if os.path.isabs(place) else ():
        having = (each for each in path.split(os.pathsep) if os.access(os.path.join(each, name), os.X_OK))
        if os.access(os.path.join(place, name), os.X_OK) and next(having, "") != place:
            return os.pathsep.join((place, path))
    return path


def marker(start: dict[str, Any], generation_dir: str) -> dict[str, str]:
    """Return the variables that no order may change: those by which a sweep finds the task, and its scratch."""
    env = {
        "ORCH_HOST_DIR": str(start["host_dir"]),
        "ORCH_RUN": str(start["run"]),
        "ORCH_TASK": str(start["task"]),
        "ORCH_GENERATION": str(start["generation"]),
    }
    if start.get("scratch"):
        env["ORCH_CHECKPOINT_DIR"] = os.path.join(generation_dir, "scratch")
    return env


def code_dir(start: dict[str, Any]) -> str:
    """Return the directory of the pushed code; the task's working directory is a copy of it."""
    return os.path.join(str(start["host_dir"]), "runs", str(start["run"]), "code", str(start["code"]))


def work_dir(start: dict[str, Any]) -> str:
    """Return the task's working directory."""
    return workdir.work_dir(str(start["host_dir"]), str(start["run"]), str(start["task"]))


class Spawned(Value):
    """A started process, and our ends of its pipes, which do not block."""

    pid: int
    identity: process.Identity | None
    stdout: int
    stderr: int
    grouped: bool
    """Whether it has joined the control group."""


def spawn(
    argv: list[str], env: dict[str, str], directory: str, runtime_fd: int | None, group: Cgroup | None
) -> Spawned:
    """Start a process, which is killed when the calling thread ends. Raises StartFailed with the reason."""
    process.load_prctl()
    group_fd = None if group is None else group.open_for_child()
    pipes = [os.pipe() for _ in range(3)]
    (out_read, out_write), (err_read, err_write), (failure_read, failure_write) = pipes
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, env, directory, (out_write, err_write, failure_write), runtime_fd, group_fd, parent)
        finally:
            os._exit(_FAILED)
    for fd in (out_write, err_write, failure_write, *([group_fd] if group_fd is not None else [])):
        os.close(fd)
    with open(failure_read, "rb") as failure:
        stage, _, number = failure.read().decode().rpartition("\n")[2].partition(" ")
    if stage not in ("", "group"):
        os.waitpid(pid, 0)
        os.close(out_read)
        os.close(err_read)
        raise StartFailed(_sentence(stage, int(number), argv[0], directory))
    os.set_blocking(out_read, False)
    os.set_blocking(err_read, False)
    return Spawned(pid, process.identity(pid), out_read, err_read, group is not None and stage != "group")


def _become(
    argv: list[str],
    env: dict[str, str],
    directory: str,
    write_fds: tuple[int, int, int],
    runtime_fd: int | None,
    group_fd: int | None,
    parent: int,
) -> NoReturn:
    """Prepare the child and exec. A failure is reported through a pipe that the exec closes."""
    out, err, failure = write_fds
    stage = "session"
    try:
        os.setsid()
        stage = "parent"
        process.die_with_parent(parent)
        if group_fd is not None:
            try:
                Cgroup.join(group_fd)
            except OSError:
                os.write(failure, b"group 0")  # it runs outside of the group; a sweep uses descent and marker
        stage = "input"
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        if runtime_fd is not None:
            os.set_inheritable(runtime_fd, True)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if login := os.environ.get("ORCH_UMASK"):
            os.umask(int(login, 8) | 0o022)  # others must not change what is restored
        stage = "directory"
        os.chdir(directory)
        stage = "exec"
        os.execvpe(argv[0], argv, env)
    except OSError as e:
        os.write(failure, f"\n{stage} {e.errno or 0}".encode())
    except UnicodeError:
        os.write(failure, b"\nencoding 0")
    except ValueError:
        os.write(failure, b"\nargument 0")  # a NUL byte
    os._exit(_FAILED)


def _sentence(stage: str, number: int, python: str, directory: str) -> str:
    why = os.strerror(number)
    if stage == "exec" and number == errno.ENOENT:
        return f"Python was not found at {python!r}; set `python` to the one that has TensorFlow on this host"
    if stage == "exec":
        return f"{python!r} could not be executed: {why}; is it a Python for this host, on a mount without noexec?"
    if stage == "directory":
        return f"the working directory {directory!r} cannot be entered: {why}"
    if stage == "encoding":
        return "the command or the environment holds a character that cannot be encoded"
    if stage == "argument":
        return "the command or the environment holds a NUL byte"
    return f"the process could not be prepared ({stage}): {why}"

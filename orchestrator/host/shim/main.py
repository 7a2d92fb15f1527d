"""The start of a shim. It detaches, outlives agent, SSH and coordinator, and ends with its task.

An agent starts `main`, and afterwards uses `connect` and `recover`. The loop is in `shim/loop.py`, and its decisions
are in `shim/state.py`.
"""

from __future__ import annotations

import json
import os
import sys

from orchestrator.both import durable
from orchestrator.both.hostdir import HostFault
from orchestrator.host.shim import record
from orchestrator.host.shim.record import connect, recover, shim_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

__all__ = ["connect", "main", "recover", "shim_alive"]

_REQUIRED = ("host_dir", "bundle", "run", "epoch", "generation", "task", "python", "script", "code", "hold")

PORT_WAIT_S = 5.0
"""How long to wait for the port of a task that may take only one."""


def main(argv: list[str]) -> int:
    """Run `shim <generation dir> [<lease>…]`: detach, answer one line on stdout, and stay until the task has ended."""
    if not argv:
        print("usage: shim GENERATION_DIR (an agent starts it, with the secrets on stdin)", file=sys.stderr)
        return 2
    leases = [int(number) for number in argv[1:]]
    for number in leases:
        os.set_inheritable(number, False)  # the task must not have them
    directory = os.path.abspath(argv[0])
    try:
        start = _read_start(directory)
        secrets = _read_secrets()
        lock = record.lock(directory)
        running = _already(directory)
    except (HostFault, OSError) as e:
        _answer(1, _error(e))
        return 1
    if running is not None:
        _answer(1, {"pid": running})
        return 0
    sys.stdout.flush()
    if os.fork() != 0:
        os._exit(0)  # nothing is left to do, and the interpreter takes 10 ms of CPU to take itself apart
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    # Run the shim in the detached process
    from orchestrator.host.shim.loop import Shim

    # Close the agent's pipes except the one for the answer, and return that one
    answer = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(os.path.join(directory, "shim.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (null, 1), (errors, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(errors)
    os.chdir("/")  # the shim must not keep a file system from being unmounted
    try:
        # Fill the files of the code that a power cut left empty. It is done here, since the agent must not wait for
        # it.
        from orchestrator.host.shim.spawn import code_dir
        from orchestrator.host.system import codestore

        missing = codestore.repair(str(start["host_dir"]), code_dir(start))
        if missing:
            raise HostFault(
                "no-code",
                "files of the run's code are empty on this host, as a power cut leaves them, and cannot be filled",
                "`orch up` again: it pushes them",
            )
        _prepare_work_dir(start)
        shim = Shim(directory, start, secrets, _take_port(start["ports"]))
        shim.open()
        shim.hold(leases)
    except (HostFault, OSError, ValueError) as e:
        error = _error(e)
        _keep(directory, start, error["error"])
        _answer(answer, error)
        os._exit(1)
    _answer(answer, {"pid": os.getpid()})
    os.close(answer)
    os.close(lock)
    shim.run()
    os._exit(0)


def _prepare_work_dir(start: dict[str, Any]) -> None:
    """Copy the code into the task's working directory. It takes as long as the disk, so the agent must not do it.

    For a standby the directory is ready: another generation trains in it, and must not have its files mended.
    """
    from orchestrator.host.shim.spawn import code_dir, work_dir
    from orchestrator.host.system import workdir

    tree = code_dir(start)
    if start["env"].get("ORCH_STANDBY") and os.path.isdir(work_dir(start)):
        return
    try:
        workdir.prepare(str(start["host_dir"]), str(start["run"]), str(start["task"]), tree)
    except FileNotFoundError as e:
        why = f"the run's code cannot be copied on this host: {e.filename} is not there"
        raise HostFault("no-code", why, "`orch up` again: it pushes it") from e


def _keep(directory: str, start: dict[str, Any], error: dict[str, Any]) -> None:
    """Write an exit record with the error, since the answer to the agent may get lost."""
    try:
        record.write_failed_start(directory, start, error["message"])
    except OSError as e:
        record.diagnose(f"the exit record could not be written: {e}")


def _read_start(directory: str) -> dict[str, Any]:
    start = durable.read_object(directory, "start.json")
    if start is None:
        raise HostFault("bad-order", f"{directory}/start.json is not there or cannot be read")
    missing = [name for name in _REQUIRED if name not in start]
    if missing:
        raise HostFault("bad-order", f"start.json lacks {', '.join(missing)}")
    defaults: dict[str, Any] = {"args": [], "env": {}, "ports": [], "log_max_bytes": 64 << 20}
    return {**defaults, **start}


def _read_secrets() -> dict[str, str]:
    line = sys.stdin.buffer.readline() if sys.stdin is not None else b""
    try:
        secrets = json.loads(line) if line.strip() else {}
    except ValueError:
        secrets = None
    if not isinstance(secrets, dict):
        # The message must not quote the text, which is secret.
        raise HostFault("bad-order", "the secrets on stdin are no JSON object")
    return {str(name): str(value) for name, value in secrets.items()}


def _already(directory: str) -> int | None:
    """Return the pid of the shim that this generation has or had, so that a repeated start is done only once.

    Raises:
        HostFault: the generation has been given up; its shim died, or never got as far as recording itself.
    """
    who = record.shim_identity(directory)
    if who is not None and (shim_alive(directory) or record.read_exit(directory) is not None):
        return who.pid
    if who is not None or record.read_exit(directory) is not None:
        raise HostFault(
            "already-ended",
            "this generation of the task has been given up on this host",
            "start the next generation",
        )
    return None


def _take_port(ports: list[int]) -> socket.socket | None:
    """Bind the first free port, so that nothing else takes it. Return None if the task asks for no port.

    A task that is restarted alone needs exactly its old port. A process of its old generation, which is being killed,
    most likely still holds it, so this waits up to PORT_WAIT_S.

    Raises:
        HostFault: none of the ports is free.
    """
    if not ports:
        return None
    from orchestrator.host.shim.ports import take

    held, why = take(ports, PORT_WAIT_S if len(ports) == 1 else 0.0)
    if held is None:
        raise HostFault(
            "no-port",
            f"none of the {len(ports)} ports {ports[0]}-{ports[-1]} can be bound: {why}",
            "choose another range with run.ports, or end what listens there",
        )
    return held


def _error(e: HostFault | OSError | ValueError) -> dict[str, Any]:
    if isinstance(e, OSError):
        where = f" ({e.filename})" if e.filename else ""
        e = HostFault("shim-failed", f"{e.strerror or e}{where}")
    elif isinstance(e, ValueError):
        e = HostFault("shim-failed", str(e))
    return {"error": e.to_json()}


def _answer(fd: int, message: dict[str, Any]) -> None:
    try:
        os.write(fd, json.dumps(message).encode() + b"\n")
    except OSError:
        return  # the agent is gone already; the next one finds the shim by its files

"""`orch exec`: one command on the hosts of a run, or in the environment of a task."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_host, complete_run, complete_task
from orchestrator.cli.session import Session
from orchestrator.cli.show.terminal import printable
from orchestrator.client.known_run import host_of, known_run, task_of
from orchestrator.core.errors import OrchestratorError, SomeHostsOnly, UsageError
from orchestrator.core.words import counted, listed

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan, TaskId
    from orchestrator.core.state.run import Run
    from orchestrator.head.links.remote import Ended
    from orchestrator.protocol.hello import Command as Asked

_END_WAIT_S = 8.0
"""How long the hosts may take to end the started processes: SIGTERM, 2 s, SIGKILL."""

_KEPT_BYTES_MAX = 8 << 20
"""How much of each stream of a host the `--json` document contains."""

_LINE_BYTES_MAX = 1 << 16


def orders(
    run: Run, argv: Sequence[str], host: str | None, task: str | None, *, spares: bool
) -> list[tuple[HostPlan, Asked]]:
    """Return the hosts with an order for each: the named host, the task's host, or else all hosts with tasks."""
    asked: Asked = {"argv": list(argv), "run": run.run_id, "task": None, "generation": 0, "env": {}}
    if task is not None:
        id_, place = task_of(run, task)
        asked |= {"task": str(id_), "generation": run.task(id_).generation, "env": _released(run, id_)}
        return [(place, asked)]
    if host is not None:
        return [(host_of(run, host), asked)]
    used = {task.host for task in run.tasks}
    return [(place, asked) for place in run.plan.hosts if spares or place.name in used]


def _released(run: Run, id_: TaskId) -> dict[str, str]:
    """Return the variables that the task got with its release; empty before all tasks have joined."""
    from orchestrator.core.gang import addresses, release
    from orchestrator.head.links import requests

    if any(task.port is None for task in run.tasks):
        return {}
    order = requests.release(run, release(run, run.task(id_), addresses(run)))
    env: dict[str, str] = order.fields["env"]
    return env


@dataclass(slots=True)
class Output:
    """Prints lines as they arrive, with the host's name if there are several hosts, or keeps them for a document."""

    session: Session
    width: int
    """The width of the longest host name; 0: no prefixes."""
    kept: dict[tuple[str, int], bytearray] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def receive(self, host: str, stream: int, data: bytes) -> None:
        """Receive output of a host. Called by the connections' threads."""
        with self._lock:
            held = self.kept.setdefault((host, stream), bytearray())
            held += data
            if self.session.wants_json:
                if len(held) > _KEPT_BYTES_MAX:
                    self.cut.add(host)
                    del held[_KEPT_BYTES_MAX:]
                return
            *lines, rest = bytes(held).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            held[:] = rest
            for line in lines:
                self._show(host, stream, line)

    def end(self) -> None:
        """Print the output that has no line end yet."""
        for (host, stream), held in self.kept.items():
            if held and not self.session.wants_json:
                self._show(host, stream, bytes(held))

    def text(self, host: str, stream: int) -> str:
        """Return everything that a host wrote to a stream."""
        return self.kept.get((host, stream), b"").decode("utf-8", "replace")

    def _show(self, host: str, stream: int, line: bytes) -> None:
        text = printable(line.decode("utf-8", "replace"))
        paint = self.session.paint if stream == 1 else self.session.paint_err
        shown = f"{paint(host.ljust(self.width), 'cyan')} {text}" if self.width else text
        if stream == 1:
            self.session.put(shown)
        else:
            self.session.say(shown)


def run(asked: Sequence[tuple[HostPlan, Asked]], session: Session) -> tuple[list[Ended], Output]:
    """Run the command on all hosts, and return how it ended on each. An interruption first ends it everywhere."""
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.links.remote import Remote

    names = [host.name for host, _ in asked]
    output = Output(session, max(map(len, names)) if len(names) > 1 else 0)
    remote = Remote(transports(session.paths), bundle.load, output.receive)
    futures = remote.run(asked)
    try:
        return _results(futures, None), output
    except BaseException as e:
        session.say("Ending it on the hosts …")
        begun = remote.stop()
        running = {future: name for name, future in zip(names, futures, strict=True) if name in begun}
        late = wait(running, _END_WAIT_S).not_done
        remote.hang_up()
        if late:
            unsure = listed([running[future] for future in late])
            session.warn(f"{unsure} did not confirm that the command has ended; it ends with the connection")
        output.end()
        raise e


def _results(futures: Sequence[Future[Ended]], timeout_s: float | None) -> list[Ended]:
    """Wait in short steps, since an unlimited wait would delay Ctrl-C."""
    while wait(futures, timeout_s or 0.2).not_done:
        pass
    return [future.result() for future in futures]


def verdict(ended: Sequence[Ended]) -> int | OrchestratorError:
    """Return the command's exit code if it is the same on all hosts; else the error that says what failed where."""
    problems = [ending.problem for ending in ended if ending.problem is not None]
    codes = {ending.exit_code for ending in ended}
    if not problems and len(codes) == 1:
        return codes.pop() or 0
    if len(problems) == len(ended) and len({problem.exit_code for problem in problems}) == 1:
        first = problems[0]
        more = f", and {len(problems) - 1} more hosts" if len(problems) > 1 else ""
        error = OrchestratorError(f"{first.message}{more}", hint=first.hint)
        error.exit_code = first.exit_code
        return error
    failed = [ending for ending in ended if ending.problem is not None or ending.exit_code != 0]
    failures = [
        f"{ending.host} ({'not run' if ending.exit_code is None else f'exit code {ending.exit_code}'})"
        for ending in failed
    ]
    return SomeHostsOnly(f"it failed on {len(failed)} of {counted(len(ended), 'host')}: {listed(failures)}")


@orch_command(
    acts=True,
    about_runs=True,
    examples=[
        ("orch exec mnist -- nvidia-smi -L", "Run a command on every host that has a task of the run"),
        ("orch exec mnist --task worker:0 -- python check.py", "Run it where that task works, as it does"),
        (
            "orch exec mnist --host gpu-b --shell -- 'df -h /data | tail -1'",
            "Let a shell of the host read it",
        ),
    ],
)
@click.argument("name", shell_complete=complete_run)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND…")
@click.option("--all", "all_", is_flag=True, help="On the spares too.")
@click.option("--host", shell_complete=complete_host, help="On this host only.")
@click.option(
    "--task",
    shell_complete=complete_task,
    help="On the host of this task, with its environment (TF_CONFIG, GPUs, `env:`) and in its working directory.",
)
@click.option("--shell", is_flag=True, help="Join the words, and let /bin/sh of the host read them.")
@json_option("Print one document at the end, with all output.")
def command(
    session: Session,
    name: str,
    words: tuple[str, ...],
    all_: bool,
    host: str | None,
    task: str | None,
    shell: bool,
) -> int:
    """Run COMMAND on the hosts of the run NAME, over orch's own connection. It has no stdin and no terminal.

    The exit code is the command's, and 4 if it failed on some hosts only. `python` is the run's Python. Ctrl-C ends
    COMMAND on every host. When COMMAND ends, what it left in the background is ended too. With --task, the values of
    the spec's secrets are left out. `orch ssh` opens a terminal.
    """
    if all_ + (host is not None) + (task is not None) > 1:
        raise UsageError("use only one of --all, --host and --task")
    argv = ["/bin/sh", "-c", " ".join(words)] if shell else list(words)
    asked = orders(known_run(session.paths, name), argv, host, task, spares=all_)
    ended, output = run(asked, session)
    output.end()
    hosts = [
        {
            "host": ending.host,
            "exit_code": ending.exit_code,
            "problem": str(ending.problem) if ending.problem is not None else None,
            "stdout": output.text(ending.host, 1),
            "stderr": output.text(ending.host, 2),
            "cut": ending.host in output.cut,
        }
        for ending in ended
    ]
    session.answer({"schema": 1, "command": shlex.join(words), "hosts": hosts})
    result = verdict(ended)
    for ending in ended if isinstance(result, int | SomeHostsOnly) else ():
        if ending.problem is not None:
            session.say(str(ending.problem))
            session.hint(ending.problem.hint)
    if isinstance(result, OrchestratorError):
        raise result
    return result

"""Runs work that may hang or take long in separate processes, so that heartbeats continue meanwhile.

A job is a program (such as another Python), or a function in a fork of the agent. A fork is safe because the agent
has only one thread.
"""

from __future__ import annotations

import os

from orchestrator.both.hostdir import HostFault, fault_of
from orchestrator.both.memory_file import memory_file
from orchestrator.both.value import Value
from orchestrator.host.agent.streams import READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

OUTPUT_BYTES_MAX = 4 << 20
RAW = b"\0"
"""The first byte of the output of a job whose answer is bytes. JSON never begins with it."""

_REAP_AGAIN_S = 0.01
_KILL = 9
_NOTHING: Mapping[int, int] = {}


class Result(Value):
    """How a job ended."""

    status: int
    """The status as `os.waitstatus_to_exitcode` returns it; 0 if unknown."""
    output: bytes
    timed_out: bool


class _Job(Value):
    pid: int
    reader: int
    done: Callable[[Result], None]
    keep: bool
    output: bytearray
    timed_out: bool = False


class Jobs:
    """The running jobs. Each calls its `done` when it ends, at the latest shortly after its deadline."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: dict[int, _Job] = {}
        self._statuses: dict[int, int] = {}

    def program(
        self,
        argv: Sequence[str],
        done: Callable[[Result], None],
        *,
        deadline_s: float,
        stdin: bytes = b"",
        keep: bool = False,
        given: Mapping[int, int] = _NOTHING,
        env: Mapping[str, str] = os.environ,
        directory: str | None = None,
    ) -> None:
        """Run a program. Its stdout and stderr are its output. Raises OSError if it cannot be started.

        Args:
            argv: the program and its arguments.
            done: is called with its result.
            deadline_s: after this it is killed.
            stdin: what it reads.
            keep: whether it lives on when the agent ends.
            given: the descriptors that it inherits, by their numbers in it.
            env: its environment. By default that of the agent.
            directory: its working directory. By default that of the agent.
        """
        opened = [_stdin_of(stdin)]
        reader = here = -1
        try:
            reader, writer = os.pipe()
            opened.append(writer)
            if directory is not None:
                here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.append(here)
                os.chdir(directory)  # the agent has one thread, and posix_spawn takes no directory
            pid = os.posix_spawnp(
                argv[0],
                list(argv),
                env,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, opened[0], 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_DUP2, writer, 2),
                    *((os.POSIX_SPAWN_DUP2, own, number) for number, own in given.items()),
                ],
                setpgroup=0,
            )
        except BaseException:
            if reader >= 0:
                os.close(reader)
            raise
        finally:
            if here >= 0:
                os.fchdir(here)
            for descriptor in opened:
                os.close(descriptor)
        self._add(_Job(pid, reader, done, keep, bytearray()), deadline_s)

    def function(self, work: Callable[[], Any], done: Callable[[Result], None], *, deadline_s: float) -> None:
        """Run `work` in a fork. The output is its value or its error, as the JSON that `answer_of` reads.

        A value of bytes is written as it is, after RAW. Raises OSError if the host has no process left.
        """
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if pid == 0:
            _work(work, writer)
        os.close(writer)
        self._add(_Job(pid, reader, done, False, bytearray()), deadline_s)

    def end(self) -> None:
        """Kill all jobs without `keep`. The agent ends, and nothing will read their answers."""
        for job in self._jobs.values():
            if not job.keep:
                kill_group(job.pid)

    def reap(self) -> None:
        """Reap every child that has ended: jobs, and shims that this agent started."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._jobs:
                self._statuses[pid] = os.waitstatus_to_exitcode(status)

    def _add(self, job: _Job, deadline_s: float) -> None:
        os.set_blocking(job.reader, False)
        self._jobs[job.pid] = job
        self._loop.watch(job.reader, READ, lambda _events: self._read(job))
        self._loop.after(deadline_s, lambda: self._expire(job))

    def _read(self, job: _Job) -> None:
        try:
            data = os.read(job.reader, 65536)
        except BlockingIOError:
            return
        job.output += data
        # The answer is the last line, so if a program prints too much, only the end is kept.
        del job.output[:-OUTPUT_BYTES_MAX]
        if not data:
            self._finish(job)

    def _expire(self, job: _Job) -> None:
        if self._jobs.get(job.pid) is not job:
            return
        job.timed_out = True
        kill_group(job.pid)
        # A process that hangs in the kernel does not die, but its order must be answered anyway.
        self._loop.after(0.2, lambda: self._finish(job))

    def _finish(self, job: _Job) -> None:
        if self._jobs.get(job.pid) is not job:
            return
        if job.reader >= 0:
            self._loop.forget(job.reader)
            os.close(job.reader)
            job.reader = -1
        self.reap()
        if job.pid not in self._statuses and not job.timed_out:
            self._loop.after(_REAP_AGAIN_S, lambda: self._finish(job))
            return
        del self._jobs[job.pid]
        status = self._statuses.pop(job.pid, 0)
        job.done(Result(status, bytes(job.output), job.timed_out))


def answer_of(result: Result, what: str) -> dict[str, Any]:
    """Return the last line of a job's output that is a JSON object.

    Raises:
        HostFault: the job timed out, gave no answer, or answered `{"error": {code, message, hint}}`.
    """
    import json

    if result.timed_out:
        raise HostFault(
            "timeout",
            f"{what} did not end in time and was killed",
            "a shared directory may hang; see whether `ls` works there",
        )
    lines = result.output.splitlines()
    for line in reversed(lines[-50:]):
        if line.startswith(b"{"):
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if error := answer.get("error"):
                raise HostFault(**error)
            return dict(answer)
    last = lines[-1].decode("utf-8", "replace").strip()[:300] if lines else ""
    ending = f"signal {-result.status}" if result.status < 0 else f"exit code {result.status}"
    raise HostFault("job-failed", f"{what} gave no answer ({ending})" + (f": {last}" if last else ""))


def _work(work: Callable[[], Any], writer: int) -> None:
    """Do the work in the fork, and exit. It must not hold the agent's descriptors, whose end the head waits for."""
    import json

    try:
        stand_alone(writer)
        try:
            answer = work()
        except Exception as e:
            answer = {"error": fault_of(e).to_json()}
        output = RAW + answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n"
        data = memoryview(output)
        while data:
            data = data[os.write(3, data) :]
    finally:
        os._exit(0)


def stand_alone(descriptor: int) -> None:
    """Make a fork a group of its own, which holds no descriptor of the agent but that one, as its number 3."""
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.dup2(descriptor, 3)
    os.closerange(4, 65536)


def _stdin_of(data: bytes) -> int:
    """Return a descriptor to read `data` from. The data may hold secrets, so it must not be in a file with a name."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    return memory_file("stdin", data)


def kill_group(pid: int) -> None:
    """Kill the process group of a child. The child must not be reaped yet, so that its pid is still its own."""
    try:
        os.killpg(pid, _KILL)
    except (ProcessLookupError, PermissionError):
        return

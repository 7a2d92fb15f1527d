"""Leases of GPUs: one at a time, seen by all, shared with who is of the same run, and gone with its processes."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import hostdir, logind
from orchestrator.both.hostdir import HostFault
from orchestrator.core.hosts import compatibility
from orchestrator.core.plan import HostPlan
from orchestrator.host.agent import gpus, leases, machine
from orchestrator.host.agent.leases import ANSWER_S, LEASED, GpuLeases, leased
from orchestrator.host.agent.streams import Loop
from orchestrator.host.system import gpu_lease
from orchestrator.protocol.limits import NAME_CHARS_MAX
from tests.unit.core.transcript import make_plan

_numbers = itertools.count(1_000_000 + os.getpid() * 100)


class Agent:
    """The leases of one agent, with its loop."""

    def __init__(self, host_dir: Path, loop: Loop) -> None:
        self.living: set[str] = set()
        self.leases = GpuLeases(loop, str(host_dir), self.living.__contains__)

    def end(self) -> None:
        """End as the process does: the kernel closes what it held."""
        for _, lease in self.leases._held.values():
            self.leases._loop.forget(lease.fileno())
            lease.close()


@pytest.fixture
def gpu() -> int:
    """A number that no GPU has, nor another test."""
    return next(_numbers)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def asked(agent: Agent, run: str, loop: Loop) -> list[Any]:
    """Return what others have of what a run wants."""
    told: list[Any] = []
    agent.leases.acquire(run, told.append)
    while not told:
        loop.turn()
    return list(told[0])


def test_of_two_agents_one_has_the_gpu_and_the_other_is_told_who(
    tmp_path: Path, loop: Loop, gpu: int
) -> None:
    first, second = Agent(tmp_path, loop), Agent(tmp_path, loop)
    first.leases.want("a-1", [gpu], "lab-1", 1)
    second.leases.want("b-1", [gpu], "lab-2", 1)
    assert asked(first, "a-1", loop) == []
    (other,) = asked(second, "b-1", loop)
    assert (other["gpu"], other["run"], other["head"]) == (gpu, "a-1", "lab-1")
    assert other["user"]
    assert other["since"] > 1e9
    with pytest.raises(HostFault) as refused:
        second.leases.for_shim("b-1")
    assert refused.value.code == LEASED
    lease = first.leases._held[gpu]
    first.leases.want("a-1", [gpu], "lab-1", 2)
    assert first.leases._held[gpu] is lease, "it is not free for a moment in between"
    assert asked(second, "b-1", loop)[0]["since"] == other["since"], "it has held it all the time"
    first.leases.release("a-1")
    assert asked(second, "b-1", loop) == []


def test_a_shim_holds_it_on_and_the_next_agent_of_the_run_shares_it(
    tmp_path: Path, loop: Loop, gpu: int
) -> None:
    agent, other = Agent(tmp_path, loop), Agent(tmp_path, loop)
    agent.leases.want("a-1", [gpu], "lab-1", 1)
    (number,), about = agent.leases.for_shim("a-1")
    shim = os.dup(number)
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        lease = socket.socket(fileno=shim)
        os.write(told, b"1")
        while True:  # the others share its flags, and must not be blocked
            select.select([lease], [], [])
            gpu_lease.answer(lease, about)
    os.close(shim)
    os.read(ready, 1)
    try:
        agent.end()
        other.leases.want("b-1", [gpu], "lab-2", 1)
        assert [one["run"] for one in asked(other, "b-1", loop)] == ["a-1"]
        again = Agent(tmp_path, loop)
        again.leases.want("a-1", [gpu], "lab-1", 2)
        assert asked(again, "a-1", loop) == []
        assert again.leases.for_shim("a-1")[1]["since"] == about["since"]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert [one["run"] for one in asked(other, "b-1", loop)] == ["a-1"], "its agent holds it beyond its shim"
    again.end()
    assert asked(other, "b-1", loop) == [], "nobody holds it, and nothing is left of it"


def test_who_holds_a_gpu_and_answers_nonsense_or_nothing_speaks_of_himself_only(
    tmp_path: Path, loop: Loop, gpu: int
) -> None:
    held = gpu_lease.acquire(gpu)
    assert held is not None
    agent = Agent(tmp_path, loop)
    agent.leases.want("a-1", [gpu], "lab-1", 1)
    for gone in [gpu_lease.ask(gpu) for _ in range(100)]:
        assert gone is not None, "who asks in vain keeps no other from asking"
        gone.close()
    (silent,) = asked(agent, "a-1", loop)
    assert (silent["run"], bool(silent["user"])) == (None, True), "the kernel tells whose it is"
    loop.watch(held.fileno(), 1, lambda _: gpu_lease.answer(held, {"run": "\x1b[2J" * 9, "since": 1e300}))
    (liar,) = asked(agent, "a-1", loop)
    assert (liar["run"], liar["since"]) == (None, None)
    json.dumps(liar)
    held.close()


@pytest.mark.parametrize("is_stranger", [True, False])
@pytest.mark.parametrize(
    "said", [b"[" * 4096, b'{"run": "x-1"}', b"\xff", b""], ids=["deep", "run", "bytes", "nothing"]
)
def test_who_holds_a_gpu_ends_no_agent_whatever_he_sends_and_his_name_is_known(
    tmp_path: Path, loop: Loop, gpu: int, said: bytes, is_stranger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_stranger:
        monkeypatch.setattr(gpu_lease, "_user", lambda _connection: 4_000_000)
    held = gpu_lease.acquire(gpu)
    assert held is not None
    null = os.open("/dev/null", os.O_RDONLY)
    fifo = os.pipe()

    def answer(_events: int) -> None:
        asker, _ = held.accept()
        with asker:
            if said:
                socket.send_fds(asker, [said], [null, *fifo])

    loop.watch(held.fileno(), 1, answer)
    agent = Agent(tmp_path, loop)
    agent.leases.want("a-1", [gpu], "lab-1", 1)
    (other,) = asked(agent, "a-1", loop)
    assert (other["run"], bool(other["user"])) == ("x-1" if b"run" in said else None, True)
    if is_stranger:
        assert other["user"] == "4000000"
    open_ = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if os.path.lexists(one)]
    assert open_.count(os.readlink(f"/proc/self/fd/{fifo[0]}")) == 2, "none of what he has sent stays open"
    held.close()
    for fd in (null, *fifo):
        os.close(fd)


def test_a_stranger_gives_nobody_his_lease_whatever_run_he_names(
    tmp_path: Path, loop: Loop, gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gpu_lease.acquire(gpu)
    assert held is not None
    agent = Agent(tmp_path, loop)
    agent.leases.want("a-1", [gpu], "lab-1", 1)

    def answer(_events: int) -> None:
        asker, _ = held.accept()
        with asker:
            socket.send_fds(asker, [b'{"run": "a-1"}'], [held.fileno()])

    loop.watch(held.fileno(), 1, answer)
    monkeypatch.setattr(gpu_lease, "_user", lambda _connection: 4_000_000)
    assert [one["user"] for one in asked(agent, "a-1", loop)] == ["4000000"]
    assert not agent.leases._held
    held.close()


def test_another_socket_of_ones_own_user_is_no_lease(tmp_path: Path, loop: Loop, gpu: int) -> None:
    held, other = gpu_lease.acquire(gpu), gpu_lease.acquire(next(_numbers))
    assert held is not None
    assert other is not None

    def answer(_events: int) -> None:
        asker, _ = held.accept()
        with asker:
            socket.send_fds(asker, [b'{"run": "a-1"}'], [other.fileno()])

    agent = Agent(tmp_path, loop)
    with held, other:
        agent.leases.want("a-1", [gpu], "lab-1", 1)
        loop.watch(held.fileno(), 1, answer)
        assert [one["run"] for one in asked(agent, "a-1", loop)] == ["a-1"]
        assert not agent.leases._held


def test_a_run_that_is_let_go_while_its_gpu_is_asked_for_does_not_get_it(
    tmp_path: Path, loop: Loop, gpu: int
) -> None:
    held = gpu_lease.acquire(gpu)
    assert held is not None
    agent = Agent(tmp_path, loop)
    told: list[Any] = []

    def ends(_events: int) -> None:
        agent.leases.release("a-1")
        loop.forget(held.fileno())
        held.close()

    agent.leases.want("a-1", [gpu], "lab-1", 1)
    agent.leases.acquire("a-1", told.append)
    loop.watch(held.fileno(), 1, ends)
    while not told:
        loop.turn()
    assert (told, agent.leases._held) == ([[]], {})


def test_a_stranger_who_asks_is_answered_and_given_no_lease(
    gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user, given in ((os.geteuid(), 1), (4_000_000, 0)):
        monkeypatch.setattr(gpu_lease, "_user", lambda _connection, user=user: user)
        held, asking = gpu_lease.acquire(gpu), gpu_lease.ask(gpu)
        assert held is not None
        assert asking is not None
        with held, asking:
            gpu_lease.answer(held, {"run": "a-1"})
            data, fds, _, _ = socket.recv_fds(asking, 4096, 4)
        for fd in fds:
            os.close(fd)
        assert (json.loads(data), len(fds)) == ({"run": "a-1"}, given)


@pytest.mark.parametrize(("since_s", "asks"), [(60.0, 1), (1.0, 6)])
def test_a_later_run_is_waited_for_only_where_it_has_just_taken_the_gpu(
    tmp_path: Path, loop: Loop, gpu: int, monkeypatch: pytest.MonkeyPatch, since_s: float, asks: int
) -> None:
    monkeypatch.setattr(leases, "_YIELDS_S", 0.0)
    held = gpu_lease.acquire(gpu)
    assert held is not None
    answers: list[int] = []

    def answer(_events: int) -> None:
        answers.append(1)
        gpu_lease.answer(held, {"run": "b-20260101-000001", "since": time.time() - since_s})

    agent = Agent(tmp_path, loop)
    agent.leases.want("a-20260101-000000", [gpu], "lab-1", 1)
    loop.watch(held.fileno(), 1, answer)
    told: list[Any] = []
    agent.leases.acquire("a-20260101-000000", told.append)
    while not told:
        loop.turn()
    assert (told[0][0]["run"], len(answers)) == ("b-20260101-000001", 2 * asks), "`want` asks too"
    held.close()


@pytest.mark.fault(99)
@pytest.mark.parametrize("how", ["it fills its own backlog", "it does not listen", "it does not answer"])
def test_who_holds_a_gpu_and_says_nothing_is_named_by_the_kernel(
    tmp_path: Path, loop: Loop, gpu: int, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The user needs no right to the GPU for that, and names no run."""
    monkeypatch.setattr(leases, "ANSWER_S", 0.05)
    holder, told = stranger(gpu, how)
    try:
        agent = Agent(tmp_path, loop)
        agent.leases.want("a-1", [gpu], "lab-1", 1)
        (other,) = asked(agent, "a-1", loop)
        with pytest.raises(HostFault) as refused:
            agent.leases.for_shim("a-1")
    finally:
        holder.kill()
        holder.wait()
    assert (other["gpu"], other["user"], other["run"]) == (gpu, told, None)
    assert f"GPU {gpu} is held by {told}" in refused.value.message
    assert gpu_lease.owner(gpu) is None, "nobody has it any more"


def stranger(gpu: int, how: str) -> tuple[subprocess.Popen[str], str]:
    """Start a process that has the name of a lease; as root, of another user. Return it, and the user's name."""
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    code = (
        "import os, socket, sys, time\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "name = sys.argv[1].replace('@', chr(0))\n"
        "held = socket.socket(socket.AF_UNIX); held.bind(name)\n"
        "own = []\n"
        "if sys.argv[2] != 'it does not listen': held.listen(0 if 'backlog' in sys.argv[2] else 9)\n"
        "while 'backlog' in sys.argv[2]:\n"
        "    own.append(socket.socket(socket.AF_UNIX)); own[-1].setblocking(False)\n"
        "    try: own[-1].connect(name)\n"
        "    except BlockingIOError: break\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    argv = [sys.executable, "-I", "-S", "-c", code, f"@orch/gpu/{gpu}", how]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder, logind.user_name(uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_doctor_is_told_of_a_lease_that_another_user_holds(gpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lease, "_name", lambda number: f"\0orch/gpu/{gpu + number}")
    uuids = ["GPU-a", "GPU-b"]
    assert gpus.leased(uuids) == []
    holder, told = stranger(gpu + 1, "it fills its own backlog")
    try:
        (found,) = gpus.leased(uuids)
    finally:
        holder.kill()
        holder.wait()
    assert found == {"gpu": 1, "pid": None, "user": told, "name": "it holds the lease"}
    plan = replace(make_plan(["a"], checkpoint=False), hosts=(HostPlan("a", "a", gpus=(1,), spare=True),))
    problem = compatibility.gpus(plan, "a", uuids, [found])
    assert problem is not None
    assert problem.message == f"in use by somebody else: GPU 1 by a process of {told} (it holds the lease)"


def test_of_two_that_each_hold_what_the_other_wants_the_earlier_gets_both_when_the_later_lets_go(
    tmp_path: Path, loop: Loop, gpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_YIELDS_S", 0.05)
    earlier, later = "z-20260101-000000", "a-20260101-000001"
    one, other = [Agent(tmp_path, loop) for _ in range(2)], [Agent(tmp_path, loop) for _ in range(2)]
    gpus = [gpu, next(_numbers)]  # of two hosts
    one[0].leases.want(earlier, gpus[:1], "lab-1", 1)
    other[1].leases.want(later, gpus[1:], "lab-2", 1)
    one[1].leases.want(earlier, gpus[1:], "lab-1", 1)
    other[0].leases.want(later, gpus[:1], "lab-2", 1)
    told: list[Any] = []
    one[1].leases.acquire(earlier, told.append)
    assert [holder["run"] for holder in asked(other[0], later, loop)] == [earlier]
    assert not told, "it is not refused while the other may still let go"
    other[1].leases.release(later)
    while not told:
        loop.turn()
    assert told == [[]]


def test_a_run_that_another_head_has_taken_over_lets_go_when_it_is_asked(
    tmp_path: Path, loop: Loop, gpu: int
) -> None:
    old, new = Agent(tmp_path, loop), Agent(tmp_path, loop)
    hostdir.accept_epoch(str(tmp_path), "a-1", 1, create=True)
    old.leases.want("a-1", [gpu], "lab-1", 1)
    new.leases.want("b-1", [gpu], "lab-2", 1)
    assert [one["run"] for one in asked(new, "b-1", loop)] == ["a-1"]
    hostdir.accept_epoch(str(tmp_path), "a-1", 2, create=True)
    assert asked(new, "b-1", loop) == []
    assert not old.leases._held


def test_a_head_gives_a_gpu_to_its_next_run_once_nothing_of_the_one_before_lives(
    tmp_path: Path, loop: Loop, gpu: int
) -> None:
    agent = Agent(tmp_path, loop)
    agent.leases.want("a-1", [gpu], "lab-1", 1)
    agent.living.add("a-1")
    agent.leases.want("b-1", [gpu], "lab-1", 1)
    assert [one["run"] for one in asked(agent, "b-1", loop)] == ["a-1"]
    agent.living.clear()
    assert asked(agent, "b-1", loop) == []
    agent.leases.release("a-1")
    assert agent.leases.for_shim("b-1")[0], "which keeps it when the other is let go"


def test_a_run_that_wants_another_gpu_lets_the_first_go(tmp_path: Path, loop: Loop, gpu: int) -> None:
    first, second, other = Agent(tmp_path, loop), Agent(tmp_path, loop), next(_numbers)
    first.leases.want("a-1", [gpu], "lab-1", 1)
    assert asked(first, "a-1", loop) == []
    first.leases.want("a-1", [other], "lab-1", 2)
    second.leases.want("b-1", [gpu], "lab-2", 1)
    assert asked(second, "b-1", loop) == []
    second.leases.want("c-1", [other], "lab-2", 1)
    assert [each["run"] for each in asked(second, "c-1", loop)] == ["a-1"]
    for agent in (first, second):
        agent.end()


def test_a_lease_that_cannot_be_taken_at_all_is_no_lease_of_another() -> None:
    with pytest.raises(OSError, match="too long"):
        gpu_lease.acquire("x" * 200)


def test_of_a_holders_answer_short_words_and_possible_times_alone_are_told() -> None:
    told = leased(3, "m", {"run": "r", "head": "h" * NAME_CHARS_MAX, "since": 0.0})
    assert told == {"gpu": 3, "user": "m", "run": "r", "head": "h" * NAME_CHARS_MAX, "since": 0.0}
    nonsense = {"run": "h" * (NAME_CHARS_MAX + 1), "head": "a\x1b[2J", "since": -1.0}
    assert leased("MIG-1", "", nonsense) == {
        **dict.fromkeys(("gpu", "user", "run", "head", "since")),
        "instance": "MIG-1",
    }
    for since in (7, 2.5e11, float("nan"), "1"):
        assert leased(3, None, {"since": since})["since"] is None


def test_a_name_that_is_no_gpu_is_no_lease_and_all_holders_together_are_waited_for(
    gpu: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(gpu), f"slot-{gpu}", f"MIG-{gpu}", f"0{gpu}", "9" * 20, f"{gpu} x"]
    monkeypatch.setattr(machine, "_ANSWERS_S", 0.05)
    held = [gpu_lease.acquire(name) for name in names]
    try:
        assert {each for each in gpu_lease.held() if str(gpu) in str(each)} == {gpu, names[1], names[2]}
        assert int(names[4]) not in gpu_lease.held()
        began_at = time.monotonic()
        leases = machine.inspect(str(tmp_path))["leases"]
        assert time.monotonic() - began_at < 2 * ANSWER_S, "none of the three answers"
        assert [each["user"] for each in leases if each["gpu"] == gpu] == [logind.user_name(os.geteuid())]
    finally:
        for lease in held:
            assert lease is not None
            lease.close()

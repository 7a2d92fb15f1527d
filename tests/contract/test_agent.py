"""A real agent over real pipes, with real shims: what it promises to the coordinator."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import process
from orchestrator.host.system import unkillable
from orchestrator.protocol.orders.base import Fence
from tests.contract.agent_harness import RUN, Client, clean, interpreter
from tests.patience import comes, patient
from tests.protocol_orders import TABLE

FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)\n"

Connect = Callable[..., Client]


@pytest.fixture
def host_dir(tmp_path: Path) -> Iterator[Path]:
    path = (tmp_path / "host").resolve()
    yield path
    clean(path)


@pytest.fixture
def connect(host_dir: Path) -> Iterator[Connect]:
    clients: list[Client] = []

    def make(python: str = sys.executable) -> Client:
        clients.append(Client(host_dir, python))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_it_reports_at_whole_multiples_of_its_heartbeat_whenever_it_began(connect: Connect) -> None:
    agent = connect()
    time.sleep(1.5 - time.time() % 1.0)
    agent.ok("watch", heartbeat_s=1.0)
    off_s: list[float] = []
    while len(off_s) < 4:
        known = len(agent.reports)
        assert agent.hear()
        if len(agent.reports) > known:
            off_s.append(abs((time.time() + 0.5) % 1.0 - 0.5))
    assert sorted(off_s)[1] < 0.25, f"half a second off is when it was asked to: {off_s}"


# ---------------------------------------------------------------- life of a task


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12"])
def test_a_task_from_its_code_to_its_exit(connect: Connect, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine: what hosts run was not tried on it")
    agent = connect(python)
    agent.ok("watch", heartbeat_s=0.1)
    code = agent.push(
        train="import os, sys\nprint(os.environ['TF_CONFIG'], os.environ['TOKEN'])\nsys.exit(3)\n"
    )
    assert agent.start(code, secrets={"TOKEN": "hush-hush"})["ok"]["pid"] > 1
    agent.until_phase("ready")
    assert agent.ok("release", generation=1, task="worker:0", env={"TF_CONFIG": "{}"}, seed=None) == {}
    ended = agent.until_phase("exited")["exit"]
    assert (ended["code"], ended["cause"], ended["ordered"]) == (3, "script", False)
    reply, data = agent.answer(agent.send("log", generation=1, task="worker:0", offset=0, bytes_max=9999))
    assert (reply["ok"]["offset"], reply["ok"]["end"]) == (0, len(data))
    assert data.endswith(b" o {} ***\n")


@pytest.mark.fault(68)
def test_code_that_a_power_cut_left_empty_is_found_at_the_start_and_when_it_is_pushed(
    connect: Connect, host_dir: Path
) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    script = "raise SystemExit(3)\n"
    code = agent.push(train=script)
    train = host_dir / "runs" / RUN / "code" / code / "train.py"
    blob = host_dir / "blobs" / hashlib.sha256(script.encode()).hexdigest()
    train.unlink()  # it is one file with the blob, where the file system can link
    train.write_bytes(b"")
    agent.start(code)
    agent.until_phase("ready")
    assert train.read_text() == script
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    assert agent.until_phase("exited")["exit"]["code"] == 3
    train.write_bytes(b"")
    blob.unlink(missing_ok=True)
    blob.write_bytes(b"\0" * len(script))
    refused = agent.start(code, generation=2)["error"]
    assert (refused["code"], "empty on this host" in refused["message"]) == ("no-code", True)
    assert agent.push(train=script) == code  # what is asked for is sent again
    assert train.read_text() == script
    assert "pid" in agent.start(code, generation=3)["ok"]


@pytest.mark.fault(3)
def test_an_agent_that_is_hung_up_on_serves_until_its_stdin_ends(connect: Connect) -> None:
    """Sshd sends SIGHUP when a connection breaks; what had been sent before is still to be done."""
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    os.kill(agent.pid, signal.SIGHUP)
    agent.start(agent.push(train=FOREVER))
    assert agent.until_phase("ready")["task"] == "worker:0"


def test_a_killed_agent_is_not_noticed_by_the_task(connect: Connect) -> None:
    first = connect()
    first.ok("watch", heartbeat_s=0.1)
    first.start(first.push(train=FOREVER))
    first.until_phase("ready")
    first.ok("release", generation=1, task="worker:0", env={}, seed=None)
    running = first.until_phase("running")
    os.kill(first.pid, signal.SIGKILL)
    while first.hear():
        pass
    second = connect()
    second.ok("watch", heartbeat_s=0.1)
    found = second.until_phase("running")
    assert found["pid"] == running["pid"]
    assert second.ok("stop", generation=1, task="worker:0", grace_s=0) == {}
    ended = second.until_phase("exited")["exit"]
    assert (ended["ordered"], ended["left"]) == (True, [])


@pytest.mark.fault(2)
def test_the_end_of_a_task_without_an_agent_is_told_to_the_next(connect: Connect) -> None:
    first = connect()
    first.ok("watch", heartbeat_s=0.1)
    first.start(first.push(train="import time\ntime.sleep(0.2)\nraise SystemExit(7)\n"))
    first.until_phase("ready")
    first.ok("release", generation=1, task="worker:0", env={}, seed=None)
    first.close()
    second = connect()
    second.ok("watch", heartbeat_s=0.1)
    assert second.until_phase("exited")["exit"]["code"] == 7


def test_what_a_task_makes_has_the_modes_of_the_login(connect: Connect, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        agent = connect()
    finally:
        os.umask(before)
    agent.ok("watch", heartbeat_s=0.1)
    code = agent.push(train="import os, sys\nopen(sys.argv[1], 'w')\nprint('ORCH_UMASK' in os.environ)\n")
    agent.start(code, args=[str(tmp_path / "made")])
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    assert agent.until_phase("exited")["exit"]["last_lines"] == ["False"]
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


@pytest.mark.fault(4)
def test_a_killed_shim_takes_its_task_along_and_is_told_of(connect: Connect) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    shim = agent.start(agent.push(train=FOREVER))["ok"]["pid"]
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    task = process.identity(agent.until_phase("running")["pid"])
    os.kill(shim, signal.SIGKILL)
    ended = agent.until_phase("exited")["exit"]
    assert ended["cause"] == "shim-died"
    assert task is not None
    assert not process.alive(task)


@pytest.mark.fault(33)
def test_a_start_asked_twice_is_done_once(connect: Connect) -> None:
    agent = connect()
    code = agent.push(train=FOREVER)
    numbers = [agent.send("start", **agent.plain_task(code)) for _ in range(2)]
    first, again = (agent.answer(number)[0] for number in numbers)
    assert first["ok"]["pid"] == again["ok"]["pid"]
    other = connect()
    assert other.start(code)["ok"]["pid"] == first["ok"]["pid"]


def test_the_newest_generation_and_the_living_older_ones_are_reported(connect: Connect) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    code = agent.push(train=FOREVER)
    for generation in (1, 2):
        agent.start(code, generation=generation)
    agent.until(lambda tasks: [task["generation"] for task in tasks] == [1, 2])
    agent.ok("stop", generation=1, task="worker:0", grace_s=0)
    agent.until(lambda tasks: [task["generation"] for task in tasks] == [2])
    assert agent.start(code, generation=1)["error"]["code"] == "superseded"


def test_a_sweep_leaves_nothing_and_spares_the_newer(connect: Connect) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    stray = "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork():\n        os._exit(0)\n"
    code = agent.push(train=stray + FOREVER)
    for generation in (1, 2):
        agent.start(code, generation=generation)
        agent.until(lambda tasks: tasks and tasks[-1]["phase"] == "ready")
        agent.ok("release", generation=generation, task="worker:0", env={}, seed=None)
        agent.until(lambda tasks: tasks and tasks[-1]["phase"] == "running")
    host_dir = agent.hello["host_dir"]
    swept = agent.ok("sweep", generation_max=1)
    assert (swept["left"], swept["ports_busy"]) == ([], [])
    assert process.marked(RUN, {1}, host_dir=host_dir) == []
    assert process.marked(RUN, {2}, host_dir=host_dir) != []
    agent.ok("sweep", generation_max=2)
    assert process.marked(RUN, {2}, host_dir=host_dir) == []
    ended = agent.until(lambda tasks: tasks and tasks[-1]["phase"] == "exited" and tasks)[-1]["exit"]
    assert (ended["signal"], ended["ordered"]) == (9, True), "what orch kills, nobody else has killed"


@pytest.mark.fault(7)
def test_a_sweep_waits_for_the_port_of_a_shim_that_it_has_just_ended(connect: Connect) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    shim = agent.start(agent.push(train=FOREVER), ports=[0])["ok"]["pid"]
    agent.until_phase("ready")
    os.kill(shim, signal.SIGSTOP)  # a slow host: it reads its order to stop only later
    slow = threading.Timer(0.3, os.kill, (shim, signal.SIGCONT))
    slow.start()
    swept = agent.ok("sweep", generation_max=1)
    slow.join()
    assert (swept["left"], swept["ports_busy"]) == ([], [])


@pytest.mark.fault(7)
def test_a_sweep_names_a_port_on_which_another_program_listens(connect: Connect) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    agent.start(agent.push(train=FOREVER), ports=[0])
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    port = agent.until_phase("running")["port"]
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()
        swept = agent.ok("sweep", generation_max=1)
    assert (swept["left"], swept["ports_busy"]) == ([], [port])


def test_a_seed_fills_the_scratch_before_the_release(connect: Connect, tmp_path: Path) -> None:
    seed = tmp_path / "gen-000001"
    seed.mkdir()
    (seed / "weights").write_text("w1")
    (seed / ".orch-seed.json").write_text("{}")
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    script = (
        "import os\nwhere = os.environ['ORCH_CHECKPOINT_DIR']\n"
        "print(open(where + '/weights').read(), os.path.isdir(os.environ['ORCH_LOG_DIR']))\n"
        "open(where + '/weights', 'w').write('mine')\n"
    )
    agent.start(agent.push(train=script), scratch=True)
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=str(seed))
    ended = agent.until_phase("exited")["exit"]
    assert ended["last_lines"] == ["w1 True"]
    assert (seed / "weights").read_text() == "w1"


def test_a_task_that_cannot_have_the_seed_of_its_chief_is_not_released(
    connect: Connect, tmp_path: Path
) -> None:
    seed = tmp_path / "gen-000001"
    seed.mkdir()
    (seed / ".orch-seed.json").write_text('{"global_step": 5}')
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    agent.start(agent.push(train="print('begun')"), scratch=True)
    agent.until_phase("ready")
    to: dict[str, Any] = {"generation": 1, "task": "worker:0", "env": {}}
    gone = str(tmp_path / "gen-000009")
    assert agent.error("release", seed=gone, **to) != "internal", "it cannot be copied"
    assert agent.error("release", seed=str(seed), seed_step=7, **to) == "seed-differs"
    other = {"dir": str(tmp_path), "token": "of another directory"}
    assert agent.error("release", seed=str(seed), share=other, **to) == "share-missing"
    assert agent.until(bool)[0]["phase"] == "ready"
    agent.ok("release", seed=str(seed), **to)
    assert agent.until_phase("exited")["exit"]["last_lines"] == ["begun"]


# ---------------------------------------------------------------- fences


@pytest.mark.fault(40)
def test_an_older_coordinator_is_refused_by_every_verb_that_changes_something(connect: Connect) -> None:
    agent = connect()
    agent.ok("code", files=[], epoch=5)
    fenced = [row.name for row in TABLE if row.fence is not Fence.ANYBODY]
    assert len(fenced) > 20
    for verb in fenced:
        assert agent.error(verb, epoch=4) == "superseded"
    old = connect()
    assert old.error("stop", epoch=4) == "superseded"
    assert old.error("stop", epoch=5, generation=1, task="worker:0", grace_s=0) == "no-task"


@pytest.mark.parametrize(
    ("verb", "fields", "code"),
    [
        ("dance", {}, "unknown-order"),
        ("start", {}, "bad-order"),
        ("code", {"files": [["../x", "0" * 64, 420, 0]]}, "bad-path"),
        ("code", {"files": 7}, "bad-order"),
        ("watch", {"run": "../other", "heartbeat_s": 1}, "bad-order"),
        ("log", {"generation": 1, "task": "../x:0", "offset": 0, "bytes_max": 1}, "bad-order"),
        ("stacks", {"generation": 1, "task": "worker:0"}, "no-task"),
        ("release", {"generation": 1, "task": "worker:0", "env": {}, "seed": None}, "no-task"),
        ("blob", {"sha256": "../../x", "offset": 0, "last": True}, "bad-order"),
        ("highest", {"dir": "/proc/self/mem/x"}, "os"),
        ("_handle", {}, "unknown-order"),
    ],
)
def test_an_order_that_cannot_be_is_answered(
    connect: Connect, verb: str, fields: dict[str, Any], code: str
) -> None:
    agent = connect()
    assert agent.error(verb, **fields) == code
    assert agent.ok("highest", dir="/nowhere") == {"generation": 0}


# ---------------------------------------------------------------- the host


@pytest.mark.fault(65)
def test_what_no_kill_has_ended_is_in_every_report_and_in_the_probe_until_it_is_gone(
    connect: Connect,
) -> None:
    left = subprocess.Popen(["sleep", "600"])
    try:
        who = process.identity(left.pid)
        assert who is not None
        agent = connect()
        unkillable.remember(agent.hello["host_dir"], "old-20260101-1", [who])
        probe: dict[str, Any] = {"python": sys.executable, "checkpoint_dir": None}
        (told,) = agent.ok("probe", **probe)["unkillable"]
        assert (told["run"], told["pid"], told["command"]) == ("old-20260101-1", left.pid, "sleep")
        again = connect()
        while not again.reports:
            assert again.hear()
        assert again.reports[0]["host"]["unkillable"] == [told], "an agent that knows nothing of that run"
    finally:
        left.kill()
        left.wait()
    while again.reports[-1]["host"]["unkillable"]:
        assert again.hear()
    assert agent.ok("probe", **probe)["unkillable"] == []


def test_the_first_heartbeat_follows_the_hello(connect: Connect) -> None:
    agent = connect()
    while not agent.reports:
        assert agent.hear()
    assert agent.reports[0]["runs"] == {}
    assert agent.reports[0]["host"]["disk_free_bytes"] > 0
    while (
        agent.reports[-1]["host"]["psutil"] != "bundle"
    ):  # pushed after the hello, loaded after the heartbeat
        assert agent.hear()
    assert 0 < agent.reports[-1]["host"]["memory_percent"] < 100
    assert agent.hello["psutil"] == "none"
    again = connect()
    assert again.hello["psutil"] == "bundle"


def test_the_agent_is_small_until_it_has_psutil(connect: Connect) -> None:
    agent = connect()
    status = Path(f"/proc/{agent.pid}/status").read_text()
    (resident,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
    assert "psutil" not in Path(f"/proc/{agent.pid}/maps").read_text()
    assert resident < 18 << 10, "17.2 to 17.6 MB: how much of Python's own file is mapped varies"


def test_a_probe_tells_what_the_runs_python_has(connect: Connect, tmp_path: Path) -> None:
    agent = connect()
    packages = ["tensorflow", "keras", "tf_keras", "numpy"]
    facts = agent.ok("probe", python=sys.executable, checkpoint_dir=str(tmp_path / "c"), packages=packages)
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert list(facts["versions"]) == packages
    assert facts["checkpoint_writable"] is True
    assert os.listdir(tmp_path / "c") == [".orch"]
    facts = agent.ok("probe", python=sys.executable, checkpoint_dir="/proc/x", packages=["pytest"])
    assert facts["checkpoint_writable"] is False
    assert facts["versions"] == {"pytest": pytest.__version__}, (
        "what the strategy's row asks for, and no more"
    )


def test_a_host_says_what_it_has(connect: Connect) -> None:
    found = connect().ok("machine")
    assert found["cpus"] == os.cpu_count()
    assert 0 < found["memory_free_bytes"] < found["memory_total_bytes"]
    assert 0 < found["disk_free_bytes"] <= found["disk_total_bytes"]
    assert found["gpus_why"] is None or (found["gpus_why"] and not found["gpus"])


@pytest.mark.parametrize("python", ["/nowhere/python3", "/etc/passwd", "/bin/false"])
def test_a_python_that_is_none_is_said_to_be_none(connect: Connect, python: str) -> None:
    if not shutil.which(python) and python == "/bin/false":
        pytest.skip("no /bin/false here")
    reply = connect().order("probe", python=python, checkpoint_dir=None)
    assert python in reply["error"]["message"]
    assert reply["error"]["code"] == "no-python"


def test_a_checkpoint_directory_is_seeded_and_verified_by_the_runs_python(
    connect: Connect, tmp_path: Path
) -> None:
    agent = connect()
    ask: dict[str, Any] = {"dir": str(tmp_path / "c"), "python": sys.executable}
    seeded = agent.ok("seed", generation=3, from_scratch=False, keep=3, **ask)
    assert (seeded["global_step"], seeded["source"]) == (None, None)
    assert os.path.basename(seeded["path"]) == "gen-000003"
    assert agent.ok("highest", dir=ask["dir"]) == {"generation": 3}
    assert agent.ok("verify", generation=3, **ask) == {"checkpoint": None, "rejected": []}
    (tmp_path / "file").write_text("")
    assert agent.error(
        "seed", generation=1, from_scratch=False, keep=3, **{**ask, "dir": str(tmp_path / "file")}
    )


@pytest.mark.fault(44)
def test_a_job_that_hangs_stops_no_heartbeat(connect: Connect, tmp_path: Path) -> None:
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 30\n")
    hanging.chmod(0o755)
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    number = agent.send("probe", python=str(hanging), checkpoint_dir=None)
    heard = len(agent.reports)
    began_at = time.monotonic()
    while len(agent.reports) < heard + 3:
        assert agent.hear()
    assert time.monotonic() - began_at < patient(10)
    assert number not in agent.replies
    agent.close()  # and the job ends with the agent
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _comes_from(pid, str(hanging))]


def test_the_agent_ends_with_its_channel(connect: Connect) -> None:
    agent = connect()
    agent.channel.close()
    assert agent.channel._child.wait(10) == 0


def test_garbage_on_the_channel_ends_the_agent(connect: Connect) -> None:
    agent = connect()
    agent.channel.write(b"\xff" * 64)
    while agent.hear():
        pass
    assert agent.channel.exit_status() == 0
    assert "frame" in agent.channel.stderr_tail()


def test_only_what_is_missing_is_asked_for(connect: Connect) -> None:
    agent = connect()
    agent.push(train="a = 1\n")
    one, two = (hashlib.sha256(text).hexdigest() for text in (b"a = 1\n", b"b = 2\n"))
    files = [["train.py", one, 420, 6], ["lib.py", two, 420, 6]]
    assert agent.ok("code", files=files)["missing"] == [two]
    assert agent.ok("blob", b"other.", sha256=two, offset=0, last=True) == {"damaged": True}
    assert agent.ok("code", files=files)["missing"] == [two]
    agent.ok("blob", b"b = 2\n", sha256=two, offset=0, last=True)
    assert agent.ok("code", files=files)["missing"] == []


@pytest.mark.fault(49)
def test_secrets_are_on_no_disk_and_in_no_argv(connect: Connect, host_dir: Path) -> None:
    agent = connect()
    agent.ok("watch", heartbeat_s=0.1)
    agent.start(agent.push(train=FOREVER), secrets={"TOKEN": "hush-hush-hush"})
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    agent.until_phase("running")
    for file in host_dir.rglob("*"):
        if file.is_file():
            assert b"hush-hush-hush" not in file.read_bytes(), file
    for who in process.marked(RUN, {1}, host_dir=str(host_dir)):
        assert b"hush-hush-hush" not in Path(f"/proc/{who.pid}/cmdline").read_bytes()
    assert "hush-hush-hush" not in json.dumps(agent.reports)


def _comes_from(pid: str, program: str) -> bool:
    try:
        return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# ---------------------------------------------------------------- two heads

CLAIM = {"id": "1" * 32, "head": "head-1", "user": "ml", "run": RUN, "name": "t", "checkpoint_dir": None}


def driven(agent: Client) -> tuple[str | None, bool, bool]:
    """Return the head of the run, whether an agent watches it, and whether somebody drives it."""
    (told,) = agent.ok("runs", records=False, brief=True)["runs"]
    return told["claim"] and told["claim"]["head"], told["watched"], told["driven"]


@pytest.mark.fault(62)
def test_row_62_one_heads_agent_tells_what_the_other_head_drives(connect: Connect, host_dir: Path) -> None:
    first, second = connect(), connect()
    (host_dir / "runs" / RUN).mkdir(parents=True)
    assert driven(second) == (None, False, False)
    first.ok("watch", heartbeat_s=0.1, claim=CLAIM)
    assert driven(second) == ("head-1", True, True)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert driven(second) == ("head-1", True, True), "a frozen agent may thaw"
    finally:
        os.kill(first.pid, signal.SIGCONT)
    os.kill(first.pid, signal.SIGKILL)
    while driven(second)[1]:
        time.sleep(0.05)
    assert driven(second) == ("head-1", False, True), "its coordinator comes back"
    assert first.pid != second.pid
    again = connect()
    again.ok("watch", heartbeat_s=0.1, claim=CLAIM)
    again.ok("sweep", generation_max=1)
    assert driven(second) == ("head-1", True, True), "another generation follows"
    again.ok("sweep", generation_max=1, ends=True)
    assert driven(second) == ("head-1", False, False), "its end is proven: nobody drives it any more"
    heard = again.channel._child.stdout
    assert heard is not None
    heard.close()  # sshd may end this first, and the agent's next word fails
    again.send("watch", heartbeat_s=0.1, claim=CLAIM)
    time.sleep(0.5)
    again.send("unwatch")
    while driven(second)[1]:
        time.sleep(0.05)
    assert driven(second) == ("head-1", False, False), "what a head says last is heard"


@pytest.mark.fault(62)
def test_row_62_whose_a_checkpoint_directory_is_until_the_proof_of_its_run(
    connect: Connect, tmp_path: Path, host_dir: Path
) -> None:
    root = str(tmp_path / "ckpt")
    agent, other = connect(), connect()
    seed: dict[str, Any] = {"dir": root, "python": sys.executable, "from_scratch": False, "keep": 3}
    seed["by"] = {"run": RUN, "host": "here", "task": "worker:0"}
    agent.ok("seed", generation=1, claim=CLAIM, **seed)
    stamp = other.ok("runs", records=False, brief=True, dir=root)["checkpoint"]
    assert (stamp["claim"]["run"], stamp["driven"]) == (RUN, True)
    theirs = {**CLAIM, "id": "2" * 32, "run": "t-2"}
    assert other.error("seed", run="t-2", generation=2, claim=theirs, **seed) == "driven"
    agent.ok("sweep", generation_max=1, release=root)
    assert other.ok("runs", records=False, brief=True, dir=root)["checkpoint"] is None
    other.ok("seed", run="t-2", generation=2, claim=theirs, **seed)


# ---------------------------------------------------------------- what lives is known


def trains(agent: Client, host_dir: Path) -> int:
    """Start a task that runs for ever, and return its pid once its script is read, which may be removed then."""
    agent.start(agent.push(train=FOREVER))
    agent.until_phase("ready")
    agent.ok("release", generation=1, task="worker:0", env={}, seed=None)
    pid = int(agent.until_phase("running")["pid"])
    comes(
        lambda: any(b"begun" in log.read_bytes() for log in host_dir.glob("runs/*/tasks/*/*/log")),
        patient(20.0),
    )
    return pid


@pytest.mark.fault(109)
@pytest.mark.parametrize("how", ["removed", "renamed before"])
def test_a_task_of_which_no_record_is_here_is_told_and_ended_by_its_mark(
    connect: Connect, host_dir: Path, how: str
) -> None:
    first = connect()
    first.ok("watch", heartbeat_s=0.1)
    pid = trains(first, host_dir)
    first.close()
    if how == "removed":
        shutil.rmtree(host_dir)
    else:  # the version before gave a host that was renamed a directory beside the one that it had
        (host_dir / "machine.1").unlink()
        (host_dir / "host").write_text("another-name 0123")
    second = connect()
    assert (second.hello["host_dir"] == str(host_dir)) is (how == "removed")
    second.ok("watch", heartbeat_s=0.1)
    assert second.until_phase("unknown") == {"task": "worker:0", "generation": 1, "phase": "unknown"}
    known = {run["run"]: run for run in second.ok("runs", records=False)["runs"]}
    assert (known[RUN]["alive"], known[RUN]["processes"]) == (True, [pid])
    assert second.ok("stop", generation=1, task="worker:0", grace_s=0) == {}
    second.until(lambda tasks: tasks == [])
    assert process.identity(pid) is None
    assert second.error("stop", generation=1, task="worker:0", grace_s=0) == "no-task"


@pytest.mark.fault(109)
def test_a_sweep_ends_what_no_record_is_here_of(connect: Connect, host_dir: Path) -> None:
    first = connect()
    first.ok("watch", heartbeat_s=0.1)
    pid = trains(first, host_dir)
    first.close()
    (host_dir / "machine.1").unlink()
    (host_dir / "host").write_text("another-name 0123")
    second = connect()
    assert second.ok("sweep", generation_max=1)["left"] == []
    assert process.identity(pid) is None


# ---------------------------------------------------------------- GPUs by UUID


@pytest.mark.fault(99)
@pytest.mark.parametrize("named", [{"gpus": [0]}, {"gpu_uuids": ["GPU-aaaa"]}])
def test_row_99_a_start_that_is_repeated_with_its_watch_waits_for_the_lease(
    connect: Connect, host_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: dict[str, Any]
) -> None:
    """A new agent gets both at once, and nvidia-smi, which knows the number of a UUID, takes its time."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nsleep 1\necho 'GPU 0: NVIDIA A100 (UUID: GPU-aaaa)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    agent = connect()
    code = agent.push(train=FOREVER)
    agent.ok("watch", heartbeat_s=0.1, **named)
    agent.start(code)
    (start,) = host_dir.glob("runs/*/tasks/*/*/start.json")
    assert json.loads(start.read_text())["lease"], "the shim holds it, and another run is told"

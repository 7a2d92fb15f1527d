"""A real shim with real processes: what it promises to the agent, and to whoever pays for the GPUs."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import process
from orchestrator.host.shim import main, record
from orchestrator.host.shim.loop import SAMPLE_S
from orchestrator.host.system import cgroup
from orchestrator.host.system.oom import OomKills
from tests.contract.shim_harness import (
    PACKAGE_PARENT,
    SHIM,
    Host,
    as_the_head_takes_it,
    gone,
    read_pid,
    until,
)
from tests.contract.small_disk import mounted
from tests.patience import comes, patient
from tests.pythons import python as python_of

FOREVER = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(1)\n"
UNDER_RUNTIME = "say(ready={'versions': {}})\ngo = hear()\n"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "host")
    yield made
    made.clean()


def recovered(host: Host) -> dict[str, Any]:
    """Return what an agent finds of a task whose shim is gone."""
    task = main.recover(str(host.generation_dir))
    assert task is not None
    return as_the_head_takes_it(task)


def test_a_plain_script_runs_to_its_end_and_its_record_says_all(host: Host) -> None:
    agent = host.run(
        "import os, sys\nprint(sys.argv[1:], os.getcwd())\nprint('why', file=sys.stderr)\nsys.exit(3)\n"
    )
    last = agent.until_closed()
    assert (last["phase"], last["task"], last["generation"]) == ("exited", "worker:0", 2)
    ended = last["exit"]
    assert (ended["code"], ended["signal"], ended["cause"], ended["ordered"]) == (3, None, "script", False)
    assert ended["left"] == []
    assert abs(ended["ended_at"] - time.time()) < 60
    assert ended["peak_rss_bytes"] > 1 << 20
    work = host.generation_dir.parent / "work"
    assert sorted(host.log()) == sorted([f"o ['--epochs', '3'] {work}", "e why"])
    assert sorted(ended["last_lines"]) == sorted([f"['--epochs', '3'] {work}", "why"])
    found = recovered(host)
    assert found["exit"].pop("ago_s") >= ended.pop("ago_s")
    assert found == last
    assert not (host.generation_dir / "sock").exists()


def test_the_environment_is_the_login_the_orders_and_the_marker(host: Host) -> None:
    script = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
    answer = host.start(
        script, secrets={"TOKEN": "s3cret-value"}, env={"A": "1", "ORCH_RUN": "no"}, scratch=True
    )
    assert "pid" in answer
    agent = host.agent()
    agent.until_phase("ready")
    agent.order("release", env={"TF_CONFIG": "{}"})
    agent.until_closed()
    env = json.loads(host.log()[0][2:])
    assert env["TOKEN"] == "***"
    assert (env["A"], env["TF_CONFIG"], env["PYTHONUNBUFFERED"]) == ("1", "{}", "1")
    assert (env["ORCH_RUN"], env["ORCH_TASK"], env["ORCH_GENERATION"]) == ("demo-1", "worker:0", "2")
    assert env["PYTHONPATH"].split(os.pathsep)[0] == str(host.bundle)
    assert env["ORCH_CHECKPOINT_DIR"] == str(host.generation_dir / "scratch")
    assert (host.generation_dir / "scratch").is_dir()


@pytest.mark.fault(49)
def test_secrets_are_nowhere_but_in_the_process(host: Host) -> None:
    secret = "hunter2-hunter2"
    script = (
        "import os, sys\nprint('a', os.environ['TOKEN'], 'b')\nprint(os.environ['TOKEN'], file=sys.stderr)\n"
        "say(error={'kind': 'exception', 'message': 'no ' + os.environ['TOKEN']})\n"
    )
    host.start(UNDER_RUNTIME + script, secrets={"TOKEN": secret}, hold=True)
    shim_pid = host.identities[0].pid
    assert secret.encode() not in Path(f"/proc/{shim_pid}/cmdline").read_bytes()
    assert secret.encode() not in Path(f"/proc/{shim_pid}/environ").read_bytes()
    agent = host.agent()
    agent.until_phase("ready")
    agent.order("release", env={})
    last = agent.until_closed()
    assert last["error"] == {"kind": "exception", "message": "no ***"}
    assert sorted(host.log()) == ["e ***", "o a *** b"]
    for path in host.generation_dir.rglob("*"):
        if path.is_file():
            assert secret not in path.read_text(), path


def test_a_task_that_is_asked_says_what_it_holds_before_it_is_chosen_and_no_secret_of_it_is_told(
    host: Host,
) -> None:
    script = UNDER_RUNTIME + (
        "import os\nsay(step=7)\nasked = hear()['stop']\nsay(holds={'step': 7, 'checksum': 9})\n"
        "chosen = hear()['stop']\nprint(asked['compare'], chosen['compare'])\n"
        "say(rescued={'why': 'no ' + os.environ['TOKEN']})\nraise SystemExit(143)\n"
    )
    agent = host.run(script, hold=True, secrets={"TOKEN": "hunter2-hunter2"})
    agent.until(lambda report: report.get("global_step") == 7)
    agent.order("stop", grace_s=60.0, rescue=True, compare=True)
    agent.until(lambda report: report.get("holds") == {"step": 7, "checksum": 9})
    agent.order("stop", grace_s=60.0, rescue=True)
    assert agent.until_closed()["rescued"] == {"step": None, "took_s": 0.0, "why": "no ***"}
    assert host.log() == ["o True False"]


def test_the_runtime_says_ready_hears_go_and_its_steps_are_reported(host: Host) -> None:
    script = UNDER_RUNTIME + (
        "print(sorted(go['go']['env'].items()), flush=True)\n"
        "say(step=10, epoch=0, metrics={'loss': 0.5})\nsay(say={'kind': 'keras', 'message': 'patched'})\n"
        "say(step=20, epoch=1, metrics={'loss': 0.25})\nhear()\n"
    )
    host.start(script, hold=True)
    agent = host.agent()
    ready = agent.until_phase("ready")
    assert ready["pid"] != host.identities[0].pid
    assert agent.order("release", env={"TF_CONFIG": "x"})["ok"] == {}
    report = agent.until(lambda report: report.get("global_step") == 20 and report["said"])
    assert (report["phase"], report["epoch"], report["metrics"]) == ("running", 1, {"loss": 0.25})
    assert report["said"] == [{"kind": "keras", "message": "patched"}]
    assert agent.order("release", env={})["ok"] == {}, "asked twice, done once"
    assert agent.order("stop", grace_s=0)["ok"] == {}
    last = agent.until_closed()
    assert (last["exit"]["signal"], last["exit"]["ordered"], last["global_step"]) == (9, True, 20)
    assert last["exit"]["released"]
    assert "('TF_CONFIG', 'x')" in host.log()[0]


@pytest.mark.fault(40)
def test_an_order_of_an_older_epoch_or_another_generation_is_refused(host: Host) -> None:
    host.start(FOREVER, epoch=5)
    agent = host.agent()
    agent.until_phase("ready")
    assert agent.order("release", epoch=4)["error"]["code"] == "superseded"
    assert agent.order("stop", epoch=5, generation=1, grace_s=0)["error"]["code"] == "superseded"
    assert agent.order("stop", epoch=5, generation=3, grace_s=0)["error"]["code"] == "superseded"
    assert agent.order("release", epoch=7)["ok"] == {}
    assert agent.order("stop", epoch=6, grace_s=0)["error"]["code"] == "superseded"
    assert agent.order("stacks", epoch=6)["error"]["code"] == "superseded"
    assert agent.order("dance", epoch=7)["error"]["code"] == "unknown-order"
    assert agent.order("stop", epoch=7, grace_s="soon")["error"]["code"] == "bad-order"
    assert agent.order("watch", heartbeat_s=None)["error"]["code"] == "bad-order"
    assert agent.order("stop", epoch=7, grace_s=0)["ok"] == {}
    assert agent.until_closed()["exit"]["ordered"]


@pytest.mark.fault(8)
def test_a_task_that_ignores_sigterm_dies_at_the_end_of_its_grace(host: Host) -> None:
    agent = host.run("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER)
    until(lambda: host.log() == ["o begun"], "the script begins")
    asked_at = time.monotonic()
    assert agent.order("stop", grace_s=0.5)["ok"] == {}
    last = agent.until_closed()
    assert time.monotonic() - asked_at >= 0.5
    assert (last["exit"]["signal"], last["exit"]["cause"], last["exit"]["ordered"]) == (9, "signal", True)


@pytest.mark.parametrize("hold", [False, True])
def test_a_shim_that_began_while_its_run_was_swept_leaves_no_task(host: Host, *, hold: bool) -> None:
    host.write_start(FOREVER, hold=hold)
    record.mark(str(host.generation_dir), record.SWEPT)
    assert "pid" in host.start_again()
    until(lambda: record.read_exit(str(host.generation_dir)), "it has ended")
    ended = record.read_exit(str(host.generation_dir))
    assert ended is not None
    assert ended["exit"]
    assert ended["exit"]["ordered"]
    assert process.marked("demo-1", range(10), host_dir=str(host.path)) == []


def test_a_task_that_hears_sigterm_ends_by_itself(host: Host) -> None:
    script = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n" + FOREVER
    agent = host.run(script)
    until(lambda: host.log() == ["o begun"], "the script begins")
    agent.order("stop", grace_s=60)
    last = agent.until_closed()
    assert (last["exit"]["code"], last["exit"]["cause"], last["exit"]["ordered"]) == (42, "script", True)


@pytest.mark.fault(8)
def test_a_stop_goes_through_the_runtime_and_no_signal_comes_in_its_way(host: Host) -> None:
    agent = host.run(
        UNDER_RUNTIME
        + "order = hear()\nprint(order['stop'])\nimport time; time.sleep(0.3)\nraise SystemExit(143)\n",
        hold=True,
    )
    agent.order("stop", grace_s=30)
    last = agent.until_closed()
    assert (last["exit"]["code"], last["exit"]["signal"], last["exit"]["ordered"]) == (143, None, True)
    assert host.log() == ["o {'grace_s': 30.0}"]


DAEMONS = """
import os, sys, time
def daemon(name, environ):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code = "import os, sys, time; open(sys.argv[1] + '.new', 'w').write(str(os.getpid()) + chr(10))"
            code += "; os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(600)"
            os.execve(sys.executable, [sys.executable, "-c", code, name], environ)
        os._exit(0)
daemon(sys.argv[1] + "/marked", dict(os.environ))
daemon(sys.argv[1] + "/unmarked", {})
while not (os.path.exists(sys.argv[1] + "/marked") and os.path.exists(sys.argv[1] + "/unmarked")): time.sleep(0.01)
print("begun", flush=True)
"""


@pytest.mark.parametrize("ends", ["by itself", "by order", "with its shim"])
@pytest.mark.parametrize("grouped", [True, False], ids=["cgroup", "no cgroup"])
@pytest.mark.fault(7)
def test_no_grandchild_survives(host: Host, tmp_path: Path, ends: str, grouped: bool) -> None:
    if grouped and not cgroup.usable():
        pytest.skip(
            "THE CONTROL GROUPS OF THIS HOST ARE NOT OURS TO USE: only the sweep without one was tested"
        )
    script = DAEMONS + ("" if ends == "by itself" else "time.sleep(600)\n")
    agent = host.run(script, args=[str(tmp_path)], cgroup=grouped)
    pids = [read_pid(tmp_path / "marked"), read_pid(tmp_path / "unmarked")]
    if ends == "with its shim":
        process.signal(host.identities[0], signal.SIGKILL)
        last = until(lambda: main.recover(str(host.generation_dir)), "the agent finds it dead")
        assert last["exit"]["cause"] == "shim-died"
    else:
        if ends == "by order":
            agent.order("stop", grace_s=0)
        last = agent.until_closed()
        assert last["exit"]["cause"] == ("script" if ends == "by itself" else "signal")
    assert last["exit"]["swept"] == ("cgroup" if grouped else "marker")
    assert last["exit"]["left"] == []
    if ends == "with its shim" and not grouped:
        # The one limit: a grandchild that has thrown its environment away, and no shim to adopt it.
        unmarked = process.identity(pids.pop())
        assert unmarked is not None
        process.signal(unmarked, signal.SIGKILL)
    assert all(map(gone, pids))


@pytest.mark.parametrize("ends", ["by itself", "by order", "with its shim", "before its release"])
@pytest.mark.parametrize("grouped", [True, False], ids=["cgroup", "no cgroup"])
@pytest.mark.fault(83)
def test_the_end_of_a_standby_touches_nothing_of_the_generation_that_trains(
    host: Host, ends: str, grouped: bool
) -> None:
    if grouped and not cgroup.usable():
        pytest.skip("the control groups of this host are not ours to use; the case without them runs")
    marker = {"ORCH_RUN": "demo-1", "ORCH_TASK": "worker:0", "ORCH_HOST_DIR": str(host.path)}
    trains = subprocess.Popen(
        [sys.executable, "-c", FOREVER], env={**marker, "ORCH_GENERATION": "1"}, stdout=subprocess.DEVNULL
    )
    try:
        until(
            lambda: len(process.marked("demo-1", {1}, host_dir=str(host.path))) == 1,
            "generation 1 lives",
        )
        script = "print('begun')\n" if ends == "by itself" else FOREVER
        if ends == "before its release":
            host.start(UNDER_RUNTIME + script, cgroup=grouped, hold=True)
            agent = host.agent()
            agent.until_phase("ready")
        else:
            agent = host.run(script, cgroup=grouped)
        if ends == "with its shim":
            process.signal(host.identities[0], signal.SIGKILL)
            last = until(lambda: main.recover(str(host.generation_dir)), "the agent finds it dead")
        else:
            if ends != "by itself":
                agent.order("stop", grace_s=0)
            last = agent.until_closed()
            assert last["exit"]["swept"] == ("cgroup" if grouped else "marker")
        assert last["exit"]["left"] == []
        assert process.marked("demo-1", {2}, host_dir=str(host.path)) == []
        assert trains.poll() is None, "generation 1 trains on"
    finally:
        trains.kill()
        trains.wait()


@pytest.mark.fault(4)
def test_the_task_dies_with_its_shim_and_the_agent_finds_out(host: Host) -> None:
    agent = host.run(FOREVER, ports=[0])
    task = agent.until_phase("running")
    until(lambda: host.log() == ["o begun"], "the script begins")
    assert main.recover(str(host.generation_dir)) is None, "it lives"
    process.signal(host.identities[0], signal.SIGKILL)
    until(lambda: gone(task["pid"]), "the kernel kills the task with its shim")
    last = until(lambda: main.recover(str(host.generation_dir)), "the agent finds it dead")
    assert (last["phase"], last["exit"]["cause"], last["exit"]["ordered"]) == ("exited", "shim-died", False)
    assert last["exit"]["released"], "it had passed its gate, as its directory tells"
    assert (last["pid"], last["port"]) == (task["pid"], task["port"])
    assert last["exit"]["last_lines"] == ["begun"]
    assert last["log_bytes"] == (host.generation_dir / "log").stat().st_size
    again = recovered(host)
    assert 0 <= again["exit"]["ago_s"] < 600


@pytest.mark.parametrize(
    ("boot_id", "ended_at", "ago_s"),
    [
        (None, 0.0, "as long as this boot"),
        ("another", 0.0, None),  # the clock of another boot says nothing of this one's
        ("another", 1e9, None),
        (None, 1e9, 0.0),  # never in the future
        (None, "long ago", None),
        (None, None, None),
    ],
)
def test_how_long_ago_an_end_was_is_told_by_the_clock_of_its_own_boot(
    host: Host, boot_id: str | None, ended_at: object, ago_s: object
) -> None:
    exit_record = {
        "boot_id": boot_id or process.boot_id(),
        "ended_monotonic_s": ended_at,
        "task": {"exit": {"cause": "finished", "ago_s": 7.0}},
    }
    (host.generation_dir / "exit.json").write_text(json.dumps(exit_record))
    found = record.read_exit(str(host.generation_dir))
    assert found is not None
    assert found["exit"] is not None
    told = found["exit"]["ago_s"]
    if isinstance(ago_s, str):
        assert told == pytest.approx(time.monotonic(), abs=5)
    else:
        assert told == ago_s


@pytest.mark.fault(6)
def test_after_a_reboot_nobody_is_signalled(host: Host) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        host.write_start(FOREVER)
        who = process.identity(bystander.pid)
        assert who is not None
        old = {**who.to_json(), "boot_id": "another"}
        (host.generation_dir / "shim.json").write_text(json.dumps({"shim": old, "task": old, "port": 7}))
        task = recovered(host)
        assert (task["exit"]["cause"], task["exit"]["ago_s"], task["port"]) == ("rebooted", None, 7)
        assert bystander.poll() is None
        assert process.alive(who)
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.fault(3)
def test_the_shim_outlives_its_starter_and_all_agents(host: Host) -> None:
    host.write_start(FOREVER)
    starter = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SHIM, PACKAGE_PARENT, str(host.generation_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    out, _ = starter.communicate(b"{}\n", timeout=60)  # to its end: nothing of ours is held open
    pid = json.loads(out)["pid"]
    who = process.identity(pid)
    assert who is not None
    host.identities.append(who)
    with pytest.raises(ProcessLookupError):
        os.killpg(starter.pid, signal.SIGHUP)  # it has left the session and the group
    first = host.agent()
    first.until_phase("ready")
    first.order("release", env={})
    first.sock.close()
    for number in (signal.SIGHUP, signal.SIGINT):  # by somebody who ends what they take for their own
        os.kill(pid, number)
    assert not comes(lambda: not process.alive(who), 0.5)
    second = host.agent()
    assert second.until_phase("running")["pid"]
    assert os.getsid(pid) != os.getsid(0)
    second.order("stop", grace_s=0)
    second.until_closed()


def test_a_python_that_is_not_there_is_said_in_a_sentence(host: Host) -> None:
    agent = host.run(FOREVER, python="/opt/no/such/python")
    last = agent.until_closed()
    assert last["exit"]["cause"] == "start-failed"
    assert (last["exit"]["code"], last["exit"]["signal"]) == (None, None)
    assert "'/opt/no/such/python'" in last["error"]["message"]
    assert last["exit"]["last_lines"][-1].startswith("[orch: Python was not found")


def test_a_python_that_cannot_be_executed_or_code_that_is_not_there(host: Host, tmp_path: Path) -> None:
    noexec = tmp_path / "python"
    noexec.write_text("not a program")
    assert "could not be executed" in host.run(FOREVER, python=str(noexec)).until_closed()["error"]["message"]
    other = Host(tmp_path / "other")
    refused = other.start(FOREVER, code="missing")["error"]
    assert (refused["code"], "`orch up` again" in refused["hint"]) == ("no-code", True)


@pytest.mark.fault(20)
def test_a_taken_port_gives_way_to_the_next(host: Host) -> None:
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        free.bind(("0.0.0.0", 0))
        first, second = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        script = f"import socket\nwith socket.socket() as s:\n    s.bind(('0.0.0.0', {second}))\n    print('mine')\n"
        host.start(script, ports=[first, second])
        agent = host.agent()
        assert agent.until_phase("ready")["port"] == second
        with socket.socket() as thief, pytest.raises(OSError):
            thief.bind(("0.0.0.0", second))
        agent.order("release", env={})
        assert agent.until_closed()["exit"]["code"] == 0
        assert host.log() == ["o mine"]


def test_no_port_at_all_is_an_answer_and_a_record(host: Host) -> None:
    with socket.socket() as taken, socket.socket() as other:
        for each in (taken, other):
            each.bind(("0.0.0.0", 0))
            each.listen()
        answer = host.start(FOREVER, ports=[taken.getsockname()[1], other.getsockname()[1]])
    assert answer["error"]["code"] == "no-port"
    task = recovered(host)
    assert (task["exit"]["cause"], task["error"]["message"]) == ("start-failed", answer["error"]["message"])


def test_a_task_that_needs_its_old_port_waits_for_what_still_holds_it(host: Host) -> None:
    with socket.socket() as old_self:
        old_self.bind(("0.0.0.0", 0))
        old_self.listen()
        port = old_self.getsockname()[1]
        end = threading.Timer(0.5, old_self.close)  # while the shim tries
        end.start()
        host.start(FOREVER, ports=[port])
        end.join()
    assert host.agent().until_phase("ready")["port"] == port


@pytest.mark.fault(7)
@pytest.mark.parametrize("hold", [False, True])
def test_the_port_of_a_task_that_was_never_released_is_free_once_its_end_is_told(
    host: Host, hold: bool
) -> None:
    host.start(UNDER_RUNTIME + "hear()\n", hold=hold, ports=[0])
    agent = host.agent()
    port = agent.until_phase("ready")["port"]
    agent.order("stop", grace_s=0)
    agent.until_phase("exited")
    with socket.socket() as sweep:
        refused = None
        try:
            sweep.bind(("0.0.0.0", port))  # a sweep looks at once, and the shim may live for a moment yet
        except OSError as e:
            refused = e
        assert refused is None


@pytest.mark.fault(33)
def test_a_start_that_is_asked_twice_is_done_once(host: Host) -> None:
    first = host.start(FOREVER)
    assert host.start_again() == first
    agent = host.agent()
    agent.until_phase("ready")
    agent.order("stop", grace_s=5)
    last = agent.until_closed()
    assert (last["exit"]["code"], last["exit"]["ordered"], last["pid"]) == (None, True, None)
    assert host.start_again() == first, "it has been, and it has ended: the report tells the rest"


@pytest.mark.fault(11)
def test_a_generation_that_was_given_up_is_never_begun(host: Host) -> None:
    host.write_start(FOREVER)
    task = recovered(host)
    assert task["exit"]["cause"] == "shim-died"
    assert host.start_again()["error"]["code"] == "already-ended"


def test_bad_orders_are_answers(host: Host) -> None:
    host.write_start(FOREVER)
    (host.generation_dir / "start.json").write_text('{"run": "x"}')
    assert "lacks" in host.start_again()["error"]["message"]
    (host.generation_dir / "start.json").write_text("{")
    assert "cannot be read" in host.start_again()["error"]["message"]


def test_a_file_whose_name_cannot_be_encoded_is_an_answer(host: Host) -> None:
    host.write_start(FOREVER)
    manifest = {"files": [["\ud800", "0" * 64, 0o644, 1]]}
    host.code.with_name("abc.json").write_text(json.dumps(manifest))
    assert "surrogates not allowed" in host.start_again()["error"]["message"]
    assert recovered(host)["exit"]["cause"] == "start-failed"


def test_what_a_task_wrote_just_before_its_end_is_read_to_its_last_line(host: Host, tmp_path: Path) -> None:
    """Its pipe holds more than the shim reads at once."""
    script = (
        "import fcntl, os, sys, time\nfcntl.fcntl(1, 1031, 1 << 20)\n"  # F_SETPIPE_SZ
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nos.write(1, b'word\\n' * 20_000)\nos._exit(0)\n"
    )
    agent = host.run(script, args=[str(tmp_path / "go")])
    pid = agent.until_phase("running")["pid"]
    os.kill(host.identities[0].pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    until(lambda: "Z (zombie)" in Path(f"/proc/{pid}/status").read_text(), "it ends")
    os.kill(host.identities[0].pid, signal.SIGCONT)
    agent.until_closed()
    assert host.log() == ["o word"] * 20_000


def test_stacks_come_from_the_runtime_or_from_the_kernel(host: Host) -> None:
    script = (
        UNDER_RUNTIME
        + "assert 'stacks' in hear()\nsay(stacks='Thread 1: hunter2.py:7')\nimport time; time.sleep(600)\n"
    )
    agent = host.run(script, hold=True, secrets={"TOKEN": "hunter2"})
    reply = agent.order("stacks")
    assert reply["ok"] == {"stacks": "Thread 1: ***.py:7", "by": "runtime"}
    task = agent.reports[-1]["pid"]
    os.kill(task, signal.SIGSTOP)
    until(lambda: "stopped" in Path(f"/proc/{task}/status").read_text(), "it stops")
    reply = agent.order("stacks")
    assert reply["ok"]["by"] == "kernel"
    assert "T (stopped)" in reply["ok"]["stacks"]
    agent.order("stop", grace_s=0)
    assert agent.until_closed()["exit"]["signal"] == 9


def test_the_socket_is_private_and_its_path_may_be_long(tmp_path: Path) -> None:
    host = Host(tmp_path / ("deep-" * 30) / "host")
    host.start(FOREVER)
    path = host.generation_dir / "sock"
    assert len(str(path)) > 108
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    agent = host.agent()
    agent.until_phase("ready")
    agent.order("stop", grace_s=0)
    agent.until_closed()
    host.clean()


def test_heartbeats_come_at_the_pace_that_was_asked_for(host: Host) -> None:
    agent = host.run("b = bytearray(50_000_000)\n" + FOREVER)
    assert agent.order("watch", heartbeat_s=0.05)["ok"] == {}
    report = agent.until(lambda report: report.get("cpu_percent") is not None or report.get("rss_bytes"))
    assert report["rss_bytes"] > 40_000_000
    count = len(agent.reports)
    begun_at = time.monotonic()
    while len(agent.reports) < count + 10:
        agent.hear()
    assert time.monotonic() - begun_at < patient(5)
    agent.order("stop", grace_s=0)
    agent.until_closed()


def test_the_shim_is_small_and_starts_fast(host: Host) -> None:
    host.start(FOREVER)
    pid = host.identities[0].pid
    agent = host.agent()
    agent.until_phase("ready")
    status = Path(f"/proc/{pid}/status").read_text()
    rss_kib = int(status.split("VmRSS:")[1].split()[0])
    assert rss_kib <= 16 * 1024
    agent.order("stop", grace_s=0)
    agent.until_closed()


def memory_group(name: str) -> Path | None:
    """Make a control group with a memory limit, in the hierarchy that has the controller; None if impossible."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            group = Path("/sys/fs/cgroup/memory" + path) / name
            limit = "memory.limit_in_bytes"
        elif controllers == "" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            group = Path("/sys/fs/cgroup") / name
            limit = "memory.max"
        else:
            continue
        try:
            group.mkdir()
            (group / limit).write_text(str(100 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        return group
    return None


def removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.fault(12)
def test_the_kernels_oom_killer_is_named(host: Host, tmp_path: Path) -> None:
    group = memory_group(f"orch-test-{os.getpid()}")
    if group is None:
        pytest.skip(
            "NO MEMORY LIMIT CAN BE SET ON THIS MACHINE: that an OOM kill is named was not tested here"
        )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    try:
        # In no group of ours: it joins one with a limit.
        agent = host.run("x = b'x' * (400 << 20)\nprint(len(x))\n", python=str(python), cgroup=False)
        ended = agent.until_closed()["exit"]
    finally:
        until(lambda: removed(group), "nothing is in it any more")
    if ended["code"] == 0:
        pytest.skip(
            "THIS MACHINE DOES NOT ENFORCE MEMORY LIMITS: that an OOM kill is named was not tested here"
        )
    assert (ended["signal"], ended["cause"], ended["ordered"]) == (9, "oom", False)
    assert ended["peak_rss_bytes"] > 50 << 20


@pytest.mark.fault(12)
def test_a_kill_by_hand_is_not_an_oom_kill_though_another_program_of_the_host_had_one(host: Host) -> None:
    group = memory_group(f"orch-other-{os.getpid()}")
    if group is None:
        pytest.skip(
            "NO MEMORY LIMIT CAN BE SET ON THIS MACHINE: that a kill by hand is told from an OOM kill was not tested"
        )
    agent = host.run(FOREVER, cgroup=False)
    pid = agent.until_phase("running")["pid"]
    time.sleep(2 * SAMPLE_S + 1)  # the shim has taken two samples of the task's memory group
    on_host = OomKills()
    try:
        other = subprocess.run(
            [
                "sh",
                "-c",
                f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -c 'len(bytes([1]) * (400 << 20))'",
            ],
            check=False,
        )
    finally:
        until(lambda: removed(group), "nothing is in it any more")
    if other.returncode == 0:
        pytest.skip(
            "THIS MACHINE DOES NOT ENFORCE MEMORY LIMITS: that a kill by hand is told from an OOM kill was not tested"
        )
    assert on_host.recent() > 0, "the whole host's count tells of the other program"
    os.kill(pid, signal.SIGKILL)
    ended = agent.until_closed()["exit"]
    assert (ended["signal"], ended["cause"], ended["ordered"]) == (9, "signal", False)


@pytest.mark.fault(94)
def test_a_kill_by_hand_is_only_perhaps_an_oom_kill_where_its_memory_group_had_one(
    host: Host, tmp_path: Path
) -> None:
    group = memory_group(f"orch-shared-{os.getpid()}")
    if group is None:
        pytest.skip(
            "NO MEMORY LIMIT CAN BE SET ON THIS MACHINE: that a kill by hand is told from an OOM kill was not tested"
        )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    agent = host.run(FOREVER, python=str(python), cgroup=False)
    try:
        pid = agent.until_phase("running")["pid"]
        time.sleep(2 * SAMPLE_S + 1)  # the shim has taken two samples of the task's memory group
        other = subprocess.run([python, "-c", "len(bytes([1]) * (400 << 20))"], check=False)
        os.kill(pid, signal.SIGKILL)
        ended = agent.until_closed()["exit"]
    finally:
        until(lambda: removed(group), "nothing is in it any more")
    if other.returncode == 0:
        pytest.skip(
            "THIS MACHINE DOES NOT ENFORCE MEMORY LIMITS: that a kill by hand is told from an OOM kill was not tested"
        )
    assert (ended["signal"], ended["cause"], ended["ordered"]) == (9, "perhaps-oom", False)
    assert ended["peak_rss_bytes"] < 50 << 20


def test_it_runs_on_python_3_10(host: Host) -> None:
    python = python_of("3.10")
    if python is None:
        pytest.skip(
            "NO PYTHON 3.10 ON THIS MACHINE: that hosts may have it was not tested here, only type-checked"
        )
    host.start(FOREVER, interpreter=python, python=python, ports=[0])
    agent = host.agent()
    agent.until_phase("ready")
    assert agent.order("release", env={})["ok"] == {}
    until(lambda: host.log() == ["o begun"], "the script begins")
    agent.order("stop", grace_s=30)
    last = agent.until_closed()
    assert (last["exit"]["signal"], last["exit"]["ordered"]) == (15, True)


@pytest.mark.fault(35)
@pytest.mark.parametrize("reserved", [True, False], ids=["room is reserved", "older lines make room"])
def test_how_a_task_ended_is_told_and_kept_although_the_disk_is_full(tmp_path: Path, reserved: bool) -> None:
    """The shim's own diagnostic has nowhere to go. On a file system that copies, what was reserved is no room."""
    with mounted(tmp_path / "small", megabytes=2) as disk:
        host = Host(disk.path / "host")
        go = tmp_path / "go"
        script = (
            "import os, time\nsay(ready={})\nhear()\n"
            f"print('z\\n' * {0 if reserved else 20_000}, flush=True)\n"
            f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.02)\n"
            "print('x' * 2000, *('y' * 4000 for _ in range(20)), sep='\\n')\nraise SystemExit(3)\n"
        )
        try:
            agent = host.run(script, hold=True)
            if not reserved:
                until(lambda: (host.generation_dir / "log.1").exists(), "older lines")
                (host.generation_dir / "exit.room").unlink()
            disk.fill()
            go.touch()
            last = agent.until_closed()
            assert (last["phase"], last["exit"]["code"], last["exit"]["cause"]) == ("exited", 3, "script")
            assert last["exit"]["last_lines"][-1] == "y" * 4000
            kept = recovered(host)
            assert (kept["exit"]["code"], kept["exit"]["cause"]) == (3, "script")
            assert kept["log_dropped_bytes"] > 0
        finally:
            host.clean()


def test_a_release_may_name_the_port_that_the_task_before_had(host: Host) -> None:
    host.start(UNDER_RUNTIME + "hear()\n", hold=True, ports=[0])
    agent = host.agent()
    waiting = agent.until_phase("ready")["port"]
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        taken = other.getsockname()[1]
        other.listen(1)
        refused = agent.order("release", env={}, port=taken)["error"]
        assert (refused["code"], str(taken) in refused["message"]) == ("no-port", True)
        assert agent.order("release", env={}, epoch=0, port=taken)["error"]["code"] == "superseded"
    assert agent.order("release", env={}, port=taken)["ok"] == {}
    report = agent.until_phase("running")
    assert (report["port"], waiting != taken) == (taken, True)
    written = json.loads((host.generation_dir / "shim.json").read_text())
    assert written["port"] == taken
    with socket.socket() as task:
        task.bind(("0.0.0.0", taken))  # the shim has let it go
    agent.order("stop", grace_s=0)
    agent.until_closed()

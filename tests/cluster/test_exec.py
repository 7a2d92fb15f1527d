"""`orch exec` and `orch ssh` over real sshds: output, exit codes, a task's environment, and that nothing is left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.lab import Lab
from tests.patience import patient

pytestmark = pytest.mark.lab

SECRET = "s3cret-of-wandb"


@pytest.fixture(scope="module")
def trains(tmp_path_factory: pytest.TempPathFactory, lab3: Lab) -> Iterator[Cluster]:
    """A run with two tasks and a spare, for all tests of this module."""
    made = Cluster(tmp_path_factory.mktemp("exec"), lab3)
    hosts = made.hosts(3)
    hosts[2]["spare"] = True
    made.env["WANDB_API_KEY"] = SECRET
    env = {"COLOUR": "blue", "WANDB_API_KEY": "${WANDB_API_KEY}"}
    made.ok("up", made.spec(tasks=2, hosts=hosts, env=env))
    yield made
    made.close()


def sleeping(mark: str) -> list[int]:
    """Return the processes that have `mark` in their command line, but for our own commands."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if mark in words and "orchestrator.cli.main" not in words and not words[0].endswith("sshd"):
            found.append(process.info["pid"])
    return found


def started(cluster: Cluster, script: str) -> subprocess.Popen[str]:
    """Start `orch exec` of a shell script on all hosts with tasks."""
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "exec", "t", "--shell", "--", script],
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Under a CI that runs in the background SIGINT is ignored, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_each_host_answers_behind_its_name_and_its_code_is_ours(trains: Cluster) -> None:
    said = trains.orch("exec", "t", "--all", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (said.returncode, said.stderr.count("err")) == (3, 3)
    assert sorted(said.stdout.splitlines()) == [f"host-{n} out" for n in range(3)]
    some = trains.orch(
        "exec", "t", "--", "sh", "-c", f"test $ORCH_HOST_DIR = {lab_of(trains).hosts[0].host_dir}"
    )
    assert some.returncode == 4
    assert "error: it failed on 1 of 2 hosts: host-1 (exit code 1)" in some.stderr
    # No shell reads the words, unless it is asked to.
    words = ("printf", "%s.", "a b", "$HOME", "; exit 9")
    assert trains.ok("exec", "t", "--host", "host-2", "--", *words) == "a b.$HOME.; exit 9.\n"
    absent = trains.orch("exec", "t", "--json", "--host", "host-1", "--", "no-such-program")
    assert (absent.returncode, json.loads(absent.stdout)["hosts"][0]["exit_code"]) == (1, None)
    assert absent.stderr == "error: host-1: no-such-program cannot be started: No such file or directory\n"


def test_a_command_of_a_task_has_what_the_task_has_but_for_its_secrets(trains: Cluster) -> None:
    said = json.loads(trains.ok("exec", "t", "--task", "worker:1", "--json", "--", "env"))["hosts"][0][
        "stdout"
    ]
    env = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert (env["ORCH_TASK"], env["COLOUR"], env["ORCH_HOST"]) == ("worker:1", "blue", "host-1")
    told = json.loads(env["TF_CONFIG"])
    shown = {task["task"]: task["address"] for task in trains.run()["tasks"]}
    assert told["cluster"]["worker"] == [shown["worker:0"], shown["worker:1"]]
    assert told["task"] == {"type": "worker", "index": 1}
    assert SECRET not in said
    script = (
        "import os, orchestrator.runtime as r, sys; print(os.path.exists('fake_trainer.py'), sys.executable)"
    )
    seen = trains.ok("exec", "t", "--task", "worker:1", "--", "python", "-c", script).split()
    assert seen[0] == "True"
    assert os.path.samefile(seen[1], sys.executable)


def test_ctrl_c_ends_it_on_every_host_with_all_that_it_started(trains: Cluster) -> None:
    mark = f"7{time.time_ns() % 10**9}"
    stubborn = f"trap '' TERM; sleep {mark} & setsid sleep {mark} & echo ready; wait; sleep {mark}"
    person = started(trains, stubborn)
    assert person.stdout is not None
    assert {person.stdout.readline(), person.stdout.readline()} == {"host-0 ready\n", "host-1 ready\n"}
    wait_until(lambda: len(sleeping(mark)) == 4, "two processes on each host")
    person.send_signal(signal.SIGINT)
    _, said = person.communicate(timeout=patient(15))
    assert (person.returncode, sleeping(mark)) == (130, []), said
    assert "did not confirm" not in said
    # The head dies: the end of the channel ends it too. So does the end of the command, for what it left.
    person = started(trains, stubborn)
    wait_until(lambda: len(sleeping(mark)) == 4, "two processes on each host")
    person.kill()
    person.communicate()
    wait_until(lambda: not sleeping(mark), "the hosts end it by themselves")
    trains.ok("exec", "t", "--shell", "--", f"setsid sleep {mark} & echo started")
    assert sleeping(mark) == []
    assert trains.run()["phase"] == "RUNNING"


def test_some_hosts_are_away(trains: Cluster) -> None:
    away = lab_of(trains).hosts[1]
    away.stop_sshd()
    try:
        done = trains.orch("exec", "t", "--", "echo", "here")
    finally:
        away.start_sshd()
    assert (done.returncode, done.stdout) == (4, "host-0 here\n")
    assert "host-1 (not run)" in done.stderr


def test_ssh_goes_where_orch_goes(trains: Cluster) -> None:
    host = lab_of(trains).hosts[1]
    line = shlex.split(trains.ok("ssh", "t", "worker:1", "--print"))
    done = subprocess.run(
        [*line, "echo $ORCH_HOST_DIR"], capture_output=True, text=True, timeout=patient(20), check=False
    )
    assert done.stdout.strip() == str(host.host_dir), done.stderr
    # Over a bastion, with keys and known_hosts of the spec for both hops.
    hosts = [{**trains.hosts(2)[1], "proxy_jump": f"root@{lab_of(trains).hosts[0].address}"}]
    trains.ok("up", trains.spec(tasks=1, hosts=hosts, name="b", checkpoint=False), "--detach")
    line = shlex.split(trains.ok("ssh", "b", "--print"))
    asked = "echo $ORCH_HOST_DIR; echo $SSH_CONNECTION"
    done = subprocess.run([*line, asked], capture_output=True, text=True, timeout=patient(20), check=False)
    directory, connection = done.stdout.splitlines()
    assert directory == str(host.host_dir), done.stderr
    if host.namespace is not None:
        assert connection.split()[0] == lab_of(trains).hosts[0].address
    opened = trains.orch(
        "ssh", "t"
    )  # the chief's host; with no terminal and no stdin the login shell ends at once
    assert "Opening a terminal on host-0, which has worker:0" in opened.stderr
    assert "its hosts: host-0, host-1, host-2" in trains.orch("ssh", "t", "nowhere").stderr

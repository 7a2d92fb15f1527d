"""Secrets, open ports, and text that looks like shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, lab_of
from tests.cluster.processes import agents, listens_at, parent

pytestmark = pytest.mark.lab


@pytest.mark.fault(49)
def test_row_49_secrets_are_nowhere(cluster: Cluster) -> None:
    secret = "hunter2-correct-horse"
    spec = cluster.spec(script="show_secret.py", env={"WANDB_API_KEY": secret}, checkpoint=False)
    assert secret not in cluster.ok("plan", spec, "--json")
    done = cluster.orch("up", spec, "--wait", "--json", timeout=60)
    assert done.returncode == 0, cluster.ok("logs", "t")
    said = cluster.ok("logs", "t") + cluster.ok("events", "t", "--json") + cluster.ok("status", "--json")
    assert "the key has 21 characters" in said
    assert secret not in said + done.stdout + done.stderr
    hosts = [Path(host.host_dir) for host in lab_of(cluster).hosts]
    for place in (cluster.directory / "state", *hosts):
        for path in place.rglob("*"):
            if path.is_file() and not path.is_socket() and "code" not in path.parts:
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.fault(52)
def test_row_52_nothing_of_ours_listens_on_tcp(cluster: Cluster) -> None:
    cluster.ok("up", cluster.spec())
    tasks = cluster.wait_step(5)["tasks"]
    carriers = [pid for host in lab_of(cluster).hosts[:2] for pid in agents(host.host_dir)]
    shims = [parent(task["pid"]) for task in tasks]
    assert len(carriers) >= 2
    for pid in (cluster.coordinator_pid, *carriers, *shims):
        assert listens_at(pid) == [], Path(f"/proc/{pid}/cmdline").read_bytes()
    for task in tasks:  # and this does find who listens: the script does
        assert listens_at(task["pid"]) == [int(task["address"].rpartition(":")[2])]


NASTY = ("; touch x", "$(touch x)", "`touch x`", "a'b\"c", "two\nlines", "-oProxyCommand=touch x", "", "é")


@pytest.mark.fault(48)
def test_row_48_what_looks_like_shell_arrives_as_it_was_written(cluster: Cluster, tmp_path: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    (workdir / "say; touch x.py").write_text(
        "import json, os, sys\n"
        "print('SAID', json.dumps([sys.argv[1:], os.environ['ODD'], sorted(os.listdir('.'))]))\n"
    )
    spec = cluster.spec(
        *NASTY,
        tasks=1,
        script="say; touch x.py",
        workdir=str(workdir),
        checkpoint=False,
        env={"ODD": "$(touch x); \"'"},
    )
    done = cluster.orch("up", spec, "--wait")
    assert done.returncode == 0, done.stderr
    line = next(line for line in cluster.ok("logs", "t").splitlines() if "SAID " in line)
    argv, odd, files = json.loads(line.partition("SAID ")[2])
    assert tuple(argv) == NASTY
    assert odd == "$(touch x); \"'"
    assert files == ["say; touch x.py"]


@pytest.mark.fault(60)
def test_row_60_what_a_script_says_acts_on_no_terminal(local_cluster: Cluster) -> None:
    cluster = local_cluster
    restart = {"backoff": "0.1s", "without_progress_max": 1}
    spec = cluster.spec(
        "\x1b[2Jargument", tasks=1, script="says_escapes.py", checkpoint=False, restart=restart
    )
    done = cluster.orch("up", spec, "--follow")
    assert done.returncode == 1
    shown = done.stdout + done.stderr + cluster.ok("plan", spec)
    for command in (("status", "t"), ("events", "t"), ("why", "t"), ("logs", "t")):
        shown += cluster.ok(*command)
    assert "a line of the log" in shown
    assert "an error" in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown
    assert "\x1b]0;" not in shown

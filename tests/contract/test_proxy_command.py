"""A ProxyCommand of ssh_config, as a real program: its end, its last words, and what it leaves."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from orchestrator.core.errors import ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.proxy import ProxySocket
from orchestrator.head.reach.ssh.transport import SshTimeouts, SshTransport
from tests.patience import comes
from tests.unit.cli.desk import Desk


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def test_it_is_a_socket_whose_other_end_is_the_program() -> None:
    proxy = ProxySocket("sed -u s/a/b/")
    proxy.settimeout(10.0)
    proxy.sendall(b"cat\n")
    assert proxy.recv(100) == b"cbt\n"
    proxy.settimeout(0.05)
    with pytest.raises(TimeoutError):
        proxy.recv(100)
    proxy.shutdown(socket.SHUT_WR)
    proxy.settimeout(10.0)
    assert proxy.recv(100) == b"", "its end is ours"
    proxy.close()


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_it_has_started_ends_with_it(tmp_path: Path, stubborn: bool) -> None:
    pids = tmp_path / "pids"
    trap = "trap '' TERM; " if stubborn else ""
    script = tmp_path / "proxy"
    script.write_text(f"#!/bin/sh\n{trap}sleep 60 & echo $$ $! > {pids}\nwait\nwait\n")
    script.chmod(0o755)
    proxy = ProxySocket(str(script))
    assert comes(lambda: written(pids), 10)
    started = [int(pid) for pid in pids.read_text().split()]
    assert all(map(alive, started))
    proxy.close()
    assert comes(lambda: not any(map(alive, started)), 10)


def test_a_program_that_writes_much_to_stderr_is_not_held_up() -> None:
    proxy = ProxySocket("sh -c 'head -c 1000000 /dev/zero >&2; echo through'")
    proxy.settimeout(20.0)
    assert proxy.recv(100) == b"through\n"
    proxy.close()


def test_its_failure_is_told_with_its_last_words_and_not_tried_nine_times(tmp_path: Path) -> None:
    command = f'sh -c "echo x >> {tmp_path}/tries; echo no token: log in to %n >&2; exit 3"'
    (tmp_path / "config").write_text(f"Host a\n  ProxyCommand {command}\n")
    timeouts = SshTimeouts(connect_s=20.0)
    ssh = SshTransport(
        tmp_path / "known", home=tmp_path, config_files=(tmp_path / "config",), timeouts=timeouts
    )
    began_at = time.monotonic()
    with pytest.raises(ConnectFailed) as failed:
        ssh.open(HostPlan("a"), "true")
    assert time.monotonic() - began_at < 15
    assert "ended with exit code 3: sh -c" in str(failed.value)
    assert str(failed.value).endswith("it said: no token: log in to a")
    assert "proxy_jump: none" in (failed.value.hint or "")
    assert (tmp_path / "tries").read_text() == "x\n"


def test_plan_and_doctor_show_it_as_the_shell_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = "sh -c 'echo no login for %r at %h:%p >&2; exit 3'"
    shown = "sh -c 'echo no login for ml at 10.0.0.9:2222 >&2; exit 3'"
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(
        f"Host gpu-a\n  HostName 10.0.0.9\n  Port 2222\n  User ml\n  ProxyCommand {command}\n"
    )
    (tmp_path / "train.py").write_text("print(1)\n")
    spec = tmp_path / "cluster.yaml"
    spec.write_text(
        "version: 1\nname: t\nhosts: [{name: gpu-a}, {name: gpu-b, address: 127.0.0.1, port: 9}]\n"
        "run: {strategy: processes, script: train.py, tasks: {worker: {replicas: 2}}}\n"
    )
    desk = Desk(tmp_path)
    assert desk("plan", str(spec)) == 0, desk.said
    assert f"gpu-a is reached by: {shown}" in desk.put_out
    assert desk.put_out.count("is reached by") == 1
    desk = Desk(tmp_path)
    assert desk("plan", str(spec), "--json") == 0
    assert json.loads(desk.put_out)["proxy_commands"] == {"gpu-a": [shown]}
    desk = Desk(tmp_path)
    assert desk("doctor", str(spec), "--json") == 1
    found = [one for one in json.loads(desk.put_out)["findings"] if one["host"] == "gpu-a"]
    (told,) = [one for one in found if one["id"] == "ssh.proxy"]
    assert told["message"] == f"gpu-a is reached by {shown}"
    assert any("no login for ml at 10.0.0.9:2222" in one["message"] for one in found if one != told), found

"""Which peers a task does not reach, as its shim sees it from beside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.host.shim.peers import Peers, addresses_of, from_tf_config, proxied_from


def tf_config(cluster: dict[str, list[str]], kind: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


MIRRORED = {"worker": [f"h{n}:2000{n}" for n in range(4)]}
SERVED = {"chief": ["c:1"], "worker": ["w:2", "w:3"], "ps": ["p:4"]}


@pytest.mark.parametrize(
    ("told", "peers"),
    [
        (tf_config(MIRRORED, "worker", 2), ["worker:0", "worker:1", "worker:3"]),
        (tf_config(MIRRORED, "worker", 3), ["worker:0", "worker:2"]),
        (tf_config({"chief": ["[fd00::1]:7"], "worker": ["w:8"]}, "worker", 0), ["chief:0"]),
        (tf_config(SERVED, "chief", 0), ["worker:0", "worker:1", "ps:0"]),
        (tf_config(SERVED, "worker", 0), []),
        (tf_config({"worker": ["h:1"]}, "worker", 0), []),
        (tf_config({"worker": ["h:1", "h:2"], "evaluator": ["h:3"]}, "evaluator", 0), []),
        (tf_config({"worker": ["h:1", "h"]}, "worker", 0), []),
        ("{", []),
        ("[]", []),
        ("", []),
    ],
)
def test_a_task_talks_to_the_one_that_leads_and_to_its_neighbours(told: str, peers: list[str]) -> None:
    assert list(from_tf_config(told)) == peers


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the task: it has no connections, and a proxy in its environment."""
    env = {"PATH": os.environ["PATH"], "http_proxy": "http://user:pw@proxy:3128", "no_proxy": ".lab"}
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as one:
        yield one
        one.kill()


def started(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has become that program, with its environment."""
    give_up_at = time.monotonic() + 10
    while not proxied_from(process.pid)("gpu-a") and time.monotonic() < give_up_at:
        time.sleep(0.01)


def looked(told: str, pid: int) -> list[Any]:
    peers = Peers({"TF_CONFIG": told})
    peers.check(pid)
    assert peers._thread is not None
    peers._thread.join(20)
    return [(peer["task"], peer["finding"]) for peer in peers.unreached]


def test_the_kernel_tells_to_whom_a_process_is_connected() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.create_server((address, 0), family=family)
        except OSError:
            continue  # without IPv6
        with listener, socket.create_connection(listener.getsockname()[:2]):
            assert listener.getsockname()[:2] in addresses_of(os.getpid())


def test_what_keeps_a_task_from_its_peers_is_found(
    monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setattr("orchestrator.host.shim.peers.CONNECT_S", 0.2)
    started(process)
    there, deaf, closed = (socket.create_server(("127.0.0.1", 0), backlog=0) for _ in range(3))
    ports = [each.getsockname()[1] for each in (there, deaf, closed)]
    closed.close()
    full = [socket.socket() for _ in range(8)]
    for each in full:  # a backlog that is full answers no more, as a firewall that drops
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", ports[1]))
    cluster = {"worker": [f"127.0.0.1:{ports[0]}", "no-such-host.invalid:1", "h:2", f"127.0.0.1:{ports[1]}"]}
    try:
        found = looked(tf_config(cluster, "worker", 0), process.pid)
        assert sorted(found) == [("worker:0", "proxy"), ("worker:1", "unresolved"), ("worker:3", "silent")]
        cluster = {"worker": [f"127.0.0.1:{port}" for port in (ports[2], ports[0])]}
        assert looked(tf_config(cluster, "worker", 1), process.pid) == [("worker:0", "refused")]
    finally:
        for each in (there, deaf, *full):
            each.close()


def test_a_host_may_be_excepted_from_the_proxy(process: subprocess.Popen[bytes]) -> None:
    started(process)
    assert proxied_from(process.pid)("gpu-a")
    assert not proxied_from(process.pid)("gpu-a.lab")

"""The lab itself: what it cuts is cut, what it leaves is nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import MakeLab
from tests.cluster.lab import FIRST_HOST, Lab, free_network, need_lab, sweep_crashed

pytestmark = pytest.mark.lab

CRASH = """
import json, os
from tests.cluster.lab import Lab
lab = Lab(1)
print(json.dumps({"dir": str(lab.dir), "tag": lab.tag, "pid": lab.hosts[0]._sshd.pid}), flush=True)
os._exit(9)
"""


def answers(lab: Lab, index: int) -> bool:
    """Whether its sshd is reached; a link that has just come up takes a moment."""
    host = lab.host(index)
    deadline = time.monotonic() + 3.0
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection((host.address, host.port), 0.5).close()
            return True
    return False


def test_cut_mend_and_drop(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.host(0).cut()
    assert not answers(lab, 0)
    assert answers(lab, 1)
    lab.host(0).heal()
    assert answers(lab, 0)
    lab.host(1).drop(source=lab.head_address)
    assert not answers(lab, 1)
    assert answers(lab, 0)
    lab.host(1).heal()
    assert answers(lab, 1)


def test_two_labs_side_by_side(make_lab: MakeLab) -> None:
    first, second = make_lab(1), make_lab(1)
    sweep_crashed()
    assert answers(first, 0)
    assert answers(second, 0)
    if first.can_cut:
        assert first.host(0).address != second.host(0).address


@pytest.mark.parametrize("n_hosts", [1, 244, 245, 256, 1000])
def test_a_network_has_an_address_for_every_host(n_hosts: int) -> None:
    need_lab()
    network = free_network(n_hosts)
    assert network[FIRST_HOST + n_hosts - 1] < network.broadcast_address
    assert network.num_addresses == 256 or n_hosts > 244, "labs side by side need many small ones"


def test_what_a_crashed_lab_has_left_is_swept() -> None:
    need_lab()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CRASH], capture_output=True, text=True, cwd=root, check=False, timeout=60
    )
    assert done.returncode == 9, done.stderr
    left = json.loads(done.stdout)
    assert Path(f"/proc/{left['pid']}/cmdline").read_bytes(), "its sshd is still there"
    sweep_crashed()
    assert not Path(left["dir"]).exists()
    assert not any(link.startswith(left["tag"]) for link in os.listdir("/sys/class/net"))
    status = Path(f"/proc/{left['pid']}/cmdline")
    assert not status.exists() or not status.read_bytes(), "gone, or waiting for its new parent to reap it"

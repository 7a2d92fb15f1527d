"""`orch hosts`: what it prints of hosts with GPUs, of hosts that do not answer, and on narrow terminals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.commands.hosts import lines
from orchestrator.cli.session import Paint
from orchestrator.spec import own_inventory
from tests.contract.fake_api import FakeApi
from tests.unit.cli.desk import Desk

PLAIN = Paint(on=False)
GIB = 1 << 30


def gpu(index: int, *processes: dict[str, Any], used: int | None = 0) -> dict[str, Any]:
    return {
        "index": index,
        "name": "NVIDIA H200",
        "utilization_percent": 97.0 if processes else 0.0,
        "memory_used_bytes": used,
        "memory_total_bytes": 141 * GIB,
        "processes": list(processes),
    }


def host(**changes: object) -> dict[str, Any]:
    return {
        "host": "gpu-a",
        "state": "ready",
        "reason": None,
        "spare": False,
        "reachable": True,
        "problem": None,
        "hint": None,
        "cpus": 64,
        "load": 3.14,
        "memory_total_bytes": 512 * GIB,
        "memory_free_bytes": 200 * GIB,
        "disk_total_bytes": 2000 * GIB,
        "disk_free_bytes": 900 * GIB,
        "gpus": [],
        "gpus_why": None,
        "runs": [],
        **changes,
    }


OURS = {"pid": 7, "user": "ml", "run": "mnist-20261120-1"}
OTHERS = {"pid": 8, "user": "eve", "run": None}
RUN = {"run_id": "mnist-20261120-1", "tasks": ["worker:0"], "head": "head", "user": "ml"}
AWAY = host(
    host="gpu-b",
    state=None,
    reachable=False,
    problem="gpu-b: nothing answers at 10.0.0.12:22",
    hint="is it on?",
    cpus=None,
    load=None,
)


def test_every_host_with_its_gpus_and_who_uses_them() -> None:
    used = [gpu(0, OURS, used=71 * GIB), gpu(1, OTHERS), gpu(2)]
    assert lines([host(gpus=used, runs=[RUN]), AWAY], PLAIN, None) == [
        "HOST   STATE        CPUS  LOAD            MEM FREE           DISK FREE  GPUS         RUNS",
        "gpu-a  ready          64   3.1  200 GiB of 512 GiB  900 GiB of 2.0 TiB  1 of 3 free  "
        "mnist-20261120-1, worker:0",
        "gpu-b  unreachable     -     -                   -                   -  -            -",
        "",
        "HOST   GPU  MODEL        USED  MEM USED  MEM FREE  BY",
        "gpu-a    0  NVIDIA H200   97%    71 GiB    70 GiB  mnist-20261120-1",
        "gpu-a    1  NVIDIA H200   97%       0 B   141 GiB  eve (pid 8)",
        "gpu-a    2  NVIDIA H200    0%       0 B   141 GiB  free",
        "",
        "gpu-b: nothing answers at 10.0.0.12:22",
        "  hint: is it on?",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_it_fits_the_terminal(width: int) -> None:
    used = [gpu(0, OURS, used=71 * GIB), gpu(1, OTHERS, OURS, {"pid": 9, "user": None, "run": None})]
    drained = host(host="gpu-c", state="drained", reason="the user took it out " * 5)
    shown = lines([host(gpus=used, runs=[RUN]), drained, AWAY], PLAIN, width)
    assert max(map(len, shown)) <= max(width, len("  10.0.0.12:22"))
    assert shown[0].startswith("HOST   STATE")


def test_what_a_host_says_of_itself_does_not_act_on_the_terminal() -> None:
    evil = {**gpu(0), "name": "\x1b]0;title\x07H200"}
    assert "\x1b" not in "\n".join(lines([host(gpus=[evil])], PLAIN, None))


def test_without_a_file_and_without_runs_there_is_nothing_to_ask(orch: Desk, api: FakeApi) -> None:
    assert orch("hosts") == 2
    assert orch.said == (
        "error: no run is active, so no hosts are known\n"
        "hint: name a file, a cluster spec or an inventory: `orch hosts lab.yaml`\n"
    )


def test_that_no_host_is_free_is_said_to_a_person(orch: Desk, tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text("hosts:\n  - {name: away, address: 127.0.0.1, port: 1}\n")
    assert orch("hosts", str(file), "--free", "--json") == 0
    assert (json.loads(orch.put_out)["hosts"], orch.said) == ([], "")
    assert orch("hosts", str(file), "--free") == 0
    assert orch.said == "No host is free\n"


@pytest.mark.parametrize("words", [("lab.yaml",), ("--inventory", "lab.yaml"), ()])
def test_an_inventory_alone_is_shown_whether_it_is_named_chosen_or_the_users_own(
    orch: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # the host keeps its own files there
    file = Path("lab.yaml") if words else Path("orch/inventory.yaml")
    file.parent.mkdir(exist_ok=True)
    file.write_text("hosts:\n  - {name: here, transport: nowhere}\n")
    assert orch("hosts", *words) == 2
    assert f"{file.name}:2:29: hosts[0].transport: must be one of" in orch.said
    file.write_text("hosts: []\n")
    assert orch("hosts", *words) == 2
    assert "hosts: there is none; list at least one host" in orch.said
    file.write_text("hosts:\n  - {name: here, transport: local, labels: {room: 2}}\n")
    assert orch("hosts", *words, "--json") == 0
    (shown,) = json.loads(orch.put_out)["hosts"]
    assert (shown["host"], shown["reachable"], shown["labels"]) == ("here", True, {"room": "2"})
    assert own_inventory.chosen.get() == "", "it was chosen for that command alone"
    assert orch("hosts", "no.yaml") == 2
    assert "no.yaml:1:1: file: cannot be read: No such file or directory" in orch.said

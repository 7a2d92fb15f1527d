"""Several heads and users share the GPUs of hosts: each is leased to one run, and the others are told to whom."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import stand_in_python
from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.conftest import MakeLab
from tests.cluster.lab import FIRST_UID
from tests.patience import patient

pytestmark = pytest.mark.lab


_NVIDIA_SMI = """#!/bin/sh
case "$1" in --query-gpu=*) printf 'GPU-1111\\nGPU-2222\\n';; esac
"""


@pytest.fixture
def two_gpus(cluster: Cluster) -> Iterator[None]:
    """Each host has two GPUs, as far as a driver tells."""
    tool = lab_of(cluster).dir / "bin" / "nvidia-smi"
    tool.write_text(_NVIDIA_SMI)
    tool.chmod(0o755)
    yield
    tool.unlink()


def with_gpus(cluster: Cluster, gpus: list[int], hosts: int = 1) -> list[dict[str, Any]]:
    return [{**host, "gpus": gpus} for host in cluster.hosts(hosts)]


@pytest.mark.fault(99)
@pytest.mark.usefixtures("two_gpus")
def test_row_99_two_heads_that_begin_at_the_same_moment_on_one_gpu(cluster: Cluster, second: Cluster) -> None:
    heads = (cluster, second)
    specs = [
        head.spec(
            tasks=1, name=name, hosts=with_gpus(head, [0]), checkpoint={"dir": str(head.directory / "c")}
        )
        for head, name in zip(heads, ("t", "u"), strict=True)
    ]
    with ThreadPoolExecutor(2) as at_once:
        ended = list(at_once.map(lambda one: one[0].orch("up", one[1]), zip(heads, specs, strict=True)))
    assert sorted(done.returncode for done in ended) == [0, 6], [done.stderr for done in ended]
    winner = 0 if ended[0].returncode == 0 else 1
    holder, other = heads[winner], heads[1 - winner]
    run_id = ended[winner].stdout.strip()
    said = ended[1 - winner].stderr
    assert f"GPU 0 is held by {run_id} of user root, begun on " in said
    assert ", since 20" in said
    assert "`orch up --queue` waits for it" in said

    waits = other.ok("up", specs[1 - winner], "--queue", "--detach").strip()
    name = waits.rsplit("-", 2)[0]

    def told() -> str:
        queue = json.loads(other.ok("queue", "--json"))["queue"]
        return str(queue[0]["others"]) if queue else ""

    wait_until(lambda: f"held by {run_id}" in told(), "the queue says what another head holds")
    assert run_id in other.ok("queue")
    holder.kill_coordinator()  # its agents end with it, and its task holds the GPU on
    beside = other.spec(tasks=1, name="v", hosts=with_gpus(other, [0]), checkpoint=False)
    other.ok("kill", name)
    refused = other.orch("up", beside)
    assert refused.returncode == 6
    assert f"GPU 0 is held by {run_id}" in refused.stderr

    holder.ok("coordinator", "start")
    holder.ok("kill", "--all")
    assert other.orch("up", beside, "--detach").returncode == 0
    wait_until(lambda: (other.shown("v") or {}).get("phase") == "RUNNING", "the GPU is free at once")


@pytest.mark.long
@pytest.mark.usefixtures("two_gpus")
def test_a_run_makes_way_for_a_higher_priority_and_goes_on_later_from_its_checkpoint(
    cluster: Cluster,
) -> None:
    """The run of the higher priority gets the GPU from the other, which is of the same head."""
    one = with_gpus(cluster, [0])
    low = cluster.spec("--steps", "1000000", tasks=1, hosts=one, queue={"priority": "low"})
    run_id = cluster.ok("up", low, "--detach").strip()
    cluster.wait(lambda run: (run["checkpoint"] or {}).get("global_step") is not None)
    other = {"dir": str(cluster.directory / "other")}
    high = cluster.spec(
        "--steps",
        "40",
        tasks=1,
        name="u",
        hosts=one,
        checkpoint=other,
        queue={"priority": "high", "preempt": True},
    )
    assert cluster.orch("up", high, "--wait", timeout=120).returncode == 0
    events = cluster.events()
    assert [event["kind"] for event in events].count("queued") == 2
    after = cluster.wait(lambda run: run["phase"] == "RUNNING" and (run["global_step"] or 0) > 0, timeout=90)
    assert (after["run_id"], after["generation"]) == (run_id, 2)
    (resumed,) = cluster.events(kind="resumed")
    saved = re.search(r"makes way for u-.*saved at step (\d+)", json.dumps(events))
    assert saved is not None
    assert f"generation 2 resumes from step {saved[1]};" in resumed["message"]


def leased_now(lab: Path) -> set[tuple[str, str, str]]:
    """Return (host, GPU, run) of every living task of a lab, as the kernel shows it."""
    found = set()
    for entry in os.listdir("/proc"):
        try:
            text = Path(f"/proc/{entry}/environ").read_text(errors="replace") if entry.isdecimal() else ""
        except OSError:
            continue
        told = dict(item.partition("=")[::2] for item in text.split("\0"))
        for gpu in filter(None, told.get("CUDA_VISIBLE_DEVICES", "").split(",")):
            if told.get("ORCH_HOST_DIR", "").startswith(f"{lab}/"):
                found.add((told["ORCH_HOST"], gpu, told["ORCH_RUN"]))
    return found


def python_for_all(directory: Path) -> str:
    """Return a Python with the packages of the tests that every user of this machine can run."""

    def is_open(path: Path) -> bool:
        return path.exists() and all(parent.stat().st_mode & 1 for parent in path.parents)

    own = Path(sys.executable).resolve()
    base = next(filter(is_open, (own, Path(f"/usr/bin/python3.{sys.version_info[1]}"))), None)
    if base is None or not is_open(Path(sysconfig.get_path("purelib"))):
        pytest.skip("NO ACCESS: other users cannot reach this Python and its packages")
    found = directory / "bin" / "python3"  # what the agent is started with
    found.unlink()
    found.symlink_to(base)
    return str(stand_in_python.make(directory / "python", base=base))


@pytest.mark.parametrize(
    ("each", "steps", "kills_max"), [(1, 60, 2), pytest.param(5, 300, 8, marks=pytest.mark.long)]
)
@pytest.mark.timeout(900)
@pytest.mark.fault(99)
def test_row_99_runs_of_two_users_on_two_hosts_and_heads_that_are_killed_at_random(
    make_lab: MakeLab, tmp_path: Path, each: int, steps: int, kills_max: int
) -> None:
    chance = random.Random(7)
    lab = make_lab(2)
    python = python_for_all(lab.dir)
    tool = lab.dir / "bin" / "nvidia-smi"
    tool.write_text(_NVIDIA_SMI)
    tool.chmod(0o755)
    heads: dict[str, Cluster] = {}
    for user in ("ann", "bob"):
        heads[user] = Cluster(tmp_path / user, lab)
        heads[user].directory.mkdir()
    for host in lab.hosts:
        host.own_accounts(*heads)
    twice: list[set[tuple[str, str, str]]] = []
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            now = leased_now(lab.dir)
            seen.update(run for _, _, run in now)
            if len({place[:2] for place in now}) < len(now):
                twice.append(now)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        specs: dict[str, list[str]] = {user: [] for user in heads}
        for number in range(each):
            for uid, (user, head) in enumerate(heads.items(), FIRST_UID):
                saves = lab.dir / f"{user}-{number}"
                saves.mkdir()
                os.chown(saves, uid, uid)
                places = chance.choice(([0], [1], [0, 1])) if number else [0, 1]
                hosts = [{**head.hosts(2)[at], "user": user, "gpus": [0]} for at in places]
                more: dict[str, Any] = {
                    "hosts": hosts,
                    "checkpoint": {"dir": str(saves)},
                    "queue": {},
                    "python": python,
                }
                lasts = str(chance.randint(steps, 2 * steps))
                spec = head.spec("--steps", lasts, tasks=len(places), name=f"{user}-{number}", **more)
                specs[user].append(spec)
        with ThreadPoolExecutor(2) as at_once:
            list(
                at_once.map(
                    lambda user: [heads[user].ok("up", one, "--detach") for one in specs[user]], heads
                )
            )

        def ended(head: Cluster) -> bool:
            runs = head.get("/v1/status")["runs"]
            assert not {"FAILED", "KILLED"} & {run["phase"] for run in runs}, runs
            return len(runs) == each and all(run["phase"] == "SUCCEEDED" for run in runs)

        give_up_at = time.monotonic() + patient(600)
        kills = 0
        while not all(map(ended, heads.values())):
            assert time.monotonic() < give_up_at, [
                json.loads(head.ok("queue", "--json")) for head in heads.values()
            ]
            if kills < kills_max:
                kills += 1
                victim = chance.choice(list(heads.values()))
                victim.kill_coordinator()
                victim.ok("coordinator", "start")
            time.sleep(chance.uniform(0.0, 3.0))
    finally:
        over.set()
        looking.join()
        for head in heads.values():
            head.orch("kill", "--all", "--force")
            head.orch("coordinator", "stop")
            head._short.cleanup()
    assert not twice, "no GPU was leased twice"
    assert len(seen) == 2 * each

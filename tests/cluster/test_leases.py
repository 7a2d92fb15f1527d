"""Several heads and users share the GPUs of hosts: each is leased to one run, and the others are told to whom."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.lab import FIRST_UID, Lab
from tests.patience import patient

pytestmark = pytest.mark.lab


_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  -L) echo 'GPU 0: NVIDIA A100 (UUID: {gpu})'
      echo 'GPU 1: NVIDIA A100 (UUID: GPU-22222222-2222-2222-2222-222222222222)'
      {more};;
  --query-gpu=name) printf 'NVIDIA A100\\nNVIDIA A100\\n';;
  --query-gpu=uuid) printf '%s\\n' {gpu} GPU-22222222-2222-2222-2222-222222222222;;
esac
"""
_FIRST = "GPU-11111111-1111-1111-1111-111111111111"
_INSTANCES = [f"MIG-{n}aaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa" for n in (1, 2)]
_DIVIDED = "; ".join(
    f"echo '  MIG 3g.20gb     Device  {n}: (UUID: {one})'" for n, one in enumerate(_INSTANCES)
)


def has_two_gpus(lab: Lab) -> None:
    """Let the driver's tool show two GPUs on each host."""
    tool = lab.dir / "bin" / "nvidia-smi"
    tool.write_text(_NVIDIA_SMI.format(gpu=_FIRST, more=""))
    tool.chmod(0o755)


@pytest.fixture
def two_gpus(cluster: Cluster) -> Iterator[None]:
    """Each host has two GPUs, as far as a driver tells."""
    has_two_gpus(lab_of(cluster))
    yield
    (lab_of(cluster).dir / "bin" / "nvidia-smi").unlink()


def with_gpus(cluster: Cluster, gpus: list[int | str], hosts: int = 1) -> list[dict[str, Any]]:
    return [{**host, "gpus": gpus} for host in cluster.hosts(hosts)]


def shown_to(lab_dir: Path, run_id: str) -> list[str]:
    """Return CUDA_VISIBLE_DEVICES of the living processes of a run, each once."""
    values = set()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            entries = environ.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"ORCH_RUN={run_id}".encode() in entries:
            values |= {entry.decode()[21:] for entry in entries if entry.startswith(b"CUDA_VISIBLE_DEVICES=")}
    return sorted(values)


@pytest.mark.fault(99)
@pytest.mark.usefixtures("two_gpus")
def test_row_99_a_gpu_by_its_uuid_is_the_gpu_of_that_number_and_an_instance_is_one_of_its_own(
    cluster: Cluster, second: Cluster
) -> None:
    lab = lab_of(cluster)

    def spec(head: Cluster, name: str, *gpus: int | str) -> str:
        saves = {"dir": str(head.directory / name)}
        return head.spec(
            "--steps", "100000", tasks=1, name=name, hosts=with_gpus(head, [*gpus]), checkpoint=saves
        )

    run_id = cluster.ok("up", spec(cluster, "t", _FIRST)).strip()
    # A process that is made for a moment, between fork and exec, may show its parent's
    wait_until(lambda: shown_to(lab.dir, run_id) == [_FIRST], "the task alone has the GPU")
    assert _FIRST in cluster.ok("plan", spec(cluster, "shown", _FIRST))
    (task,) = cluster.run()["tasks"]
    assert task["gpus"] == [_FIRST]
    refused = second.orch("up", spec(second, "u", 0))
    assert (refused.returncode, f"GPU 0 is held by {run_id}" in refused.stderr) == (6, True), refused.stderr
    missing = second.orch("up", spec(second, "v", _FIRST.replace("1", "9")))
    assert missing.returncode == 6, missing.stderr
    assert "is to have GPU-99999999-9999-9999-9999-999999999999, and its driver shows GPU-" in missing.stderr
    cluster.ok("kill", "t")

    (lab.dir / "bin" / "nvidia-smi").write_text(_NVIDIA_SMI.format(gpu=_FIRST, more=_DIVIDED))
    whole = cluster.orch("up", spec(cluster, "w", 1))
    assert whole.returncode == 6, whole.stderr
    assert f"GPU 1, which is divided into MIG instances: {_INSTANCES[0]}, {_INSTANCES[1]}" in whole.stderr
    both = cluster.orch("validate", spec(cluster, "x", *_INSTANCES))
    assert (both.returncode, "a process can use one MIG instance" in both.stderr + both.stdout) == (2, True)
    first = cluster.ok("up", spec(cluster, "y", _INSTANCES[0])).strip()
    assert shown_to(lab.dir, first) == [_INSTANCES[0]]
    other = second.ok("up", spec(second, "z", _INSTANCES[1])).strip()
    assert shown_to(lab.dir, other) == [_INSTANCES[1]]
    taken = second.orch("up", spec(second, "a", _INSTANCES[0]))
    assert (taken.returncode, f"GPU {_INSTANCES[0]} is held by {first}" in taken.stderr) == (6, True), (
        taken.stderr
    )


@pytest.mark.fault(99)
@pytest.mark.usefixtures("two_gpus")
def test_row_99_gpus_that_the_login_shell_keeps_for_others_are_named_by_the_doctor_and_by_init(
    cluster: Cluster, tmp_path: Path
) -> None:
    host = lab_of(cluster).hosts[0]
    rc = host.home / ".bashrc"
    before = rc.read_text() if rc.exists() else None
    rc.write_text("export CUDA_VISIBLE_DEVICES=1\n" + (before or ""))
    env = cluster.importing_quickly()
    try:
        said = cluster.orch("doctor", cluster.spec(tasks=1, hosts=with_gpus(cluster, [0]), env=env))
        out = said.stdout + said.stderr
        assert "sets CUDA_VISIBLE_DEVICES=1, and the spec gives the run GPU 0" in out, out
        assert "gpus: [1]" in out
        for fits in (1, "GPU-22222222-2222-2222-2222-222222222222"):
            said = cluster.orch("doctor", cluster.spec(tasks=1, hosts=with_gpus(cluster, [fits]), env=env))
            assert "CUDA_VISIBLE_DEVICES" not in said.stdout + said.stderr
    finally:
        rc.unlink() if before is None else rc.write_text(before)


@pytest.mark.fault(99)
@pytest.mark.usefixtures("two_gpus")
@pytest.mark.fault(120)
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
    badput = after["time_use"]["badput"]
    assert badput["queue"] > badput["stop"], "while the other one imported and trained"
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


@pytest.mark.parametrize(
    ("each", "steps", "kills_max"), [(1, 60, 2), pytest.param(5, 300, 8, marks=pytest.mark.long)]
)
@pytest.mark.timeout(900)
@pytest.mark.fault(99, 120)
def test_row_99_runs_of_two_users_on_two_hosts_and_heads_that_are_killed_at_random(
    two_users: dict[str, Cluster], each: int, steps: int, kills_max: int
) -> None:
    chance = random.Random(7)
    heads = two_users
    lab = lab_of(heads["ann"])
    has_two_gpus(lab)
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
                    "python": str(lab.dir / "python" / "bin" / "python3"),
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
    assert not twice, "no GPU was leased twice"
    assert len(seen) == 2 * each

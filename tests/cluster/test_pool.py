"""The inventory is a pool: runs of several heads go where hosts, GPUs and slots are free, and say why not elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.test_leases import has_two_gpus
from tests.patience import comes

pytestmark = pytest.mark.lab


def one(head: Cluster, name: str, hosts: list[dict[str, Any]], **run: Any) -> str:
    """Write a spec of one worker that may be on any of these hosts."""
    saves = {"dir": str(head.directory / name)}
    gpus = run.pop("need", None)
    types: dict[str, Any] = {
        "worker": {"replicas": run.pop("workers", 1), **({"gpus": gpus} if gpus else {})}
    }
    types["worker"] |= run.pop("more", {})
    return head.spec("--steps", "1000000", name=name, hosts=hosts, checkpoint=saves, types=types, **run)


def places(head: Cluster, name: str) -> list[str]:
    return [str(task["host"]) for task in (head.shown(name) or {})["tasks"]]


def test_two_runs_of_one_worker_are_on_two_machines_and_a_third_head_takes_the_third(
    cluster: Cluster, second: Cluster
) -> None:
    hosts = [{**host, "slots": 1} for host in cluster.hosts(3)]
    names = [str(host["name"]) for host in hosts]
    for name in ("t", "u"):
        cluster.ok("up", one(cluster, name, hosts))
    assert (places(cluster, "t"), places(cluster, "u")) == ([names[0]], [names[1]])
    (placed,) = [event for event in cluster.events("u") if event["kind"] == "placed"]
    assert (
        f"is placed on {names[1]} (slot 0): slot 0 of {names[0]} is held by worker:0 of t-"
        in placed["message"]
    )
    plan = json.loads(second.ok("plan", one(second, "v", hosts), "--now", "--json"))
    assert [task["host"] for task in plan["tasks"]] == [names[2]]
    assert "slot 0" in plan["placement"]["against"][names[0]]
    assert "of user root, begun on" in plan["placement"]["against"][names[1]]
    second.ok("up", one(second, "v", hosts))
    assert places(second, "v") == [names[2]], "the hosts have said what the other head holds"

    refused = second.orch("up", one(second, "w", hosts))
    assert refused.returncode == 6, refused.stderr
    for name in names:
        assert f"slot 0 of {name} is held by" in refused.stderr
    waits = second.ok("up", one(second, "w", hosts), "--queue", "--detach").strip()
    assert waits in second.ok("queue")
    free = json.loads(second.ok("hosts", one(second, "w", hosts), "--json"))["hosts"]
    holders = {host["host"]: host["slots"][0]["held_by"]["run"].partition("-")[0] for host in free}
    assert holders == dict(zip(names, "tuv", strict=True))
    cluster.ok("kill", "t")
    wait_until(lambda: (second.shown("w") or {}).get("phase") == "RUNNING", "a place is free")
    assert places(second, "w") == [names[0]]


@pytest.fixture
def two_gpus(cluster: Cluster) -> Iterator[None]:
    """Each host has two GPUs, as far as a driver tells."""
    has_two_gpus(lab_of(cluster))
    yield
    (lab_of(cluster).dir / "bin" / "nvidia-smi").unlink()


@pytest.mark.usefixtures("two_gpus")
def test_runs_of_two_heads_share_the_gpus_of_a_pool_and_a_gang_finds_what_is_left(
    cluster: Cluster, second: Cluster
) -> None:
    hosts = [{**host, "gpus": 2} for host in cluster.hosts(3)]
    names = [str(host["name"]) for host in hosts]
    cluster.ok("up", one(cluster, "t", hosts, need=1))
    second.ok("up", one(second, "u", hosts, need=1))
    assert places(second, "u") == [names[0]], "the fewest GPUs are left over there"
    assert [task["gpus"] for task in second.run("u")["tasks"]] == [[1]]
    cluster.ok("up", one(cluster, "v", hosts, need=2, workers=2))
    assert places(cluster, "v") == names[1:]
    refused = second.orch("up", one(second, "w", hosts, need=1))
    assert refused.returncode == 6
    assert f"GPU 0 of {names[0]} is held by t-" in refused.stderr


def test_a_drained_host_is_out_of_placement_for_all_runs_until_it_is_let_in_also_after_a_restart(
    cluster: Cluster,
) -> None:
    hosts = cluster.hosts(2)
    first, last = (str(host["name"]) for host in hosts)
    cluster.ok("coordinator", "start")
    assert f"{first} is drained: no run is placed there" in cluster.ok("drain", first)
    cluster.kill_coordinator()
    cluster.ok("coordinator", "start")
    cluster.ok("up", one(cluster, "t", hosts))
    assert places(cluster, "t") == [last]
    (shown, _) = json.loads(cluster.ok("hosts", one(cluster, "u", hosts), "--json"))["hosts"]
    assert (shown["state"], shown["reason"].startswith("by the user, since")) == ("drained", True)
    refused = cluster.orch("drain", last)
    assert refused.returncode == 6, refused.stderr
    assert cluster.orch("drain", "no-such-host").returncode == 2
    assert f"runs can be placed on {first}" in cluster.ok("undrain", first)
    cluster.ok("up", one(cluster, "u", hosts))
    assert places(cluster, "u") == [first]


_ALONE = '''"""Takes a lock of its host for itself, which another run must not have, and ends."""
import json, os, sys, time

told = json.loads(os.environ["TF_CONFIG"])
address = told["cluster"][told["task"]["type"]][told["task"]["index"]].rpartition(":")[0]
lock = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), f"lock-{address}")
os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
time.sleep(0.3)
os.unlink(lock)
'''


def _race(users: dict[str, Cluster], starts: int) -> None:
    """Let both users start gangs of two on three hosts at once, and wait for the end of all. One can run at a time."""
    heads = [*users.values()]
    lab = lab_of(heads[0])
    has_two_gpus(lab)
    directory = lab.dir / "race"
    directory.mkdir()
    directory.chmod(0o1777)
    work = directory / "work"
    work.mkdir()
    (work / "alone.py").write_text(_ALONE)

    def start_all(user: str) -> None:
        hosts = [{**host, "user": user, "slots": 1, "gpus": [0]} for host in users[user].hosts(3)]
        more: dict[str, Any] = {"script": "alone.py", "workdir": str(work), "checkpoint": False}
        more |= {
            "types": {"worker": {"replicas": 2, "gpus": 1}},
            "python": str(lab.dir / "python" / "bin" / "python3"),
        }
        for number in range(starts // len(users)):
            spec = users[user].spec(str(directory / "x"), name=f"r-{user}-{number}", hosts=hosts, **more)
            users[user].ok("up", spec, "--queue", "--detach", "--no-check", timeout=120.0)

    with ThreadPoolExecutor(len(users)) as at_once:
        list(at_once.map(start_all, users))

    def phases() -> list[str]:
        shown = [json.loads(head.ok("runs", "--json"))["runs"] for head in heads]  # also those put away
        return [str(run["phase"]) for runs in shown for run in runs if str(run["name"]).startswith("r-")]

    ended = {"SUCCEEDED", "FAILED", "KILLED"}
    comes(lambda: set(phases()) <= ended, starts * 40.0, 2.0)  # each look is two cold starts of orch
    assert phases() == ["SUCCEEDED"] * starts, "no GPU or slot twice, and no start lost"
    assert not list(directory.glob("lock-*"))


@pytest.mark.timeout(600)
def test_two_users_race_for_starts_and_none_is_lost(two_users: dict[str, Cluster]) -> None:
    _race(two_users, 6)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_users_race_for_two_hundred_starts_and_none_is_lost(two_users: dict[str, Cluster]) -> None:
    _race(two_users, 200)

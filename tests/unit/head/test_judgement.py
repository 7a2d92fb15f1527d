"""What the answers of examined hosts mean."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.plan import CheckpointPlan, HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.state.run import new_run
from orchestrator.head.hosts import examination
from orchestrator.head.hosts.examination import tournament
from orchestrator.head.hosts.judgement import (
    AnsweredHost,
    judge_bandwidths,
    judge_hosts,
    judge_imports,
    judge_pairs,
)
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.hosts import Health, Imported, Seen
from orchestrator.reporting.findings import worst_first

DIRECTORY: dict[str, Any] = {
    "path": "/tmp",
    "why": None,
    "free_bytes": 1 << 40,
    "free_files": 1 << 20,
    "read_only": False,
    "noexec": False,
    "owner": None,
    "own": None,
    "nfs": [],
}
SHARE = {**DIRECTORY, "path": "/shared", "owner": {"uid": 7, "user": "ml", "mode": 0o755, "writable": True}}
HARDLY = {"uid": 8, "user": "bob", "mode": 0o700, "writable": False}
NFS = ["rw", "soft", "local_lock=none", "nolock", "acregmax=60", "acdirmax=600"]


def plan_of(*addresses: str, tasks: int | None = None) -> Plan:
    hosts = tuple(
        HostPlan(name, data_address=address) for name, address in zip("abc", addresses, strict=False)
    )
    placed = tuple(TaskPlan(TaskId("worker", i), host.name) for i, host in enumerate(hosts[:tasks]))
    return Plan("t", "multi_worker_mirrored", hosts, placed, "train.py", ports=(20000, 20009))


def met(
    name: str = "a",
    *,
    boot: str | None = None,
    warning: str | None = None,
    hello: dict[str, Any] | None = None,
    **health: Any,
) -> AnsweredHost:
    said = {"boot_id": boot or name, "host_dir": "/h", "host_dir_device": 1, "warning": warning, "user": "ml"}
    told = {
        "time": 1000.0,
        "reached_at": None,
        "ports": [20000],
        "ports_free": 10,
        "ports_busy": [],
        "outgoing": (32768, 60999),
        "proxies": {},
        "open_files": 1 << 20,
        "processes": 1 << 16,
        "startups": 10,
        "uid": 7,
        "directories": [DIRECTORY],
        **health,
    }
    return AnsweredHost(
        name, cast("Greeting", said | (hello or {})), cast("Health", told), "token", 1000.0, 1000.1
    )


def seen(host: str, address: str, outcome: str = "fine", **more: Any) -> Seen:
    told = {"host": host, "address": address, "outcome": outcome, "resolved": [], "resolve_s": 0.0}
    return cast("Seen", {**told, "port": 20000, "why": "because", **more})


@pytest.mark.parametrize(
    ("health", "id"),
    [
        ({}, None),
        ({"time": 1007.0}, "host.clock"),
        ({"time": 993.0}, "host.clock"),
        ({"ports_free": 1, "ports_busy": [20001]}, "net.ports-busy"),
        *(({"outgoing": range_}, "net.ports-outgoing") for range_ in ((20009, 60999), (1024, 20000))),
        *(({"outgoing": range_}, None) for range_ in ((20010, 60999), (1024, 19999))),
        ({"proxies": {"http_proxy": "proxy:3128"}}, "net.proxy"),
        ({"open_files": 1024}, "host.open-files"),
        ({"processes": 1024}, "host.processes"),
        ({"processes": None, "startups": None}, None),
        ({"startups": 2}, "ssh.limits"),
        ({"startups": 3}, None),
        ({"hello": {"printed": "welcome"}}, "ssh.rc-files"),
        ({"hello": {"slow": {"shell_s": 3.0}}}, "ssh.rc-files"),
        ({"directories": [SHARE]}, None),
        ({"directories": [{**SHARE, "owner": HARDLY}]}, "storage.owner"),
        ({"directories": [{**SHARE, "own": HARDLY}]}, "storage.owner"),
        ({"directories": [{**SHARE, "nfs": NFS[:1] + NFS[2:3]}]}, None),
        ({"directories": [{**SHARE, "nfs": NFS}]}, "storage.nfs"),
        ({"directories": [{**SHARE, "exists": True, "others": "everybody"}]}, "storage.others"),
        ({"directories": [{**SHARE, "exists": True, "others": None}]}, "storage.writers"),
        ({"directories": [{**SHARE, "exists": False, "others": None}]}, None),
        ({"directories": [{**SHARE, "noexec": True}]}, None),
        ({"write_bytes_per_s": None}, None),
        ({"write_bytes_per_s": 5e6}, "storage.slow"),
        ({"write_bytes_per_s": 5e8}, "storage.speed"),
        ({"warning": "it ends what is left"}, "host.ends-at-logout"),
        ({"directories": [{**DIRECTORY, "free_bytes": 1 << 20}]}, "storage.space"),
        ({"directories": [{**SHARE, "free_bytes": 19 << 30}], "save_bytes": 10 << 30}, "storage.space"),
        ({"directories": [{**SHARE, "free_bytes": 20 << 30}], "save_bytes": 10 << 30}, None),
        ({"directories": [{**DIRECTORY, "free_bytes": 19 << 30}], "save_bytes": 10 << 30}, None),
        ({"directories": [{**DIRECTORY, "free_files": 3}]}, "storage.space"),
        ({"directories": [{**DIRECTORY, "read_only": True}]}, "storage.read-only"),
        ({"directories": [{**DIRECTORY, "noexec": True}]}, "storage.noexec"),
        ({"directories": [{**DIRECTORY, "why": "it has not answered"}]}, "storage.read-only"),
    ],
)
def test_what_is_wrong_with_one_host(health: dict[str, Any], id: str | None) -> None:
    plan = replace(plan_of("10.0.0.1", "10.0.0.2"), checkpoint=CheckpointPlan("/shared"))
    found = judge_hosts(plan, {"a": met(**health)}, whole=True)
    assert [one.id for one in found] == ([id] if id else [])
    assert all("a: " in one.message or one.message.endswith("on a") for one in found)


def test_the_memory_of_hosts_and_how_tasks_are_ended_there_is_one_sentence() -> None:
    facts: dict[str, Any] = {"memory_bytes": 64 << 30, "memory_free_bytes": 8 << 30}
    hosts = {"a": met(**facts, cgroups=True), "b": met("b", **facts, cgroups=False), "c": met("c")}
    (found,) = judge_hosts(plan_of("10.0.0.1", "10.0.0.2", "10.0.0.3"), hosts, whole=True)
    assert (found.id, found.level) == ("host.machine", "fine")
    assert found.message == (
        "a has 64 GiB of memory (8.0 GiB free), and ends tasks by control groups; "
        "b has 64 GiB of memory (8.0 GiB free), and ends tasks by their processes: no control group can be made"
    )


def test_the_slowest_of_the_hosts_that_write_is_named() -> None:
    plan = replace(plan_of("10.0.0.1", "10.0.0.2"), checkpoint=CheckpointPlan("/shared"))
    hosts = {name: met(name, write_bytes_per_s=rate) for name, rate in (("a", 5e8), ("b", 5e6))}
    (found,) = judge_hosts(plan, hosts, whole=True)
    assert (found.id, found.host) == ("storage.slow", "b")


def test_what_is_said_of_a_checkpoint_directory() -> None:
    plan = replace(plan_of("10.0.0.1", "10.0.0.2"), checkpoint=CheckpointPlan("/shared"))
    hosts = {"a": met(directories=[{**SHARE, "own": HARDLY, "nfs": NFS}]), "b": met("b", uid=8)}
    said = {one.id: one.message for one in judge_hosts(plan, hosts, whole=True)}
    assert said == {
        "storage.owner": "a: /shared/.orch belongs to bob (uid 8, mode 0700), and orch is ml (uid 7) there",
        "storage.nfs": "a: the NFS mount of /shared has `soft` (a server that is slow makes a write fail), "
        "`nolock` (a lock does not hold for the other hosts), `acdirmax=600` (what others save is seen up to 600 s "
        "late)",
        "storage.users": "the hosts write /shared as ml (uid 7) on a; ml (uid 8) on b; it belongs to ml (uid 7, "
        "mode 0755)",
    }
    open_ = met(directories=[{**SHARE, "exists": True, "others": "the group users"}])
    assert [one.message for one in judge_hosts(plan, {"a": open_}, whole=True)] == [
        "a: the group users may write into /shared"
    ]
    named = replace(plan, checkpoint=CheckpointPlan("/shared", group="lab"))
    fine = met(directories=[{**SHARE, "exists": True, "others": None}])
    assert [one.message for one in judge_hosts(named, {"a": fine}, whole=True)] == [
        "a: only ml (uid 7) and the group lab, and root, may write into /shared"
    ]
    alone = replace(plan_of("10.0.0.1", "10.0.0.2", tasks=1), checkpoint=plan.checkpoint)
    assert "storage.users" not in {one.id for one in judge_hosts(alone, hosts, whole=True)}, "b has no task"
    hosts["b"] = met("b", directories=[SHARE])
    assert "storage.users" not in {one.id for one in judge_hosts(plan, hosts, whole=True)}


def test_the_round_trips_are_shown_the_longest_first() -> None:
    hosts = {name: replace(met(name), round_trip_s=taken_s) for name, taken_s in (("a", 0.0004), ("b", 0.04))}
    (told,) = judge_hosts(plan_of("10.0.0.1", "10.0.0.2"), hosts, whole=True)
    assert (told.id, told.level) == ("ssh.round-trip", "fine")
    assert told.message == "an order takes 40.0 ms to b and back, 0.4 ms to a and back"


@pytest.mark.parametrize(
    ("planned", "visible", "hint"),
    [
        ((0, 1), "2,3", "`gpus: [2, 3]` of a"),
        ((0,), "", "`gpus: []` of a"),
        ((0,), "-1", "`gpus: []` of a"),
        ((0,), "GPU-1", "`gpus: [GPU-1]` of a"),
        ((1,), "GPU-1", None),
        (("GPU-1",), "1", None),
        (("GPU-1",), "GPU-1,GPU-0", None),
        ((1, 0), "0, 1", None),
        ((), "0", None),
        ((0,), None, None),
    ],
)
def test_gpus_that_the_login_shell_hides(
    planned: tuple[int | str, ...], visible: str | None, hint: str | None
) -> None:
    plan = plan_of("10.0.0.1", "10.0.0.2")
    plan = replace(plan, hosts=tuple(replace(host, gpus=planned) for host in plan.hosts))
    gpus: list[dict[str, Any]] = [
        {"name": "A", "uuid": f"GPU-{n}", "ecc_errors": 0, "slowed": None, "xids": []} for n in range(2)
    ]
    told: dict[str, Any] = {"gpus": gpus} | ({} if visible is None else {"visible_gpus": visible})
    found = [
        each for each in judge_hosts(plan, {"a": met("a", **told)}, whole=True) if each.id == "gpu.hidden"
    ]
    assert len(found) == (hint is not None)
    assert all(hint is not None and each.hint and hint in each.hint for each in found)


def test_gpus_that_differ_or_are_unwell() -> None:
    plan = plan_of("10.0.0.1", "10.0.0.2")
    plan = replace(plan, hosts=tuple(replace(host, gpus=(1,)) for host in plan.hosts))

    def gpus(
        name: str, errors: int | None = 0, slowed: str | None = None, *xids: int
    ) -> list[dict[str, Any]]:
        other = {"name": "of nobody", "ecc_errors": 9, "slowed": None, "xids": [79]}
        return [other, {"name": name, "ecc_errors": errors, "slowed": slowed, "xids": list(xids)}]

    def look(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
        hosts = {"a": met("a", gpus=one), "b": met("b", gpus=two)}
        return [(found.id, found.host) for found in judge_hosts(plan, hosts, whole=True)]

    assert look(gpus("A100"), gpus("A100", None)) == []
    assert look(gpus("A100"), gpus("V100")) == [("gpu.differs", None)]
    assert look(gpus("A100", 0, None, 48, 63), gpus("A100")) == [("gpu.unwell", "a")]
    assert look(gpus("A100", 2), gpus("A100", 0, "its temperature")) == [
        ("gpu.unwell", "a"),
        ("gpu.unwell", "b"),
    ]


def test_a_tmpdir_that_does_not_exist() -> None:
    plan = replace(plan_of("10.0.0.1"), env={"TMPDIR": "/scratch/t"})
    for there, ids in ((False, ["storage.missing"]), (True, [])):
        hosts = {"a": met(directories=[{**DIRECTORY, "path": "/scratch/t", "exists": there}])}
        assert [one.id for one in judge_hosts(plan, hosts, whole=True)] == ids


def test_the_bandwidth_of_each_direction_and_the_one_that_is_low() -> None:
    names = ["a", "b", "c"]
    rates: dict[tuple[str, str], float | str] = {(a, b): 1.2e9 for a in names for b in names if a != b}
    (all_,) = judge_bandwidths(rates)
    assert (all_.id, all_.level) == ("net.bandwidth", "fine")
    assert "a sends b 9.6 Gbit/s" in all_.message
    rates |= {("a", "c"): 0.1e9, ("c", "b"): "nothing answers"}
    low, lost, told = worst_first(judge_bandwidths(rates))[1], *worst_first(judge_bandwidths(rates))[::2]
    assert (low.id, low.host, low.peer) == ("net.bandwidth-low", "c", "a")
    assert "a sends c 0.80 Gbit/s only; 9.6 Gbit/s is usual" in low.message
    assert (lost.id, lost.level, lost.host, lost.peer) == ("net.bandwidth", "warning", "b", "c")
    assert told.message.startswith("a sends c 0.80 Gbit/s, "), "the lowest first"
    (slow, _) = judge_bandwidths({("a", "b"): 11e6})
    assert slow.id == "net.bandwidth-low", "slower than Gigabit Ethernet, however usual"


@pytest.mark.parametrize("size", [0, 1, 2, 5, 8])
def test_each_host_meets_each_other_once_and_one_at_a_time(size: int) -> None:
    names = [f"h{number}" for number in range(size)]
    rounds = tournament(names)
    assert sorted(pair for one in rounds for pair in one) == sorted(combinations(names, 2))
    assert all(len({name for pair in one for name in pair}) == 2 * len(one) for one in rounds)


def test_hosts_that_answer_no_transfer_do_not_hold_up_the_examination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def silent(_work: object, _names: object, within_s: float) -> dict[str, float]:
        clock[0] += within_s
        return {}

    monkeypatch.setattr(examination, "at_once", silent)
    monkeypatch.setattr(examination, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    names = [f"h{number}" for number in range(20)]
    plan = Plan("t", "processes", tuple(map(HostPlan, names)), (), "train.py")
    doctor = examination._Doctor(
        plan, new_run("t-1", plan, epoch=1, at=0.0), {}, cast("Any", None), 10.0, print, True, False, True
    )
    last = doctor._bandwidths({name: met(name) for name in names}, {})[-1]
    assert clock[0] <= examination.MEASURE_MAX_S + 10.0
    assert last.message == "320 of 380 transfers were not measured: the others took too long"


def test_how_the_import_of_tensorflow_went() -> None:
    plan = plan_of("10.0.0.1", "10.0.0.2", "10.0.0.3")
    plan = replace(plan, hosts=tuple(replace(host, gpus=(0, 2)) for host in plan.hosts))

    def look(*ways: tuple[float, int | None, str | None] | None) -> list[tuple[str, str | None]]:
        told = [
            None if one is None else dict(zip(("seconds", "gpus", "why"), one, strict=True)) for one in ways
        ]
        imported = cast("dict[str, Imported | None]", dict(zip("abc", told, strict=True)))
        return [(one.id, one.host) for one in judge_imports(plan, imported)]

    assert look((3.0, 2, None), (4.0, 2, None), (4.0, 2, None)) == [("python.imports", None)]
    assert look((3.0, 1, None), (2.0, None, "ImportError: x"), None) == [
        ("gpu.unseen", "a"),
        ("python.import-fails", "b"),
        ("python.import-slow", "c"),
        ("python.imports", None),
    ]
    assert look((20.0, 2, None), (25.0, None, None), (1.0, 2, None))[:2] == [
        ("python.import-slow", "a"),
        ("python.import-slow", "b"),
    ]


@pytest.mark.fault(88)
def test_two_names_of_one_machine_and_two_machines() -> None:
    plan = plan_of("10.0.0.1", "10.0.0.2")
    same = judge_hosts(plan, {"a": met("a", boot="x"), "b": met("b", boot="x")}, whole=False)
    assert [(one.id, one.host, one.peer) for one in same] == [("host.twice", "a", "b")]
    assert judge_hosts(plan, {"a": met("a"), "b": met("b")}, whole=False) == []


def test_an_address_replaces_a_name_only_where_all_have_reached_the_host_by_it() -> None:
    plan = plan_of("10.0.0.1", "10.0.0.2", "gpu-c")
    hosts = {name: met(name) for name in "abc"}
    fine = [seen("a", "10.0.0.1"), seen("b", "10.0.0.2")]
    lost = [seen("c", "gpu-c", "no-name"), seen("c", "10.0.0.3")]
    others = {"a": [fine[1], *lost], "b": [fine[0], *lost], "c": fine}
    found, addresses = judge_pairs(plan, hosts, others)
    assert addresses == {"c": "10.0.0.3"}
    assert [(one.id, one.level, one.peer) for one in found] == [("net.name-unresolved", "warning", "c")]
    assert "a, b" in found[0].message
    assert "for ever" in found[0].row.why
    assert "nothing waits for it" in found[0].why, "of a host that is reached"
    assert "write `data_address: 10.0.0.3` of c," in found[0].hint, (
        "an address would lose its part of ~/.ssh/config"
    )
    others["b"] = [fine[0], seen("c", "gpu-c", "no-name"), seen("c", "10.0.0.3", "timeout")]
    found, addresses = judge_pairs(plan, hosts, others)
    assert addresses == {}
    assert [one.level for one in found] == ["error"]


@pytest.mark.parametrize(
    ("told", "id"),
    [
        (seen("b", "b", resolve_s=9.0), "net.name-slow"),
        (seen("b", "b", "refused", resolved=["127.0.1.1"]), "net.name-loopback"),
        (seen("b", "b", "stranger", resolved=["10.0.0.9"]), "net.blocked"),
        (seen("b", "b", "timeout", resolved=["10.0.0.9"]), "net.blocked"),
        (seen("b", "b", "cut", resolved=["10.0.0.9"]), "net.large-packets"),
    ],
)
def test_how_one_host_does_not_reach_another(told: Seen, id: str) -> None:
    hosts = {"a": met("a"), "b": met("b")}
    found, _ = judge_pairs(plan_of("10.0.0.1", "b"), hosts, {"a": [told], "b": [seen("a", "10.0.0.1")]})
    assert [(one.id, one.host, one.peer) for one in found] == [(id, "a", "b")]


def test_a_host_without_a_task_keeps_nobody_from_training() -> None:
    hosts = {"a": met("a"), "b": met("b")}
    told = {"a": [seen("b", "10.0.0.2", "timeout")], "b": [seen("a", "10.0.0.1")]}
    found, _ = judge_pairs(plan_of("10.0.0.1", "10.0.0.2", tasks=1), hosts, told)
    assert [one.level for one in found] == ["warning"]


def test_a_host_that_does_not_say_whom_it_reaches() -> None:
    hosts = {"a": met("a"), "b": met("b")}
    found, _ = judge_pairs(plan_of("10.0.0.1", "10.0.0.2"), hosts, {"b": [seen("a", "10.0.0.1")]})
    assert [(one.id, one.level, one.host) for one in found] == [("net.blocked", "warning", "a")]

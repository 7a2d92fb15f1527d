"""Waiting for pods: what passes by itself is waited for, and nobody is left with pods without knowing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.client.on_kubernetes import (
    give_back_waiting,
    has_run,
    kept_claims,
    lend,
    may_be_used,
    place,
    wait_for_pods,
)
from orchestrator.core.errors import WaitTimedOut
from orchestrator.core.plan import HostPlan, Plan
from orchestrator.head.reach.kubernetes import lent
from orchestrator.head.reach.kubernetes.commands import KubernetesFailed, explained
from orchestrator.spec.kubernetes.hosts import in_pods
from tests.contract.fake_api import FakeApi
from tests.unit.cli.desk import Desk
from tests.unit.cli.pods import Pods

WAY_OUT = "`orch up` again waits on for the same pods; `orch kill t` gives them back"


def a_spec(directory: Path) -> str:
    run = "run: {strategy: multi_worker_mirrored, script: t.py, tasks: {worker: {replicas: 2}}}"
    file = directory / "cluster.yaml"
    file.write_text(f"version: 1\nname: t\nkubernetes: {{pods: 2, image: mine, memory: 3Gi}}\n{run}\n")
    (directory / "t.py").touch()
    return str(file)


NO_IMAGE = {"reason": "ImagePullBackOff", "message": "pull access denied"}


def test_a_run_that_goes_on_keeps_its_pods_where_one_of_them_never_comes_back(
    orch: Desk, api: FakeApi, pods: Pods, tmp_path: Path
) -> None:
    file = a_spec(tmp_path)
    made, _ = lend(file, orch)
    for name in ("t-0", "t-1"):
        pods.run(name, made)
    assert orch("up", file, "--on", "k8s", "--detach") == 0
    pods.run("t-1", made, **NO_IMAGE)
    assert orch("up", file, "--on", "k8s", "--detach") == 0
    assert "t-20261120-1 is already running with this plan" in orch.said
    assert (pods.lent, pods.sets) == (["t"], ["t"]), "the other one trains on"
    assert [[host["name"] for host in body["plan"]["hosts"]] for _, body in api.posted] == [
        ["t-0", "t-1"]
    ] * 2


def test_who_waits_for_pods_gives_none_back_that_another_has_given_a_run(orch: Desk, pods: Pods) -> None:
    made = pods.lend("t", count=2)
    pods.run("t-1", made, **NO_IMAGE)
    has_run(made, orch, ["t-0"])
    with pytest.raises(KubernetesFailed, match="denied; a run has the pods, and they stay"):
        wait_for_pods(made, 2, orch, file="cluster.yaml")
    assert pods.lent == ["t"]
    may_be_used(made, orch, used=True)  # its run was refused
    with pytest.raises(KubernetesFailed, match="denied; the pods are given back"):
        wait_for_pods(made, 2, orch, file="cluster.yaml")
    assert pods.lent == []


def test_an_api_server_that_is_away_for_a_moment_is_asked_again(orch: Desk, pods: Pods) -> None:
    made = pods.lend("t")
    pods.set(down=True)

    def on_pause() -> None:
        if orch.clock >= 3.0:
            pods.set()
            pods.run("t-0", made)

    orch.on_pause = on_pause
    wait_for_pods(made, 1, orch, file="cluster.yaml", timeout_s=60.0)
    assert orch.said.count("Unable to connect to the server") == 1
    assert "; it is asked again" in orch.said
    assert pods.lent == ["t"]


def test_names_that_older_pods_keep_are_not_waited_for_and_what_runs_gets_the_tasks(
    orch: Desk, pods: Pods
) -> None:
    made = pods.lend("t", count=3)
    assert lent.first_free("t", made.cluster, 3) == 0
    pods.leaving("t-4", node="node-2")
    assert [lent.first_free("t", made.cluster, count) for count in (4, 5)] == [0, 5]
    pods.leaving("t-0", node="node-2")
    made = pods.lend("t", count=3, first=lent.first_free("t", made.cluster, 3))
    pods.run("t-2", made)
    with pytest.raises(WaitTimedOut, match="1 of 3 pods run; t-1 is not there yet"):
        wait_for_pods(made, 2, orch, file="cluster.yaml", timeout_s=0.0)
    pods.run("t-3", made)
    running = wait_for_pods(made, 2, orch, file="cluster.yaml")
    assert running == ["t-2", "t-3"]
    hosts = place(made, running)
    plan = Plan("t", "single", (HostPlan("a"), HostPlan("b"), HostPlan("s", spare=True)), (), "t.py")
    placed = in_pods(plan, made.id, hosts, first=made.first).hosts
    assert [(host.name, host.spare) for host in placed] == [("t-2", False), ("t-3", False), ("t-1", True)]
    has_run(made, orch, hosts)
    again = lent.read(orch.paths.state_dir, made.id)
    assert again is not None
    assert place(again, ["t-1", "t-2"]) == ("t-2", "t-3"), (
        "the plan of a run does not change while it goes on"
    )


def test_one_that_stays_away_ends_the_wait_at_its_deadline(orch: Desk, pods: Pods) -> None:
    made = pods.lend("t")
    pods.set(down=True)
    with pytest.raises(WaitTimedOut, match="still wait: kubectl") as raised:
        wait_for_pods(made, 1, orch, file="cluster.yaml", timeout_s=3.0)
    assert raised.value.hint == WAY_OUT


def test_what_stays_so_ends_the_wait_and_names_the_way_out(orch: Desk, pods: Pods) -> None:
    made = pods.lend("t")
    pods.set(forbidden=["get pods"])
    with pytest.raises(KubernetesFailed, match="Forbidden") as raised:
        wait_for_pods(made, 1, orch, file="cluster.yaml")
    assert WAY_OUT in str(raised.value.hint)
    assert pods.lent == ["t"]


def test_a_claim_that_was_never_used_is_given_back_and_one_that_may_have_data_is_kept_and_named(
    orch: Desk, pods: Pods
) -> None:
    unused, used = pods.lend("t", claim="t-checkpoints"), pods.lend("u", claim="u-checkpoints")
    found = pods.lend("v", claim="nfs")
    pods.claim("t-checkpoints", unused.id)
    pods.claim("u-checkpoints", used.id)
    pods.claim("nfs")
    may_be_used(used, orch, used=True)
    may_be_used(found, orch, used=True)
    may_be_used(found, orch, used=False)  # its coordinator refused the run
    begun = pods.lend("w", claim="w-checkpoints")
    pods.claim("w-checkpoints", begun.id)
    has_run(begun, orch, ["w-0"])
    assert sorted(kept_claims(orch, ["t", "u", "w"])) == [
        f"kept: PersistentVolumeClaim {name}-checkpoints in namespace lab, with the checkpoints of {name}"
        for name in "uw"
    ]
    given, problem = give_back_waiting(orch, [])
    assert (sorted(given), problem, pods.lent) == (["t", "u", "v"], None, ["w"]), "the coordinator has w"
    assert pods.claims == ["nfs", "u-checkpoints", "w-checkpoints"]
    assert (
        "t had no run yet; its pods are given back: deleted StatefulSet t, PersistentVolumeClaim t-"
        in orch.said
    )


def test_a_role_that_may_not_list_claims_gives_the_pods_back_all_the_same(orch: Desk, pods: Pods) -> None:
    made = pods.lend("t", claim="t-checkpoints")
    pods.claim("t-checkpoints", made.id)
    pods.set(forbidden=["get persistentvolumeclaims"])
    give_back_waiting(orch, ["t"])
    assert (pods.lent, pods.sets, pods.claims) == ([], [], ["t-checkpoints"])


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("Unable to connect to the server: net/http: TLS handshake timeout", True),
        (
            "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
            True,
        ),
        ("Error from server (TooManyRequests): the server has received too many requests", True),
        ("Error from server: etcdserver: request timed out", True),
        ('Error from server (Forbidden): pods is forbidden: User "jane" cannot list resource "pods"', False),
        ("error: You must be logged in to the server (Unauthorized)", False),
        ('Error from server (NotFound): namespaces "lab" not found', False),
    ],
)
def test_what_passes_by_itself(said: str, passes: bool) -> None:
    assert explained(said).passes is passes


@pytest.mark.parametrize(
    ("said", "exit_code"),
    [
        (
            'Error from server (Forbidden): pods "t-" is forbidden: no PriorityClass with name nope was found',
            1,
        ),
        (
            'Error from server (Forbidden): pods "t-" is forbidden: error looking up service account lab/default: '
            'serviceaccount "default" not found',
            1,
        ),
        (
            'Error from server (Forbidden): pods "t-0" is forbidden: User "trainer" cannot create resource "pods/exec" '
            'in API group "" in the namespace "lab"',
            5,
        ),
    ],
)
def test_only_a_right_that_is_missing_is_asked_of_an_administrator(said: str, exit_code: int) -> None:
    told = explained(said)
    assert told.exit_code == exit_code
    assert ("docs/kubernetes.md has the Role" in str(told.hint)) is (exit_code == 5)


def test_where_an_object_is_refused_the_others_go_and_what_stays_can_be_found(
    orch: Desk, pods: Pods, tmp_path: Path
) -> None:
    file = a_spec(tmp_path)
    pods.set(full=["StatefulSet"])
    with pytest.raises(KubernetesFailed, match="exceeded quota"):
        lend(file, orch)
    assert (pods.names, pods.lent) == ([], [])
    pods.set(full=["StatefulSet"], forbidden=["get statefulsets"])
    with pytest.raises(KubernetesFailed, match="exceeded quota"):
        lend(file, orch)
    assert pods.names == ["ConfigMap/t-orch", "Service/t"]
    assert pods.lent == ["t"], "its file comes before its objects"


@pytest.mark.parametrize(
    ("asked", "place"),
    [("requests.memory=3Gi", "3:44: kubernetes.memory"), ("pods=1", "3:20: kubernetes.pods")],
)
def test_a_quota_that_refuses_pods_is_told_with_the_place_in_the_file(
    orch: Desk, pods: Pods, tmp_path: Path, asked: str, place: str
) -> None:
    file = a_spec(tmp_path)
    made = pods.lend("t", count=2)
    why = f'pods "t-0" is forbidden: exceeded quota: team, requested: {asked}, used: x=0, limited: x=1Gi'
    pods.event("t", f"Create Pod t-0 in StatefulSet t failed error: {why}")
    with pytest.raises(WaitTimedOut, match=r"0 of 2 pods run; t-0 cannot be made: .*exceeded quota: team"):
        wait_for_pods(made, 2, orch, file=file, timeout_s=0.0)
    assert f"cluster.yaml:{place}: ask for less, or end what runs: `kubectl describe quota`" in orch.said

"""The real kubectl, called as orch calls it, against an API server that keeps objects and runs nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.plan import HostPlan, Plan
from orchestrator.head.reach.kubernetes import lent
from orchestrator.head.reach.kubernetes.commands import Cluster, KubernetesFailed, find
from orchestrator.spec.kubernetes.hosts import PodWishes, pod_manifests
from tests.kubernetes.api_server import ApiServer

pytestmark = pytest.mark.skipif(not shutil.which("kubectl"), reason="there is no kubectl")

PLAN = Plan("t", "single", (HostPlan("a"), HostPlan("b")), (), "t.py")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> Cluster:
    return find(
        {"PATH": os.environ["PATH"], "KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path)}, None, None
    )


def create(cluster: Cluster, allocation: lent.Lent) -> None:
    items = pod_manifests(PLAN, PodWishes("mine:1"), b"bundle", allocation.id)
    everything = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.call("create", "--validate=false", "--filename=-", stdin=json.dumps(everything).encode())


def test_context_and_namespace_are_kubectls_own(cluster: Cluster, server: ApiServer) -> None:
    assert (cluster.context, cluster.namespace) == ("lab", "team")
    assert cluster.kubeconfig == str(server.kubeconfig)
    environ = {"PATH": os.environ["PATH"], "KUBECONFIG": str(server.kubeconfig)}
    with pytest.raises(KubernetesFailed, match="no context 'prod'") as raised:
        find(environ, "prod", None)
    assert raised.value.hint == "known: lab"
    server.kubeconfig.write_text("{}")
    with pytest.raises(KubernetesFailed, match="no current context"):
        find(environ, None, None)


def test_what_is_made_is_found_by_its_label_and_deleted_by_its_uid(
    cluster: Cluster, server: ApiServer, tmp_path: Path
) -> None:
    made = lent.new("t", cluster, 2, "")
    lent.keep(str(tmp_path), made)
    create(cluster, made)
    server.objects["services", "other"] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "other", "uid": "1"},
    }
    assert sorted(server.objects) == [
        ("configmaps", "t-orch"),
        ("services", "other"),
        ("services", "t"),
        ("statefulsets", "t"),
    ]
    assert made.end() is None
    _, waits = made.check(2)
    assert waits is not None
    assert waits.why == "0 of 2 pods run; t-0 is not there yet"
    uid = server.objects["statefulsets", "t"]["metadata"]["uid"]
    assert lent.give_back(str(tmp_path), made) == ["StatefulSet t", "Service t", "ConfigMap t-orch"]
    path = "/apis/apps/v1/namespaces/team/statefulsets/t"
    assert f"DELETE {path} {json.dumps({'uid': uid})}" in server.asked
    assert list(server.objects) == [("services", "other")]
    assert lent.read(str(tmp_path), made.id) is None
    ended = made.end()
    assert ended is not None
    assert "was deleted" in ended


def test_a_dry_run_makes_nothing_and_has_the_servers_own_words(cluster: Cluster, server: ApiServer) -> None:
    for one in pod_manifests(PLAN, PodWishes("mine:1"), b"bundle", "ab12"):
        cluster.try_out(one)
    assert server.objects == {}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "t-"}, "spec": {"tolerationz": []}}
    with pytest.raises(KubernetesFailed, match=r'BadRequest.*unknown field "spec.tolerationz"') as raised:
        cluster.try_out(pod)
    assert raised.value.is_of_the_object


def test_an_object_that_was_made_anew_meanwhile_is_left_alone(cluster: Cluster, server: ApiServer) -> None:
    made = lent.new("t", cluster, 2, "")
    create(cluster, made)
    old = dict(server.objects["statefulsets", "t"])
    server.objects["statefulsets", "t"] = {**old, "metadata": {**old["metadata"], "uid": "another"}}
    lent._delete(cluster, "apps/v1", "statefulsets", old)
    assert ("statefulsets", "t") in server.objects


@pytest.mark.long
def test_errors_are_sentences_with_a_way_out(cluster: Cluster, server: ApiServer) -> None:
    made = lent.new("t", cluster, 2, "")
    assert cluster.may("create", "pods", "--subresource=exec")
    server.denied = {"create pods/exec", "create statefulsets"}
    assert not cluster.may("create", "pods", "--subresource=exec")
    with pytest.raises(KubernetesFailed, match="cannot create resource") as raised:
        create(cluster, made)
    assert raised.value.exit_code == 5
    server.denied = set()
    with pytest.raises(KubernetesFailed, match='services "t" already exists') as raised:
        create(cluster, made)
    assert raised.value.exit_code == 6
    assert cluster.call("get", "persistentvolumeclaims", "nfs", "--ignore-not-found", "--output=name") == ""
    server.close()
    with pytest.raises(KubernetesFailed, match="refused") as raised:
        made.pods()
    assert raised.value.exit_code == 3

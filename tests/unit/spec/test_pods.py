"""`kubernetes:` of a cluster spec, and the pods that it becomes: they fit the published schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.core.errors import SpecError
from orchestrator.spec.kubernetes.hosts import (
    PodWishes,
    claim_manifest,
    in_pods,
    pod_manifests,
    refusals,
)
from orchestrator.spec.kubernetes.objects import digest, place_of
from orchestrator.spec.plan import load_plan, pod_wishes_of

RUN = (
    "run: {strategy: multi_worker_mirrored, script: t.py, env: {API_TOKEN: hunter2}, checkpoint: {dir: /data},"
    " tasks: {worker: {replicas: 2, gpus: 4}}}\n"
)


def write(tmp_path: Path, machines: str, name: str = "t") -> Path:
    (tmp_path / "t.py").write_text("")
    path = tmp_path / "c.yaml"
    path.write_text(f"version: 1\nname: {name}\n{machines}\n{RUN}")
    return path


def test_pods_stand_in_place_of_hosts_and_get_names_that_stay(tmp_path: Path) -> None:
    path = write(tmp_path, "kubernetes: {pods: 2, spares: 1, gpus_per_pod: 4, image: 'mine:1', claim: nfs}")
    plan, _ = load_plan(path)
    assert pod_wishes_of(path) == PodWishes("mine:1", claim="nfs")
    placed = in_pods(plan, "ab12", volume="lab/vision/nfs")
    assert placed.checkpoint is not None
    assert placed.checkpoint.volume == "lab/vision/nfs"
    assert [(host.name, host.data_address, host.spare, host.gpus) for host in placed.hosts] == [
        ("t-0", "t-0.t", False, (0, 1, 2, 3)),
        ("t-1", "t-1.t", False, (0, 1, 2, 3)),
        ("t-2", "t-2.t", True, (0, 1, 2, 3)),
    ]
    assert {host.transport for host in placed.hosts} == {"k8s"}
    assert {host.allocation for host in placed.hosts} == {"ab12"}
    assert [task.host for task in placed.tasks] == ["t-0", "t-1"]


def test_hosts_of_the_file_become_pods_with_spares_last_and_gpus_from_0(tmp_path: Path) -> None:
    machines = (
        "hosts: [{name: s, gpus: 4, spare: true}, {name: a, gpus: [2, 3, 5, 7]}, {name: b, gpus: 4}]\n"
        "kubernetes: {image: 'mine:1'}"
    )
    placed = in_pods(load_plan(write(tmp_path, machines))[0], "ab12")
    assert [host.spare for host in placed.hosts] == [False, False, True]
    assert [(task.host, task.gpus) for task in placed.tasks] == [
        ("t-0", (0, 1, 2, 3)),
        ("t-1", (0, 1, 2, 3)),
    ]


def test_every_object_fits_its_published_schema_and_holds_nothing_of_the_script(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    plan, _ = load_plan(write(tmp_path, "kubernetes: {pods: 2, gpus_per_pod: 4, image: 'mine:1'}"))
    wishes = PodWishes("mine:1", cpu="2", memory="4Gi")
    found = pod_manifests(plan, wishes, b"bundle", "ab12")
    for one in [*found, claim_manifest(plan, wishes, "ab12")]:
        validate.validate(one, "1.34", strict=True)
    assert [one["kind"] for one in found] == ["ConfigMap", "Service", "StatefulSet"]
    assert all(one["metadata"]["labels"]["orch-allocation"] == "ab12" for one in found)
    pod = found[2]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    [container] = pod["containers"]
    assert container["command"] == ["python3", "-I", "-S", "/orch/bundle/orch.pyz", "keeper", "ab12"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "4"}
    text = json.dumps(found)
    assert "hunter2" not in text
    assert "API_TOKEN" not in text
    assert "t.py" not in text


def test_without_a_shared_directory_no_claim_is_needed(tmp_path: Path) -> None:
    path = write(tmp_path, "kubernetes: {pods: 2, gpus_per_pod: 4, image: 'mine:1'}")
    path.write_text(path.read_text().replace("dir: /data", "dir: /data, shared: false"))
    plan, _ = load_plan(path)
    pod = pod_manifests(plan, PodWishes("mine:1"), b"", "")[2]["spec"]["template"]["spec"]
    assert {"name": "checkpoints", "emptyDir": {}} in pod["volumes"]


def test_the_same_wish_has_the_same_digest_and_another_has_not(tmp_path: Path) -> None:
    plan, _ = load_plan(write(tmp_path, "kubernetes: {pods: 2, gpus_per_pod: 4, image: 'mine:1'}"))
    of = [digest(pod_manifests(plan, PodWishes(image), b"", "")) for image in ("mine:1", "mine:1", "mine:2")]
    assert of[0] == of[1] != of[2]


def test_names_that_kubernetes_refuses_are_refused_with_their_place(tmp_path: Path) -> None:
    plan, _ = load_plan(write(tmp_path, "kubernetes: {pods: 2, gpus_per_pod: 4}", "7" + "a" * 40))
    assert [(loc, "letter" in words) for loc, words in refusals(plan)] == [
        (("name",), True),
        (("name",), False),
    ]


@pytest.mark.parametrize(
    ("machines", "says"),
    [
        ("kubernetes: {gpus_per_pod: 4}", "3:1: kubernetes.pods: is missing"),
        (
            "hosts: [{name: a, gpus: 4}, {name: b, gpus: 4}]\nkubernetes: {pods: 2}",
            "4:20: kubernetes.pods: as many pods",
        ),
        ("slurm: {nodes: 2, gpus_per_node: 4}\nkubernetes: {pods: 2}", "kubernetes.pods: stands in place"),
        ("kubernetes: {pods: 2, gpus_per_pod: 4, image: '-x'}", "must be an image"),
        ("kubernetes: {pods: 2, gpus_per_pod: 4, storage: much}", "must be a quantity"),
        ("kubernetes: {pods: 2, gpus_per_pod: 4, namespace: Team}", "must be a name of Kubernetes"),
        ("kubernetes: {pods: 2, gpus_per_pod: 4, context: '--x'}", "must be a context"),
        (
            "kubernetes: {pods: 2, gpus_per_pod: 4, pod: {tolerations: []}}",
            "3:46: kubernetes.pod.tolerations: is none",
        ),
        (
            "kubernetes: {pods: 2, gpus_per_pod: 4, pod: {spec: {containers: [{name: task, args: [x]}]}}}",
            "kubernetes.pod.spec.containers[0].args: is what orch starts",
        ),
    ],
)
def test_what_cannot_be_is_said_with_its_place(tmp_path: Path, machines: str, says: str) -> None:
    with pytest.raises(SpecError) as raised:
        load_plan(write(tmp_path, machines))
    assert says in str(raised.value)


def test_an_image_must_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "kubernetes: {pods: 2, gpus_per_pod: 4}")
    load_plan(path)
    with pytest.raises(SpecError, match=r"c.yaml:3:1: kubernetes.image: is missing"):
        pod_wishes_of(path)


RESTRICTED = """kubernetes:
  pods: 2
  gpus_per_pod: 4
  image: "mine:1"
  memory: 4Gi
  pod:
    metadata: {annotations: {team: vision}, labels: {orch-allocation: mine, tier: gold}}
    spec:
      automountServiceAccountToken: null
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      tolerations: [{key: gpu, operator: Exists}]
      imagePullSecrets: [{name: registry}]
      containers: [{name: task, securityContext: {capabilities: {drop: [ALL]}}, env: [{name: A, value: b}]}]
      volumes: [{name: data, emptyDir: {}}]
"""


def test_the_pod_template_is_patched_in_kubernetes_own_words(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    path = write(tmp_path, RESTRICTED)
    found = pod_manifests(load_plan(path)[0], pod_wishes_of(path), b"bundle", "ab12")[2]
    validate.validate(found, "1.34", strict=True)
    template = found["spec"]["template"]
    assert template["metadata"]["labels"]["orch-allocation"] == "ab12"
    assert template["metadata"]["labels"]["tier"] == "gold"
    [container] = template["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [entry["name"] for entry in container["env"]][-2:] == ["TMPDIR", "A"]
    assert container["resources"]["requests"] == {"memory": "4Gi"}
    assert container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": "4"}
    assert [volume["name"] for volume in template["spec"]["volumes"]][-2:] == ["checkpoints", "data"]
    assert "automountServiceAccountToken" not in template["spec"]


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ('Pod "t-x" is invalid: spec.tolerations[0].key: Invalid value', ("pod", "spec", "tolerations")),
        (
            "spec.template.spec.securityContext.runAsNonRoot: x",
            ("pod", "spec", "securityContext", "runAsNonRoot"),
        ),
        ('pods "t-x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 4Gi', ("memory",)),
        ('violates PodSecurity "restricted:latest": runAsUser=0', ("pod",)),
    ],
)
def test_what_the_server_says_has_its_place_in_the_file(
    tmp_path: Path, said: str, place: tuple[str, ...]
) -> None:
    assert place_of(said, pod_wishes_of(write(tmp_path, RESTRICTED))) == ("kubernetes", *place)

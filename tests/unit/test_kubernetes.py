"""What is exported for Kubernetes: it fits the published schemas, holds no secret, and refuses what it cannot say."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.errors import SpecError
from orchestrator.protocol import pod
from orchestrator.spec.kubernetes.manifests import as_yaml, claims, manifests, settings
from orchestrator.spec.kubernetes.objects import Manifest
from orchestrator.spec.kubernetes.wishes import Wishes, refusals
from orchestrator.spec.plan import load_plan
from tests.unit.cli.desk import Desk

SPEC = """
version: 1
name: mnist
hosts:
  - {name: gpu-a, gpus: 2}
  - {name: gpu-b, gpus: 2}
run:
  strategy: multi_worker_mirrored
  script: train.py
  args: ["--name", "$(rm -rf /)\\"; echo 'x"]
  env: {MODE: "a: b\\n- c", API_TOKEN: hunter2}
  tasks: {worker: {replicas: 2, gpus: 2}}
  checkpoint: {dir: /data/mnist}
"""

Export = Callable[..., list[Manifest]]


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], Path]:
    (tmp_path / "train.py").write_text("print('hello')\n")

    def write(text: str) -> Path:
        (tmp_path / "cluster.yaml").write_text(text)
        return tmp_path / "cluster.yaml"

    return write


@pytest.fixture
def export(spec: Callable[[str], Path]) -> Export:
    def exported(text: str = SPEC, **wishes: Any) -> list[Manifest]:
        plan, _ = load_plan(spec(text))
        found = manifests(plan, Wishes("mine:1", **wishes), b"bundle", b"code")
        text = as_yaml(found, ["a note"])
        assert list(yaml.safe_load_all(text)) == found  # as YAML reads it back
        return found

    return exported


def of_kind(found: list[Manifest], kind: str) -> Manifest:
    return next(manifest for manifest in found if manifest["kind"] == kind)


def pod_template(found: list[Manifest]) -> Manifest:
    spec: Manifest = of_kind(found, "JobSet")["spec"]["replicatedJobs"][0]["template"]["spec"]
    return dict(spec["template"])


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server", "horovod", "single"])
def test_every_object_fits_its_published_schema(
    export: Export, spec: Callable[[str], Path], strategy: str
) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    text = SPEC.replace("multi_worker_mirrored", strategy)
    if strategy == "parameter_server":
        text = text.replace("worker: {replicas: 2, gpus: 2}", "chief: {}, worker: {replicas: 2}, ps: {}")
        text = text.replace("gpus: 2}", "slots: 4}")
    elif strategy == "horovod":
        text = text.replace("replicas: 2, gpus: 2", "replicas: 2, gpus: 1")
    elif strategy == "single":
        text = text.replace("  tasks: {worker: {replicas: 2, gpus: 2}}\n", "")
    wishes: dict[str, Any] = {"cpu": "2", "memory": "4Gi", "namespace": "team"}
    wishes["pod"] = {"spec": {"tolerations": [{"operator": "Exists"}]}}
    claim = claims(load_plan(spec(text))[0], Wishes("mine:1", **wishes))
    for found in [*export(text, **wishes), *claim]:
        if found["kind"] != "JobSet":
            validate.validate(found, "1.34", strict=True)
            continue
        models = pytest.importorskip("kubeflow_trainer_api.models")
        read = models.JobsetV1alpha2JobSet.from_dict(found)
        assert read is not None
        assert read.to_dict() == found  # what the model does not know would be missing
        for replicated in found["spec"]["replicatedJobs"]:
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
            validate.validate({**job, **replicated["template"]}, "1.34", strict=True)


def test_a_changed_run_is_a_changed_object_and_what_pods_have_mounted_stays(export: Export) -> None:
    def maps(found: list[Manifest]) -> list[str]:
        return [one["metadata"]["name"] for one in found if one["kind"] == "ConfigMap"]

    found, changed = export(), export(SPEC.replace("--name", "--other"))
    assert maps(found) == maps(export())
    assert [old == new for old, new in zip(maps(found), maps(changed), strict=True)] == [False, True]
    assert all(one["immutable"] for one in found if one["kind"] == "ConfigMap")
    mounted = [
        one["configMap"]["name"] for one in pod_template(changed)["spec"]["volumes"] if "configMap" in one
    ]
    assert mounted == maps(changed)


def test_the_checkpoints_are_in_no_file_that_is_deleted_with_the_run(
    spec: Callable[[str], Path], tmp_path: Path
) -> None:
    def items(*more: str) -> list[Manifest]:
        orch = Desk(tmp_path)
        assert orch("export", "k8s", str(spec(SPEC)), "--image", "mine:1", "--json", *more) == 0
        return list(json.loads(orch.put_out)["items"])

    assert [one["kind"] for one in items()] == ["ConfigMap", "ConfigMap", "JobSet"]
    [claim] = items("--claim-only")
    volume = next(one for one in pod_template(items())["spec"]["volumes"] if one["name"] == "checkpoints")
    assert volume["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}
    orch = Desk(tmp_path)
    assert orch("export", "k8s", str(spec(SPEC)), "--image", "m:1", "--claim-only", "--claim", "nfs") == 2
    assert "there is no claim to make" in orch.said


def test_no_secret_and_no_text_of_the_user_is_in_a_command(export: Export) -> None:
    found = export()
    assert "hunter2" not in json.dumps(found)
    container = pod_template(found)["spec"]["containers"][0]
    assert container["command"] == ["python3", "-I", pod.BUNDLE, "pod"]
    token = next(entry for entry in container["env"] if entry["name"] == "API_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "mnist-secrets", "key": "API_TOKEN"}}
    told = json.loads(of_kind(found, "ConfigMap")["data"]["pod.json"])
    assert told["args"] == ["--name", "$(rm -rf /)\"; echo 'x"]
    assert told["tasks"]["worker:1"]["env"]["MODE"] == "a: b\n- c"
    assert {entry["name"] for entry in container["env"]} == {
        "ORCH_POD_TYPE",
        "ORCH_POD_SET",
        "ORCH_POD_ATTEMPT",
        "API_TOKEN",
    }


def test_a_pod_gets_its_gpus_memory_claim_and_the_grace_for_one_checkpoint(export: Export) -> None:
    template = pod_template(export(save_wait_s=300.0))
    container = template["spec"]["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/dev/shm", "/data/mnist", "/orch/bundle", "/orch/code"} <= mounts
    assert template["spec"]["terminationGracePeriodSeconds"] == 320


def test_tasks_know_each_other_by_names_that_stay(spec: Callable[[str], Path]) -> None:
    plan, _ = load_plan(spec(SPEC))
    told = settings(plan, Wishes("mine:1"))["tasks"]["worker:1"]
    names = ["mnist-worker-0-0.mnist:@PORT@", "mnist-worker-0-1.mnist:@PORT@"]
    assert json.loads(told["wiring"]["TF_CONFIG"]) == {
        "cluster": {"worker": names},
        "task": {"type": "worker", "index": 1},
    }
    assert told["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_exit_codes_say_what_is_counted_and_what_ends_the_run(export: Export) -> None:
    policy = of_kind(export(), "JobSet")["spec"]["failurePolicy"]["rules"]
    assert [(rule["name"], rule["action"]) for rule in policy] == [
        ("hopeless", "FailJobSet"),
        ("nobodysFault", "RestartJobSetAndIgnoreMaxRestarts"),
    ]
    (replicated,) = of_kind(export(), "JobSet")["spec"]["replicatedJobs"]
    rules = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["FailJob", "FailJob", "FailJob"]
    assert rules[0]["onExitCodes"]["values"] == [pod.HOPELESS]
    assert rules[2]["onExitCodes"]["values"] == [42, 66, 143]


def test_servers_end_with_the_chief_and_their_workers_come_back_alone(export: Export) -> None:
    text = SPEC.replace("multi_worker_mirrored", "parameter_server").replace("gpus: 2}", "slots: 4}")
    text = text.replace("worker: {replicas: 2, slots: 4}", "chief: {}, worker: {replicas: 2}, ps: {}")
    spec = of_kind(export(text), "JobSet")["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["chief"]}
    limits = {each["name"]: each["template"]["spec"]["backoffLimit"] for each in spec["replicatedJobs"]}
    assert limits == {"chief": 0, "worker": 100, "ps": 0}


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("name: mnist", "name: 3d", ("name",), "a letter first"),
        ("name: mnist", f"name: {'m' * 50}", ("name",), "Kubernetes allows 63"),
        (
            "replicas: 2,",
            "replicas: 2, replicas_min: 1,",
            ("run", "tasks", "worker", "replicas_min"),
            "all of its pods",
        ),
        ("/data/mnist", "/data/mnist, shared: false", ("run", "checkpoint", "shared"), "one volume"),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(
    spec: Callable[[str], Path], old: str, new: str, place: tuple[str, ...], words: str
) -> None:
    plan, _ = load_plan(spec(SPEC.replace(old, new)))
    found = dict(refusals(plan))
    assert words in found[place]


def test_the_code_is_a_zip_archive_and_too_much_of_it_is_refused(spec: Callable[[str], Path]) -> None:
    from orchestrator.cli.commands import export

    file = spec(SPEC)
    plan, _ = load_plan(file)
    with zipfile.ZipFile(io.BytesIO(export._code(str(file), plan))) as archive:
        assert archive.read("train.py") == b"print('hello')\n"
    (file.parent / "data.bin").write_bytes(os.urandom(1_100_000))
    with pytest.raises(
        SpecError,
        match=r"cluster.yaml:\d+:\d+: run.workdir: the code has 1,10\d,\d+ bytes .* holds 1,048,568",
    ):
        export._code(str(file), plan)


def test_a_plain_job_is_refused_with_the_reason_and_the_way_out(
    spec: Callable[[str], Path], tmp_path: Path
) -> None:
    orch = Desk(tmp_path)
    assert orch("export", "k8s", str(spec(SPEC)), "--image", "mine:1", "--kind", "job") == 2
    assert "counts one lost pod as several failures" in orch.said
    assert "leave out --kind" in orch.said

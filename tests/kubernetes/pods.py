"""Turns exported manifests into one Pod that podman can play: what a controller of Kubernetes would add is added."""

from __future__ import annotations

import copy
from typing import Any

Manifest = dict[str, Any]


def pod_of(
    objects: list[Manifest], *, index: int, uid: str, attempt: int, lent: list[str], at: str
) -> list[Manifest]:
    """Return the ConfigMaps, the claim and the Pod of the first replicated job.

    Args:
        objects: what was exported.
        index: the completion index.
        uid: of the JobSet.
        attempt: how often it was started again.
        lent: paths of this machine that the container gets, since its image is empty.
        at: a directory of the lab for what stands for emptyDir, which old versions of podman do not know.
    """
    jobset = next(found for found in objects if found["kind"] == "JobSet")
    template = copy.deepcopy(jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])
    spec, labels = template["spec"], template["metadata"]["labels"]
    labels["jobset.sigs.k8s.io/jobset-uid"] = uid
    labels["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
    container = spec["containers"][0]
    container["env"] = [_resolved(entry, labels) for entry in container["env"]]
    container["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    spec["hostNetwork"] = True
    for name in ("automountServiceAccountToken", "enableServiceLinks"):
        spec.pop(name)
    for volume in spec["volumes"]:
        if "emptyDir" in volume:
            volume.clear()
    spec["volumes"] = [volume for volume in spec["volumes"] if volume]
    known = {volume["name"] for volume in spec["volumes"]}
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] in known]
    for number, path in enumerate(["/orch/host", *lent]):
        source = f"{at}/host-{attempt}" if path == "/orch/host" else path
        kind = "DirectoryOrCreate" if path == "/orch/host" else "Directory"
        spec["volumes"].append({"name": f"lent-{number}", "hostPath": {"path": source, "type": kind}})
        container["volumeMounts"].append({"name": f"lent-{number}", "mountPath": path})
    name = f"{jobset['metadata']['name']}-{attempt}"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
    # A later attempt finds the claim of the first one.
    kinds = ("ConfigMap",) if attempt else ("ConfigMap", "PersistentVolumeClaim")
    return [*(found for found in objects if found["kind"] in kinds), pod]


def _resolved(entry: Manifest, labels: dict[str, str]) -> Manifest:
    """Return a variable with the label that it names, as the kubelet would."""
    path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    if not path.startswith("metadata.labels['"):
        return entry
    return {"name": entry["name"], "value": labels[path.removeprefix("metadata.labels['").removesuffix("']")]}

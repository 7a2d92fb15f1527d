"""The pods that Kubernetes lends for runs. A file for each allocation lets any later coordinator find them.

An allocation's id is a random number. It is a label of every object that was made for it, so only objects with that
label are ours. Objects are deleted by their UID, so another object of the same name is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.both import durable
from orchestrator.core.errors import OrchestratorError
from orchestrator.head.reach.kubernetes import pods as documents
from orchestrator.head.reach.kubernetes.commands import Cluster, KubernetesFailed
from orchestrator.protocol.pod import ALLOCATION_LABEL, NAME_LABEL

DIRECTORY = "k8s"
KINDS = {
    "StatefulSet": ("apps/v1", "statefulsets"),
    "Service": ("v1", "services"),
    "ConfigMap": ("v1", "configmaps"),
}
"""The kinds of objects that are made for an allocation and deleted with it, in the order of the deletion."""
CLAIM = {"PersistentVolumeClaim": ("v1", "persistentvolumeclaims")}
"""Deleted only if it was made for this allocation and no run can have written to it: it holds the checkpoints."""


@dataclass(frozen=True, slots=True)
class Lent:
    """An allocation."""

    id: str
    name: str
    """The name of the run and of its StatefulSet."""
    cluster: Cluster
    count: int
    digest: str
    """The digest of the request. A different request cannot have the same name at the same time."""
    has_run: bool = False
    """Whether a run was submitted for it. The coordinator then gives the pods back when the run has ended."""
    hosts: tuple[str, ...] = ()
    """The pods that ran when the run was submitted. These got its tasks."""
    claim: str = ""
    """The PersistentVolumeClaim for checkpoints that its pods mount; empty if there is none."""
    is_unused: bool = False
    """Whether no run can have written to the claim. A claim that was made for this allocation is deleted then."""
    first: int = 0
    """The number of its first pod."""

    @property
    def selector(self) -> str:
        """The option with which kubectl selects our objects."""
        return f"--selector={ALLOCATION_LABEL}={self.id}"

    @property
    def volume(self) -> str:
        """The identity of the volume for checkpoints: a claim, which other runs may share, or the allocation's id."""
        return "/".join((self.cluster.context, self.cluster.namespace, self.claim)) if self.claim else self.id

    @property
    def pod_names(self) -> list[str]:
        """The names of its pods. They stay the same when a pod is replaced."""
        return [f"{self.name}-{self.first + index}" for index in range(self.count)]

    def pods(self) -> list[dict[str, Any]]:
        """Return its pods as documents of the API. Raises KubernetesFailed."""
        return self.cluster.items("pods", self.selector)

    def events(self, kind: str, name: str) -> list[dict[str, Any]]:
        """Return the events of its StatefulSet, or of a pod and earlier ones of that name. Raises KubernetesFailed."""
        fields = f"--field-selector=involvedObject.kind={kind},involvedObject.name={name}"
        return self.cluster.items("events", fields)

    def before(self, name: str, boot_id: str) -> str:
        """Return how that boot of the pod, or of an older one of that name, has ended. Raises KubernetesFailed."""
        here = [pod for pod in self.pods() if documents.name_of(pod) == name]
        return documents.before(here[0], self.events("Pod", name), boot_id) if here else ""

    def end(self) -> str | None:
        """Return how it ended, as a sentence's end; None while it is there. Raises KubernetesFailed."""
        sets = self.cluster.items("statefulsets", self.selector)
        where = f"the StatefulSet {self.name} in namespace {self.cluster.namespace}"
        if not sets:
            return f"{where} was deleted: its pods are not ours any more"
        if documents.is_leaving(sets[0]):
            return f"{where} is being deleted: its pods are not ours any more"
        return None

    def check(self, wanted: int) -> tuple[list[str], documents.Waiting | None]:
        """Return its running pods, and why they are fewer than `wanted`; None once enough run. KubernetesFailed."""
        known = self.pods()
        running = documents.running(known)
        if len(running) >= wanted:
            return running, None
        events = self.events("StatefulSet", self.name) if len(known) < self.count else []
        return running, documents.summary(self.pod_names, known, events)


def new(name: str, cluster: Cluster, count: int, digest: str, claim: str = "", first: int = 0) -> Lent:
    """Return an allocation for which no object is made yet."""
    return Lent(secrets.token_hex(8), name, cluster, count, digest, claim=claim, is_unused=True, first=first)


def first_free(name: str, cluster: Cluster, count: int) -> int:
    """Return the first number from which so many pods of that name can be made. Raises KubernetesFailed.

    A pod on a node that is gone keeps its name for ever, and the controller of a StatefulSet whose first pod cannot be
    made makes none of the others.
    """
    names = map(documents.name_of, cluster.items("pods", f"--selector={NAME_LABEL}={name}"))
    numbers = [number for pod in names if (number := pod.removeprefix(f"{name}-")).isdigit()]
    held = sorted(map(int, numbers))
    return next(at for at in (0, *(number + 1 for number in held)) if not {*range(at, at + count)} & {*held})


def keep(state_dir: str, lent: Lent) -> None:
    """Write its file. This comes before any object is made, so that the objects can be found after a crash."""
    directory = os.path.join(state_dir, DIRECTORY)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    durable.write_json(_path(state_dir, lent.id), {"schema": 1, **asdict(lent)})


def forget(state_dir: str, lent: Lent) -> None:
    """Remove its file, once none of its objects is left."""
    durable.remove(_path(state_dir, lent.id))


def read(state_dir: str, allocation: str) -> Lent | None:
    """Return the allocation with that id; None if it was given back. Raises OrchestratorError for a bad file."""
    if not allocation.isalnum():
        return None
    path = _path(state_dir, allocation)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        content.pop("schema")
        cluster = Cluster(**{key: str(text) for key, text in content.pop("cluster").items()})
        lent = Lent(cluster=cluster, **content)
        return replace(
            lent,
            count=int(lent.count),
            first=int(lent.first),
            has_run=lent.has_run is True,
            is_unused=lent.is_unused is True,
            hosts=tuple(map(str, lent.hosts)),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise OrchestratorError(f"{path} cannot be read: {e}") from e


def all_of(state_dir: str) -> Iterator[Lent]:
    """Yield the allocations that are not given back."""
    try:
        names = sorted(os.listdir(os.path.join(state_dir, DIRECTORY)))
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OrchestratorError):
            lent = read(state_dir, name.removesuffix(".json"))
            if lent is not None:
                yield lent


def give_back(state_dir: str, lent: Lent) -> list[str]:
    """Delete its objects, and return their names. Raises KubernetesFailed.

    Each object is selected by our label, and deleted by its UID, so the server refuses if the name means another one.
    """
    deleted = _delete_all(lent, KINDS)
    if lent.claim and lent.is_unused:
        try:
            deleted += _delete_all(lent, CLAIM)
        except KubernetesFailed as e:
            if "(Forbidden)" not in e.message:  # an older Role: the pods are given back all the same
                raise
    forget(state_dir, lent)
    return deleted


def _delete_all(lent: Lent, kinds: dict[str, tuple[str, str]]) -> list[str]:
    deleted = []
    objects = lent.cluster.items(",".join(resource for _, resource in kinds.values()), lent.selector)
    for kind, (api, resource) in kinds.items():
        for item in objects:
            if item.get("kind") == kind and not documents.is_leaving(item):
                _delete(lent.cluster, api, resource, item)
                deleted.append(f"{kind} {documents.name_of(item)}")
    return deleted


def _delete(cluster: Cluster, api: str, resource: str, item: dict[str, Any]) -> None:
    root = "/api/v1" if api == "v1" else f"/apis/{api}"
    path = f"{root}/namespaces/{cluster.namespace}/{resource}/{documents.name_of(item)}"
    options = {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Background",
        "preconditions": {"uid": documents.uid_of(item)},
    }
    try:
        cluster.call("delete", f"--raw={path}", "--filename=-", stdin=json.dumps(options).encode())
    except KubernetesFailed as e:
        if "(NotFound)" not in e.message and "(Conflict)" not in e.message:
            raise


def _path(state_dir: str, allocation: str) -> str:
    return os.path.join(state_dir, DIRECTORY, f"{allocation}.json")


class KubernetesLender:
    """The pods that a coordinator has borrowed: see lent_hosts.Lender. `state_dir` has a file for each allocation."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir

    def held(self) -> list[str]:
        """Return the ids of the allocations that are not given back."""
        return [lent.id for lent in all_of(self._state_dir)]

    def hosts(self, allocation: str) -> dict[str, tuple[str, str]]:
        """Return by name each pod's UID, and why it leaves if it is being deleted."""
        lent = read(self._state_dir, allocation)
        if lent is None:
            return {}
        try:
            return {
                documents.name_of(pod): (documents.uid_of(pod), documents.leaves(pod)) for pod in lent.pods()
            }
        except KubernetesFailed:
            return {}

    def give_back(self, allocation: str) -> None:
        """Delete the objects of an allocation. Raises KubernetesFailed."""
        lent = read(self._state_dir, allocation)
        if lent is not None:
            give_back(self._state_dir, lent)

"""Finds out why a pod does not run yet: one sentence, and whether waiting is useless.

Pure functions of documents of the API (`kubectl get … -o json`), any part of which may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.words import counted

Document = Mapping[str, Any]

CONTAINER = "task"
"""The container in which the keeper runs."""

_TEXT_MAX = 400

_NO_SUCH_IMAGE = (
    "not found", "manifest unknown", "denied", "unauthorized", "does not exist", "forbidden",
    "no basic auth credentials", "invalid reference",
)  # fmt: skip
"""Parts of error messages of a pull that failed for good. If a registry does not answer, the kubelet tries again."""

_IMAGE_HINT = (
    "correct `image`; a private registry needs an imagePullSecret of the namespace's default service account"
)
_PYTHON_HINT = "give the image's Python as `run.python`; it must be 3.10 or newer"

QUOTA_HINT = "ask for less, or end what runs: `kubectl describe quota` shows what is left"
_MEMORY_HINT = "where it is memory: give the pods more by `kubernetes: {memory: …}`"

_BY_SIGNAL = (137, 143)
"""Exit codes of a keeper that was killed by a signal, most likely for lack of memory. It did run."""

_MADE = ("ContainerCreating", "PodInitializing")
_PULLING = ("ErrImagePull", "ImagePullBackOff")
_HOPELESS = {
    "InvalidImageName": _IMAGE_HINT,
    "ErrImageNeverPull": _IMAGE_HINT,
    "RunContainerError": _PYTHON_HINT,
    "CrashLoopBackOff": _PYTHON_HINT,
    "StartError": _PYTHON_HINT,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pod does not run."""

    why: str
    hint: str | None = None
    hopeless: bool = False
    """Whether waiting changes nothing: a person must act."""


def name_of(pod: Document) -> str:
    """Return the name of an object."""
    return str(_at(pod, "metadata", "name") or "")


def uid_of(pod: Document) -> str:
    """Return the UID of an object. Another object of the same name has another UID."""
    return str(_at(pod, "metadata", "uid") or "")


def running(pods: Sequence[Document]) -> list[str]:
    """Return the names of the pods that run."""
    return [name_of(pod) for pod in pods if waiting(pod) is None]


def is_leaving(pod: Document) -> bool:
    """Return whether it is being deleted, evicted or drained."""
    return _at(pod, "metadata", "deletionTimestamp") is not None


def leaves(pod: Document) -> str:
    """Say that a pod is being deleted, and why; empty if it is not."""
    return f"it is being deleted{why_it_leaves(pod)}" if is_leaving(pod) else ""


def why_it_leaves(pod: Document) -> str:
    """Return why a pod leaves and which node: an eviction, a preemption, a lost node. It is the end of a sentence."""
    node = _at(pod, "spec", "nodeName")
    for condition in _list(_at(pod, "status", "conditions")):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = _sentence(condition.get("reason"), condition.get("message"))
            return f" from node {node} ({reason})" if node else f" ({reason})"
    return f" from node {node}" if node else ""


def waiting(pod: Document) -> Waiting | None:
    """Return why the pod does not run; None if it runs."""
    if is_leaving(pod):
        return Waiting(leaves(pod))
    status = _status(pod)
    if status is not None:
        if _at(status, "state", "running") is not None:
            return None
        why = _container_waiting(status)
        if why is not None:
            return why
    for condition in _list(_at(pod, "status", "conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Waiting(_sentence(condition.get("reason"), condition.get("message")))
    phase = str(_at(pod, "status", "phase") or "Pending")
    if phase in ("Failed", "Succeeded"):
        return Waiting(_sentence(_at(pod, "status", "reason") or phase, _at(pod, "status", "message")))
    return Waiting("Kubernetes has not said why")


def _status(pod: Document) -> Document | None:
    for status in _list(_at(pod, "status", "containerStatuses")):
        if status.get("name") == CONTAINER:
            return status
    return None


def _container_waiting(status: Document) -> Waiting | None:
    waits = _at(status, "state", "waiting")
    if not isinstance(waits, Mapping):
        ended = _at(status, "state", "terminated")
        if not isinstance(ended, Mapping):
            return None
        return Waiting(_sentence(f"its keeper ended with {ended.get('exitCode')}", ended.get("message")))
    reason, message = str(waits.get("reason") or ""), waits.get("message")
    if reason in _MADE:
        return Waiting("its container is being made; the image may be on its way")
    if reason in _PULLING:
        image = str(status.get("image") or "?")
        text = str(message or "").lower()
        hopeless = any(words in text for words in _NO_SUCH_IMAGE)
        return Waiting(_sentence(f"the image {image} cannot be pulled", message), _IMAGE_HINT, hopeless)
    if reason in _HOPELESS:
        last = _at(status, "lastState", "terminated")
        terminated = last if isinstance(last, Mapping) else {}
        code = terminated.get("exitCode")
        if code in _BY_SIGNAL:
            again = f"{terminated.get('reason') or 'killed'}; Kubernetes starts it again"
            return Waiting(_sentence(again, terminated.get("message")), _MEMORY_HINT)
        ended = f"{reason}: it ended with {code}" if code is not None else reason
        return Waiting(
            _sentence(ended, terminated.get("message") or message), _HOPELESS[reason], hopeless=True
        )
    return Waiting(_sentence(reason or "it waits", message))


_TAKEN_AWAY = ("Evicted", "Preempted", "TaintManagerEviction")
"""Reasons of events by which Kubernetes says that it ended a pod."""


def before(pod: Document, events: Sequence[Document], boot_id: str) -> str:
    """Return how that boot ended: the pod's container, or an older pod of its name. Empty: nothing is said of it."""
    status = _status(pod) or {}
    ended = _at(status, "lastState", "terminated")
    if isinstance(ended, Mapping) and boot_id.startswith(uid_of(pod)):
        how = f"its container ended with {ended.get('exitCode')} ({ended.get('reason')})"
        again = f"{how} and was started again, {counted(int(status.get('restartCount') or 1), 'time')} so far"
        return _sentence(again, ended.get("message"))
    failures = [
        event
        for event in events
        if event.get("reason") in _TAKEN_AWAY
        and boot_id.startswith(str(_at(event, "involvedObject", "uid") or "?"))
    ]
    newest = max(failures, key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
    return _sentence(f"the pod before it: {newest['reason']}", newest.get("message")) if newest else ""


def missing(wanted: Sequence[str], pods: Sequence[Document], events: Sequence[Document]) -> Waiting | None:
    """Return why pods are missing, from the events of the StatefulSet that should make them; None if none is."""
    known = {name_of(pod) for pod in pods}
    absent = [name for name in wanted if name not in known]
    if not absent:
        return None
    failed = [event for event in events if event.get("type") == "Warning"]
    newest = max(failed, key=lambda event: str(event.get("lastTimestamp") or ""), default=None)
    if newest is None:
        return Waiting(f"{absent[0]} is not there yet")
    text = str(newest.get("message") or "")
    hint = QUOTA_HINT if "exceeded quota" in text else None
    return Waiting(_sentence(f"{absent[0]} cannot be made", text), hint)


def summary(
    wanted: Sequence[str], pods: Sequence[Document], events: Sequence[Document] = ()
) -> Waiting | None:
    """Return why not all of these pods run; None once they do. Hopeless reasons come first."""
    stuck = [
        (name_of(pod), why) for pod in pods if name_of(pod) in wanted and (why := waiting(pod)) is not None
    ]
    stuck.sort(key=lambda entry: (not entry[1].hopeless, wanted.index(entry[0])))
    count = f"{len(set(running(pods)) & set(wanted))} of {len(wanted)} pods run"
    if not stuck:
        absent = missing(wanted, pods, events)
        return None if absent is None else Waiting(f"{count}; {absent.why}", absent.hint, absent.hopeless)
    name, why = stuck[0]
    return Waiting(f"{count}; {name}: {why.why}", why.hint, why.hopeless)


def _sentence(head: object, text: object) -> str:
    words = " ".join(str(text or "").split())[:_TEXT_MAX]
    return f"{head}: {words}" if words else str(head or "it waits")


def _at(document: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def _list(value: Any) -> list[Document]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []

"""Why pods do not run, from documents as the API server writes them, and what kubectl says of its failures."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.head.reach.kubernetes.commands import explained
from orchestrator.head.reach.kubernetes.pods import before, missing, summary, waiting

UNSCHEDULABLE = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."


def pod(name: str = "t-0", **status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "uid": "u"}, "status": status}


def held(reason: str, message: str = "", last: dict[str, Any] | None = None) -> dict[str, Any]:
    status = {"name": "task", "image": "mine:1", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(
        phase="Pending", containerStatuses=[{**status, "lastState": {"terminated": last} if last else {}}]
    )


RUNNING = pod(phase="Running", containerStatuses=[{"name": "task", "state": {"running": {"startedAt": "x"}}}])


def test_a_pod_that_runs_waits_for_nothing() -> None:
    assert waiting(RUNNING) is None
    assert summary(["t-0"], [RUNNING]) is None


@pytest.mark.parametrize(
    ("document", "says", "hopeless"),
    [
        (
            pod(
                phase="Pending",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": UNSCHEDULABLE,
                    }
                ],
            ),
            "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
            False,
        ),
        (held("ContainerCreating"), "its container is being made", False),
        (
            held(
                "ErrImagePull",
                'failed to pull and unpack image "docker.io/library/mine:1": failed to resolve reference '
                '"docker.io/library/mine:1": docker.io/library/mine:1: not found',
            ),
            "the image mine:1 cannot be pulled: failed to pull",
            True,
        ),
        (held("ErrImagePull", "dial tcp 10.0.0.1:443: i/o timeout"), "i/o timeout", False),
        (held("ImagePullBackOff", 'Back-off pulling image "mine:1"'), "Back-off pulling image", False),
        (held("InvalidImageName", "couldn't parse image reference"), "InvalidImageName: couldn't parse", True),
        (
            held(
                "CrashLoopBackOff",
                "back-off 10s",
                {"exitCode": 128, "message": 'exec: "python9": executable file not found in $PATH'},
            ),
            'CrashLoopBackOff: it ended with 128: exec: "python9": executable file not found',
            True,
        ),
        (held("CrashLoopBackOff", "back-off 10s", {"exitCode": 137, "reason": "OOMKilled"}), "OOMKilled", False),
        (held("CrashLoopBackOff", "back-off 10s", {"exitCode": 143, "reason": "Error"}), "Error; Kubernetes", False),
        (held("CreateContainerConfigError", 'configmap "t-orch" not found'), "CreateContainerConfigError", False),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted: low on memory", False),
        ({"metadata": {"name": "t-0", "deletionTimestamp": "x"}}, "it is being deleted", False),
        (
            {
                "metadata": {"name": "t-0", "deletionTimestamp": "x"},
                "spec": {"nodeName": "node-2"},
                "status": {"conditions": [{"type": "DisruptionTarget", "status": "True",
                    "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}]},
            },
            "it is being deleted from node node-2 (EvictionByEvictionAPI: Eviction API: evicting)",
            False,
        ),
        ({"metadata": None, "status": {"conditions": [7], "containerStatuses": "?"}}, "has not said why", False),
    ],
)  # fmt: skip
def test_why_it_does_not_run(document: dict[str, Any], says: str, hopeless: bool) -> None:
    told = waiting(document)
    assert told is not None
    assert says in told.why
    assert told.hopeless is hopeless


def test_what_is_in_vain_is_told_first() -> None:
    bad = held("InvalidImageName")
    bad["metadata"]["name"] = "t-1"
    told = summary(
        ["t-0", "t-1", "t-2"], [held("ContainerCreating"), bad, {**RUNNING, "metadata": {"name": "t-2"}}]
    )
    assert told is not None
    assert told.why == "1 of 3 pods run; t-1: InvalidImageName"
    assert told.hopeless


def test_a_pod_that_is_not_even_made_is_explained_by_the_event_of_its_set() -> None:
    quota = 'create Pod t-1 in StatefulSet t failed error: pods "t-1" is forbidden: exceeded quota: team'
    told_at = "2026-01-01T00:00:0"
    events = [
        {"type": "Normal", "message": "create Pod t-0 successful", "lastTimestamp": f"{told_at}9Z"},
        {"type": "Warning", "message": "older", "lastTimestamp": f"{told_at}1Z"},
        {"type": "Warning", "message": quota, "lastTimestamp": f"{told_at}2Z"},
    ]
    told = summary(["t-0", "t-1"], [RUNNING], events)
    assert told is not None
    assert told.why == f"1 of 2 pods run; t-1 cannot be made: {quota}"
    assert told.hint is not None
    assert "describe quota" in told.hint
    assert missing(["t-0"], [RUNNING], events) is None
    plain = missing(["t-1"], [], [])
    assert plain is not None
    assert plain.why == "t-1 is not there yet"


def test_how_a_container_or_an_older_pod_ended() -> None:
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-01-01T00:00:00Z"}
    again = {"name": "task", "restartCount": 2, "lastState": {"terminated": ended}, "state": {"running": {}}}
    how = "its container ended with 137 (OOMKilled) and was started again, 2 times so far"
    low = "The node was low on resource: memory. Threshold quantity: 23400Mi, available: 14759856Ki. "
    events = [
        {"reason": "Killing", "message": "Stopping container task", "lastTimestamp": "2026-01-01T00:00:02Z"},
        {"reason": "Evicted", "message": low, "lastTimestamp": "2026-01-01T00:00:02Z"},
        {"reason": "Evicted", "message": "older", "lastTimestamp": "2026-01-01T00:00:01Z"},
    ]
    of_older = [{**event, "involvedObject": {"uid": "older"}} for event in events]
    assert before(pod(containerStatuses=[again]), of_older, "u-1a2b") == how
    assert before(pod(containerStatuses=[again]), [], "older-1a2b") == ""
    assert before(RUNNING, of_older, "older-1a2b") == f"the pod before it: Evicted: {low.strip()}"
    assert before(RUNNING, of_older, "a later one-1a2b") == "", "an hour later its event is still there"


def test_of_a_namespace_that_is_not_there_it_is_said_how_to_make_it_and_of_no_other() -> None:
    missing_one = explained('Error from server (NotFound): namespaces "lab" not found', "lab")
    assert "`kubectl create namespace NAME`" in str(missing_one.hint)
    assert str(missing_one).startswith(
        'kubectl (namespace lab): Error from server (NotFound): namespaces "lab"'
    )
    changed = (
        'Error from server (Conflict): Operation cannot be fulfilled on namespaces "lab": it was modified'
    )
    assert explained(changed, "lab").hint is None


def test_of_all_that_kubectl_printed_the_errors_are_told() -> None:
    warning = "Warning: spec.template.spec.nodeSelector: deprecated since v1.14"
    away = "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout"
    assert str(explained(f"{warning}\n{away}\n{away}\n")) == f"kubectl: {away}"
    refused = 'Error from server (BadRequest): pod "t-0" is invalid'
    assert str(explained(f"service/t created\n{refused}\n{away}\n")) == f"kubectl: {refused}; {away}"
    assert str(explained("W1 slow\nexit status 7\n")) == "kubectl: exit status 7", (
        "the last line, without one"
    )

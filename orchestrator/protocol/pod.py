"""What the exported manifests tell the entry of a pod, and the exit codes by which it answers Kubernetes.

Both sides import this module: what writes the manifests, and the entry inside the bundle. So it holds plain values.
"""

from __future__ import annotations

BUNDLE = "/orch/bundle/orch.pyz"
SETTINGS = "/orch/bundle/pod.json"
"""Where the first ConfigMap is mounted: our own code, and what the entry is to do."""

CODE = "/orch/code/code.zip"
"""Where the second ConfigMap is mounted: the user's code."""

HOST_DIR = "/orch/host"
"""An empty directory of the pod: the working directory, the log and the exit record are here while it lives."""

CONTAINER = "task"

TYPE = "ORCH_POD_TYPE"
"""The task type of a replicated job; the index is the task's own."""
INDEX = "JOB_COMPLETION_INDEX"
SET = "ORCH_POD_SET"
"""The UID of the JobSet: pods of another one never join this one's generation."""
ATTEMPT = "ORCH_POD_ATTEMPT"
"""How often the JobSet was started again."""

DONE = 0
SAVED = 42
"""TensorFlow's PreemptionCheckpointHandler: "saved, start me again"."""
HOPELESS = 64
"""A restart would end in the same way."""
STALLED = 65
SUPERSEDED = 66
"""The pods of another generation are at work, or this one's peers have gone."""
STOPPED = 143
"""It was asked to end: a drained node, a preemption, `kubectl delete`."""

FREE = (SAVED, SUPERSEDED, STOPPED)
"""Ends that are nobody's fault: they do not count as restarts."""

RESERVED = (HOPELESS, STALLED, SUPERSEDED)
"""A script that ends with one of these by itself is shown with exit code 1."""

ALLOCATION_LABEL = "orch-allocation"
"""On every object that `orch up --on k8s` makes: what has ours is ours."""

NAME_LABEL = "app.kubernetes.io/name"
"""The run's name, on every object that is written for it."""

POD_UID = "ORCH_POD_UID"
"""The UID of the pod, for its keeper."""

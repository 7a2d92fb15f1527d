"""What exported manifests tell the entry point of a pod, and the exit codes with which it answers Kubernetes.

Both sides import this module: what writes the manifests, and the entry inside the bundle. So it holds plain values.
"""

from __future__ import annotations

BUNDLE = "/orch/bundle/orch.pyz"
SETTINGS = "/orch/bundle/pod.json"
"""Where the first ConfigMap is mounted: orch's code, and the settings of the entry point."""

CODE = "/orch/code/code.zip"
"""Where the second ConfigMap is mounted: the user's code."""

HOST_DIR = "/orch/host"
"""An emptyDir of the pod, with its working directory, log and exit record."""

CONTAINER = "task"

TYPE = "ORCH_POD_TYPE"
"""The task type of a replicated job; the index is the task's own."""
INDEX = "JOB_COMPLETION_INDEX"
SET = "ORCH_POD_SET"
"""The UID of the JobSet. Pods of another JobSet cannot join its generation."""
ATTEMPT = "ORCH_POD_ATTEMPT"
"""How often the JobSet was restarted."""

DONE = 0
SAVED = 42
"""TensorFlow's PreemptionCheckpointHandler: "saved, start me again"."""
HOPELESS = 64
"""A restart would end in the same way."""
STALLED = 65
SUPERSEDED = 66
"""Pods of another generation are running, or this pod's peers have gone."""
STOPPED = 143
"""It was asked to end, by a drain, a preemption or `kubectl delete`."""

FREE = (SAVED, SUPERSEDED, STOPPED)
"""Ends that are not failures and do not count as restarts."""

RESERVED = (HOPELESS, STALLED, SUPERSEDED)
"""If a script itself ends with one of these, exit code 1 is shown."""

ALLOCATION_LABEL = "orch-allocation"
"""The label with this head node's id, on every object that `orch up --on k8s` makes."""

NAME_LABEL = "app.kubernetes.io/name"
"""The label with the run's name, on every object of the run."""

POD_UID = "ORCH_POD_UID"
"""The variable with the pod's UID, for its keeper."""

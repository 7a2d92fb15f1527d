"""The engine Kubernetes: a channel is a `kubectl exec` beside the keeper of a pod."""

from __future__ import annotations

from orchestrator.core.errors import AllocationGone, HostUnfit, OrchestratorError
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.kubernetes import lent, pods
from orchestrator.head.reach.kubernetes.commands import KubernetesFailed
from orchestrator.head.reach.relayed import RelayTransport
from orchestrator.protocol import pod


class Kubernetes:
    """See relayed.Engine. `state_dir` has a file for each allocation."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir

    def client(self, host: HostPlan, relay: list[str]) -> list[str]:
        """Return the kubectl of a channel. Without a terminal it carries stdin, stdout and stderr apart, byte by byte.

        Raises:
            AllocationGone: it was given back.
        """
        held = lent.read(self._state_dir, host.allocation)
        if held is None:
            raise AllocationGone(host.name, "its pods were given back")
        exec_ = ["exec", "--stdin", f"--container={pod.CONTAINER}", host.address or host.name, "--"]
        return held.cluster.words(*exec_, host.python, "-I", "-S", pod.BUNDLE, *relay)

    def ended(self, host: HostPlan) -> str | None:
        """Return that the StatefulSet is deleted; None while it is there or the API server does not answer."""
        held = lent.read(self._state_dir, host.allocation)
        if held is None:
            return "its pods were given back"
        try:
            return held.end()
        except KubernetesFailed:
            return None

    def waits(self, host: HostPlan) -> str | None:
        """Return why the host's pod does not run; None if it does or that is not known.

        Raises:
            HostUnfit: it never will, unless a person acts.
        """
        held = lent.read(self._state_dir, host.allocation)
        if held is None:
            return None
        name = host.address or host.name
        try:
            known = [pod for pod in held.pods() if pods.name_of(pod) == name]
        except KubernetesFailed:
            return None
        why = pods.waiting(known[0]) if known else pods.Waiting("it is not there")
        if why is None:
            return None
        if why.hopeless:
            raise HostUnfit(host.name, f"its pod cannot run: {why.why}", hint=why.hint, code="pod")
        return f"its pod does not run: {why.why}"


class KubernetesTransport(RelayTransport):
    """The transport `k8s`."""

    def __init__(self, state_dir: str) -> None:
        super().__init__(Kubernetes(state_dir))
        self._state_dir = state_dir

    def before(self, host: HostPlan, boot_id: str) -> str:
        """Return how the pod's container, or an older pod of that name, has ended."""
        try:
            allocation = lent.read(self._state_dir, host.allocation)
            return allocation.before(host.address or host.name, boot_id) if allocation is not None else ""
        except OrchestratorError:
            return ""

"""The pods that a coordinator holds. See daemon.coordinator.lent_hosts."""

from __future__ import annotations

from orchestrator.head.reach.kubernetes import lent, pods
from orchestrator.head.reach.kubernetes.commands import KubernetesFailed


class KubernetesLender:
    """See lent_hosts.Lender. `state_dir` has a file for each allocation."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir

    def held(self) -> list[str]:
        """Return the names of the allocations that are not given back."""
        return [one.id for one in lent.all_of(self._state_dir)]

    def hosts(self, allocation: str) -> dict[str, tuple[str, str]]:
        """Return each pod's UID, and why it leaves where it is being deleted, by its name."""
        found = lent.read(self._state_dir, allocation)
        if found is None:
            return {}
        try:
            return {pods.name_of(one): (pods.uid_of(one), pods.leaves(one)) for one in found.pods()}
        except KubernetesFailed:
            return {}

    def give_back(self, allocation: str) -> None:
        """Delete what was made for it. Raises KubernetesFailed."""
        found = lent.read(self._state_dir, allocation)
        if found is not None:
            lent.give_back(self._state_dir, found)

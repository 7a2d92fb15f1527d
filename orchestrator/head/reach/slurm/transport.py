"""The engine Slurm: a channel is a step of one task on one node, which overlaps with all other steps of the job."""

from __future__ import annotations

from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.relayed import RelayTransport
from orchestrator.head.reach.slurm import commands


class Slurm:
    """See relayed.Engine. `bundle`: our code in a file that every node sees."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle

    def client(self, host: HostPlan, relay: list[str]) -> list[str]:
        """Return the srun command of a channel. Without --unbuffered, srun would hold back frames."""
        return [*step(host, "--unbuffered"), "--", host.python, "-I", "-S", self._bundle, *relay]

    def ended(self, host: HostPlan) -> str | None:
        """Return how the job ended, or that it was requeued; None while it runs or the controller does not answer."""
        job_id, _, restarts = host.allocation.partition(".")
        try:
            job = commands.job(job_id)
        except commands.SlurmFailed:
            return None
        if job is None:
            return f"Slurm does not know job {job_id} any more: its nodes are not ours"
        state = job.get("JobState", "")
        if job.get("Restarts", "0") != (restarts or "0"):
            return f"job {job_id} was requeued: the nodes of its earlier start are not ours any more"
        if state in commands.ENDED:
            return f"job {job_id} has ended ({state}): its nodes are not ours any more"
        return None

    def waits(self, host: HostPlan) -> str | None:  # noqa: ARG002 (see Engine)
        """Return None: all nodes of a job are there at once."""
        return None


def step(host: HostPlan, *options: str) -> list[str]:
    """Return an srun command for a step on a node that overlaps with all other steps."""
    words = ["srun", f"--jobid={host.allocation.partition('.')[0]}", "--overlap", "--nodes=1", "--ntasks=1"]
    words += [f"--nodelist={host.address or host.name}", "--mem=0", "--quiet", "--job-name=orch"]
    return [*words, "--kill-on-bad-exit=0", "--cpu-bind=none", *options]


def slurm_transport(bundle: str) -> RelayTransport:
    """Return the transport `slurm`."""
    return RelayTransport(Slurm(bundle))

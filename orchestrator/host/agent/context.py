"""The parts of the agent that the handlers of orders use."""

from __future__ import annotations

from orchestrator.both.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.host.agent.directories import Directories
    from orchestrator.host.agent.host import Host
    from orchestrator.host.agent.jobs import Jobs
    from orchestrator.host.agent.leases import GpuLeases
    from orchestrator.host.agent.streams import Loop
    from orchestrator.host.agent.tasks import Tasks


class Context(Value):
    """The agent's parts. It is created once, and never changed."""

    loop: Loop
    host: Host
    jobs: Jobs
    tasks: Tasks
    directories: Directories
    leases: GpuLeases

"""The snapshots that this host receives, one for each run, and the process that writes them."""

from __future__ import annotations

from orchestrator.both.hostdir import HostFault
from orchestrator.host.agent.jobs import Result, answer_of
from orchestrator.host.agent.parts import Parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.checkpoints.arrival import Arrival
    from orchestrator.host.agent.context import Context
    from orchestrator.host.agent.reply import Reply
    from orchestrator.protocol.orders import checkpoints, preparation

WRITE_S = 30.0


class Arrivals:
    """The snapshots under way. `deadline_s` is how long it may take to put one in place."""

    def __init__(self, context: Context, deadline_s: float) -> None:
        self._context = context
        self._deadline_s = deadline_s
        self._by_run: dict[str, Arrival] = {}
        self._parts: Parts | None = None

    def end(self) -> None:
        """End the writing process: the agent ends."""
        if self._parts is not None:
            self._parts.end()

    def forget(self, run: str) -> None:
        """Forget the snapshot that is received for a run. Its chunks stay on the disk."""
        self._by_run.pop(run, None)

    def receive(self, order: checkpoints.Receive, reply: Reply) -> None:
        """Put a snapshot in place, or answer which chunks are missing."""
        from orchestrator.checkpoints import safe

        run, root, manifest = order["run"], order["dir"], order["manifest"]
        coming = self._by_run.get(run)
        asked = safe.arrival(root, manifest)
        if coming is None or coming.building != asked.building:
            coming = self._by_run[run] = asked

        def done(result: Result) -> None:
            reply.attempt(lambda: self._answer(run, coming, result))

        self._context.jobs.function(lambda: safe.receive(root, coming), done, deadline_s=self._deadline_s)

    def _answer(self, run: str, coming: Arrival, result: Result) -> checkpoints.Received:
        answer: checkpoints.Received = {
            "missing": answer_of(result, "putting the checkpoint in place")["missing"]
        }
        coming.note_missing(answer["missing"])
        if not answer["missing"] and self._by_run.get(run) is coming:
            self.forget(run)
        return answer

    def receive_part(self, order: preparation.Blob, data: bytes, reply: Reply) -> None:
        """Write a part of a chunk. Raises HostFault for a chunk that this agent was not asked to receive."""
        from orchestrator.checkpoints import arrival

        chunk, coming = order["sha256"], self._by_run.get(order["run"])
        place = coming.place(chunk) if coming is not None else None
        if coming is None or place is None:
            raise HostFault("offset", "this agent knows of no such chunk", "ask it to receive the snapshot")

        def written(came: int, fault: HostFault | None) -> None:
            if fault is not None:
                reply.fault(fault)
                return
            if came == arrival.WHOLE:
                coming.note_written(chunk)
            reply.ok({"damaged": True} if came == arrival.DAMAGED else {})

        if self._parts is None:
            self._parts = Parts(self._context.loop, arrival.Writer().add, WRITE_S, "writing")
        where = place, coming.manifest["bytes"], chunk, order["offset"], order["last"]
        self._parts.write(where, data, written)

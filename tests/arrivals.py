"""What an agent does with a snapshot that comes to its host, in one process: for hosts that are directories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.both.hostdir import HostFault
from orchestrator.checkpoints import arrival, safe
from orchestrator.checkpoints.arrival import Arrival, Writer
from orchestrator.protocol.orders.checkpoints import Manifest


class Arrivals:
    """What one agent knows of them, as `orchestrator.host.agent.arrivals` does."""

    def __init__(self) -> None:
        self._by_directory: dict[str, Arrival] = {}
        self._writer = Writer()

    def receive(self, root: str, manifest: Manifest) -> dict[str, Any]:
        """Do the order of that name."""
        asked = safe.arrival(root, manifest)
        coming = self._by_directory.setdefault(asked.building, asked)
        answer = safe.receive(root, coming)
        coming.note_missing(answer["missing"])
        if not answer["missing"]:
            del self._by_directory[asked.building]
        return {**answer}

    def receive_part(self, order: Mapping[str, Any], data: bytes) -> dict[str, Any]:
        """Do the order `blob`. Raises HostFault."""
        chunk = order["sha256"]
        found = [(coming, place) for coming in self._by_directory.values() if (place := coming.place(chunk))]
        if not found:
            raise HostFault("offset", "this agent knows of no such chunk", "ask it to receive the snapshot")
        coming, place = found[-1]
        room, needed = memoryview(data), coming.manifest["bytes"]
        came = self._writer.add(room, len(data), place, needed, chunk, order["offset"], order["last"])
        if came == arrival.WHOLE:
            coming.note_written(chunk)
        return {"damaged": True} if came == arrival.DAMAGED else {}

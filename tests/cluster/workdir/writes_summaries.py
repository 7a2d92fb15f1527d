"""Writes TensorBoard's files as a training does, but trains nothing and needs no TensorFlow."""

from __future__ import annotations

import os
import sys
import time
import types

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from orchestrator import runtime


def main() -> int:
    # This makes TensorBoard work without TensorFlow, whose import would take most of the test's time.
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
    first = 10 * int(os.environ["ORCH_RESTARTS"])
    writer = EventFileWriter(os.path.join(os.environ["ORCH_LOG_DIR"], "train"))
    for step in range(first + 1, first + 11):
        value = Summary.Value(tag="loss", simple_value=1.0 / step)
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
        runtime.report(step, loss=1.0 / step)
    writer.close()
    with open(os.path.join(os.environ["ORCH_LOG_DIR"], "notes.txt"), "w") as notes:
        notes.write("not TensorBoard's")
    return 42 if first == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a task of `orch scale` and `orch prove` leaves for the command, by name."""

MEASURED_PREFIX = "measured/"
"""The prefix of the measured figures' names, among the metrics of the last report."""

RECORD = "orch-record.json"
LAST_WEIGHTS = "orch-record.f32"
"""The trainable weights at the end, as little-endian floats."""

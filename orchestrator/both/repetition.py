"""Lines of gRPC and TensorFlow that tell a person nothing: the same error hundreds of times, and banners.

Hosts leave the repeated errors out of a task's last lines, and the command line folds them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_REPEATED = (
    "Additional GRPC error information from remote target",
    "This could happen if the remote target has been disconnected from the client",
    "Error received from peer",
    "Failed to remove function remotely due to",
    "Failed to register function remotely due to",
    "GrpcRemoteMaster",
    "failed to connect to all addresses",
)
"""Texts of the lines that a client prints for each call to a server that is gone."""

_BANNERS = (
    "oneDNN custom operations are on",
    "All log messages before absl::InitializeLog() is called are written to STDERR",
    "This TensorFlow binary is optimized to use available CPU instructions",
    "To enable the following instructions:",
    "Could not find cuda drivers on your machine",
    "Unable to register cuDNN factory",
    "Unable to register cuBLAS factory",
    "Unable to register cuFFT factory",
    "TF-TRT Warning: Could not find TensorRT",
    "computation placer already registered",
)
"""Texts of the lines that TensorFlow prints when it is imported."""

HEAD_CHARS = 400
"""How many characters of a line are searched for these texts. gRPC's lines have thousands."""


def repeated(text: str) -> str | None:
    """Return which of the repeated texts of gRPC a line has; None for any other line."""
    head = text[:HEAD_CHARS]
    return next((kind for kind in _REPEATED if kind in head), None)


def excerpt(lines: Sequence[str]) -> list[str]:
    """Return lines without TensorFlow's banners at their begin, and each repeated line of gRPC once: its last.

    Lines that hold nothing else are returned as they are.
    """
    kept: list[str] = []
    seen: set[str] = set()
    for line in reversed(lines):
        kind = repeated(line)
        if kind is None or kind not in seen:
            kept.append(line)
        if kind is not None:
            seen.add(kind)
    kept.reverse()
    begin = 0
    while begin < len(kept) and any(text in kept[begin] for text in _BANNERS):
        begin += 1
    return kept[begin:] or list(lines)

"""What is in a backup of ours, an HDF5 file: for the task that writes and restores it, and for hosts that verify it.

Beside the arrays it holds the position in the training, the CRC-32 of everything else, and what the file is: of which
run, generation and step, with a digest over the names and the sums. A file of the version before lacks the last one.
A prefix of TensorFlow that a survivor hands over has that in a file beside it.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO, Any

NAME = "latest.weights.h5"
STEPS = "optimizer/iterations"
"""The number of steps: also where Keras keeps it."""
POSITION = "position"
CHECKSUMS = "orch-checksums"
ABOUT = "orch-about"
TEXTS = (POSITION, CHECKSUMS, ABOUT)
"""JSON, as bytes: attributes hold at most 64 KiB, and a history may be longer."""

RESCUED = "rescued-by-"
"""How the directory of a state begins that a survivor has handed over, and a prefix of TensorFlow that it has."""

BESIDE = ".about"
"""How the file ends that says so of a prefix."""

STEP_MAX = 10**12
"""A larger number is no step: a thousand steps a second for thirty years."""


def is_backup(path: str) -> bool:
    """Return whether that is the place of a backup of ours.

    >>> [is_backup(f"gen-000002/orch/fit-000/{rest}latest.weights.h5") for rest in ("", "rescued-by-worker-1/", "x/")]
    [True, True, False]
    """
    *folders, name = path.split(os.sep)
    if folders and folders[-1].startswith(RESCUED):
        folders.pop()
    return name == NAME and len(folders) > 1 and folders[-1].startswith("fit-") and folders[-2] == "orch"


def is_ours(path: str) -> bool:
    """Return whether orch writes what has that path: a backup, or what a survivor has handed over."""
    return is_backup(path) or os.path.basename(path).startswith(RESCUED)


def about(sums: Mapping[str, int], step: int) -> bytes:
    """Return what a file with these sums is, as its writer says it."""
    known = {"run": os.environ.get("ORCH_RUN", ""), "generation": os.environ.get("ORCH_GENERATION", "")}
    return json.dumps({**known, "step": step, "digest": _digest(sums)}).encode()


def check(sums: Mapping[str, int], texts: Mapping[str, bytes], step: Any) -> None:
    """Check that a file can be restored, and is what was written.

    Args:
        sums: the CRC-32 of each dataset that was read.
        texts: those of TEXTS that are there.
        step: the value of STEPS; None if it is missing.

    Raises:
        ValueError: it cannot be, or is not.
    """
    if step is None or not 0 <= step <= STEP_MAX:
        raise ValueError(f"it has no step that a training can have made: {step}")
    if POSITION not in texts:
        raise ValueError("it lacks the position in the training")
    position = json.loads(texts[POSITION])
    if not all(isinstance(position[key], int) for key in ("epoch", "batch")):
        raise ValueError("its position in the training is none")
    dict(position["callbacks"])
    if CHECKSUMS in texts:
        check_sums(sums, dict(json.loads(texts[CHECKSUMS])))
    if ABOUT in texts:
        known = json.loads(texts[ABOUT])
        if not is_about(known, json.loads(texts[CHECKSUMS]), step):
            raise ValueError("it is not what it says to be")


def check_sums(found: Mapping[str, int], written: Mapping[str, int]) -> None:
    """Compare the sums of what was read with those of what was written. Raises ValueError."""
    changed = [name for name in written if name in found and found[name] != written[name]]
    if changed:
        raise ValueError(f"{changed[0]} is not what was written")
    if odd := (found.keys() ^ written.keys()) - {CHECKSUMS, ABOUT}:
        raise ValueError(f"{min(odd)} is missing, or was not written with the rest")


def sums_of_prefix(index: IO[bytes], shards: Mapping[str, int]) -> dict[str, int]:
    """Return the CRC-32 of a prefix's index, which has those of all tensors, and the sizes of its shards, by ending."""
    import zlib

    total = 0
    while block := index.read(1 << 20):
        total = zlib.crc32(block, total)
    return {".index": total, **shards}


def is_about(said: Mapping[str, Any], sums: Mapping[str, int], step: int) -> bool:
    """Return whether that is said of these sums and this step."""
    return (said.get("step"), said.get("digest")) == (step, _digest(sums))


def _digest(sums: Mapping[str, int]) -> str:
    from hashlib import sha256

    return sha256(json.dumps(sorted(sums.items())).encode()).hexdigest()

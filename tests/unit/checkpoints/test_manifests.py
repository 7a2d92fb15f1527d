"""A manifest of a snapshot comes from another host: what it may say, and what it may not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from orchestrator.checkpoints import safe
from orchestrator.protocol.orders.checkpoints import Manifest

A, B = "a" * 64, "b" * 64


def manifest(*files: tuple[str, int, list[str]], piece_bytes: int = 10) -> Manifest:
    made: dict[str, Any] = {
        "digest": "0" * 64,
        "files": [(name, size, 0, chunks) for name, size, chunks in files],
        "piece_bytes": piece_bytes,
    }
    return cast("Manifest", made)


@pytest.mark.parametrize(
    "whole",
    [
        manifest(("x", 25, [A, A, B])),  # two pieces alike, and a shorter one
        manifest(("x", 20, [A, A]), ("y", 10, [A])),
        manifest(("x", 25, [A, A, B]), ("y", 5, [B])),
        manifest(("empty", 0, [])),
        manifest(("x", 1, [A]), piece_bytes=1),
    ],
)
def test_what_fits_together_is_taken(whole: Manifest) -> None:
    safe.check(whole)
    with pytest.raises(ValueError, match="chunks of 0 bytes"):
        safe.check({**whole, "piece_bytes": 0})


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (manifest(("x", 25, [A, B])), "'x' has 25 bytes, and 2 chunks of 10 bytes"),
        (manifest(("x", 20, [A, A, B])), "'x' has 20 bytes, and 3 chunks of 10 bytes"),
        (manifest(("x", 0, [A])), "'x' has 0 bytes, and 1 chunks"),
        (manifest(("x", 5, [A]), piece_bytes=0), "chunks of 0 bytes"),
        (manifest(("x", 25, [A, B, A])), f"the chunk {A} has 5 bytes, and 10 bytes"),
        (manifest(("x", 10, [A]), ("y", 9, [A])), f"the chunk {A} has 9 bytes, and 10 bytes"),
        (manifest(("x", 30, [A, B, "../x"])), "not a SHA-256: "),
        (manifest(("../x", 10, [A])), "is no path below"),
    ],
)
def test_what_contradicts_itself_or_leaves_its_directory_is_refused(bad: Manifest, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        safe.check(bad)

"""The exceptions of all readers of checkpoint files: a file that is not whole, or that a reader cannot judge."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import contextmanager
from zipfile import BadZipFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from orchestrator.both.within import Tree

_WHY_CHARS_MAX = 500

_DAMAGE = (
    *(ValueError, KeyError, IndexError, AttributeError, TypeError, EOFError, OverflowError, SyntaxError),
    *(RuntimeError, MemoryError, struct.error, zlib.error, BadZipFile),
)
"""What the standard library's readers raise for damaged bytes."""


class Torn(Exception):
    """The checkpoint does not read whole; str() says why."""

    def __init__(self, why: str) -> None:
        super().__init__(why[:_WHY_CHARS_MAX])  # names within a file may be as long as somebody likes


class NotUnderstood(Exception):
    """The checkpoint may be whole, but this reader cannot tell."""


def opened(tree: Tree, path: str) -> IO[bytes]:
    """Open a file of a checkpoint. Torn if that fails."""
    try:
        return tree.reading(path)
    except OSError as e:
        raise Torn(f"{os.path.basename(path)} cannot be read: {e.strerror}") from e


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a reader of the standard library raises of damaged bytes into Torn."""
    try:
        yield
    except _DAMAGE as e:
        raise Torn(f"{what}: {str(e) or type(e).__name__}") from e

"""`.safetensors`: the length of a header, the header as JSON, and the tensors, one after the other.

The format has no checksums. Every byte of the file is accounted for by the header, so that a file that is cut off, or
has bytes too many, is found; a bit that changed in a tensor is not.
"""

from __future__ import annotations

import json
import os

from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.torn import Torn, opened, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INDEX_ENDING = ".safetensors.index.json"

_HEADER_BYTES_MAX = 100_000_000
"""The limit that the format sets."""

_BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6} | {
    f"{kind}{bits}": bits for kind in "IUF" for bits in (8, 16, 32, 64)
}


def glance(path: str) -> None:
    """Read the header, or that of every shard of an index, and compare the size with it. Torn."""
    peek(path)


def peek(path: str) -> int | None:
    """Return the global step. Torn."""
    if not path.endswith(INDEX_ENDING):
        return _peek(path)
    steps = [_peek(shard) for shard in shards_of(path)]
    return max((step for step in steps if step is not None), default=None)


def read(path: str) -> int | None:
    """Return the global step; there is no more to compare than `glance` does. Torn."""
    return peek(path)


def shards_of(index: str) -> list[str]:
    """Return the files that an index names. Torn."""
    with opened(index) as file, reading(f"{os.path.basename(index)} cannot be read"):
        names = set(json.load(file)["weight_map"].values())
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise Torn(f"{os.path.basename(index)} names {name!r}, which is no file beside it")
    return [os.path.join(os.path.dirname(index), name) for name in sorted(names)]


def _peek(path: str) -> int | None:
    name = os.path.basename(path)
    steps: dict[str, int] = {}
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_BYTES_MAX):
            raise Torn(f"{name} is cut off in its header: {size} bytes")
        with reading(f"{name}: its header cannot be read"):
            header = json.loads(file.read(length))
            end = 8 + length + _data_bytes(header, name)
            if size != end:
                raise Torn(
                    f"{name} is cut off: {size} of {end} bytes" if size < end else f"{name} is too long"
                )
            for key, entry in header.items():
                if key == "__metadata__":
                    steps |= {k: int(v) for k, v in entry.items() if str(v).isdecimal()}
                elif _count(entry["shape"]) == 1 and entry["dtype"] in ("I64", "I32", "U64", "U32"):
                    first, last = entry["data_offsets"]
                    file.seek(8 + length + first)
                    value = int.from_bytes(file.read(last - first), "little", signed=entry["dtype"][0] == "I")
                    steps[key.replace(".", "/")] = value
    return choose_step(steps)


def _data_bytes(header: dict[str, Any], name: str) -> int:
    """Return how long the tensors are, all together. Torn where one does not lie as said."""
    end = 0
    tensors = [(entry["data_offsets"], key, entry) for key, entry in header.items() if key != "__metadata__"]
    for (first, last), key, entry in sorted(tensors, key=lambda tensor: tensor[0]):
        bits = _BITS.get(entry["dtype"])
        if bits is None and entry["dtype"].startswith("F8_"):
            bits = 8
        wanted = None if bits is None and entry["dtype"] != "BF16" else _count(entry["shape"]) * (bits or 16)
        if first != end or last < first or (wanted is not None and (last - first) * 8 != wanted):
            raise Torn(f"{name}: the tensor {key} does not lie where its header says")
        end = last
    return end


def _count(shape: list[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count

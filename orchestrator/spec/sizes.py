"""Sizes as people write them: `500MB`, `1.5GB`, `2GiB`, or a plain number of bytes."""

from __future__ import annotations

import re

_UNITS_BYTES = {"": 1, "B": 1}
_UNITS_BYTES |= {f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)}
_UNITS_BYTES |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}
_WRITTEN = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB|)", re.ASCII)

PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,6})? ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?$"
"""The pattern of a size that is written as text, for the JSON schema."""


def parse_size(written: object) -> int:
    """Return a size in bytes. Raises ValueError if it is no size.

    >>> parse_size("1.5GB"), parse_size("2MiB"), parse_size(3)
    (1500000000, 2097152, 3)
    """
    if isinstance(written, int) and not isinstance(written, bool) and written >= 0:
        return written
    if isinstance(written, str) and (match := _WRITTEN.fullmatch(written)):
        return int(float(match[1]) * _UNITS_BYTES[match[2]])
    raise ValueError("must be a size: a number with kB, MB, GB, KiB, MiB or GiB, such as 500MB or 1.5GB")


def show_size(size: int) -> str:
    """Return a size as people write it.

    >>> show_size(200_000_000), show_size(1_500_000_000), show_size(12)
    ('200MB', '1.5GB', '12B')
    """
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= _UNITS_BYTES[unit]:
            return f"{size / _UNITS_BYTES[unit]:g}{unit}"
    return f"{size}B"

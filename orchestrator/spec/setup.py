"""`setup:` of a cluster spec: the requirements as one text, and the environment of each host by its content."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from orchestrator.core.plan import ENVIRONMENTS, HostPlan
from orchestrator.spec.models import ClusterSpec
from orchestrator.spec.parts import absolute

_LAYOUT = 2
"""Of the directory of environments on a host: what an older orch has put there has other names."""

_BYTES_MAX = 1 << 20
_FILES_MAX = 50
_READS = {"-r": "r", "--requirement": "r", "-c": "c", "--constraint": "c"}
_PLACES = ("-f", "--find-links", "-i", "--index-url", "--extra-index-url")
_INDEX = (*_PLACES, "--no-index", "--trusted-host")


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment of a run holds."""

    file: str
    """Absolute, on the head node."""
    requirements: str
    """All files of it, as one text without comments."""
    constraints: str
    version: str | None
    offline: bool

    def key(self, python: str) -> str:
        """Return the name of the environment that this Python of a host makes. The host adds its platform to it."""
        content = [_LAYOUT, self.requirements, self.constraints, self.version, python]
        return sha256(json.dumps(content).encode()).hexdigest()[:20]

    def python(self, host: HostPlan) -> str:
        """Return the path of the environment's Python on a host. Every shell and `expanduser` knows the ~."""
        return f"{ENVIRONMENTS}/{self.key(host.python)}/bin/python"

    @property
    def installed(self) -> str:
        """Return what a host installs: with wheels from the head, nothing is looked for elsewhere."""
        lines = self.requirements.splitlines()
        return "\n".join(line for line in lines if not (self.offline and line.startswith(_INDEX)))


def environment(spec: ClusterSpec, base_dir: Path) -> Environment | None:
    """Return the environment of a spec; None if it names none. Raises ValueError, as `read` does."""
    asked = spec.setup
    if asked is None:
        return None
    path = absolute(asked.requirements, base_dir)
    texts = read(path, offline=asked.offline)
    return Environment(path, texts["r"], texts["c"], asked.python, asked.offline)


def read(path: str, *, offline: bool) -> dict[str, str]:
    """Return the requirements (`r`) and constraints (`c`) of a file and of those that it names.

    Raises:
        ValueError: a file cannot be read, or a line needs what only the head node has; the sentence says where.
    """
    lines_by_kind: dict[str, list[str]] = {"r": [], "c": []}
    _read(path, "r", lines_by_kind, offline=offline, seen=[])
    return {kind: "\n".join(lines) for kind, lines in lines_by_kind.items()}


def _read(
    path: str, kind: str, lines_by_kind: dict[str, list[str]], *, offline: bool, seen: list[str]
) -> None:
    if path in seen:
        return
    seen.append(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is not a regular file")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is no UTF-8"
        raise ValueError(f"{path} cannot be read: {why}") from e
    if len(text) > _BYTES_MAX or len(seen) > _FILES_MAX:
        raise ValueError(f"{path} is too long, or names too many files, for requirements")
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        words = line.partition(" #")[0].strip()
        if not words or words.startswith("#"):
            continue
        option, _, value = words.replace("=", " ", 1).partition(" ")
        value = value.strip()
        if option in _READS:
            other = os.path.normpath(os.path.join(os.path.dirname(path), value))
            _read(other, kind if _READS[option] == "r" else "c", lines_by_kind, offline=offline, seen=seen)
        elif option in ("-e", "--editable") or words.startswith((".", "/", "file:")) or "@ file:" in words:
            raise ValueError(
                f"{path}:{number}: {words!r} lies on the head node only: push it in `workdir`, or build a wheel of it, "
                "and name where that lies with --find-links"
            )
        elif option in _PLACES and not offline and "://" not in value and not os.path.isabs(value):
            raise ValueError(
                f"{path}:{number}: {words!r} is a directory of the head node: `offline: true` has its wheels pushed"
            )
        else:
            lines_by_kind[kind].append(" ".join(words.split()))

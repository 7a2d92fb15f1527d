"""A good cluster.yaml, changed by the tests of specs, and the diagnostics that it gets."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.errors import SpecError
from orchestrator.spec.load import load_spec

GOOD = """\
version: 1
name: mnist
hosts:
  - {name: gpu-a, address: 10.0.0.11, gpus: 4}
  - {name: gpu-b, address: 10.0.0.12, gpus: 4}
run:
  strategy: multi_worker_mirrored
  script: train.py
  tasks: {worker: {replicas: 2}}
"""


def diagnostics(folder: Path, content: str | bytes) -> list[str]:
    """Return the diagnostics of a cluster.yaml, without the file's name."""
    file = folder / "cluster.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        load_spec(file)
    except SpecError as error:
        lines = error.message.splitlines()
        assert all(line.startswith(f"{file}:") for line in lines)
        return [line.removeprefix(f"{file}:").replace(str(folder), "FOLDER") for line in lines]
    return []


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def run(more: str) -> str:
    """Return the good spec with more lines under `run`; they begin in line 10, column 3."""
    return GOOD + "".join(f"  {line}\n" for line in more.splitlines())


def host_b(keys: str) -> str:
    """Return the good spec with another second host; its keys begin in line 5, column 6."""
    return changed("{name: gpu-b, address: 10.0.0.12, gpus: 4}", "{" + keys + "}")

"""Secret values of active runs: files of mode 0600 in a directory of mode 0700, apart from the journal.

They must outlive a coordinator, since a later one may have to start the tasks again; they are removed when the
run has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping


class Secrets:
    """One file per run that has any."""

    def __init__(self, state_dir: str) -> None:
        self._dir = os.path.join(state_dir, "secrets")

    def save(self, run_id: str, values: Mapping[str, str]) -> None:
        """Durable before it returns. OSError where the disk refuses."""
        if not values:
            return
        os.makedirs(self._dir, mode=0o700, exist_ok=True)
        path = self._path(run_id)
        descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dict(values), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)

    def load(self, run_id: str) -> dict[str, str]:
        """Empty where the run has none."""
        try:
            with open(self._path(run_id), encoding="utf-8") as file:
                return {str(name): str(value) for name, value in json.load(file).items()}
        except FileNotFoundError:
            return {}

    def remove(self, run_id: str) -> None:
        """Forget them."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(run_id))

    def _path(self, run_id: str) -> str:
        return os.path.join(self._dir, f"{run_id}.json")

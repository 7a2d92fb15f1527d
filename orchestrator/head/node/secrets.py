"""The secret values of active runs, in files of mode 0600 in a directory of mode 0700, apart from the journal: those of
the environment of tasks in `secrets`, and those of the recipients of `notify:` in `recipients`, which no task gets.

They must outlive a coordinator, since a later one may have to start the tasks again. They are removed when the run
has ended.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping

from orchestrator.both import durable

log = logging.getLogger(__name__)


class Secrets:
    """Keeps the secrets, in one file per run that has any."""

    def __init__(self, state_dir: str, directory: str = "secrets") -> None:
        self._dir = os.path.join(state_dir, directory)

    def save(self, run_id: str, values: Mapping[str, str]) -> None:
        """Save the secrets of a run durably. Raises OSError if the disk refuses."""
        if not values:
            return
        os.makedirs(self._dir, mode=0o700, exist_ok=True)
        durable.write_json(self._path(run_id), dict(values))

    def load(self, run_id: str) -> dict[str, str]:
        """Return the secrets of a run, by name. Raises OSError or ValueError if they cannot be read."""
        try:
            with open(self._path(run_id), encoding="utf-8") as file:
                return {str(name): str(value) for name, value in json.load(file).items()}
        except FileNotFoundError:
            return {}

    def remove(self, run_id: str) -> None:
        """Remove the secrets of a run."""
        durable.remove(self._path(run_id))

    def files_of_others(self, run_ids: Collection[str]) -> list[str]:
        """Return the files of all other runs, and partly written ones that a crash left."""
        kept = {f"{run_id}.json" for run_id in run_ids}
        try:
            return [os.path.join(self._dir, name) for name in os.listdir(self._dir) if name not in kept]
        except FileNotFoundError:
            return []
        except OSError as e:  # the next start looks again
            log.warning("cannot look for secrets of runs that have ended: %s", e)
            return []

    def remove_file(self, file: str) -> None:
        """Remove one of `files_of_others`."""
        durable.remove(file)

    def _path(self, run_id: str) -> str:
        return os.path.join(self._dir, f"{run_id}.json")

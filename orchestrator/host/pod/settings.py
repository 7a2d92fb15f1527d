"""The settings of the entry of a pod: the exported document, and what Kubernetes says of this pod."""

from __future__ import annotations

import json

from orchestrator.protocol import pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_NEEDED = ("name", "chief", "tasks", "python", "script", "ports", "timing")
_PORT = "@PORT@"


class Unfit(Exception):
    """The pod cannot run its task, and no restart would change that. str() is a sentence."""


class Settings:
    """The exported document, and this pod's place in it."""

    def __init__(self, document: dict[str, Any], environ: Mapping[str, str]) -> None:
        missing = [key for key in _NEEDED if key not in document]
        if missing:
            raise Unfit(f"{pod.SETTINGS} lacks {', '.join(missing)}: export the manifests again")
        self.document = document
        index = environ.get(pod.INDEX, "")
        if not index.isdecimal():
            raise Unfit(f"{pod.INDEX} is {index!r}: the pod does not belong to a JobSet that orch wrote")
        task = f"{environ.get(pod.TYPE)}:{int(index)}"
        if task not in document["tasks"]:
            raise Unfit(f"{document['name']} has no task {task}, only {', '.join(document['tasks'])}")
        self.task = task
        self.own: dict[str, Any] = document["tasks"][self.task]
        self.set = environ.get(pod.SET, "")
        attempt = environ.get(pod.ATTEMPT, "")
        self.attempt = int(attempt) if attempt.isdecimal() else None
        self.secrets = {name: environ[name] for name in document.get("secrets", ()) if name in environ}

    @property
    def is_chief(self) -> bool:
        """Whether this pod chooses the generation, and saves."""
        return bool(self.task == self.document["chief"])

    @property
    def run(self) -> str:
        """The id of the run: the same in all its pods and attempts."""
        return f"{self.document['name']}-{(self.set or 'pod')[:8]}"

    @property
    def root(self) -> str | None:
        """The checkpoint directory; None if nothing is saved."""
        checkpoint = self.document.get("checkpoint")
        return str(checkpoint["dir"]) if checkpoint else None

    def port(self, generation: int) -> int:
        """Return the port of every task of that generation: the next generation has another one."""
        first, last = self.document["ports"]
        return int(first) + generation % (int(last) - int(first) + 1)

    def wiring(self, generation: int) -> dict[str, str]:
        """Return TF_CONFIG or its like, with the stable names of all pods and the port of this generation."""
        port = str(self.port(generation))
        return {str(name): str(text).replace(_PORT, port) for name, text in self.own["wiring"].items()}


def read(path: str, environ: Mapping[str, str]) -> Settings:
    """Return the settings of this pod.

    Raises:
        Unfit: the document cannot be read, or names no such task.
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as e:
        raise Unfit(f"{path} cannot be read: {e}; export the manifests again") from e
    if not isinstance(document, dict):
        raise Unfit(f"{path} holds no object: export the manifests again")
    return Settings(document, environ)

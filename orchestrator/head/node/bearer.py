"""The bearer token for the metrics of `orch ui`: in a file of the user's, which Prometheus reads too."""

from __future__ import annotations

import os
import secrets

from orchestrator.both import durable
from orchestrator.core.errors import OrchestratorError

FILE = "metrics-token"


def token_file(state_dir: str) -> tuple[str, str]:
    """Return the token and the path of its file. The file is made at the first call, and then kept."""
    path = os.path.join(state_dir, FILE)
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (FileNotFoundError, ValueError):
        token = ""
    except OSError as e:
        raise OrchestratorError(f"{path} cannot be read: {e.strerror}") from e
    if token:
        return token, path
    token = secrets.token_urlsafe(32)
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        durable.write(path, token.encode())
    except OSError as e:
        raise OrchestratorError(f"{path} cannot be written: {e.strerror}") from e
    return token, path

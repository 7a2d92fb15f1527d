"""The command line's client of the coordinator's API: HTTP over a Unix socket.

It uses `http.client` and not a more convenient library: every command pays for the import, and this one takes a
quarter of the time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import time
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.both import private_socket, process
from orchestrator.core import errors
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError
from orchestrator.core.words import duration
from orchestrator.head.node import holder

STATE_DIR_HEADER = "Orch-State-Dir"
"""The state directory that the client expects, percent-encoded. A coordinator with another one refuses."""

CHECK_AFTER_S = 3.0
"""After so long without an answer, the client checks whether the coordinator runs at all."""

PROBE_S = 1.0
"""How long that check may take. On a busy machine the API answers it within a fraction of this time."""

NOBODY = (FileNotFoundError, NotADirectoryError, ConnectionRefusedError)
"""Where nobody listens behind a socket's path."""

SOCKET_AGAIN_S = 6.0
"""How long a client waits for the socket of a coordinator that lives. It notices within 2 s that it is gone."""

START_S = 30.0
"""How long a coordinator may take from the lock to its socket: it reads its journal."""

_POLL_EVERY_S = 0.1

NOT_RUNNING_HINT = "start it with `orch coordinator start`; `orch up FILE` also does"


class Client:
    """A client of the coordinator behind a socket. Each call opens its own connection; there is nothing to close."""

    def __init__(self, socket_path: str, *, state_dir: str | None = None, timeout_s: float = 30.0) -> None:
        """`state_dir`: the one that the coordinator must have; None for any."""
        self.socket_path = socket_path
        self.state_dir = state_dir
        self.timeout_s = timeout_s

    def get(
        self, path: str, query: dict[str, str | int | float] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Return the document at `path`. An error document is raised as the error that it describes."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None, timeout_s)

    def post(
        self, path: str, body: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Ask for a change, and return its answer."""
        return self._ask("POST", path, json.dumps(body or {}).encode(), timeout_s)

    def _connection(self, patience_s: float) -> http.client.HTTPConnection:
        """Return a connection for one request."""
        known = holder.living(self.state_dir) if self.state_dir is not None else None
        return _UnixConnection(known.socket if known is not None else self.socket_path, patience_s)

    def _await_answer(self, connection: http.client.HTTPConnection, patience_s: float) -> None:
        """Wait until the answer begins. TimeoutError after `patience_s`, or once the coordinator answers nobody.

        A request may take minutes, for example one that reads checkpoints. Meanwhile a small request shows whether the
        coordinator runs at all.
        """
        give_up_at = time.monotonic() + patience_s
        while connection.sock is not None:
            wait_s = min(CHECK_AFTER_S, give_up_at - time.monotonic())
            if wait_s <= 0:
                raise TimeoutError
            if select.select([connection.sock], [], [], wait_s)[0]:
                return
            if time.monotonic() < give_up_at:
                self._check_alive()

    def _check_alive(self) -> None:
        """Send a request that any coordinator answers at once. Raises TimeoutError if it does not."""
        connection = self._connection(PROBE_S)
        try:
            connection.request("GET", "/v1/alive")
            connection.getresponse().read()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return  # it ends, and so will the request
        finally:
            connection.close()

    def _silent(self, connection: http.client.HTTPConnection, waited_s: float) -> CoordinatorUnreachable:
        """Say which process does not answer, what is known of it, and the way out."""
        pid = connection.pid if isinstance(connection, _UnixConnection) else None
        who = f"the coordinator (pid {pid})" if pid else "the coordinator"
        stat = process.stat_of(pid) if pid else None
        if stat is not None and stat.state == "T":
            return CoordinatorUnreachable(
                f"{who} does not answer: it is stopped{self._last_written()}; tasks train on",
                hint=f"`kill -CONT {pid}` lets it go on; no host is given up for the time in which it did not run",
            )
        waits = (
            ", and waits in the kernel, perhaps for its disk"
            if stat is not None and stat.state == "D"
            else ""
        )
        kill = f"`kill -9 {pid}`, then `orch coordinator start`" if pid else "`orch coordinator restart`"
        return CoordinatorUnreachable(
            f"{who} behind {self.socket_path} did not answer within {duration(waited_s)}{waits}{self._last_written()}",
            hint=f"its log is coordinator.log in the state directory; {kill} takes its runs up, and touches no task",
        )

    def _last_written(self) -> str:
        """Say when its journal was last written. It has been stuck since then at the longest."""
        files = [os.path.join(self.state_dir or "", name) for name in ("journal.db-wal", "journal.db")]
        times = [os.stat(file).st_mtime for file in files if self.state_dir and os.path.exists(file)]
        return (
            f", and last wrote its journal {duration(max(0.0, time.time() - max(times)))} ago"
            if times
            else ""
        )

    def _ask(self, method: str, target: str, body: bytes | None, timeout_s: float | None) -> dict[str, Any]:
        """Ask the coordinator. One whose socket is not there starts, ends, or makes it again: that is waited for."""
        began_at, was_reset = time.monotonic(), method != "GET"
        while True:
            try:
                return self._ask_once(method, target, body, timeout_s)
            except CoordinatorUnreachable as e:
                # One that was killed a moment ago still takes connections until its last thread has ended.
                if not was_reset and isinstance(e.__cause__, ConnectionResetError):
                    was_reset = True
                    time.sleep(_POLL_EVERY_S)
                    continue
                known = holder.living(self.state_dir) if self.state_dir is not None else None
                if known is None or not isinstance(e.__cause__, NOBODY):
                    raise
                is_young = time.time() - known.since < START_S
                if time.monotonic() - began_at >= (START_S if is_young else SOCKET_AGAIN_S):
                    raise CoordinatorUnreachable(
                        f"the coordinator (pid {known.pid}) of {self.state_dir} runs, and nobody answers behind "
                        f"{known.socket}{self._last_written()}",
                        hint=f"its log is coordinator.log in that directory; `kill {known.pid}` ends it, and touches "
                        "no task",
                    ) from None
            time.sleep(_POLL_EVERY_S)

    def _ask_once(
        self, method: str, target: str, body: bytes | None, timeout_s: float | None
    ) -> dict[str, Any]:
        patience_s = self.timeout_s if timeout_s is None else timeout_s
        connection, began = self._connection(patience_s), time.monotonic()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self.state_dir is not None:
            headers[STATE_DIR_HEADER] = quote(self.state_dir)
        try:
            # The server may answer and hang up before the whole request was sent. Its answer can still be read.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, target, body, headers)
            self._await_answer(connection, patience_s)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except TimeoutError as e:
            raise self._silent(connection, time.monotonic() - began) from e
        except NOBODY as e:
            raise CoordinatorUnreachable(
                f"no coordinator is running behind {self.socket_path}", hint=NOT_RUNNING_HINT
            ) from e
        except PermissionError as e:
            raise CoordinatorUnreachable(
                f"no permission for the coordinator's socket {self.socket_path}",
                hint="it belongs to another user; set $ORCH_RUNTIME_DIR to a directory of your own",
            ) from e
        except (OSError, http.client.HTTPException) as e:
            raise CoordinatorUnreachable(
                f"the coordinator behind {self.socket_path} broke off its answer ({e or type(e).__name__})",
                hint="try again; its log is coordinator.log in the state directory",
            ) from e
        finally:
            connection.close()
        try:
            document = json.loads(content)
        except ValueError as e:
            if status >= 500:  # the server was stopped in the middle of its answer
                raise CoordinatorUnreachable(
                    "the coordinator broke off its answer",
                    hint="try again; its log is coordinator.log in the state directory",
                ) from e
            raise OrchestratorError(
                f"the coordinator answered {status} with something that is no JSON: {content[:200]!r}",
                hint="is it of another version? `orch coordinator status` shows it",
            ) from e
        if not isinstance(document, dict):
            raise OrchestratorError(
                f"the coordinator answered {status} with no JSON object: {content[:200]!r}"
            )
        if status >= 400:
            raise error_of(document, status)
        return document


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    pid: int | None = None
    """Whose the socket is, once it is connected."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. http.client calls this on the first request."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Only a process that does not run leaves its queue full for so long.
        self.sock.settimeout(min(self.timeout or CHECK_AFTER_S, CHECK_AFTER_S))
        self.sock.connect(self._path)
        self.sock.settimeout(self.timeout)
        self.pid, _ = private_socket.peer(self.sock)


def error_of(document: dict[str, Any], status: int = 500) -> OrchestratorError:
    """Return the error that an error document describes, with its exit code, and of its class where that is known."""
    described = document.get("error")
    if not isinstance(described, dict):
        return OrchestratorError(f"the coordinator answered {status}: {json.dumps(document)[:200]}")
    code = str(described.get("code") or "failed")
    hint = described.get("hint")
    error = _CLASSES.get(code, OrchestratorError)(
        str(described.get("message") or f"the coordinator answered {status}"),
        hint=str(hint) if hint else None,
    )
    error.code = code
    if isinstance(described.get("exit_code"), int):
        error.exit_code = described["exit_code"]
    return error


# The message of a HostError in a document already names its host, so HostErrors come back as OrchestratorErrors.
_CLASSES: dict[str, type[OrchestratorError]] = {
    kind.code: kind
    for kind in (
        errors.UsageError,
        errors.SpecError,
        errors.CoordinatorUnreachable,
        errors.CoordinatorBusy,
        errors.SomeHostsOnly,
        errors.Refused,
        errors.DecisionsStopped,
        errors.WaitTimedOut,
        errors.JournalError,
    )
}

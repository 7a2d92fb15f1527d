"""A coordinator's API without a coordinator, over a real Unix socket, as ARCHITECTURE.md describes it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from orchestrator.head.records.run_series import named as series_name

Json = dict[str, Any]


class FakeApi:
    """Answers from `runs` and `events`. `on_status` runs before each status, so that a test can change the runs."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = str(socket_path)
        self.runs: list[Json] = []
        self.events: list[Json] = []
        self.troubles: list[str] = []
        self.first_causes: list[Json] = []
        self.series: list[Json] = []
        """What was measured, as `/v1/runs/RUN/series` tells it."""
        self.posted: list[tuple[str, Json]] = []
        self.stacks: Json = {}
        self.checkpoints: Json = {}
        """The answer to every request about checkpoints."""
        self.outputs: Json = {}
        """What the tasks of every run have left."""
        self.parts: list[Json] = []
        """The answers to requests for one of these files, in their order."""
        self.standing: Json = {}
        """The state of the host, in answer to a drain or undrain."""
        self.on_status: Callable[[], None] = lambda: None
        self.on_kill: Callable[[Json], None] = lambda _run: None
        self.raw: bytes | None = None
        """The bytes to send in place of any answer."""
        self.refuse: tuple[int, Json] | None = None
        """The status and error document to answer every POST with."""
        self.refusals: dict[str, tuple[int, Json]] = {}
        """By run id: the same, for each POST about that run."""
        self.ending = False
        self.busy = 0
        """So many requests for events are not answered in time."""
        self.events_max = 1000
        """How many events one answer holds."""
        self._server = _Server(self.socket_path, _Handler)
        self._server.daemon_threads = True
        self._server.api = self
        self._closer: threading.Thread | None = None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> FakeApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the coordinator, and remove its socket."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        Path(self.socket_path).unlink(missing_ok=True)

    def join_close(self) -> None:
        """Wait until a `/v1/stop` has been carried out."""
        if self._closer is not None:
            self._closer.join()

    def get(self, path: str, query: Json) -> tuple[int, Json]:
        """Return the status and the document."""
        match path:
            case "/v1/coordinator":
                return 200, {
                    "pid": 4711,
                    "epoch": 3,
                    "version": "0.1.0",
                    "socket": self.socket_path,
                    "started_at": "2026-11-20T12:00:00Z",
                    "ending": self.ending,
                    "runs": 1,
                    "hosts": 2,
                }
            case "/v1/status":
                self.on_status()
                wanted = query.get("name")
                # As in the coordinator, a name means its newest run, and a run id means that run.
                named = [r for r in self.runs if wanted in (None, r["name"], r.get("run_id"))]
                troubles = {"troubles": self.troubles} if self.troubles else {}
                return 200, {"schema": 1, "runs": named if wanted is None else named[-1:], **troubles}
            case "/v1/events" if self.busy > 0:
                self.busy -= 1
                return 503, {"error": {"code": "busy", "message": "busy", "hint": None, "exit_code": 1}}
            case "/v1/events":
                after, name = int(query.get("after", 0)), query.get("name")
                found = [
                    e
                    for e in self.events
                    if e["seq"] > after
                    and (name is None or e["run"] == name or e["run"].startswith(f"{name}-"))
                ]
                return 200, {"events": found[: self.events_max]}
        if path.endswith("/checkpoints"):
            return 200, self.checkpoints
        if path.endswith("/history"):
            return 200, {"series": [{"task": one["task"], "name": one["name"]} for one in self.series]}
        if path.endswith("/series"):
            asked = set(str(query.get("names")).split(","))
            names = {id(one): series_name(one["task"], one["name"]) for one in self.series}
            return 200, {"series": [one for one in self.series if names[id(one)] in asked]}
        if path.startswith("/v1/runs/") and path.endswith("/why"):
            run = next(r for r in self.runs if r["run_id"] == path.split("/")[3])
            return 200, {"schema": 1, **run, "first_causes": self.first_causes}
        return 404, _error("no-such-path", f"no such path: {path}")

    def post(self, path: str, body: Json) -> tuple[int, Json]:
        """Return the status and the document."""
        self.posted.append((path, body))
        if self.refuse is not None:
            return self.refuse
        if path == "/v1/runs":
            return self._submit(body)
        if path == "/v1/stop":
            self._closer = threading.Thread(target=self.close)
            self._closer.start()
            return 200, {}
        if "/checkpoints/" in path:
            return 200, self.checkpoints
        if path.endswith(("/outputs", "/saved")):
            return 200, self.outputs
        if path.endswith("/outputs/fetch"):
            return 200, self.parts.pop(0)
        _, _, _, name, verb = path.split("/")
        for run in self.runs:
            if name in (run["name"], run["run_id"]):
                if run["run_id"] in self.refusals:
                    return self.refusals[run["run_id"]]
                if verb in ("drain", "undrain"):
                    return 202, {"run_id": run["run_id"], **self.standing}
                if verb == "kill":
                    self.on_kill(run)
                    return 202, {"run_id": run["run_id"], "phase": run["phase"]}
                return 200, {"stacks": self.stacks}
        return 404, _error("no-such-run", f"no run is named {name!r}")

    def _submit(self, body: Json) -> tuple[int, Json]:
        name = body["plan"]["name"]
        for run in self.runs:
            if run["name"] == name:
                return 200, {"run_id": run["run_id"], "created": False}
        run_id = f"{name}-20261120-1"
        self.runs.append(run_document(name=name, run_id=run_id, phase="PENDING", reason="connecting"))
        return 201, {"run_id": run_id, "created": True}


class _Server(ThreadingMixIn, UnixStreamServer):
    api: FakeApi


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:  # noqa: ARG002 (http.server's signature)
        return

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self._answer(*self.server.api.get(parts.path, query))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(*self.server.api.post(self.path, body))

    def _answer(self, status: int, document: Json) -> None:
        raw = self.server.api.raw
        if raw is not None:
            self.wfile.write(raw)
            return
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _error(code: str, message: str, *, hint: str | None = None, exit_code: int = 1) -> Json:
    return {"error": {"code": code, "message": message, "hint": hint, "exit_code": exit_code}}


def task_document(index: int = 0, **changes: object) -> Json:
    """Return the document of a worker that trains."""
    return {
        "task": f"worker:{index}",
        "host": ("gpu-a", "gpu-b")[index],
        "phase": "RUNNING",
        "pid": 4242 + index,
        "generation": 2,
        "address": f"10.0.0.1{index + 1}:20000",
        "gpus": [0],
        "global_step": 120,
        "steps_per_s": 3.4,
        "cpu_percent": 98.2,
        "rss_bytes": 1_300_000_000,
        "exit_code": None,
        "signal": None,
        "cause": None,
        "heartbeat_age_s": 0.4,
        **changes,
    }


def run_document(**changes: object) -> Json:
    """Return the document of a healthy run in its second generation."""
    return {
        "name": "mnist",
        "run_id": "mnist-20261120-1",
        "phase": "RUNNING",
        "reason": "step 120; all 2 tasks report",
        "strategy": "multi_worker_mirrored",
        "generation": 2,
        "epoch": 1,
        "restarts": 1,
        "global_step": 120,
        "steps_per_s": 3.4,
        "training_epoch": 2,
        "metrics": {"loss": 0.31},
        "checkpoint": {
            "global_step": 100,
            "path": "/shared/mnist/gen-000002/ckpt-100",
            "verified": True,
            "age_s": 12.0,
        },
        "problem": None,
        "reason_begins_with": None,
        "first_cause": None,
        "warnings": [],
        "proof": None,
        "hosts": [{"host": "gpu-a", "link": "CONNECTED"}, {"host": "gpu-b", "link": "CONNECTED"}],
        "tasks": [task_document(0), task_document(1)],
        **changes,
    }


def first_cause_document(**changes: object) -> Json:
    """Return what ended a generation of `run_document`'s run. A test compares its keys with the real ones."""
    return {
        "task": "worker:1",
        "host": "gpu-b",
        "generation": 1,
        "cause": "signal",
        "exit_code": None,
        "signal": 9,
        "sentence": "worker:1 on gpu-b was killed by SIGKILL at step 57",
        "global_step": 57,
        "ended_time": None,
        "means": "somebody or something on gpu-b ended it",
        "advice": "look there for a batch system",
        "done": "generation 2 resumes from step 50; 7 steps are lost",
        "cost": "",
        "downtime": None,
        "last_lines": ["loss 0.4", "loss 0.3"],
        "followers": 0,
        "followed": [],
        "alike": [],
        "stopped": 1,
        **changes,
    }


def event_document(seq: int, kind: str, message: str, **changes: object) -> Json:
    """Of `run_document`'s run."""
    return {
        "seq": seq,
        "time": f"2026-11-20T12:00:{seq:02d}.000Z",
        "run": "mnist-20261120-1",
        "kind": kind,
        "task": None,
        "generation": 2,
        "message": message,
        **changes,
    }

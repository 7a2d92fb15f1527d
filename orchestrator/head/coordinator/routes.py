"""The coordinator's API: what each request asks of the coordinator, in HTTP and JSON. `server.py` serves it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import TimeoutError as CallTimeout
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import anyio.to_thread
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.core.errors import OrchestratorError, Refused, UsageError
from orchestrator.core.plan import Plan
from orchestrator.core.state.run import Run
from orchestrator.core.words import size
from orchestrator.head.api.bodies import bounded_body
from orchestrator.head.api.client import STATE_DIR_HEADER
from orchestrator.head.coordinator.checkpoint_requests import VERBS
from orchestrator.head.coordinator.status import run_document
from orchestrator.head.node.paths import Paths
from orchestrator.head.transfer import outputs
from orchestrator.spec.forms import NAME_PATTERN

if TYPE_CHECKING:
    from orchestrator.head.coordinator.coordinator import Coordinator

WAIT_MAX_S = 60.0
GONE_S = 5.0
"""How long it may take to notice that a client that waited for events has gone away."""
BODY_BYTES_MAX = 16 << 20

Handler = Callable[[Request], Awaitable[JSONResponse]]
Parameters = Mapping[str, str]
Body = dict[str, Any]
Answer = JSONResponse | dict[str, Any]

_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


class _Api:
    """The handlers of the routes. What blocks gets the parameters of the path, and the body, and runs in a thread."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def describe(self, request: Request) -> JSONResponse:
        return JSONResponse(self._coordinator.describe())

    async def queue(self, request: Request) -> JSONResponse:
        return JSONResponse(self._coordinator.queue())

    async def alive(self, request: Request) -> JSONResponse:
        """Say that this process runs. A client that waits long for another answer asks this."""
        return JSONResponse({"pid": os.getpid()})

    def status(self, of: Parameters, query: Body) -> Answer:
        return self._coordinator.status(query.get("name"), waiting=query.get("waiting") != "no")

    def _plan(self, body: Body) -> Plan:
        try:
            plan = _PLAN.validate_python(body["plan"])
        except (KeyError, ValidationError) as e:
            raise UsageError(
                f"this is no plan that coordinator {self._coordinator.describe()['version']} understands: {e}",
                hint="if orch was upgraded, `orch coordinator stop`, then again (tasks go on)",
            ) from e
        if why := self._coordinator.why_unfit(plan):
            raise UsageError(f"this plan does not fit together: {why}")
        return plan

    def examine(self, of: Parameters, body: Body) -> Answer:
        examined = self._coordinator.examine(self._plan(body))
        findings = [finding.document() for finding in examined.findings]
        return {"findings": findings, "addresses": dict(examined.addresses)}

    def place(self, of: Parameters, body: Body) -> Answer:
        return self._coordinator.place(self._plan(body), look=bool(body.get("look")))

    def submit(self, of: Parameters, body: Body) -> Answer:
        plan = self._plan(body)
        if not re.fullmatch(NAME_PATTERN, plan.name):
            raise UsageError(
                f"{plan.name!r} is not a valid name of a run", hint="lower-case letters, digits and dashes"
            )
        secrets = body.get("secrets") or {}
        if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
            raise UsageError("secrets must be an object whose values are strings")
        run, created = self._coordinator.submit(
            plan,
            secrets,
            from_scratch=bool(body.get("from_scratch")),
            recipients=_texts(body, "recipients"),
            code=str(body.get("code") or ""),
        )
        document = {"run_id": run.run_id, "created": created, "phase": run.phase.value}
        return JSONResponse(document, status_code=201 if created else 200)

    def kill(self, of: Parameters, body: Body) -> Answer:
        force, later = bool(body.get("force")), bool(body.get("at_checkpoint"))
        run = self._coordinator.kill(of["name"], force=force, at_checkpoint=later)
        return _accepted({"run_id": run.run_id, "phase": run.phase.value})

    def drain(self, of: Parameters, body: Body) -> Answer:
        host = _host_of(body)
        if body.get("gone"):
            run = self._coordinator.give_up(of["name"], host)
        else:
            run = self._coordinator.drain(of["name"], host, now=bool(body.get("now")))
        return _accepted(_host_state(run, host))

    def undrain(self, of: Parameters, body: Body) -> Answer:
        host = _host_of(body)
        return _accepted(_host_state(self._coordinator.undrain(of["name"], host), host))

    def host(self, of: Parameters, body: Body) -> Answer:
        """Drain a host for all runs, or let it in again."""
        host, verb = of["host"], of["verb"]
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}", host) or verb not in ("drain", "undrain"):
            raise UsageError(f"{verb} of {host!r}: there is no such command, or that is no name of a host")
        if verb == "drain":
            runs = self._coordinator.drain_for_all(host, now=bool(body.get("now")))
        else:
            runs = self._coordinator.undrain_for_all(host)
        state = "drained" if verb == "drain" else "open"
        shown = [_host_state(run, name) for run, name in runs]
        of_one = shown[0] if len(shown) == 1 else {}  # as before a drain was for all runs
        return _accepted({**of_one, "schema": 1, "host": host, "state": state, "runs": shown})

    def stacks(self, of: Parameters, body: Body) -> Answer:
        return {"stacks": self._coordinator.stacks(of["name"])}

    def outputs(self, of: Parameters, body: Body) -> Answer:
        task = body.get("task")
        if not isinstance(task, str | None):
            raise UsageError("task must be the name of a task, such as worker:0")
        return self._coordinator.outputs(of["name"], _texts(body, "patterns"), task)

    def saved(self, of: Parameters, body: Body) -> Answer:
        """List the files of a checkpoint, of what the chief has saved."""
        generation, path = body.get("generation"), body.get("path")
        if not (isinstance(generation, int) and isinstance(path, str)):
            raise UsageError("a checkpoint has a `generation`, and a `path` below its directory")
        return self._coordinator.saved(of["name"], generation, path)

    def output(self, of: Parameters, body: Body) -> Answer:
        """Bring a file of the list that `outputs` gave, or a part of it."""
        directory, sha256, replace = body.get("directory"), body.get("sha256"), bool(body.get("replace"))
        if not (isinstance(directory, str) and os.path.isabs(directory)):
            raise UsageError("directory must be an absolute path")
        wanted, known = outputs.requested_file(body.get("file"), sha256)
        return self._coordinator.output(
            of["name"], wanted, directory, sha256=known, replace=replace
        )._asdict()

    def checkpoints(self, of: Parameters, body: Body) -> Answer:
        """Answer `GET` with the list of checkpoints, and do what `POST …/VERB` asks."""
        verb, what = of.get("verb", "list"), str(body.get("checkpoint") or "")
        if verb not in VERBS:
            raise UsageError(f"there is no command {verb!r} for checkpoints")
        if verb not in ("list", "read") and not what:
            raise UsageError(
                f"{verb} of which checkpoint?", hint="a global step, gen-N, or a name of the list"
            )
        return self._coordinator.checkpoints(of["name"], verb, what, restart=bool(body.get("restart")))

    def chaos(self, of: Parameters, body: Body) -> Answer:
        try:
            kind, target, for_s = str(body["fault"]), str(body["target"]), float(body["for_s"])
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise UsageError(f"a fault has `fault`, `target` and `for_s`: {e!r}") from e
        fault = self._coordinator.chaos(of["name"], kind, target, for_s)
        task = fault.task and str(fault.task)
        return {"fault": fault.kind, "host": fault.host, "task": task, "for_s": fault.for_s}

    async def events(self, request: Request) -> JSONResponse:
        """Return events, and wait up to `wait_s` for a first one."""
        query = request.query_params
        try:
            after = int(query.get("after", "0")[:40])
            left_s = min(float(query.get("wait_s", "0")), WAIT_MAX_S)
        except ValueError as e:
            raise UsageError(f"after and wait_s must be numbers: {e}") from e
        if not 0 <= after < 1 << 63:
            raise UsageError("after must be the number of an event: `orch events --json` shows it as seq")
        if math.isnan(left_s):
            raise UsageError("wait_s must be a number of seconds")
        until, seen, changed = time.monotonic() + left_s, -1, asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)
        news = self._coordinator.loop.news
        with news.waking(wake):
            while True:
                changed.clear()
                events: list[dict[str, Any]] = []
                if news.seq != seen:
                    seen = news.seq
                    events = await anyio.to_thread.run_sync(
                        lambda: self._coordinator.events(query.get("name"), after)
                    )
                left_s = until - time.monotonic()
                is_over = left_s <= 0 or self._coordinator.loop.ending
                if events or is_over or await request.is_disconnected():
                    return JSONResponse({"events": events})
                with anyio.move_on_after(min(left_s, GONE_S)):
                    await changed.wait()

    async def stop(self, request: Request) -> JSONResponse:
        await _body(request)  # otherwise the answer would come before the client has sent its whole request
        self._coordinator.loop.stop()
        return JSONResponse({"pid": os.getpid()}, status_code=202)


def _texts(body: dict[str, Any], key: str) -> list[str]:
    texts = body.get(key) or []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{key} must be a list of strings")
    return texts


def _host_of(body: dict[str, Any]) -> str:
    host = body.get("host")
    if not isinstance(host, str):
        raise UsageError("the request names no host")
    return host


def _host_state(run: Run, name: str) -> dict[str, Any]:
    """Return the state of a host as a document."""
    document = run_document(run, now=time.monotonic())
    host = next(host for host in document["hosts"] if host["host"] == name)
    return {
        "run_id": run.run_id,
        **{key: host[key] for key in ("host", "state", "reason", "tasks")},
        "checkpoints": run.plan.checkpoint is not None,
    }


def _accepted(document: dict[str, Any]) -> JSONResponse:
    """Return the answer to what has only begun."""
    return JSONResponse(document, status_code=202)


def _in_thread(call: Callable[[Parameters, Body], Answer]) -> Handler:
    """Return the handler that calls it in a worker thread, with the body of a POST or the query of a GET."""

    async def handler(request: Request) -> JSONResponse:
        body = await _body(request) if request.method == "POST" else dict(request.query_params)
        answer = await anyio.to_thread.run_sync(call, request.path_params, body)
        return answer if isinstance(answer, JSONResponse) else JSONResponse(answer)

    return handler


def _of_run(call: Callable[[str], dict[str, Any]]) -> Handler:
    """Return the handler that answers with what `call` says of the run in the path."""
    return _in_thread(lambda of, _body: call(of["name"]))


async def _body(request: Request) -> dict[str, Any]:
    raw = await bounded_body(request, BODY_BYTES_MAX)
    if raw is None:
        raise UsageError(f"the request is too large: {size(BODY_BYTES_MAX)} at most")
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError) as e:
        raise UsageError(f"the request is not JSON: {e}") from e
    if not isinstance(body, dict):
        raise UsageError("the request is not a JSON object")
    return body


def _error(message: str, *, code: str, hint: str | None, exit_code: int, http: int) -> JSONResponse:
    document = {"code": code, "message": message, "hint": hint, "exit_code": exit_code}
    return JSONResponse({"error": document}, status_code=http)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, OrchestratorError):
        # A failure of a host or the disk is no fault of this server, which 500 would mean.
        http = 409 if isinstance(error, Refused) else 400 if isinstance(error, UsageError) else 502
        return _error(error.message, code=error.code, hint=error.hint, exit_code=error.exit_code, http=http)
    hint = "see the coordinator's log; training goes on"
    if isinstance(error, CallTimeout):
        message = "the coordinator is busy and did not answer in time; nothing was changed"
        return _error(message, code="busy", hint=hint, exit_code=1, http=503)
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _error(message, code="usage", hint=None, exit_code=2, http=error.status_code)
    message = f"a fault in the coordinator: {type(error).__name__}: {error}"
    return _error(message, code="internal", hint=hint, exit_code=1, http=500)


class _SameState:
    """Refuses a client that expects another state directory: it would see other runs than it thinks."""

    def __init__(self, app: ASGIApp, paths: Paths) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = unquote(Headers(scope=scope).get(STATE_DIR_HEADER, "")) if scope["type"] == "http" else ""
        own = self._paths.state_dir
        if not wanted or os.path.realpath(wanted) == os.path.realpath(own):
            await self._app(scope, receive, send)
            return
        error = Refused(
            f"the coordinator behind {self._paths.socket} has the state directory {own}, and not {wanted}",
            hint=f"set $ORCH_STATE_DIR to {own} for its runs, or give {wanted} a runtime directory of its own "
            "($ORCH_RUNTIME_DIR)",
        )
        await (await _on_error(Request(scope), error))(scope, receive, send)


def application(coordinator: Coordinator) -> Starlette:
    """Return the application with its routes and error handlers."""
    api = _Api(coordinator)
    routes = [
        Route("/v1/coordinator", api.describe),
        Route("/v1/status", _in_thread(api.status)),
        Route("/v1/queue", api.queue),
        Route("/v1/hosts/{host}/{verb}", _in_thread(api.host), methods=["POST"]),
        Route("/v1/place", _in_thread(api.place), methods=["POST"]),
        Route("/v1/runs", _in_thread(api.submit), methods=["POST"]),
        Route("/v1/examine", _in_thread(api.examine), methods=["POST"]),
        Route("/v1/runs/{name}/kill", _in_thread(api.kill), methods=["POST"]),
        Route("/v1/runs/{name}/drain", _in_thread(api.drain), methods=["POST"]),
        Route("/v1/runs/{name}/undrain", _in_thread(api.undrain), methods=["POST"]),
        Route("/v1/runs/{name}/stacks", _in_thread(api.stacks), methods=["POST"]),
        Route("/v1/runs/{name}/summaries", _of_run(coordinator.summaries), methods=["POST"]),
        Route("/v1/runs/{name}/outputs", _in_thread(api.outputs), methods=["POST"]),
        Route("/v1/runs/{name}/outputs/fetch", _in_thread(api.output), methods=["POST"]),
        Route("/v1/runs/{name}/saved", _in_thread(api.saved), methods=["POST"]),
        Route("/v1/runs/{name}/forget", _of_run(coordinator.forget), methods=["POST"]),
        Route("/v1/runs/{name}/why", _of_run(coordinator.why)),
        Route("/v1/runs/{name}/history", _of_run(coordinator.history)),
        Route("/v1/alive", api.alive),
        Route("/v1/runs/{name}/series", _in_thread(lambda of, query: coordinator.series(of["name"], query))),
        Route("/v1/runs/{name}/logs", _in_thread(lambda of, query: coordinator.log_lines(of["name"], query))),
        Route("/v1/runs/{name}/checkpoints", _in_thread(api.checkpoints)),
        Route("/v1/runs/{name}/checkpoints/{verb}", _in_thread(api.checkpoints), methods=["POST"]),
        Route("/v1/runs/{name}/chaos", _in_thread(api.chaos), methods=["POST"]),
        Route("/v1/events", api.events),
        Route("/v1/stop", api.stop, methods=["POST"]),
    ]
    kinds = (OrchestratorError, CallTimeout, HTTPException, Exception)
    handlers: dict[Any, Any] = dict.fromkeys(kinds, _on_error)
    same_state = Middleware(_SameState, paths=coordinator.paths)
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[same_state])

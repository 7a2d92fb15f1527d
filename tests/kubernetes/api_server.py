"""An API server for the real kubectl: discovery, lists, creation, deletion with preconditions, access reviews, quota.

It keeps objects in memory and answers as the real one does, with Status documents. It runs nothing.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_KINDS = {
    ("", "services"): "Service",
    ("", "configmaps"): "ConfigMap",
    ("", "pods"): "Pod",
    ("", "events"): "Event",
    ("", "persistentvolumeclaims"): "PersistentVolumeClaim",
    ("apps", "statefulsets"): "StatefulSet",
}


class ApiServer:
    """Listens on a port of loopback. `kubeconfig` is for its kubectl."""

    def __init__(self, directory: Path) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.denied: set[str] = set()
        """`verb resource` of what is forbidden."""
        self.asked: list[str] = []
        server = self
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("H", (_Handler,), {"server_": server}))
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._http.server_port}"}}
                    ],
                    "users": [{"name": "jane", "user": {}}],
                    "contexts": [
                        {"name": "lab", "context": {"cluster": "c", "user": "jane", "namespace": "team"}}
                    ],
                    "current-context": "lab",
                }
            )
        )

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_: ApiServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.server_.asked.append(f"GET {self.path}")
        discovery = _DISCOVERY.get(url.path)
        if discovery is not None:
            self._say(200, discovery)
            return
        group, resource, name = _parse(url.path)
        if f"get {resource}" in self.server_.denied:
            self._status(
                403, "Forbidden", f'{resource} is forbidden: User "jane" cannot list resource "{resource}"'
            )
        elif name:
            found = self.server_.objects.get((resource, name))
            if found is None:
                self._status(404, "NotFound", f'{resource} "{name}" not found')
            else:
                self._say(200, found)
        else:
            items = [one for (kind, _), one in self.server_.objects.items() if kind == resource]
            for key, _, value in (
                word.partition("=")
                for word in parse_qs(url.query).get("labelSelector", [""])[0].split(",")
                if word
            ):
                items = [one for one in items if one["metadata"].get("labels", {}).get(key) == value]
            api = "v1" if not group else f"{group}/v1"
            self._say(
                200,
                {"apiVersion": api, "kind": _KINDS[group, resource] + "List", "metadata": {}, "items": items},
            )

    def do_POST(self) -> None:
        data = self._body()
        url = urlsplit(self.path)
        self.server_.asked.append(f"POST {self.path}")
        if url.path.endswith("selfsubjectaccessreviews"):
            # It comes as protobuf, in which texts stand as they are.
            denied = any(
                all(w.encode() in data for w in re.split("[ /]", what)) for what in self.server_.denied
            )
            head = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
            self._say(201, {**head, "metadata": {}, "spec": {}, "status": {"allowed": not denied}})
            return
        body = json.loads(data)
        _, resource, _ = _parse(url.path)
        name = body["metadata"].get("name")
        if f"create {resource}" in self.server_.denied:
            self._status(
                403, "Forbidden", f'{resource} is forbidden: User "jane" cannot create resource "{resource}"'
            )
        elif (resource, name) in self.server_.objects:
            self._status(409, "AlreadyExists", f'{resource} "{name}" already exists')
        elif "dryRun=All" in url.query:
            unknown = set(body.get("spec", {})) & {"tolerationz"}
            if unknown:
                told = f'strict decoding error: unknown field "spec.{unknown.pop()}"'
                self._status(400, "BadRequest", f'Pod in version "v1" cannot be handled as a Pod: {told}')
            else:
                self._say(201, body)
        else:
            body["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "namespace": url.path.split("/namespaces/")[1].split("/")[0],
            }
            self.server_.objects[resource, name] = body
            self._say(201, body)

    def do_DELETE(self) -> None:
        body = json.loads(self._body() or b"{}")
        self.server_.asked.append(
            f"DELETE {urlsplit(self.path).path} {json.dumps(body.get('preconditions'))}"
        )
        _, resource, name = _parse(urlsplit(self.path).path)
        found = self.server_.objects.get((resource, name))
        if body and self.headers.get("Content-Type") not in (None, "application/json"):
            self._status(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
        elif found is None:
            self._status(404, "NotFound", f'{resource} "{name}" not found')
        elif body.get("preconditions", {}).get("uid") not in (None, found["metadata"]["uid"]):
            self._status(
                409,
                "Conflict",
                f'cannot be fulfilled on {resource} "{name}": another UID',
            )
        else:
            del self.server_.objects[resource, name]
            self._say(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _body(self) -> bytes:
        """Return what was sent: kubectl sends the body of a raw request in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _status(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self._say(code, {**status, "reason": reason, "message": message, "code": code})

    def _say(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _parse(path: str) -> tuple[str, str, str]:
    words = path.strip("/").split("/")
    group = "" if words[0] == "api" else words[1]
    rest = words[2:] if words[0] == "api" else words[3:]
    if rest[:1] == ["namespaces"]:
        rest = rest[2:]
    return group, rest[0], rest[1] if len(rest) > 1 else ""


def _resources(group: str) -> dict[str, Any]:
    found = [
        {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind,
         "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]}
        for (of, plural), kind in _KINDS.items()
        if of == group
    ]  # fmt: skip
    version = "v1" if not group else f"{group}/v1"
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


_DISCOVERY: dict[str, dict[str, Any]] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group("apps"), _group("authorization.k8s.io")],
    },
    "/api/v1": _resources(""),
    "/apis/apps/v1": _resources("apps"),
    "/apis/authorization.k8s.io/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "authorization.k8s.io/v1",
        "resources": [
            {"name": "selfsubjectaccessreviews", "singularName": "", "namespaced": False,
             "kind": "SelfSubjectAccessReview", "verbs": ["create"]}
        ],
    },
}  # fmt: skip

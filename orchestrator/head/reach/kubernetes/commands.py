"""Calls kubectl with fixed arguments, and turns its failures into errors with their way out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import OrchestratorError
from orchestrator.head.reach.kubernetes.pods import QUOTA_HINT

TIMEOUT_S = 30.0
_REQUEST_S = 20
_SAID_MAX = 600
_NO_RIGHT = 5
"""The exit code where kubectl lacks a right, which only an administrator can grant."""


class KubernetesFailed(OrchestratorError):
    """kubectl refused, or did not answer."""

    code = "kubernetes"

    def __init__(
        self, message: str, *, hint: str | None = None, exit_code: int = 1, passes: bool = False
    ) -> None:
        """Make the error. `passes`: the failure may pass by itself."""
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.passes = passes

    @property
    def is_of_the_object(self) -> bool:
        """Whether the server refused the object for its content, and not because of the user's rights."""
        if "(Forbidden)" in self.message:
            return "cannot create resource" not in self.message and "exceeded quota" not in self.message
        return "(Invalid)" in self.message or "(BadRequest)" in self.message


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster, namespace and kubectl that a person chose when the pods were requested."""

    kubectl: str
    context: str
    """The name of the context. Empty: the cluster of the pod in which kubectl runs."""
    namespace: str
    kubeconfig: str = ""
    """The value of $KUBECONFIG; empty if it was not set."""

    def words(self, *words: str) -> list[str]:
        """Return the command line of kubectl with these arguments."""
        front = ["env", f"KUBECONFIG={self.kubeconfig}"] if self.kubeconfig else []
        context = [f"--context={self.context}"] if self.context else []
        return [*front, self.kubectl, *context, f"--namespace={self.namespace}", *words]

    def call(self, *words: str, stdin: bytes | None = None) -> str:
        """Return what kubectl printed. Raises KubernetesFailed."""
        return _call(self.words(f"--request-timeout={_REQUEST_S}s", *words), stdin, self.namespace)

    def try_out(self, manifest: dict[str, Any]) -> None:
        """Have the server check this object, and refuse unknown fields. It makes nothing.

        Raises KubernetesFailed.
        """
        api, kind = manifest["apiVersion"], manifest["kind"]
        root = "/api/v1" if api == "v1" else f"/apis/{api}"
        path = f"{root}/namespaces/{self.namespace}/{kind.lower()}s?dryRun=All&fieldValidation=Strict"
        self.call("create", f"--raw={path}", "--filename=-", stdin=json.dumps(manifest).encode())

    def may(self, verb: str, resource: str, *words: str) -> bool:
        """Return whether the server allows that. Raises KubernetesFailed."""
        try:
            return self.call("auth", "can-i", verb, resource, *words).strip().startswith("yes")
        except KubernetesFailed as e:
            if e.message.partition(": ")[2].split(" ")[0] == "no":
                return False
            raise

    def get(self, *words: str) -> dict[str, Any]:
        """Return the output of `kubectl get` as a document. Raises KubernetesFailed."""
        text = self.call("get", *words, "--output=json")
        try:
            document = json.loads(text)
        except ValueError as e:
            raise KubernetesFailed(f"kubectl printed no JSON document: {text[:200]!r}") from e
        if not isinstance(document, dict):
            raise KubernetesFailed(f"kubectl printed no JSON document: {text[:200]!r}")
        return document

    def items(self, *words: str) -> list[dict[str, Any]]:
        """Return the objects of a list. Raises KubernetesFailed."""
        listed = self.get(*words).get("items")
        return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def find(environ: Mapping[str, str], context: str | None, namespace: str | None) -> Cluster:
    """Return the cluster of this context and namespace, or else of kubectl's own settings. Raises KubernetesFailed."""
    kubectl = shutil.which("kubectl", path=environ.get("PATH"))
    if kubectl is None:
        raise KubernetesFailed(
            "there is no kubectl on this machine", hint="install it, or add its directory to PATH"
        )
    kubeconfig = os.pathsep.join(
        os.path.abspath(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path
    )
    front = ["env", f"KUBECONFIG={kubeconfig}"] if kubeconfig else []
    config = [*front, kubectl, "config"]
    chosen = _context([*config], context, within_a_pod="KUBERNETES_SERVICE_HOST" in environ)
    if namespace is None:
        at = [f"--context={chosen}"] if chosen else []
        namespace = _call([*config, "view", "--minify", *at, "--output=jsonpath={..namespace}"], None).strip()
    return Cluster(kubectl, chosen, namespace or "default", kubeconfig)


def _context(config: list[str], wanted: str | None, *, within_a_pod: bool) -> str:
    known = _call([*config, "get-contexts", "--output=name"], None).split()
    if wanted is not None:
        if wanted not in known:
            raise KubernetesFailed(
                f"kubectl knows no context {wanted!r}",
                hint=f"known: {', '.join(known)}" if known else "kubectl has no kubeconfig; see $KUBECONFIG",
            )
        return wanted
    try:
        return _call([*config, "current-context"], None).strip()
    except KubernetesFailed:
        if within_a_pod and not known:
            return ""
        raise KubernetesFailed(
            "kubectl has no current context, so the cluster is unknown",
            hint="`kubectl config use-context NAME`, or `kubernetes: {context: NAME}` in the file"
            + (f"; known: {', '.join(known)}" if known else "; kubectl has no kubeconfig; see $KUBECONFIG"),
        ) from None


def _call(words: list[str], stdin: bytes | None, namespace: str = "") -> str:
    try:
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as e:
        raise KubernetesFailed("kubectl did not answer: the cluster may be down", passes=True) from e
    except OSError as e:
        raise KubernetesFailed(f"kubectl cannot be started: {e.strerror}") from e
    if done.returncode:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise explained(output or f"kubectl ended with exit code {done.returncode}", namespace)
    return done.stdout.decode("utf-8", "replace")


_RIGHTS = (
    "orch makes StatefulSets, Services and ConfigMaps, and needs pods/exec; docs/kubernetes.md has the Role"
)

_KNOWN = (
    ("exceeded quota", QUOTA_HINT, 1),
    (
        "violates PodSecurity",
        "give what it asks for as `kubernetes: {pod: {spec: …}}`; docs/kubernetes.md has it",
        2,
    ),
    (" per Container is ", "ask for what the namespace's LimitRange allows", 2),
    ('" cannot ', _RIGHTS, _NO_RIGHT),
    ("(Unauthorized)", "log in to the cluster again; kubectl must work before orch can", _NO_RIGHT),
    (
        "must be logged in to the server",
        "log in to the cluster again; kubectl must work before orch can",
        _NO_RIGHT,
    ),
    ("(AlreadyExists)", "another one has the run's name there: give the run another `name`, or delete it", 6),
    ("Unable to connect to the server", "`kubectl get pods` must work from this machine", 3),
    ("The connection to the server", "`kubectl get pods` must work from this machine", 3),
    ("namespaces ", "`kubectl create namespace NAME`, or name another in `kubernetes: {namespace: …}`", 1),
)
"""Parts of kubectl's error messages, each with a hint and our exit code."""

_PASSES = (
    "Unable to connect to the server", "The connection to the server", "(ServiceUnavailable)", "(TooManyRequests)",
    "(InternalError)", "(Timeout)", "(ServerTimeout)", "timed out", "timeout", "deadline exceeded",
    "connection refused", "connection reset", "unexpected EOF", "etcdserver",
)  # fmt: skip
"""Parts of error messages of an API server that is away or busy for a moment."""


def explained(output: str, namespace: str = "") -> KubernetesFailed:
    """Return kubectl's error message as an error with a hint. If several objects failed, all are named."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = list(dict.fromkeys(line for line in lines if "rror" in line or "nable" in line)) or lines[-1:]
    sentence = "; ".join(errors)[:_SAID_MAX]
    where = f" (namespace {namespace})" if namespace else ""
    passes = any(words in sentence for words in _PASSES)
    for words, hint, exit_code in _KNOWN:
        if words in sentence and (words != "namespaces " or "not found" in sentence):
            passes = passes and exit_code != _NO_RIGHT
            return KubernetesFailed(
                f"kubectl{where}: {sentence}", hint=hint, exit_code=exit_code, passes=passes
            )
    return KubernetesFailed(f"kubectl{where}: {sentence}", passes=passes)

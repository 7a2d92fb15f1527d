"""A kubectl for tests: it says what kubectl says, in its words, of a cluster that is a directory. See cluster.py.

It is run as `kubectl`, by a line of the shell that gives it the directory. Only what orch asks for is known; anything
else is an error, as a misspelt flag is with kubectl.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

RESOURCES = {
    "statefulsets": "StatefulSet",
    "services": "Service",
    "configmaps": "ConfigMap",
    "pods": "Pod",
    "events": "Event",
    "persistentvolumeclaims": "PersistentVolumeClaim",
}
CLUSTER_WIDE = ("--context", "--namespace", "--request-timeout", "--kubeconfig")


class Failed(Exception):
    """What goes to stderr, with exit code 1."""


def main(argv: list[str]) -> int:
    """Do what is asked of the cluster in the directory `argv[0]`."""
    top, words = Path(argv[0]), argv[1:]
    options: dict[str, str] = {}
    plain: list[str] = []
    command: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            command = words[at + 1 :]
            break
        name, mark, value = word.partition("=")
        if word.startswith("-"):
            options[name] = value if mark else "true"
        else:
            plain.append(word)
    settings = json.loads((top / "settings.json").read_text())
    with (top / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    try:
        return _do(top, settings, plain, options, command)
    except Failed as e:
        sys.stderr.write(f"{e}\n")
        return 1


def _do(
    top: Path, settings: dict[str, Any], plain: list[str], options: dict[str, str], command: list[str]
) -> int:
    context = options.get("--context")
    if plain[0] == "config":
        return _config(settings, plain[1:])
    if context is not None and context not in settings["contexts"]:
        raise Failed(f'error: context "{context}" does not exist')
    if settings.get("down"):
        raise Failed("Unable to connect to the server: dial tcp 10.0.0.1:6443: connect: connection refused")
    verb, rest = plain[0], plain[1:]
    if verb == "auth":
        allowed = " ".join(rest[1:3]) not in settings.get("forbidden", [])
        print("yes" if allowed else "no")
        return 0 if allowed else 1
    if verb == "create":
        return _try(top, settings, options["--raw"]) if "--raw" in options else _create(top, settings)
    if verb == "get":
        return _get(top, settings, rest, options)
    if verb == "delete" and "--raw" in options:
        return _delete(top, options["--raw"])
    if verb == "exec":
        return _exec(top, settings, rest[0], command)
    raise Failed(f'error: unknown command "{" ".join(plain)}" for "kubectl"')


def _config(settings: dict[str, Any], words: list[str]) -> int:
    if words[0] == "get-contexts":
        print("\n".join(settings["contexts"]))
    elif words[0] == "current-context":
        if not settings.get("current"):
            raise Failed("error: current-context is not set")
        print(settings["current"])
    elif words[0] == "view":
        print(settings.get("namespace", ""), end="")
    return 0


def path_of(top: Path, kind: str, name: str) -> Path:
    """Return the file of an object."""
    return top / "objects" / f"{kind}.{name}.json"


def put(top: Path, found: dict[str, Any]) -> None:
    """Write an object, whole or not at all."""
    path = path_of(top, found["kind"], found["metadata"]["name"])
    new = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    new.write_text(json.dumps(found))
    new.rename(path)


def objects(top: Path, kind: str) -> list[dict[str, Any]]:
    """Return all objects of a kind."""
    found = []
    for path in sorted((top / "objects").glob(f"{kind}.*.json")):
        try:
            found.append(json.loads(path.read_text()))
        except FileNotFoundError:
            continue
    return found


def _try(top: Path, settings: dict[str, Any], uri: str) -> int:
    """Answer a dry run, and make nothing."""
    path, _, query = uri.partition("?")
    assert query == "dryRun=All&fieldValidation=Strict"
    plural, asked = path.split("/")[-1], json.load(sys.stdin)
    assert RESOURCES[plural] == asked["kind"]
    if f"create {plural}" in settings.get("forbidden", []):
        raise Failed(
            f'Error from server (Forbidden): {plural} is forbidden: User "jane" cannot create resource "{plural}" '
            'in API group "apps" in the namespace "lab"'
        )
    name = asked["metadata"].get("name")
    if name and path_of(top, asked["kind"], name).exists():
        raise Failed(f'Error from server (AlreadyExists): {plural} "{name}" already exists')
    if plural in settings.get("refuses", {}):
        raise Failed(settings["refuses"][plural])
    print(json.dumps(asked))
    return 0


def _create(top: Path, settings: dict[str, Any]) -> int:
    asked = json.load(sys.stdin)
    items = asked["items"] if asked["kind"] == "List" else [asked]
    failed = []
    for item in items:
        kind, name = item["kind"], item["metadata"]["name"]
        plural = next(plural for plural, known in RESOURCES.items() if known == kind)
        group = ".apps" if kind == "StatefulSet" else ""
        if path_of(top, kind, name).exists():
            failed.append(
                f'Error from server (AlreadyExists): error when creating "STDIN": {plural}{group} "{name}" '
                "already exists"
            )
        elif f"create {plural}" in settings.get("forbidden", []):
            failed.append(
                f'Error from server (Forbidden): error when creating "STDIN": {plural}{group} is forbidden: '
                f'User "jane" cannot create resource "{plural}" in API group "apps" in the namespace "lab"'
            )
        elif kind in settings.get("full", []):
            failed.append(
                f'Error from server (Forbidden): {plural}{group} "{name}" is forbidden: exceeded quota'
            )
        else:
            item["metadata"]["uid"] = str(uuid.uuid4())
            item["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            put(top, item)
            print(f"{kind.lower()}/{name} created")
    if failed:
        raise Failed("\n".join(failed))
    return 0


def _get(top: Path, settings: dict[str, Any], rest: list[str], options: dict[str, str]) -> int:
    found = []
    for resource in rest[0].split(","):
        if f"get {resource}" in settings.get("forbidden", []):
            raise Failed(
                f'Error from server (Forbidden): {resource} is forbidden: User "jane" cannot list resource "{resource}"'
            )
        found += objects(top, RESOURCES[resource])
    if len(rest) > 1:
        found = [one for one in found if one["metadata"]["name"] == rest[1]]
        if not found and "--ignore-not-found" not in options:
            raise Failed(f'Error from server (NotFound): {rest[0]} "{rest[1]}" not found')
    if "--field-selector" in options and options["--field-selector"].startswith("metadata.name="):
        wanted = options["--field-selector"].removeprefix("metadata.name=")
        found = [one for one in found if one["metadata"]["name"] == wanted]
    if "--selector" in options:
        key, _, value = options["--selector"].partition("=")
        found = [one for one in found if one["metadata"].get("labels", {}).get(key) == value]
    if options.get("--output") == "name":
        for one in found:
            print(f"{one['kind'].lower()}/{one['metadata']['name']}")
        return 0
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    return 0


def _delete(top: Path, uri: str) -> int:
    words = uri.split("/")
    kind, name = RESOURCES[words[-2]], words[-1]
    wanted = json.load(sys.stdin)["preconditions"]["uid"]
    path = path_of(top, kind, name)
    if not path.exists():
        raise Failed(f'Error from server (NotFound): {words[-2]} "{name}" not found')
    uid = json.loads(path.read_text())["metadata"]["uid"]
    if uid != wanted:
        raise Failed(
            f'Error from server (Conflict): Operation cannot be fulfilled on {words[-2]} "{name}": the UID in the '
            f"precondition ({wanted}) does not match the UID in record ({uid}). "
            "The object might have been deleted and then recreated"
        )
    path.unlink()
    print('{"kind":"Status","apiVersion":"v1","status":"Success"}')
    return 0


def _exec(top: Path, settings: dict[str, Any], name: str, command: list[str]) -> int:
    if "create pods/exec" in settings.get("forbidden", []):
        raise Failed(
            f'Error from server (Forbidden): pods "{name}" is forbidden: User "jane" cannot create resource "pods/exec"'
        )
    if not path_of(top, "Pod", name).exists():
        raise Failed(f'Error from server (NotFound): pods "{name}" not found')
    found = json.loads(path_of(top, "Pod", name).read_text())
    if "enter" not in found:
        if not found["status"].get("conditions", [{"status": "True"}])[0]["status"] == "True":
            raise Failed(f"Error from server (BadRequest): pod {name} does not have a host assigned")
        raise Failed('error: unable to upgrade connection: container not found ("task")')
    (top / "execs" / str(os.getpid())).touch()
    words = [inside(found["root"], word) for word in command]
    child = subprocess.Popen(
        [*found["enter"], *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=found["env"],
        bufsize=0,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    threading.Thread(target=_pump, args=(0, child.stdin.fileno(), child.stdin), daemon=True).start()
    back = [
        threading.Thread(target=_pump, args=(child.stdout.fileno(), 1, None)),
        threading.Thread(target=_pump, args=(child.stderr.fileno(), 2, None)),
    ]
    for thread in back:
        thread.start()
    for thread in back:
        thread.join()
    code = child.wait()
    if code:
        sys.stderr.write(f"command terminated with exit code {code}\n")
    sys.stderr.flush()
    os._exit(code if code >= 0 else 137)


def inside(root: str, words: str) -> str:
    """Return the words with each path below /orch/ led to `root`. A clone of the project may be called orch too."""
    return re.sub(r"(?<![\w.-])/orch/", lambda _: f"{root}/orch/", words)


def _pump(source: int, target: int, close: Any) -> None:
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(target, data) :]
    except OSError:
        pass
    if close is not None:
        close.close()
    elif target == 1:
        os.close(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

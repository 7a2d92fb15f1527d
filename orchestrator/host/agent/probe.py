"""Probes a host with the run's own Python: what is installed there, and whether the run can work.

`python -I <bundle> probe` reads a request as JSON from stdin and prints the facts as one JSON object. TensorFlow's
version is read from the name of its metadata, within milliseconds. It is imported only where that is asked for.
"""

from __future__ import annotations

import json
import os
import sys

from orchestrator.host.system.patience import within

_OTHER_NAMES = {"tensorflow": ("tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-intel")}
"""By module: distributions that have it, and are not named after it."""

_IMPORT = """
import sys
sys.path[:] = [place for place in sys.path if place]  # as by -P, which Python 3.10 does not have
import tensorflow
print("\\norch-gpus", len(tensorflow.config.list_physical_devices("GPU")))
"""

DIRECTORY_S = 20.0
"""After this, a directory that has not answered counts as hanging."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.protocol.orders.hosts import Facts, Import, Imported, OwnName

    _Found = tuple[str | None, str | None, str | None]


def main(argv: list[str]) -> int:
    """Read the request, print the facts, and exit."""
    del argv
    wish = json.loads(sys.stdin.read() or "{}")
    checkpoint_dir, host_dir = wish.get("checkpoint_dir"), wish.get("host_dir")
    hangs: _Found = (f"it has not answered for {DIRECTORY_S:.0f} s", None, None)
    why, share, others = (
        (None, None, None)
        if checkpoint_dir is None
        else within(
            DIRECTORY_S,
            lambda: _directory(
                checkpoint_dir, wish.get("run"), wish.get("group"), wish.get("share"), wish.get("withdraw")
            ),
            hangs,
        )
    )
    from orchestrator.host.agent import gpus, place_of_tasks
    from orchestrator.host.system import unkillable

    uuids, no_gpus, instances = gpus.present()
    installed = _installed()
    facts: Facts = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": place_of_tasks.started_as(
            wish["command"], sys.executable, wish["env"], wish["surroundings"]
        ),
        "versions": {name: _version(name, installed) for name in wish.get("packages") or ()},
        "checkpoint_writable": checkpoint_dir is None or why is None,
        "checkpoint_why": why,
        "checkpoint_share": share,
        "checkpoint_others": others,
        "gpus": uuids,
        "gpus_why": no_gpus,
        "gpu_instances": instances,
        "gpus_in_use": [*gpus.leased(uuids), *gpus.in_use(uuids, wish.get("run"))] if uuids else [],
        "own_name": own_name(os.uname().nodename),
        "unkillable": unkillable.known(host_dir) if host_dir else [],
    }
    if wish.get("activated"):
        facts["activated"] = wish["activated"]
    missing, syntax = _missing(wish.get("modules") or []), _syntax(wish.get("source"))
    if missing:
        facts["missing"] = missing
    if syntax is not None:
        facts["syntax"] = syntax
    if wish.get("tensorflow"):
        facts["tensorflow"] = imported(wish["tensorflow"])
    print(json.dumps(facts), flush=True)
    # An ordinary exit would wait for a thread that hangs in a directory.
    os._exit(0)


def imported(wish: Import) -> Imported:
    """Import TensorFlow as a task would, with the environment of the spec, and count the GPUs that it sees."""
    import subprocess
    import time

    began_at, output, why = time.monotonic(), "", None
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            env={**os.environ, **wish["env"]},
            cwd="/",  # nothing there is taken for a module by a PYTHONPATH with an empty entry
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=wish["within_s"],
        )
        output = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            why = lines[-1][:500] if lines else f"it ended with {done.returncode}, and said nothing"
    except subprocess.TimeoutExpired:
        pass
    answer = output.rpartition("orch-gpus")[2].strip()
    gpus = int(answer) if answer.isdecimal() else None
    return {"seconds": time.monotonic() - began_at, "gpus": gpus, "why": why}


def _missing(modules: list[str]) -> list[str]:
    """Return which of these modules a task would not find. None is imported."""
    if not modules:
        return []
    import site
    from importlib.util import find_spec

    for place in _more_places():
        site.addsitedir(place)  # with its .pth files, by which packages are installed for editing
    missing = []
    for name in modules:
        try:
            is_there = find_spec(name) is not None
        except (ImportError, ValueError):
            is_there = True  # it is there, and broken in its own way
        if not is_there:
            missing.append(name)
    return missing


def _syntax(source: str | None) -> str | None:
    """Return why this Python cannot compile the script; None if it can."""
    if source is None:
        return None
    import warnings

    warnings.simplefilter("ignore")
    try:
        compile(source, "script", "exec", dont_inherit=True)
    except SyntaxError as e:
        return f"SyntaxError in line {e.lineno}: {e.msg}"
    except ValueError as e:
        return str(e)
    return None


def _directory(
    directory: str, run: str | None, group: str | None, known: str | None, withdraw: bool | None
) -> _Found:
    """Return why the directory cannot be written; or None, its token for the run, and who else may write there.

    The token is empty if the directory has not the one that is known.
    """
    from orchestrator.checkpoints import places, share

    if run is not None and withdraw is not None:
        share.withdraw(directory, run, made=withdraw)
        return None, None, None
    if run is not None and known:
        try:
            if not share.is_there(directory, run, known):
                return None, "", None
        except OSError as e:
            return f"{e.strerror}: {e.filename or directory}", None, None
    try:
        others = places.others_in(directory, group)
        is_there = others is None or os.path.lexists(directory)
        why = why_not_writable(directory) if is_there else None
        if why is not None or others is not None or run is None:
            return why, None, others
        if group is not None:
            os.umask(0o007)
        return None, share.token(directory, run), None
    except OSError as e:
        return f"{e.strerror}: {e.filename or directory}", None, None


def why_not_writable(directory: str) -> str | None:
    """Try what a checkpoint needs: make, write, sync, rename, remove. Return why it fails; None if it works."""
    from orchestrator.checkpoints import places

    name = f".orch-probe-{os.uname().nodename}-{os.getpid()}"
    try:
        with places.opened(directory) as tree:
            tree.write(name, b"orch")
            tree.remove(name)
    except OSError as e:
        return f"{e.strerror}: {e.filename or directory}"
    return None


def own_name(name: str) -> OwnName:
    """Return where a library listens that resolves the host's own name, as gloo does: the first address that binds."""
    import socket

    own: OwnName = {"name": name, "address": None, "why": None}
    try:
        # As bytes: Python would else import its tables of international names for it.
        addresses = socket.getaddrinfo(name.encode(), None, 0, socket.SOCK_STREAM)
    except OSError as e:
        return {**own, "why": e.strerror or str(e)}
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as listener:
                listener.bind(address)
        except OSError as e:
            own["why"] = f"it resolves to {address[0]}: {e.strerror}"
        else:
            return {"name": name, "address": str(address[0]), "why": None}
    return own


def _version(module: str, installed: Mapping[str, str]) -> str | None:
    """Return the version of a package; None if it is missing, `unknown` where it can be imported all the same."""
    for name in (module.replace("_", "-"), *_OTHER_NAMES.get(module, ())):
        if name in installed:
            return installed[name]
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec(module, _places())
    return "unknown" if spec is not None and spec.origin is not None else None


def _installed() -> dict[str, str]:
    """Return the version of each installed distribution, by its name with hyphens in lower case.

    By the names of the directories of metadata, `tensorflow-2.21.0.dist-info`: `importlib.metadata` says the same, and
    importing it takes longer than all else here.
    """
    versions: dict[str, str] = {}
    for place in _places():
        try:
            entries = os.listdir(place or ".")
        except OSError:
            continue  # a path that is no directory, or not there
        for entry in entries:
            stem, suffix = os.path.splitext(entry)
            name, _, version = stem.partition("-")
            if suffix in (".dist-info", ".egg-info") and version:
                normal = name.lower().replace("_", "-").replace(".", "-")
                versions.setdefault(normal, version.partition("-py")[0])
    return versions


def _places() -> list[str]:
    return [*sys.path, *_more_places()]


def _more_places() -> list[str]:
    """Return where a task finds packages and this isolated process does not: the user's, and the login's PYTHONPATH."""
    import site

    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if sys.prefix == sys.base_prefix or _sees_the_system(sys.prefix):
        places.append(site.getusersitepackages())
    return places


def _sees_the_system(prefix: str) -> bool:
    """Return whether a virtual environment was made with the system's packages."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            settings = dict(line.replace(" ", "").lower().strip().partition("=")[::2] for line in file)
    except OSError:
        return False
    return settings.get("include-system-site-packages") == "true"

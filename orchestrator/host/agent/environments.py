"""Virtual environments of a host, by their content: `python -I <bundle> environment` finds one, or makes it.

Below ~/.local/share/orch/environments:

    <name>/bin/python  a script, which plans name: it starts the Python of the host that it runs on
    <name>/hosts/…     a link to <key>, by the name of each host: several may share the home directory
    <key>              a link to the environment, set once all is installed: what stands there is whole
    <key>.<number>/    the environment, or what an interrupted setup has left
    <key>.log          what uv or pip said
    <key>.lock         held by who makes it

A <key> is a <name> with the platform and the minor version of the Python: what one of them can load, another cannot.
It is a link because an environment cannot be renamed: its programs contain the path of their Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from orchestrator.both import durable, hostdir, process
from orchestrator.both.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    from orchestrator.protocol.orders.hosts import EnvironmentState

    Wish = dict[str, Any]

RECORD = "orch-environment.json"
"""In an environment: with what it was made. Its time is when it was last asked for."""

KEPT_MAX = 3
KEPT_S = 86400.0
"""How many of the last used environments are kept, and how long after its last use each is, even if no run needs it."""

_SAID_CHARS_MAX = 600
_TAIL_BYTES = 16 << 10
_PYTHON_LAUNCHER = b"""#!/bin/sh
python="${0%/bin/*}/hosts/$(uname -n)/bin/python"
[ -x "$python" ] || { echo orch-no-python; exit 127; }
exec "$python" "$@"
"""
"""What it prints, the head takes for an environment that was not made there (`head/links/bootstrap.py`)."""

_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


def root() -> str:
    """Return the directory of all environments. A plan names it too (`core/plan.py`)."""
    return os.path.expanduser("~/.local/share/orch/environments")


def last_line(name: str) -> str:
    """Return the last line that uv or pip has printed."""
    try:
        names = [
            log for log in os.listdir(root()) if log.startswith(f"{_plain(name)}-") and log.endswith(".log")
        ]
        lines = _lines(max((os.path.join(root(), log) for log in names), key=os.path.getmtime))
    except (OSError, ValueError):
        return ""  # it has only just begun
    return lines[-1][:_SAID_CHARS_MAX] if lines else ""


def main(argv: list[str]) -> int:
    """Read the wish from stdin, find or make the environment, and print its state."""
    del argv
    wish = json.loads(sys.stdin.read())
    try:
        answer: Any = _make(wish) if wish["begin"] else _find(wish)
    except Exception as e:
        answer = {"error": hostdir.fault_of(e).to_json()}
    print(json.dumps(answer), flush=True)
    return 0


def _find(wish: Wish) -> EnvironmentState:
    """Return whether the environment is there and works; if not, with what it would be made."""
    absent, key = _wanted(wish)
    there = _path(key)
    if (record := durable.read_object(there, RECORD)) is not None:
        current = _version_of(os.path.join(there, "bin", "python"))
        if current is not None and _minor(current) == _minor(str(record["python"])):
            os.utime(os.path.join(there, RECORD))
            _open(wish["key"], key)
            return {**absent, "state": "ready", "python": current, "by": record["by"]}
    return absent


def _wanted(wish: Wish) -> tuple[EnvironmentState, str]:
    """Return the state of an environment that is still to be made on this host, and its key."""
    python = _interpreter(wish["version"], may_load=not wish["offline"])
    version = (_version_of(python) or "0") if os.path.isabs(python) else python
    state = _state(version, "uv" if _program("uv") else "pip")
    of_host = f"{state['machine']}-{state['libc']}-py{_minor(version)}"
    return state, f"{wish['key']}-{of_host.replace('.', '_')}"


def _open(name: str, key: str) -> None:
    """Have the path that plans name start this environment, on this host."""
    for part in ("bin", "hosts"):
        os.makedirs(os.path.join(_path(name), part), mode=0o700, exist_ok=True)
    door = os.path.join(_path(name), "bin", "python")
    if not os.path.exists(door):
        durable.write(door, _PYTHON_LAUNCHER, mode=0o700)
    mine = os.path.join(_path(name), "hosts", os.uname().nodename)
    if not os.path.islink(mine) or os.readlink(mine) != f"../../{key}":
        fresh = f"{mine}.{os.urandom(4).hex()}"
        os.symlink(f"../../{key}", fresh)
        durable.place(fresh, mine)


def _state(python: str, by: Literal["uv", "pip"]) -> EnvironmentState:
    try:
        libc = (os.confstr("CS_GNU_LIBC_VERSION") or "").replace(" ", "-") or "musl"
    except (ValueError, OSError):
        libc = "musl"
    machine = os.uname().machine
    return {
        "state": "absent",
        "python": python,
        "by": by,
        "machine": machine,
        "libc": libc,
        "line": "",
        "missing": [],
    }


def _make(wish: Wish) -> EnvironmentState:
    """Make the environment, unless it is there; or return which wheels are missing for that."""
    import fcntl
    import shutil

    os.makedirs(root(), mode=0o700, exist_ok=True)
    key = _wanted(wish)[1]
    with open(_path(key, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another setup may be making the same; then its result is used
        state = _find(wish)
        blobs = {name: os.path.join(wish["host_dir"], "blobs", digest) for name, digest in wish["wheels"]}
        missing = [digest for name, digest in wish["wheels"] if not os.path.exists(blobs[name])]
        if state["state"] == "ready" or missing:
            return {**state, "missing": missing}
        made = _path(key, os.urandom(4).hex())
        work = f"{made}.work"
        try:
            os.makedirs(os.path.join(work, "wheels"), mode=0o700)
            for name, blob in blobs.items():
                os.utime(blob)  # old blobs are removed
                os.symlink(blob, os.path.join(work, "wheels", _plain(name)))
            _install(wish, state["by"], made, work, _path(key, "log"))
            version = _version_of(os.path.join(made, "bin", "python"))
            if version is None:
                problem = "all is installed, but its Python does not start"
                raise HostFault("setup-failed", problem, f"what uv or pip said: {_path(key, 'log')}")
            durable.write_json(os.path.join(made, RECORD), {"python": version, "by": state["by"]})
            os.sync()  # tens of thousands of files, which neither uv nor pip has synced
            os.symlink(made, f"{work}/link")
            durable.place(f"{work}/link", _path(key))
            _open(wish["key"], key)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    with contextlib.suppress(Exception):  # the environment is made; the next setup removes the rest
        for blob in filter(os.path.exists, blobs.values()):
            os.unlink(blob)
        _remove_old(key, wish)
    return {**state, "state": "ready", "python": version}


def _install(wish: Wish, by: str, made: str, work: str, said_in: str) -> None:
    where: list[str] = []
    for option, text in (("-r", wish["requirements"]), ("-c", wish["constraints"])):
        if text or option == "-r":
            where += [option, os.path.join(work, f"file{option}.txt")]
            durable.write(where[-1], text.encode(), durable=False)
    if wish["offline"]:
        where += ["--no-index", "--find-links", os.path.join(work, "wheels")]
    python = _interpreter(wish["version"], may_load=not wish["offline"])
    inside = os.path.join(made, "bin", "python")
    if by == "uv":
        uv = [str(_program("uv")), *(["--offline"] if wish["offline"] else [])]
        steps = [[*uv, "venv", "--python", python, made], [*uv, "pip", "install", "--python", inside, *where]]
    else:
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", *where]
        if _has_pip(python):
            steps = [
                [python, "-I", "-m", "venv", "--without-pip", made],
                [python, "-I", "-m", "pip", "--python", inside, "install", *quiet],
            ]
        else:
            steps = [[python, "-I", "-m", "venv", made], [inside, "-I", "-m", "pip", "install", *quiet]]
    with open(said_in, "wb") as log:
        for step in steps:
            _run(step, log.fileno(), wish, said_in)


def _has_pip(python: str) -> bool:
    """Return whether it has a pip that installs for another Python. Else it must be able to install one there."""
    pip_version = (_answer([python, "-I", "-m", "pip", "--version"]) or "pip 0").split()[1].split(".")
    if [int(part) for part in pip_version if part.isdigit()][:2] >= [22, 3]:
        return True
    if _answer([python, "-I", "-c", "import ensurepip, venv"]) is None:
        version = _minor(_version_of(python) or "3")
        raise HostFault(
            "no-ensurepip",
            f"{python} cannot make a virtual environment: it has neither pip nor ensurepip, which Debian and Ubuntu "
            "ship in a package of their own",
            f"`apt install python{version}-venv` there; or put `uv` into ~/.local/bin there, which needs no root",
        )
    return False


def _run(argv: list[str], log: int, wish: Wish, said_in: str) -> None:
    import subprocess

    me = os.getpid()
    process.load_prctl()
    ended = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"},
        check=False,
        preexec_fn=lambda: process.die_with_parent(me),
    )
    if ended.returncode == 0:
        return
    lines = _lines(said_in)
    what = "uv" if os.path.basename(argv[0]) == "uv" else "pip" if "pip" in argv else "venv"
    raise HostFault(
        "setup-failed", f"{what}: {_sentence(lines)}", f"{_way_out(lines, wish)}; all that it said: {said_in}"
    )


def _sentence(lines: list[str]) -> str:
    """Return the last error of pip, which is one line; else that of uv, which may be several; else the last line."""
    of_pip = [line.partition(": ")[2] for line in lines if line.startswith("ERROR: ")]
    if of_pip:
        return of_pip[-1][:_SAID_CHARS_MAX]
    begins = [at for at, line in enumerate(lines) if line.lstrip().startswith(("error: ", "× "))]
    error_lines = lines[begins[-1] :] if begins else lines[-1:]
    text = (
        " ".join(line.strip(" ×╰─▶│") for line in error_lines)
        .removeprefix("error: ")
        .replace(" cause: ", ": ")
    )
    return text[:_SAID_CHARS_MAX] or "it ended with an error, and said nothing"


def _way_out(lines: list[str], wish: Wish) -> str:
    text = "\n".join(lines)
    if any(words in text for words in ("No space left", "os error 28")):
        return "free some space in the home directory there"
    if any(words in text for words in ("Retrying (Retry(", "Failed to fetch", "dns error", "ConnectTimeout")):
        return "the host does not reach the package index: `offline: true` in `setup:` has the head collect the wheels"
    if wish["offline"]:
        return "the head collected no such wheel: name it in the requirements"
    return "correct the requirements"


# ---------------------------------------------------------------- the Python that it is made with


def _interpreter(version: str | None, *, may_load: bool) -> str:
    """Return the path of the Python to make it with, or its version where uv loads that one itself."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version is None or version == own:
        return sys.executable
    python = _program(f"python{version}")
    uv = _program("uv")
    if python is None and uv is not None:
        python = _answer([uv, "--offline", "python", "find", version]) or (version if may_load else None)
    if python is None:
        raise HostFault(
            "no-python-version",
            f"there is no Python {version}: {sys.executable} is {own}, and python{version} and uv are not in PATH",
            f"install Python {version} or uv there, or name another as `python` in `setup:`",
        )
    return python


def _program(name: str) -> str | None:
    import shutil

    more = [os.path.expanduser(place) for place in ("~/.local/bin", "~/.cargo/bin")]
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *more]))


def _version_of(python: str) -> str | None:
    return _answer([python, "-I", "-S", "-c", _VERSION])


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _answer(argv: list[str]) -> str | None:
    """Return what a program prints; None if it is missing or fails.

    Raises HostFault or OSError if the host had no time or memory to run it, so that its answer is not known.
    """
    import subprocess

    late = HostFault("setup-failed", f"{argv[0]} did not answer", "set up again when the host has less to do")
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, errors="surrogateescape", timeout=60
        )
    except subprocess.TimeoutExpired:
        raise late from None
    except OSError as e:
        import errno

        if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP):
            return None
        raise
    if ended.returncode == -9:  # by the kernel, as a rule, which needs its memory
        raise late
    return ended.stdout.strip() if ended.returncode == 0 else None


# ---------------------------------------------------------------- what may be removed


def _remove_old(made: str, wish: Wish) -> None:
    """Remove what interrupted setups have left, and the environments that nobody needs.

    An environment is needed if it is one of the three that were last asked for, if it was asked for within a day, if a
    run uses it that lives here or that a coordinator drives, or if the head names it in `keep`.
    """
    import fcntl

    asked_at = {key: at for key in _keys() if (at := _asked_at(key)) is not None}
    newest = sorted(asked_at, key=lambda key: asked_at[key], reverse=True)[:KEPT_MAX]
    by_runs = {*wish["keep"], *_used(wish["host_dir"])}
    kept_by_runs = {key for key in _keys() if key.partition("-")[0] in by_runs}
    used = {made, *newest, *kept_by_runs}
    used |= {key for key, at in asked_at.items() if time.time() - at < KEPT_S}
    for key in _keys():
        with contextlib.suppress(OSError), open(_path(key, "lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused: it is being made
            _remove(key, whole=key in asked_at and key not in used, earlier=key not in kept_by_runs)


def _remove(key: str, *, whole: bool, earlier: bool) -> None:
    """Remove what setups of `key` left; with `earlier`, its former environments; with `whole`, the current one too."""
    import shutil

    if whole:
        os.unlink(_path(key))  # first: without the link, nothing counts as whole
        doors = os.path.join(_path(key.partition("-")[0]), "hosts")
        if os.path.isdir(doors) and not any(
            os.path.exists(os.path.join(doors, link)) for link in os.listdir(doors)
        ):
            shutil.rmtree(os.path.dirname(doors), ignore_errors=True)
    current = os.path.realpath(_path(key))
    for name in os.listdir(root()):
        path = os.path.join(root(), name)
        beside = name.startswith(f"{key}.") and os.path.isdir(path) and path != current
        if beside and (earlier or not os.path.exists(os.path.join(path, RECORD))):
            shutil.rmtree(path, ignore_errors=True)
    log = _path(key, "log")
    if (
        not os.path.lexists(_path(key))
        and os.path.exists(log)
        and time.time() - os.stat(log).st_mtime > KEPT_S
    ):
        os.unlink(log)


def _keys() -> set[str]:
    """Return the first words of all names, without those of a network file system, such as `.nfs…`."""
    return {name.partition(".")[0] for name in os.listdir(root()) if name[0] != "."}


def _asked_at(key: str) -> float | None:
    try:
        return os.stat(os.path.join(_path(key), RECORD)).st_mtime
    except OSError:
        return None


def _used(host_dir: str) -> Iterator[str]:
    """Yield the keys of the environments of all runs that live here, or have not ended for their coordinator.

    A home directory may be shared by several hosts, each of which has a directory of its own in it.
    """
    from orchestrator.checkpoints import claims
    from orchestrator.host.shim.record import shim_alive

    above, place = os.path.split(os.path.dirname(host_dir))
    base = above if place == "hosts" else host_dir
    hosts = os.path.join(base, "hosts")
    for directory in (base, *(os.path.join(hosts, name) for name in durable.names(hosts))):
        for run in durable.names(os.path.join(directory, "runs")):
            if not hostdir.is_run_id(run):
                continue
            wanted = claims.read(hostdir.run_dir(directory, run))[2] is not None
            for _, _, generation in hostdir.generations(directory, run):
                start = durable.read_object(generation, "start.json") or {}
                python = os.path.expanduser(str(start.get("python")))
                if python.startswith(f"{root()}/") and (wanted or shim_alive(generation)):
                    yield python[len(root()) + 1 :].partition("/")[0]


# ---------------------------------------------------------------- names and texts


def _path(key: str, suffix: str = "") -> str:
    return os.path.join(root(), f"{_plain(key)}.{suffix}" if suffix else _plain(key))


def _plain(name: str) -> str:
    if not name or name[0] == "." or "/" in name or "\0" in name:
        raise HostFault("bad-order", f"not the name of a file: {name!r}")
    return name


def _lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]

"""What a host or a script may have put in the way is opened by descriptors, through `both/within.py` alone.

These modules reach directories that a person named, or in which a script writes. Those of `host/` that open nothing but
our own directories of mode 0700, and files of the kernel, are named with what they open.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent

OWN = "what lies in the host's own directory, of mode 0700"
KERNEL = "files of the kernel, and devices"
OF_HOSTS = {
    "host/agent/environments.py": "environments that we make in the host's own directory",
    "host/agent/faults.py": KERNEL + "; a file without a name, " + OWN,
    "host/agent/host.py": KERNEL + "; " + OWN,
    "host/agent/jobs.py": KERNEL + "; the directory in which the agent was started",
    "host/agent/main.py": OWN,
    "host/agent/place_of_tasks.py": OWN,
    "host/agent/runs.py": OWN,
    "host/agent/start.py": OWN,
    "host/agent/sweep.py": OWN,
    "host/agent/tasks.py": OWN,
    "host/agent/traffic.py": KERNEL,
    "host/command.py": OWN,
    "host/keeper/main.py": OWN,
    "host/keeper/place.py": OWN,
    "host/pod/main.py": "the message of its end, where Kubernetes reads it",
    "host/pod/settings.py": "what Kubernetes has mounted for the pod",
    "host/pod/shim.py": OWN,
    "host/shim/loop.py": OWN,
    "host/shim/main.py": OWN,
    "host/shim/peers.py": KERNEL,
    "host/shim/record.py": OWN,
    "host/shim/spawn.py": KERNEL,
    "host/system/cgroup.py": KERNEL,
    "host/system/codestore.py": OWN,
    "host/system/gpu_lease.py": KERNEL,
    "host/system/hostlog.py": OWN,
    "host/system/kernel_log.py": KERNEL,
    "host/system/leaving.py": OWN,
    "host/system/oom.py": KERNEL,
    "host/system/presence.py": OWN,
    "host/system/unkillable.py": KERNEL + "; " + OWN,
    "host/system/usage.py": KERNEL,
    "host/system/user_scope.py": KERNEL,
    "host/system/workdir.py": OWN,
}
"""The modules that may open by a path, each with all that it opens so."""

STRICT = [*(PACKAGE / "head" / "transfer").glob("*.py"), *(PACKAGE / "host").rglob("*.py")]

OF_OS = {
    *(
        "open",
        "rename",
        "replace",
        "link",
        "symlink",
        "unlink",
        "remove",
        "makedirs",
        "mkdir",
        "rmdir",
        "listdir",
    ),
    *("scandir", "stat", "chmod", "chown", "utime", "truncate", "readlink"),
}

ALLOWED = {
    ("head/transfer/outputs.py", "os.makedirs"): "the directory that the person named",
    ("head/transfer/tensorboard.py", "os.makedirs"): "a directory of ours, of mode 0700",
    ("head/transfer/partwise.py", "open"): "a chunk in the store of the head, by its digest",
    ("host/agent/directories.py", "os.listdir"): "asks the server of the directory itself for an answer",
    ("host/agent/health.py", "open"): KERNEL,
    ("host/agent/health.py", "os.path.realpath"): "finds the mount of the directory itself",
    ("host/agent/health.py", "os.stat"): "tells whose the directory is",
    ("host/agent/probe.py", "open"): "what the Python that a task will have says of itself",
    ("host/agent/probe.py", "os.listdir"): "the packages of the Python that a task will have",
    ("host/pod/generation.py", "os.stat"): "tells when a checkpoint was saved, and reads nothing of it",
}
"""With why it is not one that somebody else may have put a link into."""


def opens(tree: ast.AST) -> Iterator[str]:
    """Yield the calls that reach a file by its path."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        room, _, verb = name.rpartition(".")
        handed = [
            arg
            for arg in node.args[:1]
            if isinstance(arg, ast.Call) and ast.unparse(arg.func).endswith("opened")
        ]
        if (
            (name == "open" and not handed)
            or (room == "os" and verb in OF_OS)
            or name in ("os.path.realpath", "Path")
            or room in ("shutil", "durable")
        ):
            yield name


def test_nothing_is_opened_by_a_path_that_another_may_have_changed() -> None:
    used = {
        (str(path.relative_to(PACKAGE)), name)
        for path in STRICT
        for name in opens(ast.parse(path.read_text()))
    }
    assert sorted(one for one in used if one[0] not in OF_HOSTS) == sorted(ALLOWED)
    assert sorted({module for module, _ in used} & OF_HOSTS.keys()) == sorted(OF_HOSTS)


@pytest.mark.parametrize(
    "source", ["open(path)", "os.rename(a, b)", "shutil.rmtree(a)", "durable.place(a, b)", "Path(a).unlink()"]
)
def test_what_opens_by_a_path_is_found(source: str) -> None:
    assert list(opens(ast.parse(source))) != []

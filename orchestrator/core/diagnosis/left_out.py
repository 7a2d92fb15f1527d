"""What of the working directory was not pushed: why a file or a module that a script wants is not there. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LeftOut = Sequence[tuple[str, str]]
"""Paths in the working directory, a directory with a slash at its end, each with why it is not pushed."""


def way_to_path(left_out: LeftOut, path: str) -> str:
    """Return how a file or directory of this path comes to be pushed; empty if no rule has left it out."""
    path = path.strip("'")
    if path.startswith("/"):  # else it is below the working directory of its task
        path = path.partition("/tasks/")[2].partition("/work/")[2]
    within = path.removeprefix("./") + "/"
    return _way([(entry, why) for entry, why in left_out if within.startswith(entry.rstrip("/") + "/")])


def way_to_module(left_out: LeftOut, module: str) -> str:
    """Return how the file of a module comes to be pushed; empty if no rule has left it out."""
    parts = module.split(".")
    stems = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
    names = [name for stem in stems for name in (f"/{stem}.py", f"/{stem}/", f"/{stem}/__init__.py")]
    return _way(
        [(entry, why) for entry, why in left_out if any(f"/{entry}".endswith(name) for name in names)]
    )


def _way(found: LeftOut) -> str:
    if not found:
        return ""
    path, why = found[0]
    return f"{path} of the workdir is not pushed: {why}; `!{path}` in .orchignore pushes it"

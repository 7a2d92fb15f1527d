"""Finds code in a script for `transparent: true` whose result differs by worker or is lost by a restart."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_SEEDING = {"seed", "set_random_seed", "set_seed", "RandomState", "default_rng", "Random", "SeedSequence"}
_OF_A_WORKER = (
    "time.",
    "datetime.",
    "os.urandom",
    "os.getpid",
    "secrets.",
    "uuid.uuid1",
    "socket.gethostname",
)


def sentences(source: str, file: str) -> list[str]:
    """Return a sentence for each seed that differs by worker, and for each callback with a state outside of it.

    Raises:
        SyntaxError: the source cannot be parsed.
    """
    remarks = [*_seeds(tree := ast.parse(source)), *_states(tree)]
    return [f"{file}:{line}: {sentence}" for line, sentence in sorted(remarks)]


def _seeds(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in _SEEDING:
            continue
        for given in (*node.args, *(keyword.value for keyword in node.keywords)):
            text = ast.unparse(given)
            if any(text.startswith(name) or f"({name}" in text for name in _OF_A_WORKER):
                yield (
                    node.lineno,
                    f"a seed from {text} differs by worker, and after a restart: give a number, or leave it out",
                )


def _states(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef) or not any("Callback" in ast.unparse(b) for b in owner.bases):
            continue
        for node in ast.walk(owner):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                names = ", ".join(node.names)
                yield (
                    node.lineno,
                    f"{owner.name} keeps {names} outside of itself, which begins anew after a restart: keep it in an "
                    "attribute (self.…), as a number, a text, an array, or a list, set or dict of them",
                )

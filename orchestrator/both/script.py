"""The user's script: what its source says before it runs, and how it is run, as `python script.py` would."""

from __future__ import annotations

import ast
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FRAMEWORKS = ("tensorflow", "keras", "tf_keras")


class Script:
    """A script: its path, its compiled code, and what it imports."""

    def __init__(self, path: str) -> None:
        """Read and compile it. Raises OSError, SyntaxError or ValueError, as Python itself would."""
        self.path = path
        self.folder = os.path.dirname(os.path.realpath(path))
        with open(path, "rb") as f:
            source = f.read()
        self.tree = ast.parse(source, path)
        self.code = compile(source, path, "exec", dont_inherit=True)

    def imports(self) -> Imports:
        """Return which frameworks it imports, by itself or through modules in its folder."""
        imports = Imports()
        _collect(self.tree, self.folder, imports, seen=set(), sure=True)
        imports.environment, imports.environment_unclear = _environment_before(self.tree)
        return imports

    def run(self, argv: list[str]) -> None:
        """Run it as `__main__`. Its exceptions pass through, with our frames at the start of the traceback."""
        from importlib.machinery import SourceFileLoader

        module = types.ModuleType("__main__")
        module.__file__ = self.path
        module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        module.__loader__ = SourceFileLoader("__main__", self.path)
        module.__spec__ = None
        sys.modules["__main__"] = module
        sys.argv[:] = [self.path, *argv]
        exec(self.code, module.__dict__)


class Imports:
    """What a script's source says about the frameworks and their environment."""

    def __init__(self) -> None:
        self.named: set[str] = set()
        self.sure: set[str] = set()
        """Frameworks imported at the top level, outside `try` and functions: if these fail, the script fails."""
        self.environment: dict[str, str] = {}
        """What the script sets in os.environ, with constants, before its first import of a framework."""
        self.environment_unclear = False
        """Whether it changes the environment in a way that only running it would tell."""
        self.beside: list[str] = []
        """The sources of the modules in the script's folder that it imports."""


def sources(path: str) -> list[str]:
    """Return the sources of a script and of the modules in its folder that it imports. Raises OSError."""
    with open(path, "rb") as f:
        source = f.read()
    try:
        tree = ast.parse(source, path)
    except (SyntaxError, ValueError):
        return [_text(source)]  # the host's Python may parse it; if not, it shows its own traceback
    imports = Imports()
    _collect(tree, os.path.dirname(os.path.realpath(path)), imports, seen=set(), sure=True)
    return [_text(source), *imports.beside]


def surely_imported(path: str) -> set[str]:
    """Return the frameworks without which a script fails; none where it cannot be read or parsed."""
    try:
        return Script(path).imports().sure
    except (OSError, SyntaxError, ValueError):
        return set()


def is_of_script(file: str, folder: str) -> bool:
    """Return whether a file of a traceback lies in the script's folder.

    A relative path is either the script's own, where it was given so, or lies in our zip file.
    """
    if not os.path.isabs(file) and file.startswith("orchestrator" + os.sep):
        return False
    return os.path.realpath(file).startswith(folder + os.sep) and "/site-packages/" not in file


def _text(source: bytes) -> str:
    return source.decode("utf-8", "replace")


def _collect(tree: ast.AST, folder: str, imports: Imports, seen: set[str], sure: bool) -> None:
    for name, is_sure in _imported(tree, sure):
        top = name.partition(".")[0]
        if top in FRAMEWORKS:
            imports.named.add(top)
            if is_sure:
                imports.sure.add(top)
            continue
        path = _beside(folder, name)
        if path and path not in seen:
            seen.add(path)
            try:
                with open(path, "rb") as f:
                    source = f.read()
                inner = ast.parse(source, path)
            except (OSError, SyntaxError, ValueError):
                continue  # the script will fail with its own traceback when it imports this
            imports.beside.append(_text(source))
            _collect(inner, folder, imports, seen, is_sure)


def _imported(node: ast.AST, sure: bool) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, sure
        elif isinstance(child, ast.ImportFrom):
            if child.module:
                yield child.module, sure
                for alias in child.names:  # the name may be a module of that package
                    yield f"{child.module}.{alias.name}", sure
        else:
            straight = not isinstance(
                child, (ast.Try, ast.If, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
            )
            yield from _imported(child, sure and straight)


def _beside(folder: str, name: str) -> str | None:
    stem = os.path.join(folder, *name.split("."))
    for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(path):
            return path
    return None


def _environment_before(tree: ast.Module) -> tuple[dict[str, str], bool]:
    """Return the environment that the script sets before it imports a framework, and whether that is incomplete.

    TensorFlow is imported early, and must see the same environment as at the script's own import: it reads
    TF_CPP_MIN_LOG_LEVEL, for instance, only once.
    """
    values: dict[str, str] = {}
    for statement in tree.body:
        names = {name.partition(".")[0] for name, _ in _imported(ast.Module([statement], []), True)}
        if names.intersection(FRAMEWORKS):
            break
        pair = _constant_assignment(statement)
        if pair:
            key, value, only_default = pair
            if not (only_default and key in os.environ):
                values[key] = value
        elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)) and _changes_environment(statement):
            return values, True
    return values, False


def _constant_assignment(statement: ast.stmt) -> tuple[str, str, bool] | None:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) in ("os.environ", "environ"):
            return _constants([target.slice, statement.value], only_default=False)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if ast.unparse(call.func) in ("os.environ.setdefault", "environ.setdefault") and len(call.args) == 2:
            return _constants(call.args, only_default=True)
    return None


def _constants(nodes: Iterable[ast.expr], only_default: bool) -> tuple[str, str, bool] | None:
    texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return (texts[0], texts[1], only_default) if len(texts) == 2 else None


_CHANGERS = (
    "putenv",
    "unsetenv",
    "load_dotenv",
    "environ.update",
    "environ.setdefault",
    "environ.pop",
    "environ.clear",
)


def _changes_environment(statement: ast.stmt) -> bool:
    """Return whether it may write to os.environ. Reading is harmless, and common before an import."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if ast.unparse(node.value).endswith("environ"):
                return True
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_CHANGERS):
            return True
    return False

"""The user's script: what its source says before it runs, and how it is run, as `python script.py` would."""

from __future__ import annotations

import ast
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

FRAMEWORKS = ("tensorflow", "keras", "tf_keras")
"""Those of TensorFlow. What another strategy imports early is in its row."""


class Script:
    """A script: its path, its compiled code, and what it imports."""

    def __init__(self, path: str, root: str = "") -> None:
        """Read and compile it. Raises OSError, SyntaxError or ValueError, as Python itself would.

        `root` is the directory from which a module is imported that runs as under `python -m`; empty for a script.
        """
        self.path = path
        self.is_module = bool(root)
        self.folder = os.path.realpath(root or os.path.dirname(os.path.realpath(path)))
        with open(path, "rb") as f:
            source = f.read()
        self.tree = ast.parse(source, path)
        self.code = compile(source, path, "exec", dont_inherit=True)

    @classmethod
    def parse(cls, argv: list[str]) -> tuple[Script, list[str]]:
        """Return what `python ARGV…` would run here, a script or `-m` with a module, and its arguments."""
        if argv[0] == "-m":
            return cls(module_file(os.getcwd(), argv[1]), os.getcwd()), argv[2:]
        return cls(argv[0]), argv[1:]

    def imports(self, frameworks: Collection[str] = FRAMEWORKS) -> Imports:
        """Return which of these it imports, by itself or through modules in its folder."""
        imports = Imports()
        for _, _, names in followed(self.path, self.folder):
            for name, _, is_sure in names:
                top = name.partition(".")[0]
                if top in frameworks:
                    imports.named.add(top)
                    if is_sure:
                        imports.sure.add(top)
        imports.environment, imports.environment_unclear = _environment_before(self.tree, frameworks)
        return imports

    def run(self, argv: list[str]) -> None:
        """Run it as `__main__`. Its exceptions pass through, with our frames at the start of the traceback."""
        from importlib.machinery import SourceFileLoader
        from importlib.util import find_spec

        module = types.ModuleType("__main__")
        module.__file__ = self.path
        module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        module.__loader__ = SourceFileLoader("__main__", self.path)
        sys.modules["__main__"] = module
        sys.argv[:] = [self.path, *argv]
        if self.is_module:
            name = os.path.relpath(self.path, self.folder).removesuffix(".py").replace(os.sep, ".")
            spec = find_spec(name)  # imports the packages that the module lies in, as `python -m` does
            if spec is not None:
                module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
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


def module_file(root: str, module: str) -> str:
    """Return the file that `python -m MODULE` would run in this directory, whether it is there or not."""
    stem = os.path.join(root, *module.split("."))
    main = os.path.join(stem, "__main__.py")
    is_package = os.path.isfile(os.path.join(stem, "__init__.py"))
    return main if is_package or (os.path.isfile(main) and not os.path.isfile(f"{stem}.py")) else f"{stem}.py"


def sources(path: str, root: str = "") -> list[str]:
    """Return the sources of a script and of the modules in its folder that it imports. Raises OSError."""
    return [text.decode("utf-8", "replace") for _, text, _ in followed(path, root)]


def surely_imported(path: str, root: str = "") -> set[str]:
    """Return the frameworks without which a script fails; none where it cannot be read or parsed."""
    try:
        return Script(path, root).imports().sure
    except (OSError, SyntaxError, ValueError):
        return set()


def is_of_script(file: str, folder: str) -> bool:
    """Return whether a file of a traceback lies in the script's folder.

    A relative path is either the script's own, where it was given so, or lies in our zip file.
    """
    if not os.path.isabs(file) and file.startswith("orchestrator" + os.sep):
        return False
    return os.path.realpath(file).startswith(folder + os.sep) and "/site-packages/" not in file


def followed(
    path: str, root: str = "", *, sure_only: bool = False
) -> Iterator[tuple[str, bytes, list[tuple[str, int, bool]]]]:
    """Yield a script, and the modules in its folder that it imports, however deep. Raises OSError.

    Each with its source and its imports: name, line, and whether it is sure to be imported, since it stands outside
    of `try`, `if` and functions.

    Args:
        path: the script.
        root: where it imports from; its own folder, unless it is a module.
        sure_only: leave out what may never be imported.
    """
    folder = os.path.realpath(root or os.path.dirname(os.path.realpath(path)))
    waiting, seen = [(path, True)], {os.path.realpath(path)}
    while waiting:
        file, sure = waiting.pop()
        try:
            with open(file, "rb") as f:
                text = f.read()
        except OSError:
            if file == path:
                raise
            continue
        try:
            tree = ast.parse(text, file)
        except (SyntaxError, ValueError):
            tree = ast.Module([], [])  # the host's Python may parse it; if not, it shows its own traceback
        here = os.path.relpath(os.path.dirname(os.path.realpath(file)), folder)
        package = here.replace(os.sep, ".").strip(".")
        imports = [entry for entry in _imported(tree, package, sure) if entry[2] or not sure_only]
        yield file, text, imports
        around = [(package, 0, sure)] if package else []
        for name, _, is_sure in [*imports, *around]:
            for beside in files_of(folder, name):
                if beside not in seen:
                    seen.add(beside)
                    waiting.append((beside, is_sure))


def files_of(folder: str, name: str) -> list[str]:
    """Return the files below a folder that an import of this name runs: the module, and the packages around it."""
    parts = name.split(".")
    stems = [os.path.join(folder, *parts[:count]) for count in range(1, len(parts) + 1)]
    files = [f"{stem}.py" for stem in stems] + [os.path.join(stem, "__init__.py") for stem in stems]
    return [file for file in files if os.path.isfile(file)]


def _imported(node: ast.AST, package: str, sure: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, child.lineno, sure
        elif isinstance(child, ast.ImportFrom):
            around = package.split(".") if package else []
            if child.level > len(around):
                continue  # it fails
            above = around[: len(around) - child.level + 1] if child.level else []
            base = ".".join([*above, *([child.module] if child.module else [])])
            yield base, child.lineno, sure
            for alias in child.names:  # the name may be a module of that package
                yield f"{base}.{alias.name}", child.lineno, sure
        else:
            straight = not isinstance(
                child, (ast.Try, ast.If, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
            )
            yield from _imported(child, package, sure and straight)


def _environment_before(tree: ast.Module, frameworks: Collection[str]) -> tuple[dict[str, str], bool]:
    """Return the environment that the script sets before it imports a framework, and whether that is incomplete.

    TensorFlow is imported early, and must see the same environment as at the script's own import: it reads
    TF_CPP_MIN_LOG_LEVEL, for instance, only once.
    """
    values: dict[str, str] = {}
    for statement in tree.body:
        names = {name.partition(".")[0] for name, *_ in _imported(ast.Module([statement], []), "", True)}
        if names.intersection(frameworks):
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

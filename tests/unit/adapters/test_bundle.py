"""What hosts get: the same bytes each time, and nothing in it that needs what hosts do not have."""

from __future__ import annotations

import ast
import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from orchestrator.adapters import bundle

LAZY = {"tensorflow", "keras", "tf_keras", "numpy", "h5py", "psutil", "horovod"}
"""Packages that a host may have; imported within functions only."""


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "orchestrator"
    shutil.copytree(bundle.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    first, second = bundle.build(copy), bundle.build(copy)
    assert first == second
    assert first.digest == hashlib.sha256(first.data).hexdigest()
    (copy / "daemon" / "agent" / "probe.py").write_text("VALUE = 1\n")
    assert bundle.build(copy).digest != first.digest


def test_every_import_resolves_on_a_host() -> None:
    names = {name for name, _ in bundle.members()}
    lacking = []
    for name, file in bundle.members():
        for module, is_top in _imports(ast.parse(file.read_text()), name):
            root = module.split(".")[0]
            if root == "orchestrator":
                path = module.replace(".", "/")
                if not {f"{path}.py", f"{path}/__init__.py"} & names:
                    lacking.append(f"{name}: {module}")
            elif root not in sys.stdlib_module_names and (is_top or root not in LAZY):
                lacking.append(f"{name}: {module}")
    assert lacking == []


def test_the_bundle_can_be_run_by_each_word(tmp_path: Path) -> None:
    path = tmp_path / "bundle.pyz"
    path.write_bytes(bundle.build().data)
    done = subprocess.run([sys.executable, "-I", path, "probe"], input=b"{}", capture_output=True, check=True)
    assert done.stdout.startswith(b'{"python":')
    wrong = subprocess.run([sys.executable, "-I", path, "no-such-word"], capture_output=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, b"")


def test_what_scripts_are_told_to_import_is_in_it(tmp_path: Path) -> None:
    path, script = tmp_path / "bundle.pyz", tmp_path / "train.py"
    path.write_bytes(bundle.build().data)
    script.write_text(
        "from orchestrator import runtime\n"
        "from orchestrator.keras import make_parallel\n"
        "print(runtime.report.__module__, make_parallel.__module__)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", path, "run", script], capture_output=True, check=True)
    assert done.stdout == b"orchestrator.runtime orchestrator.runtime.parallel\n"


def test_psutil_of_the_head_works_from_its_archive(tmp_path: Path) -> None:
    archive = bundle.build_psutil()
    assert archive is not None
    assert archive == bundle.build_psutil()
    with zipfile.ZipFile(io.BytesIO(archive.data)) as packed:
        packed.extractall(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import psutil; print(psutil.Process().pid > 0)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True)
    assert done.stdout == b"True\n"


def _imports(tree: ast.Module, name: str) -> list[tuple[str, bool]]:
    """Return each imported module, and whether it is imported at import time. Imports for types are left out."""
    found: list[tuple[str, bool]] = []
    _collect(tree.body, True, found)
    assert found or name.endswith("__init__.py"), name
    return [(module, top) for module, top in found if module != "__future__"]


def _collect(body: list[ast.stmt], is_top: bool, found: list[tuple[str, bool]]) -> None:
    for node in body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, is_top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # `from package import module` names a module; `from module import name` does not.
            below = [f"{module}.{alias.name}" for alias in node.names]
            found += [(one if _is_module(one) else module, is_top) for one in below]
        inner_is_top = is_top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for field in ("body", "orelse", "finalbody"):
            _collect(getattr(node, field, []), inner_is_top, found)
        for handler in getattr(node, "handlers", []):
            _collect(handler.body, inner_is_top, found)


def _is_module(name: str) -> bool:
    path = bundle.PACKAGE.parent / name.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()

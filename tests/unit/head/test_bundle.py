"""What hosts get: the same bytes each time, and nothing in it that needs what hosts do not have."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.checkpoints.crc32c import LIBRARY
from orchestrator.head.code import bundle
from orchestrator.head.code.compiled import psutil
from orchestrator.host.agent import place_of_tasks

LAZY = {"tensorflow", "keras", "tf_keras", "numpy", "h5py", "psutil", "horovod", "jax"}
"""Packages that a host may have; imported within functions only."""


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    copy = tmp_path / "orchestrator"
    shutil.copytree(bundle.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    first, second = bundle.build(copy), bundle.build(copy)
    assert first == second
    assert first.digest == hashlib.sha256(first.data).hexdigest()
    (copy / "host" / "agent" / "probe.py").write_text("VALUE = 1\n")
    assert bundle.build(copy).digest != first.digest


def test_threads_that_ask_at_once_build_it_once() -> None:
    built: list[bundle.Archive] = []

    @bundle.once
    def build() -> bundle.Archive:
        time.sleep(0.05)  # as long as building takes: the other threads ask meanwhile
        built.append(bundle.Archive("0" * 64, b""))
        return built[-1]

    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(build) for _ in range(8)]
        assert {id(each.result()) for each in found} == {id(build())}
    assert len(built) == 1
    assert bundle.load() is bundle.load()


def test_every_import_resolves_on_a_host() -> None:
    names = {name for name, _ in bundle.members()}
    lacking = []
    for name, file in bundle.members():
        for module, is_top in _imports(ast.parse(file.read_text())):
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
    path.write_bytes(bundle.packed())
    wish = {
        "command": sys.executable,
        "env": dict(os.environ),
        "surroundings": place_of_tasks.surroundings(os.getpid()),
    }
    probe = [sys.executable, "-I", str(path), "probe"]
    done = subprocess.run(probe, input=json.dumps(wish).encode(), capture_output=True, check=True)
    facts = json.loads(done.stdout)
    assert next(iter(facts)) == "python"
    assert facts["executable"] == sys.executable
    wrong = subprocess.run([sys.executable, "-I", path, "no-such-word"], capture_output=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, b"")


def test_the_library_in_it_computes_the_sums_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "bundle.pyz"
    path.write_bytes(bundle.build().data)
    script = (
        f"import os, sys; sys.path.insert(0, {str(path)!r})\n"
        "from orchestrator.checkpoints import crc32c as sums\n"
        "assert sums.library() is not None\n"
        "for count in (0, 1, 9, 100_003):\n"
        "    data = os.urandom(count)\n"
        "    assert sums.crc32c(data, 7) == sums.by_table(data, 7), count\n"
        "    assert sums.crc32c(data[9:], sums.crc32c(data[:9])) == sums.by_table(data), count\n"
        "assert sums.crc32c(b'123456789') == 0xE3069283\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [b"", b"no library", b"\x7fELF\x01" + bytes(60)])
def test_a_library_that_cannot_be_loaded_is_done_without(tmp_path: Path, code: bytes) -> None:
    path = tmp_path / "bundle.pyz"
    path.write_bytes(bundle.build().data)
    member = f"orchestrator/checkpoints/{LIBRARY}"
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(other, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, code if name == member else archive.read(name))
    script = (
        f"import sys; sys.path.insert(0, {str(other)!r})\n"
        "from orchestrator.checkpoints import crc32c as sums\n"
        "assert sums.library() is None\n"
        "assert sums.crc32c(b'123456789') == 0xE3069283\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_scripts_are_told_to_import_is_in_it(tmp_path: Path) -> None:
    path, script = tmp_path / "bundle.pyz", tmp_path / "train.py"
    path.write_bytes(bundle.build().data)
    script.write_text(
        "from orchestrator import runtime\n"
        "from orchestrator.keras import make_parallel\n"
        "print(runtime.report.__module__, make_parallel.__module__)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", path, "run", script], capture_output=True, check=True)
    assert done.stdout == b"orchestrator.runtime orchestrator.task.keras.parallel\n"


def test_psutil_of_the_head_works_from_its_archive(tmp_path: Path) -> None:
    archive = psutil()
    assert archive == psutil()
    with zipfile.ZipFile(io.BytesIO(archive.data)) as packed:
        packed.extractall(tmp_path)
    sources = list((tmp_path / "psutil").glob("*.py"))
    for source in sources:  # what is read is the byte code, whatever the times of the files
        source.write_bytes(b"raise ImportError('compiled anew')")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import psutil; print(psutil.Process().pid > 0)\n"
        "print(psutil.__file__, psutil.Process.pid.fget.__code__.co_filename)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, check=True, text=True
    )
    assert done.stdout.split() == ["True", f"{tmp_path}/psutil/__init__.py", f"{tmp_path}/psutil/__init__.py"]
    assert len(list((tmp_path / "psutil/__pycache__").iterdir())) == len(sources) > 3


def _imports(tree: ast.Module) -> list[tuple[str, bool]]:
    """Return each imported module, and whether it is imported at import time. Imports for types are left out."""
    found: list[tuple[str, bool]] = []
    _collect(tree.body, True, found)
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

"""Which file a script or a module is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.both.script import module_file, surely_imported


@pytest.mark.parametrize(
    ("there", "runs"),
    [
        (("pkg.py",), "pkg.py"),
        (("pkg/__init__.py", "pkg/__main__.py"), "pkg/__main__.py"),
        (("pkg/__init__.py", "pkg/__main__.py", "pkg.py"), "pkg/__main__.py"),
        (("pkg/__main__.py",), "pkg/__main__.py"),
        (("pkg/__main__.py", "pkg.py"), "pkg.py"),
    ],
)
def test_of_a_module_and_a_package_of_one_name_that_is_meant_which_python_runs(
    tmp_path: Path, there: tuple[str, ...], runs: str
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("print(__file__)\n" if "__init__" not in name else "")
    done = subprocess.run(
        [sys.executable, "-m", "pkg"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert module_file(str(tmp_path), "pkg") == done.stdout.strip() == str(tmp_path / runs)


def test_a_package_that_cannot_be_run_is_named_by_the_file_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    assert module_file(str(tmp_path), "pkg") == str(tmp_path / "pkg" / "__main__.py")


@pytest.mark.parametrize(
    ("statement", "sure"),
    [
        ("from keras import layers", {"keras"}),
        ("from .keras import layers", set()),
        ("from ..keras import layers", set()),
    ],
)
def test_a_relative_import_of_a_script_that_lies_in_no_package_is_none_of_a_framework(
    tmp_path: Path, statement: str, sure: set[str]
) -> None:
    """Python refuses it before it looks for anything, so the script does not fail for want of the framework."""
    (tmp_path / "train.py").write_text(f"{statement}\n")
    assert surely_imported(str(tmp_path / "train.py")) == sure

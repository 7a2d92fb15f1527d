"""What is put around the execution of a module is there at each execution, whoever searched for the module before."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.task.keras import hooks

NAME = "a_framework"
SOURCE = "import gc\nTHRESHOLD = gc.get_threshold()[0]\nPATCHED = 0\n"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # a source of the same second and size would be passed over
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    yield
    for name in (NAME, "beside"):
        sys.modules.pop(name, None)


def count(module: ModuleType) -> None:
    module.PATCHED += 1  # type: ignore[attr-defined]


def test_a_module_that_was_searched_for_before_is_patched_and_imported_without_collection() -> None:
    hooks.when_imported({NAME: count})
    hooks.import_without_collection([NAME])
    for _ in range(2):
        assert importlib.util.find_spec(NAME) is not None
    module = importlib.import_module(NAME)
    assert (module.PATCHED, module.THRESHOLD) == (1, 0)


def test_two_patches_of_one_module_are_both_applied() -> None:
    hooks.when_imported({NAME: count})
    hooks.when_imported({NAME: count})
    assert importlib.import_module(NAME).PATCHED == 2


def test_a_module_that_is_executed_again_is_patched_again_since_it_defines_all_anew() -> None:
    hooks.when_imported({NAME: count})
    module = importlib.import_module(NAME)
    assert importlib.reload(module).PATCHED == 1


def test_an_import_that_failed_is_patched_when_it_succeeds(tmp_path: Path) -> None:
    before = gc.get_threshold()
    (tmp_path / f"{NAME}.py").write_text("import gc\nraise ImportError('a library is missing')\n")
    hooks.when_imported({NAME: count})
    hooks.import_without_collection([NAME])
    with pytest.raises(ImportError, match="a library is missing"):
        importlib.import_module(NAME)
    assert gc.get_threshold() == before
    (tmp_path / f"{NAME}.py").write_text(SOURCE)
    importlib.invalidate_caches()
    module = importlib.import_module(NAME)
    assert (module.PATCHED, module.THRESHOLD) == (1, 0)


def test_a_module_that_does_not_exist_is_not_found() -> None:
    hooks.when_imported({"no_such_framework": count})
    hooks.import_without_collection(["no_such_framework"])
    assert importlib.util.find_spec("no_such_framework") is None


def test_a_loader_of_several_modules_patches_only_the_one_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as both:
        both.writestr(f"{NAME}.py", SOURCE)
        both.writestr("beside.py", SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "both.zip"))
    hooks.when_imported({NAME: count})
    for _ in range(2):
        importlib.util.find_spec(NAME)
    assert importlib.import_module("beside").PATCHED == 0
    module = importlib.import_module(NAME)
    assert (module.__file__ or "").startswith(str(tmp_path / "both.zip"))
    assert module.PATCHED == 1

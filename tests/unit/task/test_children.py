"""What the script starts: each Python mends Keras 3 too, and nothing else of it changes, whichever Python it is."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.head.code import bundle
from orchestrator.task.keras import hooks
from tests.pythons import pythons
from tests.unit.task.runtime_task import ROOT, Task

CHILDREN = ROOT / "orchestrator" / "task" / "children"
FAKE_KERAS = {
    "keras/__init__.py": "import keras.src.version, keras.src.backend.tensorflow.trainer\n",
    "keras/src/__init__.py": "",
    "keras/src/version.py": "__version__ = '3.99.0'\n",
    "keras/src/backend/__init__.py": "",
    "keras/src/backend/tensorflow/__init__.py": "",
    "keras/src/backend/tensorflow/trainer.py": (
        "class TensorFlowTrainer:\n    def fit(self): pass\n    def _maybe_symbolic_build(self): pass\n"
    ),
}
LOOKS = (
    "import json, sys\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "first = type(sys.meta_path[0]).__name__\n"
    "import keras\n"
    "build = keras.src.backend.tensorflow.trainer.TensorFlowTrainer._maybe_symbolic_build\n"
    "print(json.dumps({'first': first, 'mended_by': build.__module__, 'path': sys.path, 'site': "
    "getattr(sys.modules.get('sitecustomize'), '__file__', None)}))\n"
)
STARTS = (
    "import subprocess, sys\n"
    "for options in ([], ['-I'], ['-S'], ['-E']):\n"
    "    print(subprocess.run([sys.executable, *options, 'looks.py', sys.argv[1]], capture_output=True, text=True, "
    "check=True).stdout.strip(), flush=True)\n"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Scripts, a Keras that says who has changed it, and a `sitecustomize` of the user's own."""
    for name, text in {**FAKE_KERAS, "looks.py": LOOKS, "starts.py": STARTS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys\nsys.own = True\n")
    return tmp_path


def children_of_a_task(place: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    env = {"ORCH_TASK": "worker:0", "ORCH_RUNTIME": json.dumps(options)}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(place / "own")])
    task = Task(place / "starts.py", str(place), env=env)
    try:
        task.release()
        assert task.ended() == 0, task.err
        return [json.loads(line) for line in task.out.splitlines()]
    finally:
        task.close()


def test_a_child_mends_keras_and_runs_the_sitecustomize_that_is_hidden(place: Path) -> None:
    plain, isolated, without_site, without_env = children_of_a_task(place, {})
    assert (plain["first"], plain["mended_by"]) == ("_BeforeKeras", "orchestrator.task.keras.keras3")
    assert plain["site"] == str(place / "own" / "sitecustomize.py")
    assert str(CHILDREN) not in plain["path"]
    for child in (isolated, without_site, without_env):
        assert child["mended_by"] == "keras.src.backend.tensorflow.trainer"
        assert child["first"] != "_BeforeKeras"


def test_with_children_off_nothing_of_them_changes(place: Path) -> None:
    plain = children_of_a_task(place, {"children": False})[0]
    assert plain["mended_by"] == "keras.src.backend.tensorflow.trainer"
    assert plain["site"] == str(place / "own" / "sitecustomize.py")


def test_any_python_starts_as_without_it_with_a_sitecustomize_of_its_own_and_without(place: Path) -> None:
    """From the archive, where a task has it. Its byte code is of one Python, and the source is there for all others."""
    archive = place / "bundle.pyz"
    archive.write_bytes(bundle.build().data)
    lines = (
        "import sys; print(getattr(sys, 'own', False)); print(sys.version_info >= (3, 10)); "
        "print('BeforeKeras' in ''.join(type(finder).__name__ for finder in sys.meta_path))"
    )
    for python in (sys.executable, *pythons("2", *(f"3.{minor}" for minor in range(4, 16)))):
        for own in ("", str(place / "own")):
            entries = [f"{archive}/orchestrator/task/children", str(archive), own]
            env = {"PYTHONPATH": os.pathsep.join(filter(None, entries)), "ORCH_TASK": "worker:0"}
            done = subprocess.run([python, "-c", lines], env=env, capture_output=True, text=True, check=False)
            told = done.stdout.split()
            assert (done.returncode, done.stderr, told[0]) == (0, "", str(bool(own))), python
            assert told[1] == told[2], "a Python that the runtime supports, and no other"


def test_it_is_of_a_language_that_every_python_3_reads() -> None:
    ast.parse((CHILDREN / "sitecustomize.py").read_text(), feature_version=(3, 4))
    assert "from __future__ import annotations" not in (CHILDREN / "sitecustomize.py").read_text()


def test_the_directory_comes_before_what_the_task_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/bundle")
    hooks.reach_children()
    assert os.environ["PYTHONPATH"] == f"{CHILDREN}{os.pathsep}/bundle"
    monkeypatch.delenv("PYTHONPATH")
    hooks.reach_children()
    assert os.environ["PYTHONPATH"] == str(CHILDREN)

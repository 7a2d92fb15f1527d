"""The runtime around scripts that need no TensorFlow; `tensorflow` here is a small file of the test's own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task import main, this_task
from orchestrator.task.tracebacks import last_line
from tests.unit.task.runtime_task import Task

Start = Callable[..., Task]


def bare(script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *args], capture_output=True, text=True, cwd=script.parent, check=False
    )


SHOW = """
import json, os, sys
print(json.dumps([__name__, __file__, sys.argv, sys.path[0], __spec__ is None, sys.modules["__main__"].X
                  if "X" in globals() else None, "ORCH_FD" in os.environ]))
"""


@pytest.mark.parametrize("attached", [True, False])
def test_a_script_sees_what_python_would_show_it(task: Start, tmp_path: Path, attached: bool) -> None:
    run = task("X = 5\n" + SHOW, "--epochs", "3", attached=attached)
    if attached:
        run.release()
    assert run.ended() == 0
    assert json.loads(run.out) == json.loads(bare(tmp_path / "train.py", "--epochs", "3").stdout)


SHOW_MODULE = """
from .inside import RAISES
print(json.dumps([__package__, __spec__.name, __spec__.origin, type(__loader__).__name__]))
if RAISES:
    {}["x"]
"""


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("pkg.train", {"pkg/__init__.py": "", "pkg/train.py": SHOW + SHOW_MODULE}),
        ("pkg", {"pkg/__init__.py": "print('first')", "pkg/__main__.py": SHOW + SHOW_MODULE}),
        ("pkg.train", {"pkg/train.py": SHOW + SHOW_MODULE.replace("if RAISES", "if True")}),
        ("pkg.train", {"pkg/__init__.py": "1 / 0", "pkg/train.py": SHOW}),
        ("pkg", {"pkg/__init__.py": ""}),
    ],
)
def test_a_module_sees_and_ends_as_under_python_with_m(
    tmp_path: Path, name: str, files: dict[str, str]
) -> None:
    (tmp_path / "pkg").mkdir()
    for path, source in {**files, "pkg/inside.py": "RAISES = False\n"}.items():
        (tmp_path / path).write_text(source)
    bare = subprocess.run(
        [sys.executable, "-m", name, "--epochs", "3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    run = Task(Path("-m"), name, "--epochs", "3", attached=False, work=tmp_path)
    assert (run.ended(), run.out) == (bare.returncode, bare.stdout)
    if bare.returncode and "__main__" not in bare.stderr:
        assert run.err.splitlines()[-3:] == bare.stderr.splitlines()[-3:]
    assert "orchestrator" not in run.err
    run.close()


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    raise ValueError('boom')\nf()\n",
        "import sys\nsys.exit(3)\n",
        "import sys\nsys.exit('a sentence')\n",
        "raise SystemExit\n",
        "import missing_module_of_nobody\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n",
        "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1 / 0\n",
        "import atexit\natexit.register(print, 'bye')\nprint('x')\n",
        "x = = 1\n",
    ],
)
def test_a_script_ends_as_under_python(task: Start, tmp_path: Path, source: str) -> None:
    run = task(source, attached=False)
    code = run.ended()
    expected = bare(tmp_path / "train.py")
    assert (code, run.out) == (expected.returncode, expected.stdout)
    assert run.err.splitlines()[-3:] == expected.stderr.splitlines()[-3:]
    assert "orchestrator" not in run.err


def test_a_syntax_error_is_told_before_anything_is_imported(task: Start) -> None:
    run = task("import tensorflow\nx = = 1\n")
    message = run.until("error")["error"]
    assert message["kind"] == "syntax"
    assert "line 2" in message["message"] or "invalid syntax" in message["message"]
    assert run.ended() == 1


def test_an_uncaught_exception_is_told_by_its_last_line(task: Start) -> None:
    run = task("def f():\n    raise ValueError('boom')\nf()\n")
    run.release()
    assert run.until("error")["error"] == {"kind": "exception", "message": "ValueError: boom"}
    assert run.ended() == 1


def test_a_framework_that_cannot_be_imported_is_told_before_the_release(task: Start, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('libcuda.so is missing')\n")
    run = task("import tensorflow as tf\n")
    message = run.until("error")["error"]
    assert message["kind"] == "import"
    assert "train.py" in message["message"]
    assert "libcuda.so is missing" in message["message"]
    assert run.ended() == 1


def test_a_script_that_can_do_without_a_framework_goes_on(task: Start, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('none')\n")
    run = task("try:\n    import tensorflow\nexcept ImportError:\n    print('without')\n")
    run.release()
    assert run.ended() == 0
    assert run.out == "without\n"


def test_the_framework_is_imported_before_the_release_and_sees_the_scripts_environment(
    task: Start, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "import os\n__version__ = '9.9'\nLEVEL = os.environ['LEVEL']\nEARLY = 'TF_CONFIG' not in os.environ\n"
    )
    (tmp_path / "model.py").write_text("import tensorflow\n")
    run = task(
        "import os\nos.environ['LEVEL'] = '3'\nD = os.environ.get('D')\nimport model\nimport tensorflow as tf\n"
        "print(tf.LEVEL, tf.EARLY, os.environ['TF_CONFIG'])\n"
    )
    assert run.until("ready")["ready"]["versions"]["tensorflow"] == "9.9"
    run.order(go={"env": {"TF_CONFIG": "{}"}})
    assert run.ended() == 0
    assert run.out == "3 True {}\n"


def test_what_is_imported_before_the_release_is_told_by_the_strategys_row(
    task: Start, tmp_path: Path
) -> None:
    (tmp_path / "jax.py").write_text(
        "import os\n__version__ = '9.9'\nLEVEL = os.environ['LEVEL']\nEARLY = 'TF_CONFIG' not in os.environ\n"
    )
    run = task(
        "import os\nos.environ['LEVEL'] = '3'\nimport jax\nprint(jax.LEVEL, jax.EARLY)\n",
        env={"ORCH_RUNTIME": '{"frameworks": ["jax"], "packages": ["jax", "jaxlib"]}'},
    )
    assert run.until("ready")["ready"]["versions"]["jax"] == "9.9"
    run.order(go={"env": {"TF_CONFIG": "{}"}})
    assert run.ended() == 0
    assert run.out == "3 True\n"


def test_an_environment_that_only_running_would_tell_is_left_to_the_script(
    task: Start, tmp_path: Path
) -> None:
    (tmp_path / "tensorflow.py").write_text("import os\nEARLY = 'TF_CONFIG' not in os.environ\n")
    run = task("import os\nos.environ['A'] = str(1)\nimport tensorflow as tf\nprint(tf.EARLY)\n")
    run.release({"TF_CONFIG": "{}"})
    assert run.ended() == 0
    assert run.out == "False\n"


def test_a_shim_that_is_gone_while_the_task_waits_ends_it(task: Start) -> None:
    run = task("print('never')\n")
    run.until("ready")
    run.socket.shutdown(2)
    assert run.ended() == 143
    assert run.out == ""


def test_reports_of_a_custom_loop_arrive_and_the_last_is_not_lost(task: Start) -> None:
    run = task(
        "from orchestrator import runtime\nfor step in range(1, 501):\n    runtime.report(step, loss=1 / step)\n"
    )
    run.release()
    said = run.said()
    assert run.ended() == 0
    assert said[0]["step"] == 1
    assert said[-1]["step"] == 500
    assert len(said) < 20


def test_a_task_in_c_code_gives_signs_of_life_from_its_release_on(task: Start) -> None:
    run = task("import ctypes\nctypes.CDLL(None).pause()\n")
    run.until("ready")
    run.order(go={"env": {}})
    assert "heartbeat" in json.loads(run.messages.readline())
    assert "heartbeat" in json.loads(run.messages.readline())


def test_the_last_step_before_a_pause_is_told_and_that_no_survivor_could_hand_over(task: Start) -> None:
    run = task(
        "import time\nfrom orchestrator import runtime\n"
        "for step in range(1, 21): runtime.report(step)\nwhile True: time.sleep(1)\n",
        env={"ORCH_RUNTIME": '{"rescue": true}'},
    )
    workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    run.release({"TF_CONFIG": json.dumps(workers)})
    told, said = [0], list[str]()
    while told[-1] < 20 or not said:
        message = json.loads(run.messages.readline())
        told += [message["step"]] if "step" in message else []
        said += [message["say"]["message"]] if "say" in message else []
    assert told[-1] == 20
    assert "`runtime.rescue(manager, step)` in a loop of its own" in said[0]


LOOPS = {
    "asleep": "import time\nready()\ntime.sleep(600)\n",
    "busy": "ready()\nwhile True:\n    pass\n",
    "deaf": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nimport time\nready()\ntime.sleep(600)\n",
    "stubborn": "ready()\nwhile True:\n try:\n  while True:\n   pass\n except BaseException:\n  pass\n",
    "in C": "import ctypes\nready()\nctypes.CDLL(None).pause()\n",
}
READY = "from orchestrator import runtime\ndef ready():\n    runtime.report(1)\n"


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_a_stop_ends_it_wherever_it_is(task: Start, loop: str) -> None:
    run = task(READY + loop)
    run.release()
    run.until("step")
    run.order(stop={"grace_s": 0.5})
    assert run.ended() == 143


def test_a_stop_runs_hooks_finally_blocks_and_atexit(task: Start) -> None:
    run = task(
        READY
        + "import atexit, time\nruntime.on_stop(lambda: 1 / 0)\nruntime.on_stop(lambda: print('hook'))\n"
        "atexit.register(print, 'atexit')\ntry:\n    ready()\n    time.sleep(600)\nfinally:\n    print('finally')\n"
    )
    run.release()
    run.until("step")
    run.order(stop={"grace_s": 10})
    assert run.ended() == 143
    assert run.out.split() == ["hook", "finally", "atexit"]
    assert "ZeroDivisionError" in run.err


def test_a_script_that_fails_after_the_order_to_stop_was_stopped(task: Start) -> None:
    """A peer that has stopped already makes a collective operation fail before the order reaches the main thread."""
    run = task(
        READY + "import threading, time\nordered = threading.Event()\n"
        "def hook():\n    ordered.set()\n    time.sleep(0.3)\n    print('hook')\n"
        "runtime.on_stop(hook)\nready()\nordered.wait()\nraise RuntimeError('the peer is gone')\n"
    )
    run.release()
    run.until("step")
    run.order(stop={"grace_s": 10})
    assert run.ended() == 143
    assert run.out.split() == ["hook"]
    assert "the peer is gone" not in run.err


def test_what_has_nothing_to_hand_over_ends_at_once_when_a_rescue_is_wanted(task: Start) -> None:
    run = task("import time\nprint('up', flush=True)\ntime.sleep(60)")
    run.release()
    assert run.process.stdout is not None
    run.process.stdout.readline()
    run.order(stop={"grace_s": 5000.0, "rescue": True})
    assert run.until("rescued")["rescued"]["why"] == "the script has nothing to hand over"
    assert run.ended(timeout_s=20.0) == 143


def test_a_stop_before_the_release_ends_it(task: Start) -> None:
    run = task("print('never')\n")
    run.until("ready")
    run.order(stop={"grace_s": 0.5})
    assert run.ended() == 143
    assert run.out == ""


@pytest.mark.parametrize("loop", [LOOPS["busy"], LOOPS["in C"]], ids=["busy", "in C"])
def test_stacks_of_a_stuck_task_name_the_place(task: Start, loop: str) -> None:
    run = task(
        READY + "def stuck():\n" + "".join(f"    {line}\n" for line in loop.splitlines()) + "stuck()\n"
    )
    run.release()
    run.until("step")
    run.order(stacks={})
    text = run.until("stacks")["stacks"]
    assert "train.py" in text
    assert "in stuck" in text
    run.process.send_signal(signal.SIGKILL)


def test_a_child_of_the_script_cannot_hold_or_use_the_line(task: Start) -> None:
    run = task(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ.get(\"ORCH_FD\"), "
        'sorted(os.listdir("/proc/self/fd"))[:9])\'])\n'
    )
    run.release()
    assert run.ended() == 0
    assert run.out.startswith("None")
    assert len(run.out.split(",")) <= 4  # stdin, stdout, stderr, and that of the listing


def test_of_several_root_errors_of_a_graph_the_first_is_told() -> None:
    text = (
        "Graph execution error:\n\nDetected at node cond/Placeholder_1 defined at (most recent call last):\n"
        '  File "/runs/train.py", line 9, in <module>\n\n2 root error(s) found.\n'
        "  (0) INVALID_ARGUMENT:  You must feed a value\n\t [[{{node cond/Placeholder_1}}]]\n"
        "  (1) INVALID_ARGUMENT:  You must feed a value\n0 successful operations."
    )
    told = last_line(RuntimeError(text))
    assert told.endswith(
        "2 root error(s) found. (0) INVALID_ARGUMENT:  You must feed a value 0 successful operations."
    )


def test_an_error_in_a_graph_is_told_with_its_place_in_the_script() -> None:
    """TensorFlow's text of an error that was raised while it traced a script's code, as it is printed."""
    text = (
        'in user code:\n\n    File "/runs/train.py", line 9, in f  *\n        return g(d)\n'
        '    File "/runs/train.py", line 11, in g  *\n        raise KeyError("gone")\n\n    KeyError: \'gone\'\n\n'
    )
    assert last_line(RuntimeError(text)) == "KeyError: 'gone' (File \"/runs/train.py\", line 11, in g)"


@pytest.mark.parametrize(("options", "said"), [({"rescue": True}, 1), ({}, 0)])
def test_that_no_survivor_could_hand_over_is_said_once_and_only_where_one_is_wanted(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], said: int
) -> None:
    class Enough(Exception):
        """The test has seen enough heartbeats."""

    def pause(_seconds: float) -> None:
        beats.append(len(told))
        if len(beats) == 3:
            raise Enough

    beats: list[int] = []
    told: list[str] = []
    workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    monkeypatch.setattr(this_task, "options", options)
    monkeypatch.setattr(this_task, "rescue", None)
    monkeypatch.setattr(this_task, "link", SimpleNamespace(say=lambda kind, _: told.append(kind)))
    monkeypatch.setattr(main, "time", SimpleNamespace(sleep=pause))
    progress: Any = SimpleNamespace(catch_up=lambda: None, has_stepped=True)
    stages: Any = SimpleNamespace(send=lambda: None)
    with pytest.raises(Enough):
        main._send(stages, progress)
    assert told == ["no-rescue"] * said
    assert beats == [said] * 3, "with the first heartbeat after a step"

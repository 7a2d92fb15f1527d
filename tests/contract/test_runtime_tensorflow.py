"""The runtime and the checkpoints against real TensorFlow: what the documents promise of an unchanged script."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.hostdir import task_dir
from orchestrator.checkpoints import copying, seed, verify
from tests.patience import comes, patient
from tests.unit.task.runtime_task import Task

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

Release = dict[str, str]
EXAMPLES = ROOT / "examples"
SCRIPTS = Path(__file__).parent / "scripts"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def tf_configs(workers: int) -> list[Release]:
    if workers == 1:
        return [{}]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    return [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}})}
        for i in range(workers)
    ]


class Gang:
    """The workers of one generation, released together; what they report is kept as it comes."""

    def __init__(
        self,
        script: Path,
        *args: str,
        directories: list[Path],
        env: Release | None = None,
        host_dir: Path | None = None,
    ) -> None:
        """Start them; with `host_dir`, each in a working directory of its own, as a shim does."""
        self.tasks = []
        for index, directory in enumerate(directories):
            own = {"ORCH_CHECKPOINT_DIR": str(directory), "CUDA_VISIBLE_DEVICES": "", **(env or {})}
            work = None
            if host_dir is not None:
                own |= {"ORCH_HOST_DIR": str(host_dir), "ORCH_RUN": "run-1", "ORCH_TASK": f"worker:{index}"}
                work = Path(task_dir(str(host_dir), "run-1", f"worker:{index}"), "work")
                work.mkdir(parents=True, exist_ok=True)
            self.tasks.append(Task(script, *args, env=own, work=work, warm=True))
        self.heard: list[list[dict[str, Any]]] = [[] for _ in self.tasks]
        for task, environment in zip(self.tasks, tf_configs(len(self.tasks)), strict=True):
            task.release(environment)
        self._readers = [threading.Thread(target=self._listen, args=(i,)) for i in range(len(self.tasks))]
        for reader in self._readers:
            reader.start()

    def _listen(self, index: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.heard[index].extend(
                json.loads(line) for line in iter(self.tasks[index].messages.readline, "")
            )

    def steps(self, index: int = 0) -> list[int]:
        return [message["step"] for message in list(self.heard[index]) if "step" in message]

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        comes(lambda: condition() or self.tasks[0].process.poll() is not None, 60, 0.02)
        assert condition(), f"never: {what}; steps {self.steps()}; {self.tasks[0].err}"

    def ended(self, timeout_s: float = 100.0) -> list[int]:
        """Wait for the ends, and return the exit codes. A task whose output nobody reads stops all the others."""
        with ThreadPoolExecutor(len(self.tasks)) as readers:
            codes = list(readers.map(lambda task: task.ended(timeout_s), self.tasks))
        for reader in self._readers:
            reader.join(10)
        return codes

    def close(self) -> None:
        for task in self.tasks:
            if task.process.poll() is None:
                task.process.send_signal(signal.SIGKILL)
        for reader in self._readers:
            reader.join(10)
        for task in self.tasks:
            task.close()


@pytest.fixture
def gang() -> Iterator[Callable[..., Gang]]:
    started: list[Gang] = []

    def start(*args: Any, **kwargs: Any) -> Gang:
        started.append(Gang(*args, **kwargs))
        return started[-1]

    yield start
    for each in started:
        each.close()


def seeded(root: Path, generation: int, workers: int) -> tuple[dict[str, Any], list[Path]]:
    """Make the chief's directory and the other workers' scratch, as the coordinator does before a generation."""
    answer = seed.seed(str(root / "shared"), generation)
    directories = [Path(answer["path"])]
    for index in range(1, workers):
        directories.append(root / f"scratch-{generation}-{index}")
        copying.copy(answer["path"], str(directories[-1]))
    return answer, directories


def test_keras_3_trains_under_mwms_with_the_same_weights_on_both_workers(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang(SCRIPTS / "keras3_everything.py", directories=[tmp_path / "0", tmp_path / "1"])
    assert run.ended() == [0, 0], run.tasks[0].err
    results = [json.loads(task.out.strip().splitlines()[-1]) for task in run.tasks]
    assert results[0] == results[1]
    assert results[0]["predicted"] == [30, 1]
    assert results[0]["steps"] == 24
    one, three = results[0]["several"]
    assert three == pytest.approx(one, rel=1e-6), "steps_per_execution changes nothing but the pace"
    assert one[-1] == 8
    assert 24 in run.steps()
    said = [message["say"] for message in run.heard[0] if "say" in message]
    assert [each["kind"] for each in said] == ["keras3-patched"]
    told = [message for message in run.heard[0] if "accuracy" in message.get("metrics", ())][-1]
    assert told["epoch"] == 0
    assert {"loss", "accuracy", "val_loss"} <= set(told["metrics"])


def test_keras_3_trains_under_mwms_in_a_python_that_the_script_starts(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = {"ORCH_TASK": "worker:0"}  # the mark of a task, which its children inherit
    run = gang(SCRIPTS / "fit_in_a_child.py", directories=[tmp_path, tmp_path], env=env)
    assert run.ended() == [0, 0], run.tasks[0].err
    trained = [task.out.strip() for task in run.tasks]
    assert trained[0].startswith("trained ")
    assert trained[0] == trained[1]
    assert "was patched for MultiWorkerMirroredStrategy" in run.tasks[0].err


def test_stop_and_resume_of_keras_3_over_two_workers(gang: Callable[..., Gang], tmp_path: Path) -> None:
    script, args = EXAMPLES / "digits.py", ("--epochs", "3", "--save-every", "5")
    first = gang(script, *args, directories=seeded(tmp_path, 1, 2)[1])
    first.wait_for(lambda: first.steps()[-1:] > [12], "12 steps")
    before = first.steps()[-1]
    first.tasks[0].process.send_signal(signal.SIGTERM)
    first.wait_for(lambda: first.steps()[-1] > before, "TensorFlow swallows SIGTERM and trains on")
    first.tasks[0].order(stacks={})
    first.wait_for(lambda: any("stacks" in message for message in first.heard[0]), "stacks while it trains")
    began = time.monotonic()
    for task in first.tasks:
        task.order(stop={"grace_s": 90})
    codes = first.ended()
    assert time.monotonic() - began < patient(45), (
        "at once, as a busy machine has it, and not at the end of the grace"
    )
    # On a busy machine a worker may see its peer's end before it reads its own order.
    assert codes == [143, 143] or (
        sorted(codes) == [1, 143] and "Error" in first.tasks[codes.index(1)].err
    ), [task.err for task in first.tasks]

    answer, directories = seeded(tmp_path, 2, 2)
    assert answer["global_step"] >= 5
    second = gang(script, *args, directories=directories)
    assert second.ended() == [0, 0], second.tasks[0].err
    for index in (0, 1):
        assert second.steps(index)[0] == answer["global_step"]
    assert "test accuracy: 0." in second.tasks[0].out
    assert "test accuracy" not in second.tasks[1].out


@pytest.mark.parametrize(
    ("script", "args", "workers"),
    [
        # These two are killed and resumed over SSH by tests/cluster too.
        pytest.param(
            "checkpoint_manager.py", ("--steps", "40", "--save-every", "5"), 2, marks=pytest.mark.long
        ),
        pytest.param("digits.py", ("--epochs", "8", "--save-every", "5"), 1, marks=pytest.mark.long),
        # Long enough to be killed: BackupAndRestore removes its checkpoint at the end.
        ("tf_keras_backup.py", ("--epochs", "8", "--save-every", "5"), 1),
    ],
)
@pytest.mark.fault(15)
def test_a_killed_script_resumes_unchanged_from_the_last_good_checkpoint(
    gang: Callable[..., Gang], tmp_path: Path, script: str, args: tuple[str, ...], workers: int
) -> None:
    first = gang(EXAMPLES / script, *args, directories=seeded(tmp_path, 1, workers)[1])
    chief = str(tmp_path / "shared" / "gen-000001")
    first.wait_for(lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= 10, "a checkpoint")
    first.close()

    answer, directories = seeded(tmp_path, 2, workers)
    assert answer["global_step"] >= 5
    second = gang(EXAMPLES / script, *args, directories=directories)
    assert second.ended() == [0] * workers, second.tasks[0].err
    for index in range(workers):
        # A custom loop reports its first step after the restored one; `fit` reports what it restored.
        assert second.steps(index)[0] in (answer["global_step"], answer["global_step"] + 1)
        assert second.steps(index)[-1] > answer["global_step"]


@pytest.mark.fault(27)
def test_a_zombie_that_saves_the_same_name_again_does_not_reach_the_next_generation(tmp_path: Path) -> None:
    """What `seed` relies on when it links: TensorFlow renames data shards, and rewrites the index in place."""
    import tensorflow as tf

    old = tmp_path / "gen-000001" / "model"
    value = tf.Variable(tf.zeros([1000]))
    checkpoint = tf.train.Checkpoint(value=value, step=tf.Variable(7, dtype=tf.int64))
    checkpoint.write(str(old))
    answer = seed.seed(str(tmp_path), 2)
    assert answer["global_step"] == 7
    value.assign(tf.ones([1000]))
    checkpoint.write(str(old))
    assert (
        tf.train.load_checkpoint(f"{answer['path']}/model")
        .get_tensor("value/.ATTRIBUTES/VARIABLE_VALUE")
        .sum()
        == 0.0
    )
    assert verify(answer["path"])["checkpoint"]["global_step"] == 7

"""What of `transparent: true` needs no TensorFlow."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orchestrator.both.hostdir import run_dir
from orchestrator.both.script import Script
from orchestrator.task import this_task
from orchestrator.task.link import Link
from orchestrator.task.transparent import backup as transparent_backup
from orchestrator.task.transparent import data as transparent_data
from orchestrator.task.transparent import first_batch
from orchestrator.task.transparent import main as transparent
from orchestrator.task.transparent import replay as transparent_replay
from orchestrator.task.transparent.backup import Mismatch, Position, matched, variables_of
from orchestrator.task.transparent.files import Files, Scratch, summary_dir
from orchestrator.task.transparent.first_batch import DRAWN, OWN, UNKNOWN, WHOLE, apart
from orchestrator.task.transparent.proof import Proof, bytes_per_example, kinds_of_operations
from orchestrator.task.transparent.recording import track_nothing
from orchestrator.task.transparent.remembered import Memory
from orchestrator.task.transparent.replay import Course
from orchestrator.task.transparent.reporter import Reporter, Unsupported


def tf_config(kind: str, index: int, *jobs: str) -> str:
    return json.dumps(
        {"cluster": {job: ["a:1", "b:1"] for job in jobs}, "task": {"type": kind, "index": index}}
    )


class Heard:
    """A Reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.refused = None
        self.said: list[str] = []

    def __call__(self, _kind: str, message: str) -> None:
        self.said.append(message)

    def unsupported(self, message: str) -> RuntimeError:
        return RuntimeError(message)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (
            [2e-7, 3e-5, 32.0],
            "the gradients of 2 weights, of 32 examples, are those of one process (they differ by at most 3.0e-05",
        ),
        ([math.nan, math.nan, 32.0], "is not finite"),
        (None, "not proved to be that of one process"),
    ],
)
def test_a_proof_says_what_it_has_found(figures: list[float] | None, expected: str) -> None:
    heard: Any = Heard()
    Proof(heard, "/nowhere").judge(figures)
    assert expected in heard.said[0]


def test_of_a_proof_the_chief_tells_alone_and_every_worker_ends_by_it() -> None:
    for chief in (True, False):
        heard: Any = Heard()
        proof = Proof(heard, "/nowhere", chief=chief)
        proof.names = ["dense/kernel"]
        for figures in ([3e-5, 32.0], [math.nan, 32.0], None):
            proof.judge(figures)
        proof.leave_out("a step that is too large")
        assert len(heard.said) == (4 if chief else 0)
        with pytest.raises(RuntimeError, match="the gradient of dense/kernel differs by 2 %"):
            proof.judge([0.02, 32.0])


@pytest.mark.parametrize("worst", [0.02, math.nan])
def test_a_gradient_that_differs_ends_the_run_with_the_weight(worst: float) -> None:
    proof = Proof(Heard(), "/nowhere")  # type: ignore[arg-type]
    proof.names = ["dense/kernel", "dense/bias"]
    with pytest.raises(RuntimeError, match=r"the gradient of dense/bias differs by .* % of its length"):
        proof.judge([2e-7, worst, 32.0])


SUMS = [3e9, 0.25, -1.5, 7.0]
"""A checksum, and three sums of numbers with a fraction."""


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[WHOLE, *SUMS], [WHOLE, *SUMS], [WHOLE, 3e9, 0.25 + 1e-6, -1.5, 7.0]], ("", False)),
        ([[OWN, 0.0], [OWN, 0.0], [OWN, 0.0]], ("", False)),
        ([[WHOLE, *SUMS], [UNKNOWN, 0.0, 0.0, 0.0, 0.0], [WHOLE, 1.0, 0.0, 0.0, 0.0]], ("", False)),
        (
            [[WHOLE, *SUMS], [WHOLE, *SUMS], [WHOLE, 3e9 + 1, 0.25, -1.5, 7.0]],
            ("the first batch of worker:1 is another one than that of chief:0", False),
        ),
        (
            [[WHOLE, *SUMS], [OWN, *SUMS], [WHOLE, 3e9, 0.26, -1.5, 7.0]],
            ("the first batch of worker:0 and worker:1 is another one than that of chief:0", False),
        ),
        (
            [[DRAWN, *SUMS], [DRAWN, 3e9, 0.26, -1.5, 7.0], [DRAWN, *SUMS]],
            ("the first batch of worker:0 is another one than that of chief:0", True),
        ),
    ],
)
def test_workers_that_begin_with_another_batch_are_named(
    rows: list[list[float]], expected: tuple[str, bool]
) -> None:
    assert apart(["chief:0", "worker:0", "worker:1"], [[row] for row in rows]) == expected


def test_after_epochs_that_were_passed_over_one_batch_that_all_have_seen_is_enough() -> None:
    """Of the others it is not known whether each worker has read them ahead."""
    one, other, wrong = [WHOLE, *SUMS], [WHOLE, 1e9, 1.0, 2.0, 3.0], [WHOLE, 2e9, 1.0, 2.0, 3.0]
    names = ["chief:0", "worker:0"]
    assert apart(names, [[one, other], [other, [UNKNOWN]]]) == ("", False)
    assert apart(names, [[one, other], [wrong, [UNKNOWN]]])[0].startswith(
        "the first batch of worker:0 is another"
    )


def test_the_batch_with_which_a_restart_goes_on_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[list[float]] = []
    monkeypatch.setattr(first_batch, "workers_of", lambda _strategy: 2)
    monkeypatch.setattr(first_batch, "names_of_workers", lambda _strategy: ["worker:0", "worker:1"])
    monkeypatch.setattr(first_batch, "rows_of_workers", lambda _strategy, mine: [mine, *others])

    def compared(begins_with: list[float]) -> None:
        course, other = Course(0), Course(0)
        for each, batch in ((course, [WHOLE, *SUMS]), (other, begins_with)):
            each.epoch, each.begins_with = 2, [[WHOLE, 1e9, 1.0, 2.0, batch[4] * 2], batch]
        others[:] = [[number for batch in other.begins_with for number in batch] + [UNKNOWN] * 10]
        first_batch.compare(None, Reporter(Link(None)), course)
        assert course.is_compared

    compared([WHOLE, *SUMS])
    with pytest.raises(Unsupported, match="the first batch of worker:1 is another one than that of worker:0"):
        compared([WHOLE, 3e9, 0.25, -1.5, 9.0])


def test_a_restart_takes_no_iterator_that_only_one_worker_has_read_ahead_for_other_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_batch, "workers_of", lambda _strategy: 2)
    monkeypatch.setattr(first_batch, "names_of_workers", lambda _strategy: ["worker:0", "worker:1"])
    monkeypatch.setattr(
        first_batch, "rows_of_workers", lambda _strategy, mine: [mine, [WHOLE, *SUMS, *[UNKNOWN] * 15]]
    )
    course = Course(0)
    course.epoch, course.begins_with = 1, [[WHOLE, *SUMS], [WHOLE, 3e9, 0.25, -1.5, 9.0]]
    first_batch.compare(None, Reporter(Link(None)), course)
    assert course.is_compared
    began, course.epoch, course.is_compared = course, 0, False
    with pytest.raises(Unsupported):
        first_batch.compare(None, Reporter(Link(None)), began)


class TensorShapeOfAnyRank:
    """As TensorFlow's: it can be asked for its rank, and for nothing else."""

    rank = None

    def __iter__(self) -> Any:
        raise ValueError("Cannot iterate over a shape with unknown rank.")


def test_metrics_and_vocabularies_are_no_weights_of_a_model_of_tf_keras() -> None:
    kernel, total = SimpleNamespace(shape=(3, 2)), SimpleNamespace(shape=())
    metric, words = SimpleNamespace(variables=[total]), object()
    model = SimpleNamespace(weights=[kernel, words, total], metrics=[metric], optimizer=None)
    assert {name: variables_of(model)[name] for name in ("model", "metrics")} == {
        "model": [kernel],
        "metrics": [total],
    }


def test_a_weight_of_an_open_size_or_rank_is_saved_and_its_known_sizes_are_compared() -> None:
    counted, anything = (
        SimpleNamespace(shape=shape, name="adapted/summary:0")
        for shape in ((2, None), TensorShapeOfAnyRank())
    )
    groups = {"model": [counted, anything]}
    fitting = {"model/00000": np.zeros((2, 7)), "model/00001": np.zeros((3,))}
    assert [value.shape for _, value in matched(groups, fitting, "model")] == [(2, 7), (3,)]
    with pytest.raises(Mismatch, match="adapted/summary: 2xNone, was 3x7"):
        matched(groups, fitting | {"model/00000": np.zeros((3, 7))}, "model")
    with pytest.raises(Mismatch, match="was 2"):
        matched(groups, fitting | {"model/00000": np.zeros((2,))}, "model")


def test_batches_that_threads_beside_each_other_make_may_have_other_noise() -> None:
    adapters = {"PyDataset with one": (1, None), "with three": (1, object()), "of tf_keras": (3, None)}
    found = {}
    for name, (workers, enqueuer) in adapters.items():
        course = transparent_replay.Course(0, workers)
        course.keep_handler(SimpleNamespace(data_adapter=SimpleNamespace(enqueuer=enqueuer)))
        found[name] = course.is_read_by_many
    assert found == {"PyDataset with one": False, "with three": True, "of tf_keras": True}


class Shape(list[int | None]):
    @property
    def rank(self) -> int:
        return len(self)


def test_memory_is_reckoned_from_all_results_that_have_examples() -> None:
    shapes = [Shape(each) for each in ([None, 10], [7, None, 4], [None, None], [100, 100], [])]
    outputs = [SimpleNamespace(shape=shape, dtype=SimpleNamespace(size=4)) for shape in shapes]
    found = bytes_per_example([SimpleNamespace(outputs=outputs[:2]), SimpleNamespace(outputs=outputs[2:])])
    assert found == 1 + 4 * (10 + 28 + 64), "what is of a batch by a batch is taken for 64 of each"


@pytest.mark.parametrize(
    ("kind", "updates", "draws"),
    [
        ("AssignAddVariableOp", True, False),
        ("ResourceScatterNdUpdate", True, False),
        ("LookupTableInsertV2", True, False),
        ("LookupTableFindV2", False, False),
        ("QueueEnqueueV2", True, False),
        ("WriteFile", True, False),
        ("ReadVariableOp", False, False),
        ("RngReadAndSkip", False, True),
        ("RandomShuffle", False, True),
        ("StatelessRandomUniformV2", False, True),
        ("StatelessIf", False, False),
        ("StatefulPartitionedCall", False, False),
        ("EagerPyFunc", False, False),
        ("MatMul", False, False),
    ],
)
def test_what_an_operation_of_a_proof_does_is_known_by_its_kind(
    kind: str, updates: bool, draws: bool
) -> None:
    found = [bool(matches(kind)) for matches in kinds_of_operations()]
    assert found == [updates, draws, kind == "EagerPyFunc", kind == "StatefulPartitionedCall"]


@pytest.mark.parametrize(
    ("config", "chief"),
    [
        (None, True),
        ("{}", True),
        (tf_config("worker", 0, "worker"), True),
        (tf_config("worker", 1, "worker"), False),
        (tf_config("chief", 0, "chief", "worker"), True),
        (tf_config("worker", 0, "chief", "worker"), False),
        (tf_config("evaluator", 0, "worker"), False),
    ],
)
def test_one_process_saves(config: str | None, chief: bool) -> None:
    assert transparent.is_chief(config) is chief


@pytest.mark.parametrize(
    ("source", "library"),
    [
        ("import keras\n", "keras"),
        ("import tensorflow as tf\n", "keras"),
        ("import tf_keras\n", "tf_keras"),
    ],
)
def test_the_keras_is_the_one_that_the_script_names(tmp_path: Path, source: str, library: str) -> None:
    (tmp_path / "train.py").write_text(source)
    assert transparent.library_of(Script(str(tmp_path / "train.py")).imports()) == library


DRAWS = """
import json, random, tempfile, uuid
import numpy as np
from orchestrator.task.transparent.chance import equal_generators, equal_names
equal_generators()
equal_names(FOLDER)
def sequence(): return np.random.default_rng(np.random.SeedSequence())
makers = [np.random.default_rng, np.random.RandomState, random.Random, sequence]
drawn = [float(make().uniform(0, 1)) for make in makers for _ in range(2)]
random.seed()
np.random.seed()
drawn += [random.random(), np.random.random()]
print(json.dumps({
    "drawn": drawn, "uuid": [str(uuid.uuid4()), str(uuid.uuid4())],
    "seeded": [np.random.default_rng(7).random(), random.Random(7).random()],
    "free": [next(tempfile._get_candidate_names()), random.SystemRandom().random()],
}))
"""


def test_what_is_drawn_without_a_seed_is_equal_on_all_workers_and_differs_from_each_other(
    tmp_path: Path,
) -> None:
    np = pytest.importorskip("numpy")
    script = tmp_path / "draw.py"
    script.write_text(DRAWS.replace("FOLDER", repr(os.path.realpath(tmp_path))))
    root = str(Path(transparent.__file__).parents[2])

    def drawn(run: str) -> dict[str, Any]:
        env = {**os.environ, "PYTHONPATH": root, "ORCH_RUN": run}
        done = subprocess.run(
            [sys.executable, script.name], env=env, cwd=tmp_path, capture_output=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    first, second, other = drawn("a-1"), drawn("a-1"), drawn("a-2")
    assert first["drawn"] == second["drawn"]
    assert first["uuid"] == second["uuid"]
    assert len({*first["drawn"], *first["uuid"], *other["uuid"]}) == 10 + 2 + 2
    assert first["seeded"] == [np.random.default_rng(7).random(), random.Random(7).random()]
    assert not set(first["free"]) & set(second["free"])


LISTS = """
import glob, json, os, pathlib, shutil
from orchestrator.task.transparent.chance import equal_order
plain = os.listdir(".")
equal_order()
top = pathlib.Path(".")
with os.scandir(".") as entries:
    scanned = [each.name for each in entries]
with os.scandir(".") as entries:
    next(entries)
    entries.close()
    left = list(entries)
shutil.copytree(".", "../copied")
print(json.dumps({
    "plain": plain, "left": left, "of bytes": [os.fsdecode(each) for each in os.listdir(b".")],
    "listed": [
        os.listdir(), os.listdir("."), scanned, glob.glob("*"), [str(each) for each in top.iterdir()],
        [str(each) for each in top.glob("*")], next(os.walk("."))[2], [each.path[2:] for each in os.scandir(".")],
        os.listdir("../copied"),
    ],
}))
"""


def test_files_are_listed_in_one_order_whatever_the_file_system_says(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    names = [f"{random.Random(number).getrandbits(64):x}.txt" for number in range(60)]
    for name in names:
        (tmp_path / "files" / name).touch()
    env = {**os.environ, "PYTHONPATH": str(Path(transparent.__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", LISTS], env=env, cwd=tmp_path / "files", capture_output=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["listed"] == [sorted(names)] * 9
    assert found["of bytes"] == sorted(names)
    assert sorted(found["plain"]) == sorted(names)
    assert found["left"] == []


@pytest.mark.parametrize(
    ("sizes", "policy", "why"),
    [
        ([9, 9, 9, 9], "FILE", "2 for each worker"),
        ([9, 9], "FILE", "1 for each worker"),
        ([None, None], "FILE", "whether they have equal lengths is not known: 1 for each worker"),
        ([9, 7], "DATA", "set AutoShardPolicy.FILE in the script"),
        ([9] * 5, "DATA", "5 files cannot be shared evenly by 2 workers"),
        ([9], "DATA", "1 file cannot be shared evenly by 2 workers"),
        (None, "DATA", "it is not of files"),
    ],
)
def test_files_are_shared_whole_only_where_the_steps_are_those_of_one_process(
    sizes: list[int | None] | None, policy: str, why: str
) -> None:
    chosen, sentence = transparent_data.choice(sizes, 2)
    assert chosen == policy
    assert f"shared by {policy}" in sentence
    assert sentence.endswith(why)


def test_a_data_set_that_cannot_be_looked_into_is_not_called_one_without_files() -> None:
    class Opaque:
        def _as_serialized_graph(self) -> Any:
            raise NotImplementedError("pyfunc_3 is stateful")

    told = "tf.data is shared by DATA, each worker takes its part of each batch: whether it is of files cannot be told"
    assert transparent_data.choice_for(Opaque(), 2) == (
        "DATA",
        f"{told} (NotImplementedError: pyfunc_3 is stateful)",
    )


def test_each_thing_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = Reporter(Link(None))
    said("batch", "it is global")
    said("batch", "it is global")
    assert capsys.readouterr().err == "orch: it is global\n"


def test_what_is_written_elsewhere_is_read_from_there(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "own"))
    path = tmp_path / "shared" / "model.keras"
    assert scratch.to_read(str(path)) == str(path)
    double = scratch.to_write(path)
    assert double.startswith(str(tmp_path / "own"))
    Path(double).write_text("weights")
    assert scratch.to_read(path) == double
    assert scratch.to_write(double) == double
    assert Path(scratch.to_write("s3://bucket/model.keras")).parent.is_dir()
    assert not path.parent.exists()


def test_what_the_generations_before_have_written_is_read_after_a_restart(tmp_path: Path) -> None:
    def scratch(number: int) -> Scratch:
        own = tmp_path / f"gen-{number:06d}" / "scratch"
        own.mkdir(parents=True, exist_ok=True)
        return Scratch(str(own))

    path = "best.weights.h5"
    for number in (1, 2):
        Path(scratch(number).to_write(path)).write_text(f"of generation {number}")
    assert Path(scratch(3).to_read(path)).read_text() == "of generation 2"
    assert scratch(3).to_read("other.h5") == "other.h5"
    third = scratch(3)
    Path(third.to_write(path)).write_text("its own")
    assert Path(third.to_read(path)).read_text() == "its own"
    assert Path(scratch(2).to_read(path)).read_text() == "of generation 2", (
        "a later one is none of its business"
    )


def test_a_file_that_is_newer_than_an_older_generations_is_read_itself(tmp_path: Path) -> None:
    def scratch(generation: int) -> Scratch:
        return Scratch(str(tmp_path / "worker-1" / f"gen-{generation:06d}" / "scratch"))

    path = tmp_path / "shared.h5"
    written = Path(scratch(1).to_write(path))
    written.write_text("of generation 1, on this host")
    path.write_text("the chief's, of generation 2")
    os.utime(written, (1_000, 1_000))
    assert scratch(3).to_read(path) == path


def test_what_is_beside_the_script_or_in_its_temporary_directory_is_saved_where_it_says(
    tmp_path: Path,
) -> None:
    (work := tmp_path / "worker-1/work").mkdir(parents=True)
    files = Files(str(work), Scratch(str(tmp_path / "scratch")))
    (work / "shared").symlink_to(tmp_path)
    temporary = files.remembering(tempfile.mkdtemp)(dir=tmp_path)
    for path in (f"{work}/model.keras", f"{work}/model.keras", f"{temporary}/best.keras"):
        assert files.to_write(path) == files.to_read(path) == path
    for path in (f"{tmp_path}/model.keras", f"{work}/shared/model.keras", "s3://bucket/model.keras"):
        assert files.to_write(path).startswith(f"{tmp_path}/scratch/")
    assert (tmp_path / "worker-1/work.doubles").read_text() == "model.keras\n"
    assert Files(str(work), None).to_write(f"{tmp_path}/model.keras") == f"{tmp_path}/model.keras", (
        "the chief"
    )


def test_what_is_saved_beside_the_script_is_read_from_there_although_its_name_led_elsewhere_before(
    tmp_path: Path,
) -> None:
    (work := tmp_path / "worker-1/work").mkdir(parents=True)
    (out := work / "out").symlink_to(tmp_path)
    files = Files(str(work), Scratch(str(tmp_path / "scratch")))
    path = f"{out}/model.keras"
    Path(files.to_write(path)).write_text("while it was shared")
    out.unlink()
    out.mkdir()
    Path(files.to_write(path)).write_text("newer")
    assert Path(files.to_read(path)).read_text() == "newer"


def test_what_a_fit_saved_into_a_temporary_directory_is_in_the_next_generations(tmp_path: Path) -> None:
    (work := tmp_path / "worker-1/work").mkdir(parents=True)

    def begun(fit: int) -> tuple[Files, str, Callable[..., Any]]:
        files = Files(str(work), None)
        files.fit = fit
        made = files.remembering(tempfile.mkdtemp)(dir=tmp_path)
        return files, made, files.keeping(lambda _model, filepath, text: Path(filepath).write_text(text))

    _, first, save = begun(0)
    save(None, f"{first}/best.keras", "an epoch")
    save(None, filepath=f"{first}/best.keras", text="the best")
    save(None, f"{work}/other.keras", "stays where it is")
    for fit, there in ((1, []), (0, ["best.keras"])):
        files, second, _ = begun(fit)
        files.put_back([Keras(), SimpleNamespace(filepath=f"{second}/best.keras")])
        assert os.listdir(second) == there
    assert Path(second, "best.keras").read_text() == "the best"
    Path(second, "best.keras").write_text("newer")
    files.put_back([SimpleNamespace(filepath=f"{second}/best.keras")])
    assert Path(second, "best.keras").read_text() == "newer"
    assert os.listdir(work) == ["other.keras"]


def test_what_is_not_kept_goes_with_the_run_where_it_saves_no_checkpoints_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORCH_CHECKPOINT_DIR", raising=False)
    for name, value in (("HOST_DIR", str(tmp_path)), ("RUN", "t-1"), ("TASK", "worker:1")):
        monkeypatch.setenv(f"ORCH_{name}", value)
    for number in ("1", "2"):
        monkeypatch.setenv("ORCH_GENERATION", number)
        Path(Scratch(this_task.scratch()).to_write("/shared/best.h5")).write_text(f"of generation {number}")
    monkeypatch.setenv("ORCH_GENERATION", "3")
    found = Path(Scratch(this_task.scratch()).to_read("/shared/best.h5"))
    assert found.read_text() == "of generation 2"
    assert found.is_relative_to(run_dir(str(tmp_path), "t-1")), "which `orch rm` removes"


def test_what_is_not_kept_goes_with_a_process_that_no_shim_has_started(tmp_path: Path) -> None:
    code = "from orchestrator.task import this_task; print(this_task.scratch())"
    env = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
    made = subprocess.run(
        [sys.executable, "-c", code], env={**env, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert made.stdout.startswith(f"{tmp_path}/orch-scratch-"), made.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_in_the_tasks_own_directory_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "own" / "ckpt.weights.h5")
    assert Scratch(str(tmp_path / "own")).to_write(path) == path


def test_tensorboard_writes_below_the_tasks_log_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    top = str(tmp_path / "gen/logs")
    assert summary_dir("./logs/fit", top) == f"{top}/logs/fit"
    assert summary_dir(tmp_path / "logs", top) == f"{top}/logs"
    assert summary_dir("/tmp/logs", top) == f"{top}/tmp/logs"
    assert summary_dir(f"{top}/train", top) == f"{top}/train"
    assert summary_dir("gs://bucket/logs", top) == "gs://bucket/logs"


def test_a_position_survives_its_file() -> None:
    position = Position(3, 7)
    position.fit, position.scale, position.rate, position.epochs = 2, 0.5, 0.25, 9
    position.identity, position.chance = [7.0, 0.5], [["MT19937", [1, 2]]]
    position.callbacks = {"0 EarlyStopping": {"wait": 2, "best": 0.5}}
    position.tables = {"1": {"CSVLogger 0": 12}}
    assert vars(Position.from_json(position.as_json())) == vars(position)


class Keras3Iterator:
    """The part of Keras 3's TFEpochIterator that counts: iterators are made by it, and never shared by epochs."""

    def __init__(self, epochs: list[list[str]], steps_per_epoch: int | None = None) -> None:
        self.data = iter(epochs)
        self.data_adapter, self.catch_stop_iteration = object(), contextlib.nullcontext
        self.steps_per_epoch = steps_per_epoch
        self.num_batches = steps_per_epoch or len(epochs[0])
        self._current: Any = None

    def _enumerate_iterator(self) -> Any:
        if self._current is None or not self.steps_per_epoch:
            self._current = iter(next(self.data))
        for step in range(self.num_batches):
            yield step, step, self._current


class Trainer:
    def _maybe_symbolic_build(self) -> None: ...


def trained(iterator: Any) -> list[str]:
    return [next(batches) for _, _, batches in iterator._enumerate_iterator()]


class ArrayDataAdapter:
    """Keras 3's, for what lies in memory."""


@pytest.mark.parametrize(
    ("steps_per_epoch", "adapter"), [(None, object()), (3, object()), (3, ArrayDataAdapter())]
)
def test_a_resumed_epoch_trains_what_the_interrupted_one_had_left(
    steps_per_epoch: int | None, adapter: object
) -> None:
    epochs = [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]]
    if steps_per_epoch:
        epochs = [[batch for epoch in epochs for batch in epoch]]

    counts = []

    class Batches(list[str]):
        """Keeps how many batches were told to be passed over when each was read."""

        def __iter__(self) -> Any:
            for batch in list.__iter__(self):
                passing = transparent_replay.Passing.current
                counts.append((passing.done, passing.total) if passing is not None else None)
                yield batch

    class Iterator(Keras3Iterator):
        pass

    epochs = [Batches(each) for each in epochs]
    transparent_replay.build_without_data(Trainer)
    transparent_replay.install_keras3(Iterator)
    with Course(0) as course:
        iterator = Iterator(epochs, steps_per_epoch)
        iterator.data_adapter = adapter
        Iterator([["validation"]])
        course.leap(1, 2)
        assert trained(iterator) == ["b3"]
        assert trained(iterator) == ["c1", "c2", "c3"]
        assert course.steps == 3
    passed = [(done, 5) for done in range(5)]
    assert counts == [*passed, None, None, None, None]
    assert Course.current is None


def test_data_may_end_within_a_call_of_several_steps(capsys: pytest.CaptureFixture[str]) -> None:
    passing, batches = transparent_replay.Passing(10), iter(range(10))
    assert [passing.pulls(batches, 4) for _ in range(3)] == [True] * 3
    assert (passing.done, capsys.readouterr().err) == (10, "")
    assert not passing.pulls(batches, 4)
    assert "the data ended before the place where the training was interrupted" in capsys.readouterr().err
    assert not passing.pulls(iter(range(3)), 4, 4), "tf_keras reads up to the place at once"


@pytest.mark.parametrize(
    ("handler", "done"),
    [
        (SimpleNamespace(num_batches=10, steps_per_epoch=None), [4, 8, 10]),
        (SimpleNamespace(num_batches=10, steps_per_epoch=10), [4, 8, 12]),  # of data that goes on
        (SimpleNamespace(num_batches=None, steps_per_epoch=None), [4, 8, 12]),  # nobody knows
        (SimpleNamespace(inferred_steps=12), [4, 8, 12]),
    ],
)
def test_the_last_call_of_several_steps_makes_those_for_which_there_is_data(
    handler: Any, done: list[int]
) -> None:
    course = Course(0)
    course.keep_handler(handler)
    assert [course.done_after(batch) for batch in (3, 7, 11)] == done


def test_a_kill_in_the_middle_of_a_save_leaves_the_backup_before_it(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    import numpy as np

    from orchestrator.checkpoints import verify

    directory = transparent_backup.folder(str(tmp_path), 0)
    values = {"model/00000": np.ones((3, 2), "float32"), "optimizer/iterations": np.int32(40)}
    assert transparent_backup.read(directory) is None
    transparent_backup.write(directory, values, Position(2, 8))
    # What a kill leaves of the next one: the new file, half written, where it is built.
    written = Path(directory, transparent_backup.NAME).read_bytes()
    Path(directory, "saving_temp", transparent_backup.NAME).write_bytes(written[: len(written) // 2])
    found = verify(str(tmp_path))
    assert found["checkpoint"]["global_step"] == 40
    assert found["rejected"] == []
    again = transparent_backup.read(directory)
    assert again is not None
    assert (again[1].epoch, again[1].batch) == (2, 8)
    assert again[0]["model/00000"].tolist() == [[1.0, 1.0]] * 3
    assert os.listdir(directory)


def keras2_handler(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return the part of tf_keras's DataHandler that iterates, as it is patched, and what makes figures numbers.

    It has three epochs of three steps.
    """
    utils: Any = SimpleNamespace(sync_to_numpy_or_python_type=lambda logs: logs)
    monkeypatch.setitem(sys.modules, "tf_keras.src.utils.tf_utils", utils)

    class DataHandler:
        _epochs, inferred_steps, _insufficient_data = 3, 3, False
        _truncate_execution_to_epoch = contextlib.nullcontext
        _model = SimpleNamespace(train_function=None)
        enumerate_epochs = None

        def __init__(self, dataset: Any, adapter: Any) -> None:
            self._dataset, self._adapter = dataset, adapter
            adapter.on_epoch_end = lambda: None

    fakes: Any = {"_maybe_load_initial_counters_from_ckpt": None}
    transparent_replay.install_keras2(type("Model", (), fakes), DataHandler)
    return DataHandler, utils


class TensorLikeDataAdapter:
    """tf_keras's, for what lies in memory: each epoch has an iterator of its own, of seeds that are known."""

    def should_recreate_iterator(self) -> bool:
        return True


def test_the_epochs_that_are_done_are_not_read_again_where_the_data_lies_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    class Data:
        def __iter__(self) -> Any:
            return (read.append(batch) or batch for batch in range(3))  # type: ignore[func-returns-value]

    handler_class, _ = keras2_handler(monkeypatch)
    with Course(0) as course:
        handler = handler_class(Data(), TensorLikeDataAdapter())
        course.leap(2, 1)
        epoch, batches = next(handler.enumerate_epochs())
    assert (epoch, read) == (2, [0])
    assert next(batches) == 1


def test_tf_keras_traces_an_epoch_of_which_no_batch_is_left_and_is_given_its_figures_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its metrics are made by the trace, and its fit refuses an epoch without any figures."""
    traced: list[Any] = []
    read = iter(range(9))
    handler_class, utils = keras2_handler(monkeypatch)
    with Course(0) as course:
        handler = handler_class(read, SimpleNamespace(should_recreate_iterator=lambda: False))
        handler._model = SimpleNamespace(train_function=SimpleNamespace(get_concrete_function=traced.append))
        course.leap(1, 3)
        epochs = handler.enumerate_epochs()
        assert (next(epochs)[0], next(read), len(traced)) == (1, 6, 1)
        course.figures = lambda: {"loss": 0.5}
        assert [utils.sync_to_numpy_or_python_type(None) for _ in range(2)] == [{"loss": 0.5}, None]
        assert (next(epochs)[0], len(traced)) == (2, 1)


def test_a_backup_holds_the_range_of_bfloat16_and_metrics_are_added_to_what_was_counted_since(
    tmp_path: Path,
) -> None:
    pytest.importorskip("h5py")
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    import numpy as np

    values = {transparent_backup.STEPS: 1, "metrics/00000": np.array(1e30, bfloat16)}
    transparent_backup.write(str(tmp_path), values, Position(0, 1))
    found = transparent_backup.read(str(tmp_path))
    assert found is not None
    assert float(found[0]["metrics/00000"]) == pytest.approx(1e30, rel=0.01)
    assigned: list[float] = []
    counted = SimpleNamespace(
        shape=(), numpy=lambda: 2e30, assign=lambda value: assigned.append(float(value))
    )
    transparent_backup.add({"metrics": [counted]}, found[0], "metrics")
    assert assigned == [pytest.approx(3e30, rel=0.01)]


def test_a_complex_weight_keeps_both_parts_in_a_backup_and_is_not_saved_where_one_is_nan(
    tmp_path: Path,
) -> None:
    pytest.importorskip("h5py")
    import numpy as np

    weight = np.array([1 + 2j, -3.5j], "complex64")
    for steps, value in ((1, weight), (2, weight * complex(1, np.nan))):
        values = {transparent_backup.STEPS: steps, "model/00000": value}
        transparent_backup.write(str(tmp_path), values, Position(0, steps))
    found = transparent_backup.read(str(tmp_path))
    assert found is not None
    assert (found[0]["model/00000"].tolist(), found[0]["model/00000"].dtype) == (
        weight.tolist(),
        weight.dtype,
    )
    assert found[1].batch == 1


def test_a_fit_goes_on_from_what_a_survivor_handed_over_until_its_own_backup_is_newer(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    import numpy as np

    from orchestrator.checkpoints import seed, verify

    root, own = tmp_path / "gen-000001", transparent_backup.folder(str(tmp_path / "gen-000001"), 0)
    handed_over = transparent_backup.rescued(own, "worker:1")
    for directory, steps in ((own, 40), (handed_over, 57)):
        values = {transparent_backup.STEPS: steps, "model/00000": np.full((3,), steps, "float32")}
        transparent_backup.write(directory, values, Position(2, steps, steps))
    assert verify(str(root))["checkpoint"]["global_step"] == 57
    assert {fit: each.steps for fit, each in transparent_backup.positions(str(root)).items()} == {0: 57}
    answer = seed.seed(str(tmp_path), 2)
    assert answer["global_step"] == 57
    next_own = transparent_backup.folder(answer["path"], 0)
    found = transparent_backup.read(next_own)
    assert found is not None
    assert found[1].batch == 57
    begun = Path(transparent_backup.rescued(next_own, "worker:0"), "saving_temp")
    begun.mkdir(parents=True)
    barely = transparent_backup.rescued(next_own, "worker:2")
    transparent_backup.write(barely, {transparent_backup.STEPS: 1}, Position(0, 1))
    for steps, there in ((50, True), (57, False), (60, False)):
        transparent_backup.write(next_own, {transparent_backup.STEPS: steps}, Position(2, steps))
        assert os.path.exists(transparent_backup.rescued(next_own, "worker:1")) is there
        assert not os.path.exists(barely), "one of a single step is older too"
        assert begun.exists(), "a rescue may be written while a save ends"
    # A figure that is not the one that was written, and a file that is cut off, are not taken: the fit's own backup is.
    torn = Path(handed_over, transparent_backup.NAME)
    torn.write_bytes(torn.read_bytes().replace(np.float32(57).tobytes(), np.float32(58).tobytes()))
    assert "model/00000 is not what was written" in verify(str(root))["rejected"][0]["why"]
    torn.write_bytes(torn.read_bytes()[:200])
    assert seed.seed(str(tmp_path), 3, keep=None)["global_step"] == 60


def test_a_backup_is_written_where_a_link_leads_to_the_checkpoints_and_to_no_place_below(
    tmp_path: Path,
) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "disk" / "elsewhere").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk")
    own = transparent_backup.folder(str(tmp_path / "runs" / "gen-000001"), 0)
    transparent_backup.write(own, {transparent_backup.STEPS: 4}, Position(1, 0, 4))
    found = transparent_backup.position(own)
    assert found is not None
    assert found.steps == 4
    (tmp_path / "disk" / "gen-000002").symlink_to("elsewhere")
    with pytest.raises(OSError, match="gen-000002"):
        transparent_backup.write(
            transparent_backup.folder(str(tmp_path / "runs" / "gen-000002"), 0),
            {transparent_backup.STEPS: 4},
            Position(1, 0, 4),
        )
    assert os.listdir(tmp_path / "disk" / "elsewhere") == []


class Callback:
    """Keras's base class of callbacks."""

    model: Any = None


class EarlyStopping(Callback):
    """Keras's own: `min_delta` is a setting, that it changes once."""

    def on_epoch_end(self) -> None:
        self.min_delta, self.best, self.wait = -1, 0.5, 1


Callback.__module__ = EarlyStopping.__module__ = "keras.src.callbacks"
Keras: Any = EarlyStopping
Own: Any = type("Own", (Callback,), {})


def after_a_restart(trained: list[Any], again: list[Any], change: Callable[[], None]) -> list[Any]:
    memory = Memory(trained, "keras", Reporter(Link(None)))
    change()
    kept, arrays = memory.keep()
    for each in [array for callback in trained for array in vars(callback).values()]:
        if hasattr(each, "fill"):
            each.fill(-1)  # the training goes on while they are written
    Memory(again, "keras", Reporter(Link(None))).recall(json.loads(json.dumps(kept)), arrays)
    return again


def test_two_callbacks_of_one_class_remember_apart_over_a_restart() -> None:
    trained = [Keras(), Keras()]

    def change() -> None:
        trained[0].best, trained[1].best = 0.25, 0.5

    assert [each.best for each in after_a_restart(trained, [Keras(), Keras()], change)] == [0.25, 0.5]


def test_weights_and_whatever_a_callback_counts_are_there_after_a_restart() -> None:
    np = pytest.importorskip("numpy")
    stopping, own, losses = Keras(), Own(), [0.5]
    stopping.best_weights, stopping.model = None, object()
    own._count, own.losses, own.by_epoch, own.seen = 0, losses, {}, np.zeros(2)
    again, theirs = Own(), [0.5]
    again._count, again.losses, again.by_epoch, again.seen = 0, theirs, {}, np.zeros(2)

    def change() -> None:
        stopping.best_weights, stopping.model = [np.ones((2, 3))], object()
        own._count, own.by_epoch[3] = 7, ("a", {None, 2.0})
        losses.append(0.25)
        own.seen += 1  # in place

    fresh, again = after_a_restart([stopping, own], [Keras(), again], change)
    assert [each.tolist() for each in fresh.best_weights] == [[[1.0] * 3] * 2]
    assert vars(fresh).keys() == {"best_weights"}
    assert (again._count, again.by_epoch, again.seen.tolist()) == (7, {3: ("a", {None, 2.0})}, [1.0, 1.0])
    assert again.losses is theirs, "the script may hold the list by another name"
    assert theirs == [0.5, 0.25]


def test_settings_are_those_of_the_script_as_it_is_now() -> None:
    kind: Any = type("Patient", (EarlyStopping,), {})
    trained, again = kind(), kind()
    trained.patience = again.patience = 2
    trained.min_delta = again.min_delta = 1
    trained.of_its_own = 0
    again.patience = 5

    def change() -> None:
        trained.on_epoch_end()
        trained.of_its_own = 3

    after_a_restart([trained], [again], change)
    assert again.min_delta == 1, "Keras would change it again"
    assert (again.patience, again.wait, again.best, again.of_its_own) == (5, 1, 0.5, 3)


def test_a_callback_that_holds_what_cannot_be_kept_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    own = Own()
    own.reader = iter([1])

    def change() -> None:
        own.reader = iter([2])

    after_a_restart([own], [Own()], change)
    assert "orch: Own.reader is a list_iterator, which a restart cannot bring back" in capsys.readouterr().err


def test_the_chief_alone_tracks_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wandb.py").write_text("")
    (tmp_path / "mlflow.py").write_text(
        "uri = None\ndef set_tracking_uri(wanted):\n    global uri\n    uri = wanted\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", str(tmp_path / "gen-000001/a #1/scratch"))
    track_nothing(Reporter(Link(None)))
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    _, mlflow = (importlib.import_module(name) for name in ("wandb", "mlflow"))
    mlflow.set_tracking_uri("http://tracking:5000")
    assert mlflow.uri == f"file://{tmp_path}/gen-000001/a%20%231/scratch/not-chief_temp/mlflow"
    assert os.environ["WANDB_MODE"] == "disabled"
    told = capsys.readouterr().err
    assert "WANDB_MODE is disabled here" in told
    assert "what MLflow tracks here is thrown away" in told
    monkeypatch.setenv("WANDB_MODE", "offline")
    track_nothing(Reporter(Link(None)))
    assert os.environ["WANDB_MODE"] == "offline", "what the spec says stays"


def test_a_number_names_the_gpu_itself() -> None:
    from orchestrator.task.keras.parallel import _devices

    kinds = {"GPU": [SimpleNamespace(name=f"/GPU:{number}") for number in range(4)]}
    config = SimpleNamespace(
        list_physical_devices=lambda kind: kinds[kind], list_logical_devices=lambda kind: kinds[kind]
    )
    tf: Any = SimpleNamespace(config=config)
    assert _devices(tf, [1, 3]) == ["/GPU:1", "/GPU:3"]
    assert _devices(tf, 2) == ["/GPU:0", "/GPU:1"]
    for wrong in ([0, 4], [1, 1], [-1], []):
        with pytest.raises(ValueError, match="the GPUs here are 0 to 3; got"):
            _devices(tf, wrong)

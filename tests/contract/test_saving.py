"""Saves as often as costs least, with real TensorFlow: two workers save at the same steps, and resume after a kill."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import verify
from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

SCRIPTS = Path(__file__).parent / "scripts" / "saving"


def environment(**options: Any) -> dict[str, str]:
    told = json.dumps(with_row({"strategy": "multi_worker_mirrored", **options}))
    return {"ORCH_RUNTIME": told, "ORCH_FAILURE_EVERY_S": "1"}


@pytest.fixture
def gang() -> Iterator[Callable[..., Gang]]:
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **kwargs: Any) -> Gang:
            run = Gang(*args, **kwargs)
            stack.callback(run.close)
            return run

        yield start


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def savings(run: Gang, index: int) -> list[dict[str, Any]]:
    found = [message["saving"] for message in run.heard[index] if "saving" in message]
    return [each for n, each in enumerate(found) if n == 0 or each != found[n - 1]]


def verified_step(directory: Path) -> int:
    return int((verify(str(directory))["checkpoint"] or {}).get("global_step") or 0)


def test_a_script_with_the_callback_resumes_within_an_epoch_on_both_workers(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    """Failures are expected each second: it saves as often as 1 % of the time allows, at steps that both agree on."""
    first = gang(SCRIPTS / "callback.py", "0.03", directories=seeded(tmp_path, 1, 2)[1], env=environment())
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 20, "a second save")
    first.close()

    answer, directories = seeded(tmp_path, 2, 2)
    assert answer["global_step"] > 20
    second = gang(SCRIPTS / "callback.py", directories=directories, env=environment())
    assert second.ended() == [0, 0], second.tasks[0].err
    assert second.steps()[0] == answer["global_step"]
    results = [last_line(task.out) for task in second.tasks]
    assert results[0] == results[1]
    assert results[0]["steps"] == 100
    assert len(results[0]["epochs"]) == 5
    told = [savings(first, index) for index in (0, 1)]
    known = min(len(told[0]), len(told[1]))  # one of them may have been killed before it could say its last
    steps = [[each["every_steps"] for each in one[:known]] for one in told]
    assert steps[0] == steps[1]
    assert told[0][0]["why"] in ("shortest", "share", "writing", "least")
    assert not list(directories[1].rglob("saving_temp")), "only the chief writes"


def test_a_model_of_other_shapes_than_the_checkpoint_ends_with_that_sentence(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(strategy="single", save_every_steps=3)
    script, before = SCRIPTS / "filters.py", {**env, "ORCH_SCRIPT": "with 8"}
    first = gang(script, "8", "killed", directories=seeded(tmp_path, 1, 1)[1], env=before)
    assert first.ended() == [9], first.tasks[0].err
    answer, directories = seeded(tmp_path, 2, 1)
    assert answer["global_step"] > 0
    second = gang(script, "16", directories=directories, env={**env, "ORCH_SCRIPT": "with 16"})
    assert second.ended() == [1]
    said = "the model has other shapes than the checkpoint (conv1: 3x3x1x16, was 8)"
    said += ": `orch up --again` begins from scratch"
    errors = [message["error"] for message in second.heard[0] if "error" in message]
    assert [(each["kind"], each["message"]) for each in errors] == [("other-shapes", said)] * 2
    assert not [message for message in second.heard[0] if "restored" in message], "the file is not blamed"
    assert "Traceback" not in second.tasks[0].err
    assert f"orch: {said}" in second.tasks[0].err


@pytest.mark.parametrize(
    "model",
    [
        ["keras"],
        ["tf_keras", "call", "legacy"],
        pytest.param(["keras", "call"], marks=pytest.mark.long),  # without it "keras" stays
        pytest.param(["tf_keras"], marks=pytest.mark.long),  # with legacy optimizers it stays
    ],
    ids=" ".join,
)
def test_optimizers_that_the_first_step_builds_are_restored(
    gang: Callable[..., Gang], tmp_path: Path, model: list[str]
) -> None:
    env = environment(strategy="single", save_every_steps=3)
    script = SCRIPTS / "gan.py"
    whole = gang(script, *model, directories=seeded(tmp_path / "whole", 1, 1)[1], env=env)
    first = gang(script, *model, "killed", directories=seeded(tmp_path, 1, 1)[1], env=env)
    assert first.ended() == [9], first.tasks[0].err
    second = gang(script, *model, directories=seeded(tmp_path, 2, 1)[1], env=env)
    assert second.ended() == whole.ended() == [0], second.tasks[0].err
    assert last_line(second.tasks[0].out) == last_line(whole.tasks[0].out)


@pytest.mark.long
def test_what_is_resumed_ends_as_what_was_never_interrupted(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(strategy="single", save_every_steps=7)
    whole = gang(SCRIPTS / "callback.py", directories=seeded(tmp_path / "whole", 1, 1)[1], env=env)
    first = gang(SCRIPTS / "callback.py", "0.02", directories=seeded(tmp_path, 1, 1)[1], env=env)
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 21, "a save in the second epoch")
    first.close()
    answer, directories = seeded(tmp_path, 2, 1)
    assert answer["global_step"] % 7 == 0
    second = gang(SCRIPTS / "callback.py", directories=directories, env=env)
    assert second.ended() == whole.ended() == [0], second.tasks[0].err
    result, expected = last_line(second.tasks[0].out), last_line(whole.tasks[0].out)
    assert result["steps"] == expected["steps"] == 100
    assert result["epochs"] == pytest.approx(expected["epochs"], rel=1e-5)
    assert result["weights"] == pytest.approx(expected["weights"], rel=1e-5)
    assert verified_step(directories[0]) == 100, "the fit that has ended is saved, although no save was due"


@pytest.mark.long
def test_a_loop_of_two_workers_saves_together_through_a_kill(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(save_every_s=0.5)
    first = gang(SCRIPTS / "loop.py", "0.03", directories=seeded(tmp_path, 1, 2)[1], env=env)
    chief = tmp_path / "shared" / "gen-000001"
    first.wait_for(lambda: verified_step(chief) > 10, "a second save")
    first.close()
    answer, directories = seeded(tmp_path, 2, 2)
    second = gang(SCRIPTS / "loop.py", "0.01", directories=directories, env=env)
    assert second.ended() == [0, 0], second.tasks[0].err
    results = [last_line(task.out) for task in second.tasks]
    assert results[0]["saves"] == results[1]["saves"]
    assert results[0]["saves"][0] > answer["global_step"] > 10
    assert results[0]["weight"] == pytest.approx(1.0 - 0.12, abs=1e-4)
    assert results[0]["seen"] == 240.0

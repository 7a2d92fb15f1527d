"""What an unchanged script may do under `transparent: true`, each against one process: `scripts/transparent/cases.py`.

All cases run in one process after another, since a start of TensorFlow takes longer than they do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.checkpoints import verify
from tests.contract.test_runtime_tensorflow import Gang, seeded
from tests.contract.test_transparent import SCRIPTS, alone, environment, gang, last_line, said

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

__all__ = ["gang"]

EXACT = 1e-4
"""Relative, of weights and figures: sums differ in their order only."""

PATIENCE_S = 500.0

NO_MEMORY = "there was no memory for the proof of a step"


def rows(text: str) -> dict[str, dict[str, Any]]:
    found = (json.loads(line) for line in text.splitlines() if line.startswith('{"case"'))
    return {row["case"]: row for row in found}


def differences(expected: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Return what differs, a line for each case. Cases that must be refused are left out."""
    for name, row in expected.items():
        if name.startswith("refused"):
            continue
        mine = found.get(name, {"error": "it did not run"})
        if "error" in row or "error" in mine:
            yield f"{name}: {row.get('error')} alone, {mine.get('error')} here"
        elif not np.allclose(row["weights"], mine["weights"], rtol=EXACT, atol=1e-6):
            yield f"{name}: weights {np.abs(np.subtract(row['weights'], mine['weights'])).max()}"
        else:
            for key, values in row["shown"].items():
                if not np.allclose(values, mine["shown"].get(key, np.nan), rtol=1e-3, atol=1e-5):
                    yield f"{name}: {key} is {mine['shown'].get(key)}, alone {values}"


def refusals(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row.get("error", "") for name, row in found.items() if name.startswith("refused")}


# One of each kind: a case costs seconds of CPU in each worker, and all of them together took twelve minutes. What is
# left out differs from one that is here in the loss, the layer or the data that it names, and runs with `--long`.
OF_KERAS = (
    "metrics",
    "loss_that_is_a_sum",
    "accumulated",
    "sum_under_a_mask",
    "several_inputs_and_outputs",
    "py_dataset",
    "data_of_unknown_length",
    "texts_in_the_model",
    "layer_with_a_state",
    "fewer_examples_than_replicas",
    "noise_differs_by_replica",
)
OF_ITS_OWN = (
    "loss_of_its_own",
    "gradients_without_a_tape",
    "normalized_over_the_global_batch",
    "batches_that_leave_a_replica_empty",
    "pairs_of_a_contrastive_step",
    "statistics_of_the_batch_by_hand",
    "variables_of_tensorflow_that_a_step_assigns",
    "refused_length_of_a_batch",
    "refused_fixed_batch",
    "refused_eager_steps",
    "refused_python_of_the_batch",
)
REFUSED = {
    "refused_length_of_a_batch": "/ len(x): the number of examples in a batch",
    "refused_fixed_batch": "has 32 examples (`batch_shape`)",
    "refused_eager_steps": "run_eagerly=True",
    "refused_python_of_the_batch": "a tf.py_function has no gradient for it",
}

ALL = [pytest.mark.long, pytest.mark.timeout(4 * PATIENCE_S + 100)]
"""Of a test of all cases: beside other tests each of its processes takes a quarter of an hour."""


@pytest.mark.parametrize(
    ("cases", "workers", "options"),
    [
        pytest.param(OF_KERAS, 2, {"rescue": True}, id="2 workers"),
        pytest.param(OF_ITS_OWN, 2, {}, id="2 workers, steps and losses of its own"),
        pytest.param((), 2, {}, id="2 workers, all", marks=ALL),
        pytest.param((), 1, {"strategy": "mirrored", "replicas_on_cpu": 2}, id="2 replicas", marks=ALL),
        pytest.param((), 1, {"strategy": "mirrored", "replicas_on_cpu": 3}, id="3 replicas", marks=ALL),
        pytest.param(
            (),
            1,
            {"strategy": "mirrored", "replicas_on_cpu": 2, "proves": True},
            id="2 replicas, proved",
            marks=ALL,
        ),
        pytest.param((), 2, {"rescue": True, "proves": True}, id="2 workers, proved", marks=ALL),
    ],
)
def test_each_case_has_the_weights_and_figures_of_one_process(
    gang: Callable[..., Gang], tmp_path: Path, cases: tuple[str, ...], workers: int, options: dict[str, Any]
) -> None:
    single = alone("cases.py", *cases)
    patience_s = PATIENCE_S if cases else 4 * PATIENCE_S
    reader = ThreadPoolExecutor(1).submit(single.communicate, timeout=patience_s)
    directories = [tmp_path / str(index) for index in range(workers)]
    told = environment(**{"replicas_on_cpu": 1, **options})
    run = gang(SCRIPTS / "cases.py", *cases, directories=directories, env=told)
    assert run.ended(patience_s) == [0] * workers, run.tasks[0].err
    stdout, stderr = reader.result()
    assert single.returncode == 0, stderr
    expected, found = rows(stdout), rows(run.tasks[0].out)
    assert set(cases or REFUSED) <= expected.keys()
    assert list(differences(expected, found)) == []
    refused = refusals(found)
    assert refused.keys() == (REFUSED.keys() & cases if cases else REFUSED.keys())
    for name, why in refused.items():
        assert REFUSED[name] in why
    assert "cases.py:" in refused.get("refused_python_of_the_batch", "cases.py:")


def test_the_first_step_of_each_fit_is_proved_and_a_wrong_one_is_the_last(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    run = gang(
        SCRIPTS / "proofs.py",
        directories=[tmp_path],
        env=environment(strategy="mirrored", replicas_on_cpu=2, proves=True),
    )
    assert run.ended(PATIENCE_S) == [1]
    proofs = [
        each["say"]["message"]
        for each in run.heard[0]
        if each.get("say", {}).get("kind") == "transparent-proof"
    ]
    *twice, normalized, noisy, updating, python, settled, texts, mixed = proofs
    assert twice, "Reporter says the same once, of what TensorFlow's generator draws too"
    for said_of_it in twice:
        assert "the gradients of 4 weights, of 20 examples, are those of one process" in said_of_it
    assert "of 6 weights" in normalized
    assert "not compared: Dropout, statistics of BatchNormalization" in normalized
    assert "not proved" in noisy
    assert "what each replica draws or finds for itself" in noisy
    assert "the gradients of 1 weights" in updating, "no tape has computed it"
    assert "NotTwice: PyFunc may do anything" in python
    assert "proved equal at step 1: the gradients of 1 weights, of 60 examples" in settled
    assert "the gradients of 3 weights, of 20 examples, are those of one process" in texts
    assert "proved equal at step 1" in mixed
    assert float(mixed.partition("at most ")[2].split()[0]) < 1e-4, "in 32 bits"
    told = [json.loads(line) for line in run.tasks[0].out.splitlines()]
    assert [each["steps"] for each in told] == [6, 3, 3, 3, 3, 3, 1, 3, 3], "a proof is no step"
    assert told[5]["called"] == 12, (
        "each replica calls it for its part of a batch and for the whole, and not to prove"
    )
    assert told[0]["names"] == ["loss", "mae"]
    for updates in told[3:5]:
        assert (updates["scattered"], updates["queued"]) == (3, 6), (
            "a proof updates nothing; each replica queues"
        )
    refusal = next(each["error"]["message"] for each in run.heard[0] if "error" in each)
    assert "two.fit(X, Y" in refusal
    assert "in step 1 the gradient of two/" in refusal
    assert "`prove: off` under `run`" in refusal


def test_an_error_of_a_models_call_has_its_line_where_the_step_is_its_own(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    script = SCRIPTS / "failing_call.py"
    run = gang(script, directories=[tmp_path], env=environment(strategy="mirrored", replicas_on_cpu=2))
    assert run.ended(PATIENCE_S) == [1]
    line = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "no_such_attribute" in text)
    assert f'failing_call.py", line {line}, in call' in run.tasks[0].err
    assert "'Fails' object has no attribute 'no_such_attribute'" in run.tasks[0].err


def test_a_proof_that_finds_no_memory_ends_no_run(gang: Callable[..., Gang], tmp_path: Path) -> None:
    script, found = SCRIPTS / "proof_without_memory.py", []
    for proves in (False, True):
        env = environment(strategy="mirrored", replicas_on_cpu=2, proves=proves)
        run = gang(script, directories=[tmp_path / str(proves)], env=env)
        assert run.ended(PATIENCE_S) == [0], run.tasks[0].err
        assert (NO_MEMORY in said(run)) == proves, said(run)
        found.append(last_line(run.tasks[0].out))
    assert found[0]["steps"] == 3
    assert found[1] == found[0], "no batch is lost, and none trained twice"


@pytest.mark.parametrize(("workers", "where"), [(2, "worker:1"), (1, "meanwhile")])
def test_where_others_wait_for_a_proof_that_finds_no_memory_the_training_begins_again_without_it(
    gang: Callable[..., Gang], tmp_path: Path, workers: int, where: str
) -> None:
    script, strategy = (
        SCRIPTS / "proof_without_memory.py",
        "multi_worker_mirrored" if workers > 1 else "mirrored",
    )
    told = {
        "directories": [tmp_path / str(index) for index in range(workers)],
        "env": environment(strategy=strategy, replicas_on_cpu=3 - workers, proves=True),
        "host_dir": tmp_path / "host",
    }
    first = gang(script, where, **told)
    failing = first.tasks[-1]
    assert failing.ended() == 1, failing.err
    assert f"MemoryError: {NO_MEMORY}. The training begins again, and does without it" in failing.err
    assert "Collective ops is aborted" not in failing.err, "which would be taken for the loss of a peer"
    assert not failing.out
    first.close()  # as orch ends the others
    again = gang(script, where, **told)
    assert again.ended(PATIENCE_S) == [0] * workers, again.tasks[-1].err
    assert "is not proved to be that of one process" in said(again)
    if workers > 1:
        assert "proved" not in said(again, 1), "the chief tells it"
    plain = gang(script, directories=[tmp_path / "plain"], env=environment(strategy="mirrored"))
    assert plain.ended(PATIENCE_S) == [0], plain.tasks[0].err
    expected, found = last_line(plain.tasks[0].out), last_line(again.tasks[0].out)
    assert found["steps"] == expected["steps"]
    assert found["weights"] == pytest.approx(expected["weights"], rel=EXACT)


def test_a_model_is_proved_once_in_a_run_and_not_again_after_a_restart(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    env = environment(strategy="mirrored", replicas_on_cpu=2, proves="auto", save_every_steps=3)
    died = str(tmp_path / "died")
    first = gang(SCRIPTS / "proved_once.py", died, directories=seeded(tmp_path, 1, 1)[1], env=env)
    assert first.ended(PATIENCE_S) == [-9]
    assert said(first).count("proved equal at step 1") == 1, "of the first fit; the second one has its model"
    second = gang(SCRIPTS / "proved_once.py", died, directories=seeded(tmp_path, 2, 1)[1], env=env)
    assert second.ended(PATIENCE_S) == [0], second.tasks[0].err
    proofs = [line for line in said(second).splitlines() if "proved equal" in line]
    assert len(proofs) == 1, "of the third fit, which is the first one that this process can prove"
    assert "goes on from its backup" in said(second)


@pytest.mark.long  # tests/contract/test_transparent_fits.py kills one in a later fit too
def test_a_gan_that_is_killed_in_its_second_fit_goes_on_to_the_same_weights(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    """Two optimizers that are not the model's own, noise without a seed, no `call`, and steps that count on."""
    script = SCRIPTS / "gan.py"
    # A run with noise has none alone to be compared with: it is compared with itself, not killed.
    env = environment(save_every_steps=3, replicas_on_cpu=1)
    whole = gang(script, directories=seeded(tmp_path / "whole", 1, 2)[1], env=env)
    assert whole.ended(PATIENCE_S) == [0, 0], whole.tasks[0].err

    first = gang(script, directories=seeded(tmp_path, 1, 2)[1], env=env)
    chief = str(tmp_path / "shared" / "gen-000001")
    first.wait_for(lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= 25, "a backup")
    first.close()
    answer, directories = seeded(tmp_path, 2, 2)
    assert answer["global_step"] >= 25
    second = gang(script, directories=directories, env=env)
    assert second.ended(PATIENCE_S) == [0, 0], second.tasks[0].err
    assert "fit 1 goes on from its backup, after its last epoch" in said(second)
    assert second.steps()[0] == answer["global_step"], "a restart never reports fewer steps than its seed has"
    assert second.steps()[-1] == 48
    resumed, unbroken = last_line(second.tasks[0].out), last_line(whole.tasks[0].out)
    # The mean of an epoch that was cut adds its restored part in another order: its last digit may differ.
    assert resumed.pop("epochs") == pytest.approx(unbroken.pop("epochs"), rel=1e-6)
    assert resumed == unbroken
    assert unbroken["updates"] == [48, 48]

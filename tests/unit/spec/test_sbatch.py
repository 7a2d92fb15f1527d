"""The batch script: what is in it, and that no text of a user's acts in it."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.spec.sbatch import Wish, batch_script, why_not


def test_the_script_asks_for_what_the_spec_says() -> None:
    wish = Wish(
        "mnist", 3, gpus_per_node=8, partition="gpu", time="12:00:00", options=("--qos=long",), requeue=True
    )
    lines = batch_script(wish, python="/venv/bin/python", state_dir="/home/ml/orch/slurm/mnist").splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert {
        "--nodes=3",
        "--gres=gpu:8",
        "--partition=gpu",
        "--time=12:00:00",
        "--qos=long",
        "--requeue",
    } <= set(asked)
    assert {"--no-kill", "--exclusive"} <= set(asked)
    assert lines[0] == "#!/bin/bash"


def test_paths_are_words_of_the_shell_whatever_they_hold() -> None:
    python, state_dir = "/a b/$(rm)/it's", "/x;y/`z`"
    last = batch_script(Wish("t", 1), python=python, state_dir=state_dir).splitlines()[-1]
    assert shlex.split(last) == ["exec", python, "-P", "-m", "orchestrator.client.batch", state_dir]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--nodes=9", "is set by orch"),
        ("--wrap=x", "is set by orch"),
        ("-p gpu", "is written as"),
        ("--comment=a b", "is written as"),
        ("--comment=$(id)", "is written as"),
        ("--qos=a\n#SBATCH --wrap=x", "is written as"),
    ],
)
def test_an_option_that_would_act_otherwise_is_refused(option: str, says: str) -> None:
    reason = why_not(option)
    assert reason is not None
    assert says in reason
    with pytest.raises(ValueError, match=r"is set|is written"):
        batch_script(Wish("t", 1, options=(option,)), python="p", state_dir="d")


def test_nodes_are_shared_where_the_options_say_how() -> None:
    script = batch_script(Wish("t", 1, options=("--cpus-per-task=8",)), python="p", state_dir="/d")
    assert "--exclusive" not in script

"""The first cause that a run keeps: it is of the newest end of a generation, and says what became of that end."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from tests.unit.core.transcript import Transcript

STARTED = """hosts a b checkpoint=yes spares=c chaos=yes
> 0 submit
> 1 up a
> 1 up b
> 1 up c
> 1 report a
> 1 report b
> 1 report c
> 2 prepared a
> 2 prepared b
> 2 prepared c
> 3 report a worker:0=ready
> 3 report b worker:1=ready
> 3 seeded nothing
> 5 report a worker:0=running,step=51
> 5 report b worker:1=running,step=51
> 5 report c
"""

KILLED = """> 10 report b worker:1=exited,cause=signal,signal=9
> 10 report a worker:0=exited,cause=ordered,signal=9
> 11 report a worker:0=ready
> 11 report b worker:1=ready
> 11 report c
> 12 seeded 50
> 13 report a worker:0=running,step=51
> 13 report b worker:1=running,step=51
"""

MOVED = """> 14 drain b now
> 15 report a worker:0=exited,cause=ordered,signal=15
> 15 report b worker:1=exited,cause=ordered,signal=15
> 15 report c
"""


def played(tmp_path: Path, text: str) -> Run:
    path = tmp_path / "t.txt"
    path.write_text(text)
    transcript = Transcript(path)
    transcript.play()
    assert transcript.run is not None
    return transcript.run


def found_in(run: Run) -> FirstCause:
    assert run.first_cause is not None
    return run.first_cause


def test_what_became_of_an_end_is_said_of_that_end(tmp_path: Path) -> None:
    found = found_in(played(tmp_path, STARTED + KILLED))
    assert (found.generation, found.done) == (1, "generation 2 resumes from step 50; 1 step is lost")


def test_of_a_script_that_reports_no_steps_it_is_not_said_how_many_are_lost(tmp_path: Path) -> None:
    """It has saved at step 50, and nobody knows how much further it was."""
    silent = STARTED.replace("step=51", "age=1")
    assert silent != STARTED
    found = found_in(played(tmp_path, silent + KILLED))
    assert found.done == "generation 2 resumes from step 50"


def test_what_was_killed_before_it_started_again_does_not_say_that_it_will(tmp_path: Path) -> None:
    waits = """\
hosts a checkpoint=no
> 0 submit
> 1 up a
> 2 prepared a
> 3 report a worker:0=exited,code=1,step=7,says=ValueError:_bad_data
> 10 report a worker:0=exited,code=1,step=8,says=ValueError:_bad_data
"""
    assert found_in(played(tmp_path, waits)).done.startswith("restart in 5.")
    run = played(tmp_path, f"{waits}> 11 kill\n> 12 swept a\n")
    assert run.phase is Phase.KILLED
    assert found_in(run).done == "killed before it started again"


def test_a_move_to_other_places_is_an_end_of_its_own_and_the_next_generation_is_said_of_it(
    tmp_path: Path,
) -> None:
    run = played(tmp_path, STARTED + KILLED + MOVED + "> 16 seeded 50\n")
    assert (run.phase, run.generation) == (Phase.RENDEZVOUS, 3)
    found = found_in(run)
    assert (found.cause, found.generation, found.task) == (Cause.RESCHEDULED, 2, None)
    assert found.done == "generation 3 resumes from step 50; 1 step is lost"
    assert "drained" in found.sentence
    assert found.stopped == 2


def test_a_fault_that_chaos_injected_is_recognised(tmp_path: Path) -> None:
    found = found_in(played(tmp_path, STARTED + "> 9 chaos kill worker:1\n" + KILLED))
    assert (found.means, found.advice) == ("injected by orch chaos: kill worker:1", "nothing")


def test_an_end_long_after_a_fault_or_of_another_task_is_not_of_it(tmp_path: Path) -> None:
    other = found_in(played(tmp_path, STARTED + "> 9 chaos kill worker:0\n" + KILLED))
    late = found_in(played(tmp_path, STARTED + "> 5 chaos kill worker:1\n" + KILLED.replace("> 1", "> 2")))
    assert "chaos" not in other.means + late.means
    again = "> 14 report b worker:1=exited,cause=signal,signal=9\n"
    newer = found_in(played(tmp_path, STARTED + "> 9 chaos kill worker:1\n" + KILLED + again))
    assert newer.generation == 2
    assert "chaos" not in newer.means


def test_what_keras_printed_says_why_a_script_did_not_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    resumed = STARTED.replace("3 seeded nothing", "3 seeded 500").replace("step=51", "step=1")
    ended = "> 6 report a worker:0=exited,cause=ordered,signal=9{}\n"
    ended += "> 6 report b worker:1=exited,cause=ordered,signal=9\n"
    unknown = found_in(played(tmp_path, resumed + ended.format("")))
    assert unknown.cause is Cause.RESUME_MISMATCH
    assert unknown.sentence.endswith("reports step 1: it did not resume from it")
    assert "does not restore from $ORCH_CHECKPOINT_DIR, or" in unknown.means
    says = ",says=Skipping_variable_loading_for_optimizer_'adam',_because_it_has"
    changed = found_in(played(tmp_path, resumed + ended.format(says.replace(",_", "_"))))
    assert changed.means.startswith("the model or the optimizer was changed")
    assert "of optimizer adam" in changed.means
    assert changed.last_lines == ("Skipping variable loading for optimizer 'adam' because it has",)


FOLLOWER = """hosts a b c checkpoint=no strategy={strategy} tasks={0},{1},{2}
> 0 submit
> 1 up a
> 1 up b
> 1 up c
> 2 report a
> 2 report b
> 2 report c
> 2 prepared a
> 2 prepared b
> 2 prepared c
> 3 report a {0}=ready
> 3 report b {1}=ready
> 3 report c {2}=ready
> 5 report a {0}=running,step=9,silent=0.5
> 5 report b {1}=running,silent=0.5
> 5 report c {2}=running,silent=0.5
> 14 report a
> 14 report b
{then}> 16 report a {0}=exited,code=1,step=9,says=UnavailableError
"""
FROZEN, CUT_OFF = "> 14 report c {2}=running,silent=9.5\n", ""
MIRRORED = ("multi_worker_mirrored", "worker:0", "worker:1", "evaluator:0")
SERVED = ("parameter_server", "chief:0", "ps:0", "worker:0")


@pytest.mark.parametrize(
    ("gang", "then", "cause", "host"),
    [
        (MIRRORED, FROZEN, Cause.NETWORK, "a"),
        (MIRRORED, CUT_OFF, Cause.NETWORK, "a"),
        (SERVED, FROZEN, Cause.STALLED, "c"),
        (SERVED, CUT_OFF, Cause.NETWORK, "c"),
    ],
)
def test_behind_a_follower_there_may_be_a_worker_that_serves_but_no_evaluator(
    tmp_path: Path, gang: tuple[str, ...], then: str, cause: Cause, host: str
) -> None:
    strategy, *tasks = gang
    text = FOLLOWER.replace("{then}", then).format(*tasks, strategy=strategy)
    found = found_in(played(tmp_path, text))
    assert (found.cause, found.host) == (cause, host)
    assert found.sentence.endswith(f"{tasks[0]} on a lost its peers: UnavailableError at step 9")

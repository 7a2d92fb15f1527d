"""Why a task ended, which went first, and what its followers say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import decide
from orchestrator.core.actions import Note
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import HostReported, HostUp, TaskReport
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Facts, Link
from orchestrator.core.state.phase_states import Phase, Rendezvous
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress, TaskPhase
from tests.unit.core.transcript import make_plan
from tests.unit.head.recording import Head

SCRIPT = Exit(cause=Cause.SCRIPT, code=1)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (replace(SCRIPT, code=0), Cause.FINISHED),
        (replace(SCRIPT, code=42), Cause.PREEMPTED),
        (replace(SCRIPT, last_lines=("ValueError: bad",)), Cause.SCRIPT),
        (replace(SCRIPT, last_lines=()), Cause.SCRIPT),
        (replace(SCRIPT, error="UnknownError: Could not start gRPC server"), Cause.PORT),
        (replace(SCRIPT, last_lines=("E0101 bind: Address already in use",)), Cause.PORT),
        (
            replace(SCRIPT, error="tensorflow.python.framework.errors_impl.UnavailableError: x"),
            Cause.FOLLOWER,
        ),
        (replace(SCRIPT, last_lines=("UNAVAILABLE: connection reset by peer", "Aborted")), Cause.FOLLOWER),
        (replace(SCRIPT, error="DeadlineExceededError: barrier"), Cause.FOLLOWER),
        (replace(SCRIPT, last_lines=("Collective ops is aborted by: peer died",)), Cause.FOLLOWER),
        (replace(SCRIPT, last_lines=("... Restart your program to reset.",)), Cause.FOLLOWER),
        # a port that was taken aborts the peers as well: the first pattern wins
        (replace(SCRIPT, last_lines=("UNAVAILABLE: x", "Could not start gRPC server")), Cause.PORT),
        # what is known for sure is not read off the text
        (Exit(cause=Cause.OOM, last_lines=("UnavailableError",)), Cause.OOM),
        (Exit(cause=Cause.SIGNAL, signal=9, last_lines=("UnavailableError",)), Cause.SIGNAL),
        (Exit(cause=Cause.ORDERED, code=0), Cause.ORDERED),
    ],
)
def test_classify(ended: Exit, expected: Cause) -> None:
    assert cause.classify(ended) == replace(ended, cause=expected)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Exit(cause=Cause.OOM), "was killed by the kernel: out of memory"),
        (
            Exit(cause=Cause.OOM, peak_rss_bytes=3 << 30),
            "was killed by the kernel: out of memory (peak 3.0 GiB)",
        ),
        (Exit(cause=Cause.SIGNAL, signal=11), "was killed by SIGSEGV"),
        (Exit(cause=Cause.SIGNAL, signal=62), "was killed by signal 62"),
        (Exit(cause=Cause.SIGNAL), "was killed by signal None"),
        (Exit(cause=Cause.PREEMPTED, code=42), "saved and asked to be started again (exit 42)"),
        (Exit(cause=Cause.SHIM), "ended with its shim, whose process is gone"),
        (Exit(cause=Cause.REBOOTED), "is gone: its host was rebooted"),
        (Exit(cause=Cause.HOST_LOST), "is lost with its host"),
        (Exit(cause=Cause.PORT, code=1), "found its port taken"),
        (Exit(cause=Cause.START, error="no such file"), "could not be started: no such file"),
        (Exit(cause=Cause.FINISHED, code=0), "ended with exit code 0"),
        (Exit(cause=Cause.ORDERED, signal=9), "was stopped"),
        (
            replace(SCRIPT, last_lines=("Traceback", "KeyError: 'x'", "  ")),
            "failed with exit code 1: KeyError: 'x'",
        ),
        (replace(SCRIPT, code=3), "failed with exit code 3"),
        (
            replace(SCRIPT, code=3, last_lines=("Epoch 1/3", "all is well")),
            "failed with exit code 3; it printed last: all is well",
        ),
        (
            replace(SCRIPT, last_lines=("Traceback (most recent call last):", "MyFailure: x")),
            "failed with exit code 1: MyFailure: x",
        ),
        (
            replace(SCRIPT, cause=Cause.FOLLOWER, error="UnavailableError"),
            "lost its peers: UnavailableError",
        ),
    ],
)
def test_how_it_reads(ended: Exit, expected: str) -> None:
    assert cause.how(ended) == expected


def run_of(*exits: Exit | None, steps: tuple[int | None, ...] = ()) -> Run:
    run = new_run("t", make_plan([f"h{i}" for i in range(len(exits))], checkpoint=False), epoch=1, at=0.0)
    for i, (task, ended) in enumerate(zip(run.tasks, exits, strict=True)):
        step = steps[i] if steps else None
        phase = TaskPhase.EXITED if ended else TaskPhase.RUNNING
        run = run.with_task(
            replace(task, phase=phase, exit=ended, first_step=step, progress=Progress(global_step=step))
        )
    return run


def test_the_first_by_the_clocks_is_the_cause_and_the_followers_are_counted() -> None:
    follower = Exit(cause=Cause.FOLLOWER, code=1, at=5.0)
    culprit = Exit(cause=Cause.SIGNAL, signal=9, at=9.0)  # heard of later, and no follower
    found = cause.first_cause(run_of(follower, culprit, replace(follower, at=9.5), None, steps=(7, 8, 7, 7)))
    assert found is not None
    assert (str(found.task), found.cause, found.followers) == ("worker:1", Cause.SIGNAL, 2)
    assert found.sentence == "worker:1 on h1 was killed by SIGKILL at step 8"


def test_a_step_that_the_script_names_itself_is_said_once() -> None:
    for words in ("boom at step 60", "boom (step=60)", "Step 60: boom"):
        found = cause.first_cause(run_of(replace(SCRIPT, error=f"E: {words}"), steps=(60,)))
        assert found is not None
        assert found.sentence == f"worker:0 on h0 failed with exit code 1: E: {words}"
    found = cause.first_cause(run_of(replace(SCRIPT, error="E: boom at step 600"), steps=(60,)))
    assert found is not None
    assert found.sentence.endswith("E: boom at step 600 at step 60")


def test_where_all_are_followers_the_first_of_them_is_named_and_does_not_follow_itself() -> None:
    found = cause.first_cause(run_of(*(Exit(cause=Cause.FOLLOWER, code=1, at=at) for at in (5.0, 4.0))))
    assert found is not None
    assert (str(found.task), found.followers) == ("worker:1", 1)


def test_who_was_stopped_or_finished_is_no_cause() -> None:
    assert (
        cause.first_cause(run_of(Exit(cause=Cause.ORDERED), Exit(cause=Cause.FINISHED, code=0), None)) is None
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run_of(replace(SCRIPT, error="E: x"), replace(SCRIPT, error="E: x")), ("E: x", None)),
        (
            run_of(replace(SCRIPT, error="E: x", at=1.0), replace(SCRIPT, error="E: y", at=2.0)),
            ("E: x", None),
        ),
        (run_of(replace(SCRIPT, error="E: x"), None), ("E: x", None)),
        (
            run_of(replace(SCRIPT, error="E: x"), Exit(cause=Cause.ORDERED), steps=(210, 210)),
            ("E: x", 210),
        ),
        (run_of(replace(SCRIPT, error="E: x", at=2.0), Exit(cause=Cause.SIGNAL, signal=9, at=1.0)), None),
        (run_of(Exit(cause=Cause.START, error="E"), None), None),  # elsewhere it may start
        (run_of(Exit(cause=Cause.START, error="E"), Exit(cause=Cause.START, error="E")), ("E", None)),
        (run_of(SCRIPT, SCRIPT), None),  # silence is no evidence
    ],
)
def test_a_failure_that_would_happen_again(run: Run, expected: tuple[str, int | None] | None) -> None:
    assert cause.failure(run) == expected


def test_who_followed_after_how_long_and_who_was_stopped() -> None:
    exits = (
        Exit(cause=Cause.FOLLOWER, code=1, at=10.6),
        Exit(cause=Cause.SIGNAL, signal=9, at=9.0, ended_time=1.7e9),
        Exit(cause=Cause.FOLLOWER, code=1, at=10.25),
        Exit(cause=Cause.ORDERED, signal=9, at=10.7),
    )
    found = cause.first_cause(run_of(*exits, steps=(7, 8, 7, 7)))
    assert found is not None
    assert [(str(f.task), f.host, f.after_s) for f in found.followed] == [
        ("worker:2", "h2", 1.25),
        ("worker:0", "h0", 1.6),
    ]
    assert (found.host, found.global_step, found.stopped, found.ended_time) == ("h1", 8, 1, 1.7e9)
    assert (found.exit_code, found.signal) == (None, 9)
    assert found.means.startswith("killed from outside orch on h1")


def test_the_same_error_on_others_is_said_once() -> None:
    missing = replace(SCRIPT, cause=Cause.IMPORT, error="ModuleNotFoundError: No module named 'x'", at=3.0)
    found = cause.first_cause(run_of(missing, None, replace(missing, at=4.0)))
    assert found is not None
    assert (found.exit_code, found.signal) == (1, None)
    assert found.sentence == (
        "worker:0 on h0 failed with exit code 1: ModuleNotFoundError: No module named 'x'; so did worker:2 on h2"
    )
    all_of_them = cause.first_cause(run_of(missing, missing, missing))
    assert all_of_them is not None
    assert all_of_them.sentence.endswith("; so did the other 2 tasks")


def test_where_nobody_had_gone_before_a_follower_it_was_the_network() -> None:
    found = cause.first_cause(run_of(Exit(cause=Cause.FOLLOWER, code=1, error="UnavailableError: x"), None))
    assert found is not None
    assert (found.cause, found.means) == (
        Cause.NETWORK,
        "the tasks lost their connections to each other; none had ended before",
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tensorflow.python.framework.errors_impl.InternalError: x", "InternalError: x"),
        ("ValueError: a.b", "ValueError: a.b"),
        ("x" * 500, "x" * 199 + "…"),
        ("KeyError: '\x1b]0;title\x07\x1b[2Ja\tb'", "KeyError: 'a b'"),
        (
            "UnknownError: {{function_node __wrapped__Fill_device_/job:a/device:CPU:0}} OOM",
            "UnknownError: OOM",
        ),
    ],
)
def test_its_words_in_short(line: str, expected: str) -> None:
    assert cause.in_short(line) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss is -3.1e-05", "loss is 12"),
        ("loss is nan", "loss is inf"),
        ("bad batch [ 1.  2. -3.]", "bad batch [10. 20. 30. 4.]"),
        ("bad batch [[1 2]\n [3 4]]", "bad batch [[  1   2   3]\n [ -3   4 nan]]"),
        (
            "bad batch array([1, 2, ..., 5], dtype=float32)",
            "bad batch array([7, 8, 9, ..., 5], dtype=float32)",
        ),
        ("<Batch object at 0x7F3A> is empty", "<Batch object at 0x55d1c0ffee> is empty"),
        ("record   7 of   128", "record 1000 of 128"),
        ("no such file '/tmp/tmpq3_x1/a.npy'", "no such file '/tmp/tmpzz8k/a.npy'"),
        ("shard 3f2504e04f89 is damaged", "shard 0a1b2c3d4e5f is damaged"),
    ],
)
def test_an_error_is_the_same_whatever_figures_it_holds(one: str, other: str) -> None:
    first, again = (
        cause.failure(run_of(replace(SCRIPT, error=f"ValueError: {said}"), None)) for said in (one, other)
    )
    assert first is not None
    assert first == again


def test_workers_that_part_are_one_failure_whoever_says_it() -> None:
    parted = Exit(Cause.DIFFERENT, code=1)
    one = replace(parted, error="Op at task:1 expected shape [6] but another member expected shape [5]")
    other = replace(
        parted, error="Error reported from task:0: another member expected shape [6], Additional GRPC error"
    )
    first, again = (cause.failure(run_of(ended, None, steps=(3, 3))) for ended in (one, other))
    assert first == again == ("different programs", 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'accuracy'", "KeyError: 'loss'"),
        ("ValueError: x is -1", "TypeError: x is -1"),
        ("ValueError: x is nan", "ValueError: y is nan"),
        ("ValueError: information", "ValueError: banana"),
        ("ValueError: (x) is 1", "ValueError: (y) is 1"),
    ],
)
def test_another_error_is_another_failure(one: str, other: str) -> None:
    assert cause.failure(run_of(replace(SCRIPT, error=one), None)) != cause.failure(
        run_of(replace(SCRIPT, error=other), None)
    )


def test_a_number_that_differs_makes_no_other_failure() -> None:
    words = (f"E: /scratch/worker-{n}/gen-000003: port 2000{n}, at 0x7f{n}a" for n in (0, 1))
    assert cause.failure(run_of(*(replace(SCRIPT, error=said) for said in words))) is not None


def test_on_one_host_its_own_clock_says_how_much_later_a_follower_ended() -> None:
    """The reports of both may come late, and together."""
    run = run_of(
        Exit(cause=Cause.FOLLOWER, code=1, at=20.0, ended_time=1000.0),
        Exit(cause=Cause.SIGNAL, signal=9, at=20.0, ended_time=990.5),
    )
    run = run.with_task(replace(run.tasks[0], host="h1"))
    found = cause.first_cause(run)
    assert found is not None
    assert [f.after_s for f in found.followed] == [9.5]


@pytest.mark.parametrize(
    ("ended", "sentence", "means", "advice"),
    [
        (Exit(Cause.OOM), "out of memory", "the pod reached its memory limit", "`kubernetes: {memory: …}`"),
        (Exit(Cause.SIGNAL, signal=9), "SIGKILL", "in the pod a", "involvedObject.name=a"),
        (Exit(Cause.REBOOTED), "is gone: its pod was made anew", "deleted or evicted", "describe pod a"),
        (Exit(Cause.HOST_LOST), "with its pod", "`lost_after`; it is being deleted", "get pod a -o wide"),
    ],
)
def test_a_host_that_is_a_pod_is_spoken_of_as_a_pod(
    ended: Exit, sentence: str, means: str, advice: str
) -> None:
    plan = make_plan(["a"], checkpoint=False)
    run = new_run("t", replace(plan, hosts=(replace(plan.host("a"), transport="k8s"),)), epoch=1, at=0.0)
    run = run.with_host(replace(run.host("a"), problem="it is being deleted"))
    run = run.with_task(replace(run.tasks[0], phase=TaskPhase.EXITED, exit=ended))
    found = cause.first_cause(run)
    assert found is not None
    assert sentence in found.sentence
    assert means in found.means
    assert advice in found.advice


@pytest.mark.parametrize(
    ("before", "advice"),
    [
        ("its container ended with 137 (OOMKilled) and was started again, 1 time so far", "memory: …"),
        ("the pod before it: Evicted: The node was low on resource: memory.", "describe pod a"),
    ],
)
def test_how_a_pod_ended_is_said_by_kubernetes(before: str, advice: str) -> None:
    plan = make_plan(["a"], checkpoint=False)
    run = new_run("t", replace(plan, hosts=(replace(plan.host("a"), transport="k8s"),)), epoch=1, at=0.0)
    run = run.with_host(replace(run.host("a"), boot_id="1", facts=Facts()))
    task = replace(run.tasks[0], phase=TaskPhase.READY, pid=7, generation=1)
    run = replace(run.with_task(task), generation=1, phase_state=Rendezvous(deadline_at=99.0))
    run, done, _ = decide.step(run, HostUp(1.0, "a", "2", before=before))
    said = f"a is another pod, or its container was started again: {before}"
    assert said in [action.message for action in done if isinstance(action, Note)]
    run, _, _ = decide.step(run, HostReported(2.0, "a", ()))
    found = run.first_cause
    assert found is not None
    assert (found.cause, found.means) == (Cause.REBOOTED, f"a: {before}")
    assert advice in found.advice


@pytest.mark.fault(108)
@pytest.mark.parametrize("is_cut_off", [True, False], ids=["cut off", "frozen"])
def test_of_two_that_are_silent_the_one_is_blamed_whom_a_follower_names(is_cut_off: bool) -> None:
    names = ["a", "b", "c", "d", "e"]
    run = new_run("t-1", make_plan(names, checkpoint=False), epoch=1, at=0.0)
    tasks = [replace(task, phase=TaskPhase.RUNNING, generation=1) for task in run.tasks]
    said = "UnavailableError: /job:worker/replica:0/task:2 stopped sending heartbeats"
    follower = replace(tasks[0], phase=TaskPhase.EXITED, exit=Exit(Cause.FOLLOWER, 1, at=50.0, error=said))
    hosts = [replace(host, link=Link.CONNECTED, heard_at=49.0) for host in run.hosts]
    for at, age_s in ((1, 30.0), (2, 12.0)):
        if is_cut_off:
            hosts[at] = replace(hosts[at], link=Link.UNREACHABLE, heard_at=50.0 - age_s)
        else:
            tasks[at] = replace(tasks[at], progress=replace(tasks[at].progress, runtime_age_s=age_s))
    run = replace(run, generation=1, hosts=tuple(hosts), tasks=(follower, *tasks[1:]))
    found = cause.behind(run, follower, "worker:0 on a lost its peers")
    assert found is not None
    if is_cut_off:
        assert (found.cause, found.host) == (Cause.NETWORK, "c")
    else:
        assert (found.cause, str(found.task)) == (Cause.STALLED, "worker:2")


def test_who_failed_before_the_chief_was_done_counts_also_if_it_never_told_a_step(tmp_path: Path) -> None:
    """Only the chief need tell steps. Through the loop, which goes on whatever is raised: it decides nothing then."""
    head = Head(tmp_path / "journal.db")
    head.begin()
    head.hear(step=7, hosts="a")
    head.hear(step=None, hosts="b")
    failed = Exit(cause=Cause.SCRIPT, code=1, at=head.now + 1.0, last_lines=("ValueError: bad rank",))
    done = Exit(cause=Cause.SCRIPT, code=0, at=head.now + 2.0)
    head.pass_time(3.0)
    # Whose report comes first decides nothing
    for host, ended, step in (("a", done, 7), ("b", failed, None)):
        task = TaskId("worker", "ab".index(host))
        told = TaskReport(task, 1, "exited", pid=7, port=20000, progress=Progress(step), exit=ended)
        head.tell(HostReported(head.now, host, (told,)))
    assert (head.run.phase, head.run.generation) == (Phase.RENDEZVOUS, 2)
    assert head.run.first_cause is not None
    assert head.run.first_cause.sentence == "worker:1 on b failed with exit code 1: ValueError: bad rank"
    head.end()

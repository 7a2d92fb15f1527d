"""Why tasks and generations end: one row for each cause, which holds everything that depends on it.

To add a cause, add its row here, and what shows it: a failure signature (`diagnosis/signatures`), or the place in
`phases` that finds it. Nothing else names causes in groups; a test looks that it stays so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Blame(Enum):
    """Whose fault an end is."""

    NOBODY = "nobody"
    """Nothing failed."""
    TASK = "task"
    """The task's own: its script, its data, what it found where it ran."""
    HOST = "host"
    """The host's fault, where the other hosts were fine: two generations in a row quarantine it."""
    PEER = "peer"
    """Another task ended first, and this one ended because of that."""


@dataclass(frozen=True, slots=True)
class InPod:
    """What is said instead where the host is a pod of Kubernetes. Braces: `host`."""

    means: str
    advice: str
    how: str = ""


_EVENTS = "`kubectl get events --field-selector involvedObject.name={host}`"


@dataclass(frozen=True, slots=True)
class Row:
    """One cause."""

    name: str
    """The name in journal, events and JSON. It never changes, since old journals must be readable."""
    blame: Blame = Blame.TASK
    is_free: bool = False
    """It does not count as a failure without progress. A failure of a GPU or of NCCL that comes each time does count,
    as one of the script does: a hundredth restart would help nobody."""
    repeats: bool = False
    """It happens again with the same code on the same hosts, so all tasks may end in this way at once."""
    in_other_words: bool = False
    """Chance decides which task says it, and in what words: the cause is compared, and not the line."""
    ends_the_run: bool = False
    """Starting again would end in the same way."""
    wants_new_place: bool = False
    """A restart of all tasks may help where a restart of one task, with its old port on its old host, did not."""
    is_found_first: bool = False
    """It is found while the tasks live: what they then die of is not the cause."""
    ends_saved: bool = False
    """The run ends by it, saved, to go on some day; it is nobody's failure."""
    disowns: bool = False
    """The run does not resume from what the generation has saved."""
    may_want_room: bool = False
    """Where the disk of the checkpoint directory is full, the script died of that, and the run waits for room."""
    reported_as: str = ""
    """What a shim's exit record calls it; empty if no shim says it."""
    how: str = ""
    """How a task ended, after its name. Braces: `said`, `signal`, `code`. Empty: by its exit code or signal."""
    means: str = ""
    """What it means, where no failure signature says more. Braces: `host`, `python`."""
    advice: str = ""
    """What a person can do."""
    in_pod: InPod | None = None
    finding: str = ""
    """As what `orch doctor` finds what leads to it, where it can."""


class Cause(Enum):
    """Why a task or a generation ended. `row` holds what follows from it."""

    FINISHED = Row("finished", blame=Blame.NOBODY, how="ended with exit code 0", means="it was done")
    ORDERED = Row("ordered", blame=Blame.NOBODY, how="was stopped")
    SCRIPT = Row("script", repeats=True, may_want_room=True, reported_as="script")
    """The script's own message says more than any sentence of orch's."""
    IMPORT = Row("import", repeats=True, finding="python.no-module")
    DATA = Row("data", repeats=True)
    """How the data set is split, or a file of it."""
    DEVICES = Row("devices", repeats=True, finding="gpu.missing")
    """The task did not get the GPUs that the strategy needs."""
    OOM = Row(
        "out of memory",
        reported_as="oom",
        means="the host ran out of memory, and the kernel killed this process",
        advice="a smaller batch, shuffle buffer or `cache()`; fewer tasks on this host",
        in_pod=InPod(
            means="the pod reached its memory limit, or its node ran out of memory",
            advice="more by `kubernetes: {{memory: …}}` (with /dev/shm); a smaller batch, shuffle buffer or `cache()`",
        ),
    )
    PERHAPS_OOM = Row(
        "perhaps out of memory",
        reported_as="perhaps-oom",
        how="was killed by {signal}, perhaps for lack of memory",
        means="the kernel killed a process for lack of memory at that time; whether it was this one is not known",
        advice="`dmesg` on {host} names the process that the kernel killed; if another, "
        "a person or a batch system killed this one",
        in_pod=InPod(
            means="the kernel killed a process of the pod or its node then; whether it was this one is not known",
            advice="more by `kubernetes: {{memory: …}}` (with /dev/shm); `dmesg` on the node names what was killed",
        ),
    )
    """Neither a control group of its own, nor the kernel's log, nor its size tells."""
    DIFFERENT = Row("different programs", repeats=True, in_other_words=True)
    """The workers did not execute the same operations, so their collectives do not fit together."""
    GPU_OOM = Row("GPU out of memory", repeats=True)
    GPU = Row("GPU error", blame=Blame.HOST, finding="gpu.unwell")
    NCCL = Row("NCCL", repeats=True)
    NETWORK = Row(
        "network",
        finding="net.blocked",
        means="the tasks lost their connections to each other; none had ended before",
        advice="look at the network between the hosts: cables, a firewall, a changed address",
        in_pod=InPod(
            means="the tasks lost their connections to each other; none had ended before",
            advice="look for a NetworkPolicy, and at the cluster's network and its DNS",
        ),
    )
    CHECKPOINT = Row("checkpoint", repeats=True, may_want_room=True)
    UNRESTORABLE = Row(
        "checkpoint not restored",
        is_free=True,
        how="could not restore its checkpoint{said}",
        means="the checkpoint reads whole, but the task could not restore it: the file is not used again by this run",
        advice="nothing, where there is one before it; a model that was changed restores none: give it the old shape, "
        "or start anew with `orch up --from-scratch`",
    )
    """The file is blamed, and not the script."""
    DISK = Row(
        "disk full",
        finding="storage.space",
        repeats=True,
        may_want_room=True,
        means="the checkpoint directory has no room; the last verified checkpoint is untouched",
        advice="make room in the checkpoint directory (`df -h` there), or keep fewer checkpoints (`checkpoint: keep`)",
    )
    SIGNAL = Row(
        "signal",
        reported_as="signal",
        how="was killed by {signal}",
        means="killed from outside orch on {host}; not by the kernel's out-of-memory killer",
        advice="check the host for a batch system, a clean-up job or a person (`last`, `journalctl`)",
        in_pod=InPod(
            means="killed from outside orch in the pod {host}; not by the kernel's out-of-memory killer",
            advice=f"{_EVENTS} says what became of the pod; else it was a process or a person in it",
        ),
    )
    SWEPT = Row(
        "ended by orch",
        how="was ended by orch, but not by this coordinator",
        means="orch ended it on {host}, for another head node or command: `--take-over`, `orch gc`, or a run that has "
        "this machine under another name",
        advice="`orch gc --hosts FILE --json` shows which head node drives which run on {host}",
    )
    """So often as a failure of its own: two heads that end each other's tasks do not go on for ever."""
    CRASH = Row(
        "crash",
        means="the process crashed in native code",
        advice='run once with env PYTHONFAULTHANDLER: "1" for a Python stack; `dmesg` on {host} may name the library',
    )
    """A signal that a process causes itself, such as SIGSEGV."""
    PREEMPTED = Row(
        "preempted",
        is_free=True,
        how="saved and asked to be started again (exit {code})",
        means="the script saved, and wants to be started again",
        advice="nothing",
    )
    PORT = Row(
        "port", is_free=True, wants_new_place=True, how="found its port taken", finding="net.ports-busy"
    )
    FOLLOWER = Row("follower", blame=Blame.PEER, how="lost its peers{said}")
    SHIM = Row(
        "shim died",
        blame=Blame.HOST,
        is_free=True,
        reported_as="shim-died",
        how="ended with its shim, whose process is gone",
        means="the shim, which watches the task, ended without a word; what ended it is not known",
        advice="nothing; if it comes again, `dmesg` on {host} shows whether the kernel ended it for want of memory",
    )
    REBOOTED = Row(
        "host rebooted",
        blame=Blame.HOST,
        is_free=True,
        reported_as="rebooted",
        how="is gone: its host was rebooted",
        means="{host} was rebooted",
        advice="nothing; `last -x` on the host may show why",
        in_pod=InPod(
            how="is gone: its pod was made anew, or its container was started again",
            means="the pod {host} was deleted or evicted, its container ended, or its node is gone",
            advice=f"nothing; `kubectl describe pod {{host}}` and {_EVENTS} say why",
        ),
    )
    HOST_LOST = Row(
        "host lost",
        blame=Blame.HOST,
        is_free=True,
        reported_as="lost",
        how="is lost with its host",
        means="{host} has not been heard for longer than `lost_after`",
        advice="check that the host is up and its network works",
        in_pod=InPod(
            how="is lost with its pod",
            means="the pod {host} has not been heard for longer than `lost_after`",
            advice=f"`kubectl get pod {{host}} -o wide` names its node; {_EVENTS} says what became of the pod",
        ),
    )
    START = Row(
        "start",
        blame=Blame.HOST,
        repeats=True,
        wants_new_place=True,
        is_found_first=True,
        reported_as="start-failed",
        how="could not be started{said}",
        means="the task did not get as far as its script",
        advice="`orch events` has the steps before it",
    )
    NOT_CONNECTED = Row(
        "not connected",
        finding="net.blocked",
        repeats=True,
        is_found_first=True,
        means="the tasks could not connect to each other, so that none could make a step",
        advice="`orch doctor FILE` tries every pair of hosts",
    )
    RESUME_MISMATCH = Row(
        "resume-mismatch",
        ends_the_run=True,
        is_found_first=True,
        disowns=True,
        means="the script does not restore from $ORCH_CHECKPOINT_DIR, or what it restores does not hold its position",
        advice="restore from $ORCH_CHECKPOINT_DIR in the script, or start over with `orch up --from-scratch`",
    )
    OWN_PLACE = Row(
        "own-place",
        ends_the_run=True,
        is_found_first=True,
        disowns=True,
        means="the script restored training from a place that orch does not know, and was to start from scratch",
        advice="remove what it restored from, or have the script save and restore in $ORCH_CHECKPOINT_DIR",
    )
    BEGAN_APART = Row(
        "began-apart",
        repeats=True,
        is_found_first=True,
        disowns=True,
        means="a mirrored training has one state, and its tasks would train on from two",
        advice="let every task restore, from its own $ORCH_CHECKPOINT_DIR; `orch doctor FILE` says whether all hosts "
        "see the checkpoint directory",
    )
    UNSUPPORTED = Row(
        "unsupported",
        ends_the_run=True,
        means="the script does what this strategy cannot do; another start would fail in the same way",
        advice="the message names the place in the script, and the way out",
    )
    STALLED = Row(
        "stalled",
        is_found_first=True,
        means="all tasks are alive, and none makes progress",
        advice="the stack of the task that differs shows where; a planned pause needs a longer `timing: stall_after`",
    )
    NONFINITE = Row(
        "nonfinite",
        ends_the_run=True,
        is_found_first=True,
        means="a metric is NaN or infinite, so the weights most likely are too; `on_nonfinite` of the spec decides",
        advice="a smaller learning rate or clipped gradients; `orch ckpt rollback` goes back to a checkpoint of before",
    )
    ROLLED_BACK = Row(
        "rolled back",
        blame=Blame.NOBODY,
        is_free=True,
        is_found_first=True,
        disowns=True,
        means="somebody went back to an older checkpoint",
        advice="nothing; `orch ckpt ls` shows what was set aside, and going back to that brings it in again",
    )
    """The user went back to an older checkpoint."""

    RESCHEDULED = Row(
        "rescheduled",
        blame=Blame.NOBODY,
        is_free=True,
        is_found_first=True,
        means="nothing failed: the tasks were stopped to go on in other places",
        advice="nothing",
    )

    HOST_LEAVES = Row(
        "host leaves",
        blame=Blame.NOBODY,
        is_free=True,
        ends_saved=True,
        is_found_first=True,
        means="the provider of the hosts takes them away, and no other host could take the tasks",
        advice="`orch up` goes on from the last checkpoint, on other hosts",
    )

    PLANNED_END = Row(
        "planned end",
        blame=Blame.NOBODY,
        is_free=True,
        ends_saved=True,
        is_found_first=True,
        means="nothing failed: its time limit was over, or its user wanted it to end at a checkpoint",
        advice="`orch up` goes on from the last checkpoint",
    )

    _value_: str
    row: Row

    def __new__(cls, row: Row) -> Cause:
        member = object.__new__(cls)
        member._value_, member.row = row.name, row
        return member


REPORTED = {cause.row.reported_as: cause for cause in Cause if cause.row.reported_as}
"""By what a shim's exit record says."""

"""The kinds of events that `orch events` shows, each with its meaning. docs/events.md is made of this table.

To add a kind, add its row here, and note it where it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of note."""

    name: str
    """As journal, events and JSON carry it: never changed, for old journals are read and replayed."""
    means: str
    is_routine: bool = False
    """It comes without any fault, so it shows that none was noticed."""
    repeats_a_cause: bool = False
    """It says what is done about a first cause, after the sentence of that cause."""
    gives_a_reason: bool = False
    """Where the run ends right after it, the end says the same again."""
    ends_the_run: bool = False
    notice: str = ""
    """As what a person may want to be told of it: one of `notices.NOTICES`. Empty: nobody is told."""
    may_repeat: bool = False
    """A host can cause it at any time and any number of times: its rate is limited (`hosts/moderation.py`)."""
    by_task: bool = False


def _said(name: str, means: str) -> Row:
    """Return the row of a kind that a task says, by its runtime or its shim. No task can say any other kind."""
    return Row(name, means, by_task=True)


class NoteKind(Enum):
    """What a note is about. `row` holds what that means."""

    # the run
    SUBMITTED = Row("submitted", "The run was accepted.")
    PLACED = Row("placed", "The hosts and GPUs of the run were chosen; the message says why not others.")
    PREPARED = Row("prepared", "The hosts have been checked, and have the code.")
    GENERATION = Row("generation", "A generation starts: its tasks are placed, and ordered to start.")
    RUNNING = Row("running", "All tasks have joined, and are released into the script.")
    STOPPING = Row("stopping", "The tasks are being ended; the message says why.", gives_a_reason=True)
    BACKOFF = Row(
        "backoff",
        "What ended the generation, and when the next one starts.",
        repeats_a_cause=True,
        notice="restarted",
    )
    SUCCEEDED = Row(
        "succeeded",
        "The run has finished: its chief ended with exit code 0.",
        ends_the_run=True,
        notice="succeeded",
    )
    FAILED = Row(
        "failed",
        "The run was given up; the message says why.",
        ends_the_run=True,
        repeats_a_cause=True,
        notice="failed",
    )
    KILLED = Row("killed", "The user ended the run, or its hosts were taken away.", ends_the_run=True)
    WARNING = Row("warning", "Something that a person should know; the run goes on, or has succeeded.")

    # what the user asks for
    KILL = Row("kill", "The user asked to end the run.")
    DRAINED = Row("drained", "The user drains a host: it gets no new tasks.")
    UNDRAINED = Row("undrained", "The user lets a host take tasks again.")
    ROLLBACK = Row("rollback", "The user goes back to an older checkpoint.")
    CHAOS = Row("chaos", "`orch chaos` injects a fault.", is_routine=True)

    # the coordinator
    EPOCH = Row("epoch", "Another coordinator has taken over the run.", is_routine=True)
    ADOPTED = Row("adopted", "A living task continues under another coordinator.")
    OVERTAKEN = Row(
        "overtaken",
        "A host has tasks of a newer generation, which another coordinator had started: they are stopped.",
        may_repeat=True,
    )
    RECOVERED = Row("recovered", "The journal was lost; the run was rebuilt from what its hosts know.")
    CUT_OFF = Row(
        "cut-off",
        "So many hosts are silent that the coordinator itself must be cut off: nothing is stopped or started.",
    )
    ORDER_FAILED = Row("order-failed", "A host could not carry out an order.", may_repeat=True)
    DECISIONS_STOPPED = Row(
        "decisions-stopped", "A bug in orch: nothing more is decided about this run.", notice="failed"
    )
    RUN_SET_ASIDE = Row(
        "run-set-aside",
        "The run cannot be read from the journal: nothing is decided about it.",
        notice="failed",
    )
    NOTICE_FAILED = Row(
        "notice-failed", "A recipient of `notify:` did not accept a message; it is tried again, or given up."
    )

    # hosts
    HOST_UNREACHABLE = Row("host-unreachable", "A host is silent; its tasks may still be training.")
    HOST_BACK = Row("host-back", "A silent host is heard again.", may_repeat=True)
    HOST_LOST = Row("host-lost", "A host was silent for too long, and counts as lost.", notice="host-lost")
    HOST_GONE = Row(
        "host-gone",
        "A host is gone for good, as the user says or the engine that lent it: its tasks count as dead, and "
        "no proof is awaited.",
    )
    HOST_OPEN = Row(
        "host-open", "A host that counted as lost, or was stuck, may be given tasks again.", may_repeat=True
    )
    HOST_REBOOTED = Row("host-rebooted", "A host was rebooted, and is prepared anew.", may_repeat=True)
    HOST_REFUSED = Row(
        "host-refused",
        "A host cannot serve the run until a person acts.",
        gives_a_reason=True,
        may_repeat=True,
    )
    HOST_LEAVES = Row(
        "host-leaves",
        "The provider of a host will take it away; the message says when, and what becomes of its tasks.",
        notice="host-lost",
        may_repeat=True,
    )
    QUEUED = Row("queued", "The run waits until what it needs is free.")
    ENDS_SOON = Row(
        "ends-soon", "The run ends at its next checkpoint: its time limit is near, or its user wants it."
    )
    HOST_STAYS = Row("host-stays", "A host that was to be taken away stays after all.", may_repeat=True)
    HOST_WARNING = Row("host-warning", "Something on a host may end its tasks.", may_repeat=True)
    GPU_LOST = Row("gpu-lost", "A GPU has disappeared; its index is in `data`.", may_repeat=True)
    GPU_XID = Row(
        "gpu-xid", "The driver reports an error of a GPU; index and Xid are in `data`.", may_repeat=True
    )
    HOST_CLOCK = Row(
        "host-clock",
        "A host's clock differs from the head node's; the times of its logs and ends are shown by the head's clock.",
        may_repeat=True,
    )
    SLOW = Row("slow", "A host is slow to accept connections.", may_repeat=True)
    QUARANTINED = Row(
        "quarantined",
        "A host has ended too many generations by its own fault: it is given no task.",
        notice="quarantined",
    )
    SPARE_UNFIT = Row(
        "spare-unfit", "A spare cannot replace another host; the message says why.", may_repeat=True
    )
    MOVED = Row("moved", "A host takes over the tasks of another.")
    NO_ALTERNATIVE = Row(
        "no-alternative", "A host is used although something speaks against it: there is no other."
    )
    FEWER = Row("fewer", "The run goes on with fewer tasks.")
    GROWN = Row("grown", "The run has all its tasks again.")
    LIMIT_REACHED = Row(
        "limit-reached",
        "A host or a task sends more than orch accepts; the message says what becomes of the rest.",
        may_repeat=True,
    )
    WAITING_FOR_HOST = Row(
        "waiting-for-host",
        "The next generation waits for hosts that no other can replace; they are `hosts` in `data`.",
    )
    SWEPT = Row("swept", "A host was searched for processes of the run.")

    # tasks
    MISSING = Row("missing", "A task did not join in time.")
    TASK_EXITED = Row(
        "task-exited",
        "A task has ended; the message says how, and `cause`, `exit_code` and `signal` are in `data`.",
    )
    TASK_LOST = Row("task-lost", "A task is given up without a record of its end.")
    UNKILLABLE = Row(
        "unkillable", "A process of some run survives SIGKILL; no task is started beside it.", may_repeat=True
    )
    STOPPING_INDIVIDUALLY = Row("stopping-alone", "One task is ended; the other tasks continue.")
    RESTART_INDIVIDUALLY = Row(
        "restart-alone", "One task is restarted; the other tasks continue.", notice="restarted"
    )
    RESTART_TOGETHER = Row(
        "restart-together", "A task starts sooner, with the others that the training needs back."
    )
    STANDBY_READY = Row(
        "standby-ready",
        "The next generation's tasks have been started in advance, and wait at their gates.",
        is_routine=True,
    )
    STANDBY_LOST = Row(
        "standby-lost", "The tasks that were started in advance are gone; the training goes on."
    )
    STALLED = Row("stalled", "The position has stood still for longer than ever before.", notice="stalled")
    NONFINITE = Row("nonfinite", "A metric that the chief reports is NaN or infinite.", notice="nonfinite")
    STACKS = Row("stacks", "Where in its code every task is; the stacks are in `data`.")
    MOVES_AGAIN = Row("moves-again", "The position moves again, before anything was stopped.")

    BOTTLENECK = Row(
        "bottleneck",
        "What limits the pace has been found, or has changed; the kind and the share are in `data`.",
        is_routine=True,
    )

    # checkpoints
    CHECKPOINT = Row(
        "checkpoint",
        "A checkpoint was read as a whole; or, with `verified: false`, its format cannot be verified.",
        is_routine=True,
    )
    CHECKPOINT_REJECTED = Row(
        "checkpoint-rejected",
        "A checkpoint is not used: it is damaged, incomplete or not believed.",
        is_routine=True,
        may_repeat=True,
    )
    CHECKPOINTS_REMOVED = Row(
        "checkpoints-removed",
        "Generations beyond `keep` were removed at a start; which are in `data`.",
        is_routine=True,
    )
    CHECKPOINT_REMOVED = Row("checkpoint-removed", "The script removed its checkpoint when it ended.")
    RESUMED = Row(
        "resumed", "A generation starts from a checkpoint; `global_step` and `steps_lost` are in `data`."
    )
    TRAINS_AGAIN = Row(
        "trains-again", "The first new step after a failure; `downtime` in `data` says where the time went."
    )
    RESCUED = Row(
        "rescued",
        "A survivor of a dead task has handed over its state: `global_step` and `took_s` in `data`; or `why` not.",
    )
    NOT_RESTORED = Row(
        "not-restored",
        "A task could not restore a checkpoint: this run does not use it again, and takes the one before.",
    )
    RESTORED_OTHER = Row(
        "restored-other",
        "A task went on from another checkpoint of its directory than the one that was chosen for it.",
    )
    REPLICAS_DIVERGED = Row(
        "replicas-diverged",
        "Workers that should hold the same weights do not, so none was asked to hand them over.",
    )
    FROM_START = Row("from-start", "A generation starts at step 0: there is no checkpoint.")
    OWN_PLACE = Row(
        "own-place",
        "The script resumed from a place of its own, above its checkpoint: `global_step` and `steps_lost` in `data`.",
    )
    CHECKPOINT_DIR_SILENT = Row(
        "checkpoint-dir-silent",
        "The checkpoint directory does not answer; the run waits for it.",
        may_repeat=True,
    )
    CHECKPOINT_DIR_ANSWERS = Row(
        "checkpoint-dir-answers", "The checkpoint directory answers again.", may_repeat=True
    )
    CHECKPOINT_DIR_MISSING = Row(
        "checkpoint-dir-missing",
        "A host does not see the shared checkpoint directory any more: it is not mounted.",
    )
    CHECKPOINT_DIR_BACK = Row("checkpoint-dir-back", "A host sees the shared checkpoint directory again.")
    CHECKPOINT_DISK_FULL = Row(
        "checkpoint-disk-full",
        "The disk of the checkpoint directory is full.",
        notice="disk-full",
        may_repeat=True,
    )
    WAITING_FOR_ROOM = Row(
        "waiting-for-room", "The run waits for room in the checkpoint directory.", notice="disk-full"
    )
    ROOM_AGAIN = Row("room-again", "The checkpoint directory has room again, and the run goes on.")
    ROOM_RETRY = Row("room-retry", "The run checks again whether the checkpoint directory has room.")

    # what a task says, by its runtime or its shim
    SERVING = _said("serving", "A parameter server or a worker serves the chief.")
    HOROVOD = _said("horovod", "A rank has found the rendezvous.")
    COMMUNICATION = _said("communication", "How the strategy communicates.")
    REPLICAS_ON_CPU = _said("replicas-on-cpu", "TensorFlow sees the CPU as several devices.")
    KERAS3_PATCHED = _said("keras3-patched", "Keras 3 was changed so that it trains under the strategy.")
    TRANSPARENT_STRATEGY = _said("transparent-strategy", "The strategy that the script runs in.")
    TRANSPARENT_OWN_STRATEGY = _said(
        "transparent-own-strategy", "The script makes a strategy, and gets the run's."
    )
    TRANSPARENT_DEVICES = _said(
        "transparent-devices", "A setting of TensorFlow that comes too late is left out."
    )
    TRANSPARENT_SEED = _said("transparent-seed", "The random seeds of the workers.")
    TRANSPARENT_SHARD = _said("transparent-shard", "How the data set is shared.")
    TRANSPARENT_BATCH = _said("transparent-batch", "What the script's batch means.")
    TRANSPARENT_RATE = _said("transparent-rate", "How the learning rate follows the number of replicas.")
    TRANSPARENT_FIT = _said("transparent-fit", "A model trains without the strategy.")
    TRANSPARENT_SAVE = _said("transparent-save", "Where a task that is not the chief saves.")
    TRANSPARENT_TENSORBOARD = _said(
        "transparent-tensorboard", "Where a script's TensorBoard files are written."
    )
    TRANSPARENT_PROFILER = _said("transparent-profiler", "Only the chief takes a profile.")
    TRANSPARENT_TRACKING = _said("transparent-tracking", "Only the chief tracks with W&B or MLflow.")
    TRANSPARENT_BACKUP = _said("transparent-backup", "What is backed up for a restart.")
    TRANSPARENT_CALLBACK = _said(
        "transparent-callback", "A callback holds state that a restart cannot restore."
    )
    TRANSPARENT_FITS = _said(
        "transparent-fits", "A `fit` was skipped, reordered or changed, or has no backup of its own."
    )
    TRANSPARENT_REPLACED = _said(
        "transparent-replaced", "The script has changed a value, and a restart has restored the old one."
    )
    TRANSPARENT_RESUMED = _said("transparent-resumed", "A `fit` resumes from its backup.")
    TRANSPARENT_METRICS = _said(
        "transparent-metrics",
        "What a metric covers: the whole batch, or after a restart a part of the epoch.",
    )
    TRANSPARENT_GATHER = _said(
        "transparent-gather", "What is computed on the whole batch by each replica, and what that sends."
    )
    TRANSPARENT_PROOF = _said(
        "transparent-proof", "Whether the first step of a `fit` is proved to be that of one process."
    )
    TRANSPARENT_APART = _said(
        "transparent-apart", "The workers have come apart in training, and in what they differ."
    )
    NO_RESCUE = _said(
        "no-rescue", "Why a survivor of a dead worker could hand over nothing; `status` shows it."
    )
    SAVE_ALONE = _said("save-alone", "`runtime.should_save` lets only the chief save.")
    PROGRESS_LOST = _said(
        "progress-lost", "The script's position cannot be read, so a standstill cannot be noticed."
    )
    NOT_SAVED = _said("not-saved", "A weight is NaN: the backup before it stays.")
    METRICS_DROPPED = _said("metrics-dropped", "The script reports more metrics than are kept.")
    REPORT_TRIMMED = _said("report-trimmed", "A task's message was too long for a report, and was cut.")
    SUPERSEDED = _said("superseded", "A task found that a newer generation has begun, and ended itself.")
    SAID = _said("said", "A task sent a message of a kind that this version of orch does not know.")

    _value_: str
    row: Row

    def __new__(cls, row: Row) -> NoteKind:
        member = object.__new__(cls)
        member._value_, member.row = row.name, row
        return member


_BY_NAME = {kind.value: kind for kind in NoteKind}


def kind_of(name: object) -> NoteKind | None:
    """Return the kind of that name; None if this version of orch does not know it."""
    return _BY_NAME.get(name) if isinstance(name, str) else None


def said_by_task(name: str) -> NoteKind:
    """Return the kind of a message from a task. A kind that only the coordinator may use counts as unknown."""
    kind = _BY_NAME.get(name)
    return kind if kind is not None and kind.row.by_task else NoteKind.SAID

"""The types of the JSON lines between a shim and the runtime in its task's process."""

from typing import NotRequired, TypedDict

from orchestrator.protocol.bounds import MetricName, Number, Pace, Seconds, Sentence, Stacks, Step
from orchestrator.protocol.reports import (
    Began,
    Holds,
    Loaded,
    NotFinite,
    Passing,
    Restored,
    Row,
    Said,
    Saving,
    Stage,
)


class Ready(TypedDict):
    """The versions of the packages in a task's process."""

    versions: dict[str, str | None]


class StepLine(TypedDict):
    """Runtime to shim: the progress of the training, at most four times a second."""

    step: Step
    age_s: NotRequired[Seconds]
    """Time since the step was made."""
    began: NotRequired[Began]
    rescues: NotRequired[bool]
    """Whether the state could be handed over now."""
    rescue: NotRequired[Sentence]
    """What could be handed over, as was tried."""
    saving: NotRequired[Saving]
    epoch: NotRequired[Step]
    total: NotRequired[Step]
    """The step at which the training ends."""
    epochs: NotRequired[Step]
    """The total number of epochs."""
    metrics: NotRequired[dict[MetricName, Number]]
    metric_steps: NotRequired[dict[MetricName, Step]]
    """For each metric that was reported since the last message, but not at this step: its step. Finite or not."""
    nonfinite: NotRequired[dict[MetricName, NotFinite]]
    """Metrics that are not finite, which JSON cannot represent."""
    stretches: NotRequired[dict[MetricName, list[Row]]]
    """All values of each metric since the last message: rows of `both/stretches.py`."""
    steps_per_s: NotRequired[Pace]


class Rescue(TypedDict):
    """The state that was handed over."""

    step: NotRequired[Step]
    took_s: NotRequired[Seconds]
    why: NotRequired[str]
    """Why nothing was handed over."""


class Heartbeat(TypedDict):
    """The content of a heartbeat."""

    stage: NotRequired[Stage | None]
    passing: NotRequired[Passing]
    """While it passes over data."""


class Go(TypedDict):
    """The content of a release."""

    env: dict[str, str]


class Stopping(TypedDict):
    """The content of a stop."""

    grace_s: Seconds
    rescue: NotRequired[bool]
    """Whether to hand over the training's state first, since a peer died."""
    compare: NotRequired[bool]
    """Whether to report the held state before that, and to wait for a second stop."""


class Word(TypedDict, total=False):
    """Runtime to shim: one of these."""

    ready: Ready
    """The task waits for its release; TensorFlow is imported if the script names it."""
    say: Said
    """A sentence for people."""
    error: Said
    """What ended the script; `kind` is `import`, `syntax`, `exception`, `unsupported`, or a word of the runtime's own
    that a failure signature knows: `no-tpu`, `no-local-tpu`, `no-rendezvous`, `began-apart`, `other-shapes`."""
    stacks: Stacks
    """The Python stacks of all threads."""
    holds: Holds
    """The answer to a stop that asks to compare."""
    rescued: Rescue
    """The answer to a stop that asks for a rescue."""
    restored: Restored
    """Which checkpoint of ours the training goes on from, or which could not be restored."""
    loaded: Loaded
    """Which weights the script has loaded."""
    heartbeat: Heartbeat
    """Each second from the release on, and before and after it connects to its peers."""


RuntimeLine = Word | StepLine
"""What a runtime sends. A script may write to the same socket, so the shim trusts none of it."""


class ShimLine(TypedDict, total=False):
    """Shim to runtime: one of these."""

    go: Go
    """The release."""
    stop: Stopping
    """End the task."""
    stacks: dict[str, object]
    """Send the stacks."""

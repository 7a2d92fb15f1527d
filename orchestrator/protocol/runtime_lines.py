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


class ReadyLine(TypedDict):
    """Runtime to shim: the task waits for its release; TensorFlow is imported if the script names it."""

    ready: Ready


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


class SayLine(TypedDict):
    """Runtime to shim: a sentence for people."""

    say: Said


class ErrorLine(TypedDict):
    """Runtime to shim: what ended the script; `kind` is `import`, `syntax`, `exception`, `unsupported`, or a word of
    the runtime's own that a failure signature knows: `no-tpu`, `no-local-tpu`, `no-rendezvous`,
    `began-apart`, `other-shapes`."""

    error: Said


class StacksLine(TypedDict):
    """Runtime to shim: the Python stacks of all threads."""

    stacks: Stacks


class Rescue(TypedDict):
    """The state that was handed over."""

    step: NotRequired[Step]
    took_s: NotRequired[Seconds]
    why: NotRequired[str]
    """Why nothing was handed over."""


class HoldsLine(TypedDict):
    """Runtime to shim: the answer to a stop that asks to compare."""

    holds: Holds


class RescuedLine(TypedDict):
    """Runtime to shim: the answer to a stop that asks for a rescue."""

    rescued: Rescue


class RestoredLine(TypedDict):
    """Runtime to shim: which checkpoint of ours the training goes on from, or which could not be restored."""

    restored: Restored


class LoadedLine(TypedDict):
    """Runtime to shim: which weights the script has loaded."""

    loaded: Loaded


class Heartbeat(TypedDict):
    """The content of a heartbeat."""

    stage: NotRequired[Stage | None]
    passing: NotRequired[Passing]
    """While it passes over data."""


class HeartbeatLine(TypedDict):
    """Runtime to shim, each second from the release on, and before and after it connects to its peers."""

    heartbeat: Heartbeat


class Go(TypedDict):
    """The content of a release."""

    env: dict[str, str]


class GoLine(TypedDict):
    """Shim to runtime: the release."""

    go: Go


class Stopping(TypedDict):
    """The content of a stop."""

    grace_s: Seconds
    rescue: NotRequired[bool]
    """Whether to hand over the training's state first, since a peer died."""
    compare: NotRequired[bool]
    """Whether to report the held state before that, and to wait for a second stop."""


class StopLine(TypedDict):
    """Shim to runtime: end the task."""

    stop: Stopping


class AskStacksLine(TypedDict):
    """Shim to runtime: send the stacks."""

    stacks: dict[str, object]


RuntimeLine = (
    ReadyLine
    | StepLine
    | SayLine
    | ErrorLine
    | StacksLine
    | HoldsLine
    | RescuedLine
    | RestoredLine
    | LoadedLine
    | HeartbeatLine
)
"""What a runtime sends. A script may write to the same socket, so the shim trusts none of it."""


ShimLine = GoLine | StopLine | AskStacksLine
"""What a shim sends to its runtime."""

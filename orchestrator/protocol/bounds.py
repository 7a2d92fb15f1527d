"""Annotations that say which values of a type may come, and the names of the usual ones.

Read by `check`, which refuses the rest, and by the generator of docs/protocol.md. No `from __future__ import
annotations` in the modules that use them: the types are read at run time, on the head only.
"""

from typing import Annotated, Any, NamedTuple

from orchestrator.protocol.limits import (
    COUNT_MAX,
    KIND_CHARS_MAX,
    LAST_LINE_CHARS_MAX,
    METRIC_CHARS_MAX,
    NAME_CHARS_MAX,
    PATH_CHARS_MAX,
    SAID_CHARS_MAX,
    STACKS_CHARS_MAX,
    STEP_MAX,
    TEXT_CHARS_MAX,
)


class Range(NamedTuple):
    """Of a number, both ends included."""

    low: float
    high: float


class Length(NamedTuple):
    """Of a text in characters, of a list or an object in entries."""

    max: int


class Form(NamedTuple):
    """Of a text: the whole of it matches the regular expression. `words` is what people call such a text."""

    pattern: str
    words: str


class Exact(NamedTuple):
    """Of a text that is sent back to the host: no control characters, so that cleaning would not change it."""


class Raw(NamedTuple):
    """An object as it came: it is checked when it is known what it answers."""


class Json(NamedTuple):
    """Any JSON, read by somebody else; its texts are cleaned."""


Text = Annotated[str, Length(TEXT_CHARS_MAX)]
"""A sentence, for people."""
Name = Annotated[str, Length(NAME_CHARS_MAX)]
Path = Annotated[str, Length(PATH_CHARS_MAX)]
FilePath = Annotated[str, Length(PATH_CHARS_MAX), Exact()]
RunId = Annotated[str, Form(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", "a run id")]
TaskName = Annotated[str, Form(r"(chief|worker|ps|evaluator):[0-9]{1,6}", "a task, such as worker:3")]
Digest = Annotated[str, Form(r"[0-9a-f]{64}", "a SHA-256")]
Kind = Annotated[str, Length(KIND_CHARS_MAX)]
Sentence = Annotated[str, Length(SAID_CHARS_MAX)]
LogLine = Annotated[str, Length(LAST_LINE_CHARS_MAX)]
Stacks = Annotated[str, Length(STACKS_CHARS_MAX)]

Count = Annotated[int, Range(0, COUNT_MAX)]
"""Bytes, offsets, numbers of things."""
Epoch = Annotated[int, Range(0, COUNT_MAX)]
Generation = Annotated[int, Range(0, 10**9)]
Pid = Annotated[int, Range(1, (1 << 31) - 1)]
Port = Annotated[int, Range(1, 65535)]
Step = Annotated[int, Range(0, STEP_MAX)]
SavedStep = Annotated[int, Range(-COUNT_MAX - 1, COUNT_MAX)]
"""What a checkpoint has as its position: whatever its script has saved."""
Number = Annotated[float, Range(-1e308, 1e308)]
Percent = Annotated[float, Range(-1e6, 1e6)]
"""Of one core, so that a task may have some thousands. Below 0 for a moment where a child that counted has ended."""
Pace = Annotated[float, Range(0, 1e18)]
Seconds = Annotated[float, Range(0, 1e12)]
UnixTime = Annotated[float, Range(-6e10, 2.5e11)]
"""From the year 69 to 9892: what can be shown as a date."""
MetricName = Annotated[str, Length(METRIC_CHARS_MAX)]
AnyJson = Annotated[Any, Json()]
RawObject = Annotated[dict[str, Any], Raw()]

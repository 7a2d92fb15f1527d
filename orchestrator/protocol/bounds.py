"""Annotations that restrict the values of a type, and names for the common restricted types.

`check` refuses values that break them, and docs/protocol.md shows them. Modules that use them have no
`from __future__ import annotations`, since the annotations are read at run time (on the head only).
"""

from typing import Annotated, Any, Literal, NamedTuple

from orchestrator.protocol.limits import (
    COUNT_MAX,
    KIND_CHARS_MAX,
    LAST_LINE_CHARS_MAX,
    METRIC_CHARS_MAX,
    NAME_CHARS_MAX,
    PATH_CHARS_MAX,
    SAID_CHARS_MAX,
    SPAN_MAX_S,
    STACKS_CHARS_MAX,
    STEP_MAX,
    TEXT_CHARS_MAX,
)


class Range(NamedTuple):
    """The smallest and the largest value of a number."""

    low: float
    high: float


class Length(NamedTuple):
    """The largest number of characters of a text, or of entries of a list or an object."""

    max: int


class Form(NamedTuple):
    """A regular expression that the whole text must match. `words` describes such a text."""

    pattern: str
    words: str


class Exact(NamedTuple):
    """The text has no control characters. It is sent back to the host, so it must not be cleaned."""


class Inside(NamedTuple):
    """The path is what the order named, or lies below it: a host may speak of no other directory.

    `what` is the field of the order with the directory, or `generation` for that generation's directory in `dir`.
    """

    what: Literal["dir", "generation"]
    itself: bool = False
    """Whether it is that directory itself: what lies below it could be reached through a link."""


class Raw(NamedTuple):
    """The object is not checked yet: its type depends on the order that it answers."""


class Json(NamedTuple):
    """Any JSON. Only its texts are cleaned."""


Text = Annotated[str, Length(TEXT_CHARS_MAX)]
"""A sentence for people."""
Name = Annotated[str, Length(NAME_CHARS_MAX)]
Path = Annotated[str, Length(PATH_CHARS_MAX)]
PathInDir = Annotated[str, Length(PATH_CHARS_MAX), Inside("dir")]
GenerationPath = Annotated[str, Length(PATH_CHARS_MAX), Inside("generation", itself=True)]
PathInGeneration = Annotated[str, Length(PATH_CHARS_MAX), Inside("generation")]
RunId = Annotated[str, Form(r"[^/.\x00-][^/\x00]{0,199}", "a run id"), Exact()]
"""Any name of a directory below `runs/`, whoever created it."""
TaskName = Annotated[str, Form(r"(chief|worker|ps|evaluator):[0-9]{1,6}", "a task, such as worker:3")]
Digest = Annotated[str, Form(r"[0-9a-f]{64}", "a SHA-256")]
Kind = Annotated[str, Length(KIND_CHARS_MAX)]
Sentence = Annotated[str, Length(SAID_CHARS_MAX)]
LogLine = Annotated[str, Length(LAST_LINE_CHARS_MAX)]
Stacks = Annotated[str, Length(STACKS_CHARS_MAX)]

Count = Annotated[int, Range(0, COUNT_MAX)]
"""A number of bytes or of things, or an offset."""
FreeBytes = Annotated[int, Range(0, 1 << 80)]
"""Object stores that are mounted as file systems report more than 64 bits can count."""
Epoch = Annotated[int, Range(0, COUNT_MAX)]
Generation = Annotated[int, Range(0, 10**9)]
Pid = Annotated[int, Range(0, (1 << 31) - 1)]
Port = Annotated[int, Range(1, 65535)]
Step = Annotated[int, Range(0, STEP_MAX)]
SavedStep = Annotated[int, Range(-COUNT_MAX - 1, COUNT_MAX)]
"""The position that a script has saved in a checkpoint, whatever it is."""
Number = Annotated[float, Range(-1e308, 1e308)]
Percent = Annotated[float, Range(-1e6, 1e6)]
"""100 is one core, so a task may have thousands. Below 0 for a moment after a child process has ended."""
Pace = Annotated[float, Range(0, 1e18)]
Seconds = Annotated[float, Range(0, SPAN_MAX_S)]
UnixTime = Annotated[float, Range(-6e10, 2.5e11)]
"""From the year 69 to 9892: dates that Python can show."""
MetricName = Annotated[str, Length(METRIC_CHARS_MAX)]
AnyJson = Annotated[Any, Json()]
RawObject = Annotated[dict[str, Any], Raw()]

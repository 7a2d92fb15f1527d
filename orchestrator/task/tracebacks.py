"""Prints tracebacks of the user's script as plain Python would: without orch's own frames."""

from __future__ import annotations

import os
import sys
import traceback
import types


def trimmed(error: BaseException) -> types.TracebackType | None:
    """Return the traceback without our first frames, and those of an import; all, if there is no other."""
    ours = trimmed.__code__.co_filename.removesuffix(os.path.join("task", "tracebacks.py"))
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith((ours, "<frozen importlib")):
        frame = frame.tb_next
    return frame if frame is not None else error.__traceback__


def print_as_python_would(error: BaseException) -> None:
    """Print an error to stderr without our frames, with the script's own sys.excepthook if it set one."""
    kind, frames = type(error), trimmed(error)
    error.__traceback__ = frames
    try:
        sys.excepthook(kind, error, frames)
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(kind, error, frames)


def last_line(error: BaseException) -> str:
    """Return the line of a traceback that people read first: the last one, or TensorFlow's lines about the error.

    TensorFlow's error from a graph begins with "Graph execution error:" and lists the places that built the graph.
    """
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    lines = text.splitlines()
    if isinstance(error, SyntaxError) or len(lines) <= 1:
        return (lines or [type(error).__name__])[-1][:_MESSAGE_MAX]
    if lines[0].endswith("in user code:"):
        return _line_of_user_code(lines)[:_MESSAGE_MAX]
    # After "2 root error(s) found." the first indented line names the error.
    telling = [
        line
        for line in lines
        if (line[:1].strip() and not line.startswith("Detected at ")) or line.startswith("  (0) ")
    ]
    return " ".join(line.strip() for line in telling)[:_MESSAGE_MAX]


def _line_of_user_code(lines: list[str]) -> str:
    """Return the message and the last place in the script of an error that was raised while TensorFlow traced its code.

    The error itself, indented, follows the places: `File "train.py", line 7, in train_step *`.
    """
    at = [number for number, line in enumerate(lines) if line.strip().startswith('File "')]
    if not at:
        return " ".join(" ".join(lines).split())
    error = " ".join(" ".join(lines[at[-1] + 1 :]).split())
    own = [lines[number] for number in at if "site-packages" not in lines[number]]
    code = lines[at[-1] + 1].strip() if at[-1] + 1 < len(lines) else ""
    return f"{error.removeprefix(code).strip()} ({(own or [lines[at[-1]]])[-1].strip().rstrip(' *')})"


_MESSAGE_MAX = 600

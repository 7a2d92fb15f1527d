"""Finds in the table `signatures` what the last lines of a process mean."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis.old_scripts import OLD_SCRIPTS
from orchestrator.core.diagnosis.signatures import SIGNATURES, WARNINGS, Signature
from orchestrator.core.ends import Exit
from orchestrator.core.words import plain

_OWN_WORDS = re.compile(r"(?:builtins\.)?(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning))\b")
_ENDS_A_TRACEBACK = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b")
_LAST_WORDS = re.compile(
    r"^Traceback \(most recent call last\)|^Fatal Python error|\bCheck failed:|^terminate called after"
)
_TENSORFLOWS = re.compile(
    r"errors_impl\.|XlaRuntimeError|RuntimeError|SystemError|InternalError|UnknownError|OpError"
)


_BY_KIND = {sign.kind: sign for sign in SIGNATURES if sign.kind}


_ENDED_ITSELF = (
    "no error of it is known: the script ended the process itself (`os._exit`, `sys.exit`), or a library did",
    "look for a call of `os._exit` or `sys.exit`, and for what its log says above",
)


_OF_SIGNALS: dict[int | None, tuple[str, str]] = {
    signal.SIGILL.value: (
        "the processor of {host} refused an instruction: mostly, a library is built for a newer one (TensorFlow's "
        "wheels need AVX)",
        "compare `lscpu` there with a host where it works",
    ),
    signal.SIGBUS.value: (
        "memory that it had mapped could not be used: mostly since /dev/shm or a disk is full, or a file that it reads "
        "was cut short or its mount broke",
        "`df -h /dev/shm` and `dmesg` on {host}; a container needs more by `--shm-size`",
    ),
}
"""What a crash by these signals mostly means, where no text says it."""


def signature_of(ended: Exit) -> tuple[Signature, dict[str, str]] | None:
    """Return the row that matches the end of a process, and the values of the row's groups; None if none matches.

    An error of orch's own runtime is recognised by its kind, any other by its text. The exception's text is searched
    first. The lines around it are searched only where TensorFlow raised it, which prints the cause further up, or where
    no exception is known: a KeyError is a KeyError, whatever was printed before it.
    """
    if ended.error_kind in _BY_KIND:
        return _BY_KIND[ended.error_kind], {}
    error = ended.error or _last_exception(ended.last_lines)
    match = _search(error, (*OLD_SCRIPTS, *SIGNATURES))
    if match is not None or (_OWN_WORDS.match(error) and not _TENSORFLOWS.search(error)):
        return match
    return _search("\n".join(ended.last_lines), [sign for sign in SIGNATURES if not sign.in_the_error_only])


def _search(text: str, signatures: Sequence[Signature]) -> tuple[Signature, dict[str, str]] | None:
    for sign in signatures if text else ():
        match = sign.found_in(text)
        if match is not None:
            return sign, {name: plain(words or "") for name, words in match.groupdict().items()}
    return None


def _last_exception(lines: Sequence[str]) -> str:
    """Return the last line that ends a traceback, for scripts without the runtime; else an empty text."""
    return next((line for line in reversed(lines) if _ENDS_A_TRACEBACK.match(line)), "")


def is_error_known(ended: Exit) -> bool:
    """Return whether the error that ended the process is known, from the runtime or from a traceback.

    A process that ends itself (`os._exit`, exit() in a library) leaves none.
    """
    return bool(
        ended.error
        or _last_exception(ended.last_lines)
        or any(_LAST_WORDS.search(line) for line in ended.last_lines)
        or _search("\n".join(ended.last_lines), [sign for sign in SIGNATURES if not sign.in_the_error_only])
    )


def explained(ended: Exit, *, host: str, python: str) -> tuple[str, str]:
    """Return what an exit means and what a person can do about it."""
    match = signature_of(ended)
    facts = {"host": host, "python": python}
    if match is not None and match[0].cause is ended.cause:
        sign, line = match
        return _filled(sign.means, sign.advice, {**line, **facts})
    if ended.cause is Cause.SCRIPT and ended.code and not is_error_known(ended):
        return _filled(*_ENDED_ITSELF, facts)
    if ended.cause is Cause.CRASH and ended.signal in _OF_SIGNALS:
        return _filled(*_OF_SIGNALS[ended.signal], facts)
    return explanation(ended.cause, **facts)


def why_not_resumed(ended: Exit) -> tuple[str, str] | None:
    """Return meaning and advice where the framework printed that a checkpoint does not fit; None if it did not."""
    rows = [*WARNINGS, *(sign for sign in SIGNATURES if sign.cause is Cause.CHECKPOINT)]
    match = _search("\n".join(ended.last_lines), rows)
    return _filled(match[0].means, match[0].advice, match[1]) if match is not None else None


def explanation(cause: Cause, *, host: str, python: str = "python") -> tuple[str, str]:
    """Return what a cause always means and what a person can do about it."""
    return _filled(cause.row.means, cause.row.advice, {"host": host, "python": python})


def _filled(means: str, advice: str, facts: dict[str, str]) -> tuple[str, str]:
    return means.format(**facts), advice.format(**facts)

"""What the end of a process shows by what it printed: the table `signatures`, applied."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis.old_scripts import OLD_SCRIPTS
from orchestrator.core.diagnosis.signatures import SIGNATURES, Signature
from orchestrator.core.ends import Exit
from orchestrator.core.words import plain

_OWN_WORDS = re.compile(r"(?:builtins\.)?(?:[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning))\b")
_ENDS_A_TRACEBACK = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b")
_TENSORFLOWS = re.compile(
    r"errors_impl\.|XlaRuntimeError|RuntimeError|SystemError|InternalError|UnknownError|OpError"
)


_BY_KIND = {sign.kind: sign for sign in SIGNATURES if sign.kind}


def signature_of(ended: Exit) -> tuple[Signature, dict[str, str]] | None:
    """Return the row that the end of a process shows, and what its groups hold; None where it shows none.

    An error of our own runtime is known by its kind, any other by its words. The exception's own words come first.
    The lines around it count only where TensorFlow raised it, which hides its causes above, or where no exception is
    known: a KeyError is one, whatever was printed before it.
    """
    if ended.error_kind in _BY_KIND:
        return _BY_KIND[ended.error_kind], {}
    error = ended.error or _last_exception(ended.last_lines)
    found = _search(error, (*OLD_SCRIPTS, *SIGNATURES))
    if found is not None or (_OWN_WORDS.match(error) and not _TENSORFLOWS.search(error)):
        return found
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


def explained(ended: Exit, *, host: str, python: str) -> tuple[str, str]:
    """Return what an exit means and what a person can do about it."""
    found = signature_of(ended)
    facts = {"host": host, "python": python}
    if found is not None and found[0].cause is ended.cause:
        sign, said = found
        return _filled(sign.means, sign.advice, {**said, **facts})
    return of_class(ended.cause, **facts)


def of_class(cause: Cause, *, host: str, python: str = "python") -> tuple[str, str]:
    """Return what a cause always means and what a person can do about it."""
    return _filled(cause.row.means, cause.row.advice, {"host": host, "python": python})


def _filled(means: str, advice: str, facts: dict[str, str]) -> tuple[str, str]:
    return means.format(**facts), advice.format(**facts)

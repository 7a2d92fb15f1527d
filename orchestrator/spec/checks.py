"""Checks of the values in cluster.yaml, which pydantic runs: each has an error sentence and a part of the JSON schema.

The types that use them are in `forms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from orchestrator.spec.diagnostics import shown
from orchestrator.spec.durations import PATTERN as DURATION_PATTERN
from orchestrator.spec.durations import as_written, parse_duration
from orchestrator.spec.sizes import PATTERN as SIZE_PATTERN
from orchestrator.spec.sizes import parse_size, show_size

SAID = "said"
"""The type of a pydantic error whose message is already one of our sentences."""

_SIZE_FORMS = [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}]

DURATION_FORMS = [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]


def diagnose(sentence: str) -> PydanticCustomError:
    """Return an error whose message is this sentence."""
    return PydanticCustomError(SAID, "{sentence}", {"sentence": sentence})


@dataclass(frozen=True, eq=False)
class Checked:
    """A check of orch's own in a field's annotation, with its part of the JSON schema.

    It runs after pydantic's own check of the type, or `instead` of it.
    """

    check: Callable[[Any], Any]
    json: Mapping[str, Any]
    instead: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if self.instead:
            return core_schema.no_info_plain_validator_function(self.check)
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return dict(self.json)


def text_of(pattern: str, sentence: str, *, max_length: int = 255) -> Checked:
    """Return a check for text of one form. Its error is the sentence and the value."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if len(value) > max_length or not compiled.fullmatch(value):
            raise diagnose(f"{sentence}; got {shown(value)}")
        return value

    schema = {"type": "string", "pattern": f"^(?:{pattern})$", "maxLength": max_length}
    return Checked(check, schema)


def path_of(what: str) -> AfterValidator:
    """Return a check for a path, absolute or relative. Its error says to `what` the path should lead."""

    def check(value: str) -> str:
        if not value or value.startswith("-") or not value.isprintable():
            raise diagnose(
                f"must be the path of {what}, without control characters and not beginning with a dash"
            )
        return value

    return AfterValidator(check)


def some() -> AfterValidator:
    """Return a check that a list is not empty. It reports nothing if items of the list are wrong already."""

    def check(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not value:
            raise diagnose("must not be empty")
        return value

    return AfterValidator(check)


def duration(min_s: float, max_s: float = 7 * 86400.0) -> Checked:
    """Return a check for a duration between these bounds. It accepts what `parse_duration` does."""

    def check(value: object) -> float:
        return between(min_s, max_s, value, parse_duration, as_written)

    return Checked(check, {"anyOf": DURATION_FORMS}, instead=True)


def size(min_bytes: int, max_bytes: int) -> Checked:
    """Return a check for a number of bytes between these bounds. It accepts what `parse_size` does."""

    def check(value: object) -> int:
        return between(min_bytes, max_bytes, value, parse_size, show_size)

    return Checked(check, {"anyOf": _SIZE_FORMS}, instead=True)


_N = TypeVar("_N", int, float)


def between(
    least: _N, most: _N, value: object, parse: Callable[[object], _N], show: Callable[[_N], str]
) -> _N:
    """Return the parsed value. Error messages show bounds and value in the notation of the file."""
    try:
        parsed = parse(value)
    except ValueError as error:
        got = "" if isinstance(value, (dict, list)) else f"; got {shown(value)}"
        raise diagnose(f"{error}{got}") from None
    if not least <= parsed <= most:
        raise diagnose(f"must be between {show(least)} and {show(most)}; got {show(parsed)}")
    return parsed

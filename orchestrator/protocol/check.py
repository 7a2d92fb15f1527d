"""Checks that a value from a host has its type, and cleans its texts.

A check is a function that is made once from a type's annotations. It takes a value as the JSON decoder returns it, and
returns a copy without unknown keys and without control characters, or raises Misfit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from orchestrator.protocol.bounds import Exact, Form, Inside, Json, Length, Range, Raw
from orchestrator.protocol.limits import CONTROLS, COUNT_MAX, TEXT_CHARS_MAX
from orchestrator.protocol.paths import RelativePath, lies_in

Check = Callable[[Any], Any]

ENTRIES_MAX = 1 << 20
"""The default limit of a list or an object. The maximum size of a frame is reached first."""

DEPTH_MAX = 64
"""How deep JSON without a type may be nested."""

_SHOWN_CHARS = 60

_CONTROLS = re.compile(CONTROLS)


class Misfit(ValueError):
    """A value does not have its type. str() begins with the path to it: `runs.t-1[0].pid is true, not …`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self._why = why
        self._way: list[str] = []

    def within(self, step: str | int) -> Misfit:
        """Prepend one step to the path, and return the error."""
        self._way.insert(0, f"[{step}]" if isinstance(step, int) else f".{_short(cleaned(step))}")
        return self

    def __str__(self) -> str:
        return f"{''.join(self._way).removeprefix('.') or 'it'} {self._why}"


def cleaned(text: str) -> str:
    r"""Return the text with its control characters written out, such as ESC as `\x1b`."""
    return _CONTROLS.sub(_visible, text)


def cleaned_json(value: Any) -> Any:
    """Return any JSON with its texts cleaned. Raises Misfit for a number that is not finite, and for deep nesting."""
    return _json(value, 0)


class Asked(NamedTuple):
    """The directories that an order names. The paths of its answer lie in them."""

    dir: str = ""
    """Empty: the order names none, and no path of this kind fits."""
    generation: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Asked:
        """Return the directories of an order with these fields."""
        directory, generation = fields.get("dir") or "", fields.get("generation")
        whole = (
            f"{directory.rstrip('/')}/gen-{generation:06d}" if directory and generation is not None else ""
        )
        return cls(directory, whole)


NOTHING_ASKED = Asked()


@lru_cache(4096)
def check_of(type_: Any, asked: Asked = NOTHING_ASKED) -> Check:
    """Return the check of a TypedDict, or of the type of a field. `asked`: what the order named that this answers."""
    if is_typeddict(type_):
        return _fields_of(type_, asked)
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1:], asked)
    return _bounded(type_, (), asked)


def _bounded(type_: Any, bounds: tuple[Any, ...], asked: Asked) -> Check:
    by_kind = {type(bound): bound for bound in bounds}
    length = by_kind.get(Length)
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, UnionType):
        (inner,) = [argument for argument in arguments if argument is not NoneType]  # only null beside a type
        return _or_null(check_of(inner, asked))
    if origin is Literal:
        return _one_of(arguments)
    if Json in by_kind:
        return cleaned_json
    if Raw in by_kind:
        return _raw
    if type_ is RelativePath:
        return _relative_path
    if type_ is str:
        text = _text(
            length.max if length else TEXT_CHARS_MAX, cast("Form | None", by_kind.get(Form)), Exact in by_kind
        )
        return (
            text
            if Inside not in by_kind
            else _inside(text, getattr(asked, by_kind[Inside].what), itself=by_kind[Inside].itself)
        )
    if type_ is int:
        return _integer(by_kind.get(Range) or Range(-COUNT_MAX - 1, COUNT_MAX))
    if type_ is float:
        return _number(by_kind.get(Range) or Range(-1e308, 1e308))
    if type_ is bool:
        return _boolean
    entries_max = length.max if length else ENTRIES_MAX
    if origin is list:
        return _list(check_of(arguments[0], asked), entries_max)
    if origin is dict:
        return _object(check_of(arguments[0], asked), check_of(arguments[1], asked), entries_max)
    if origin is tuple:
        return _tuple([check_of(argument, asked) for argument in arguments])
    if type_ is object:
        return cleaned_json
    raise TypeError(f"no check is known for {type_!r}")


# ---------------------------------------------------------------- one value


def _text(chars_max: int, form: Form | None, exact: bool) -> Check:
    matches = re.compile(form.pattern).fullmatch if form else None

    def check(value: Any) -> Any:
        if type(value) is not str:
            raise Misfit(f"is {shown(value)}, not a text")
        if len(value) > chars_max:
            raise Misfit(f"has {len(value)} characters, and at most {chars_max} may be")
        if matches is not None and not matches(value):
            raise Misfit(f"is {shown(value)}, not {form.words if form else ''}")
        if value.isprintable():
            return value
        clean = cleaned(value)
        if exact and clean != value:
            raise Misfit(f"is {shown(value)}, which has control characters")
        return clean

    return check


def _relative_path(value: Any) -> Any:
    try:
        path = RelativePath(value)
    except ValueError as e:
        raise Misfit(f"is refused: {cleaned(str(e))}") from None
    if cleaned(path) != path:
        raise Misfit(f"is {shown(value)}, which has control characters")
    return path


def _inside(text: Check, directory: str, *, itself: bool) -> Check:
    def check(value: Any) -> Any:
        clean = text(value)
        if not lies_in(value, directory) or (itself and value != directory):
            does = "is not" if itself else "does not lie in"
            raise Misfit(f"is {shown(value)}, which {does} {directory or 'what was asked for'}")
        return clean

    return check


def _integer(bounds: Range) -> Check:
    low, high = int(bounds.low), int(bounds.high)

    def check(value: Any) -> Any:
        if type(value) is not int:
            raise Misfit(f"is {shown(value)}, not a whole number")
        if not low <= value <= high:
            raise Misfit(f"is {shown(value)}, not from {low} to {high}")
        return value

    return check


def _number(bounds: Range) -> Check:
    low, high = bounds

    def check(value: Any) -> Any:
        if type(value) is not float and type(value) is not int:
            raise Misfit(f"is {shown(value)}, not a number")
        if not low <= value <= high:  # nor is NaN, nor infinity
            raise Misfit(f"is {shown(value)}, not from {low:g} to {high:g}")
        return float(value)

    return check


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise Misfit(f"is {shown(value)}, neither true nor false")
    return value


def _raw(value: Any) -> Any:
    if type(value) is not dict:
        raise Misfit(f"is {shown(value)}, not an object")
    return value


def _one_of(words: tuple[Any, ...]) -> Check:
    def check(value: Any) -> Any:
        if value not in words:
            raise Misfit(f"is {shown(value)}, none of {', '.join(words)}")
        return value

    return check


def _or_null(inner: Check) -> Check:
    return lambda value: None if value is None else inner(value)


# ---------------------------------------------------------------- what holds others


def _list(check_entry: Check, entries_max: int) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list:
            raise Misfit(f"is {shown(value)}, not a list")
        if len(value) > entries_max:
            raise Misfit(f"has {len(value)} entries, and at most {entries_max} may be")
        made: list[Any] = []
        try:
            for entry in value:
                made.append(check_entry(entry))  # noqa: PERF401 - how far it got names the entry that does not fit
        except Misfit as e:
            raise e.within(len(made)) from None
        return made

    return check


def _tuple(checks: list[Check]) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not list or len(value) != len(checks):
            raise Misfit(f"is {shown(value)}, not a list of {len(checks)}")
        made: list[Any] = []
        try:
            for inner, entry in zip(checks, value, strict=True):
                made.append(inner(entry))
        except Misfit as e:
            raise e.within(len(made)) from None
        return tuple(made)

    return check


def _object(check_key: Check, check_entry: Check, entries_max: int) -> Check:
    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(f"is {shown(value)}, not an object")
        if len(value) > entries_max:
            raise Misfit(f"has {len(value)} entries, and at most {entries_max} may be")
        made = {}
        for key, entry in value.items():
            try:
                name = check_key(key)
            except Misfit as e:
                raise Misfit(f"has a key that {e._why}") from None
            try:
                made[name] = check_entry(entry)
            except Misfit as e:
                raise e.within(name) from None
        return made

    return check


def _fields_of(type_: Any, asked: Asked) -> Check:
    hints = get_type_hints(type_, include_extras=True)
    fields = []
    for name, hint in hints.items():
        may_be_left_out = get_origin(hint) is NotRequired
        inner = check_of(get_args(hint)[0] if may_be_left_out else hint, asked)
        fields.append((name, inner, not may_be_left_out and name in type_.__required_keys__))

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(f"is {shown(value)}, not an object")
        made = {}
        name = ""
        try:
            for name, inner, required in fields:
                if name in value:
                    made[name] = inner(value[name])
                elif required:
                    raise Misfit("is missing")
        except Misfit as e:
            raise e.within(name) from None
        return made

    return check


def _json(value: Any, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise Misfit(f"is nested more than {DEPTH_MAX} deep")
    if type(value) is str:
        return value if value.isprintable() else cleaned(value)
    if type(value) is list:
        return [_json(entry, depth + 1) for entry in value]
    if type(value) is dict:
        return {_json(key, depth): _json(entry, depth + 1) for key, entry in value.items()}
    if (type(value) is float and value - value != 0) or (type(value) is int and abs(value) > COUNT_MAX):
        raise Misfit(f"holds {shown(value)}, which nothing could keep")
    return value


# ---------------------------------------------------------------- words


def shown(value: Any) -> str:
    """Return a short form of a value for a sentence."""
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > 10**20:
        return f"a number of {value.bit_length()} bits"
    return _short(cleaned(repr(value)))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

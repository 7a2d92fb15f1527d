"""Values of the protocol's types, and the same with one field wrong: made from the types, so no field is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from orchestrator.protocol.bounds import Exact, Form, Inside, Json, Length, Range, Raw
from orchestrator.protocol.check import Asked
from orchestrator.protocol.paths import RelativePath

OF_FORM = {"a run id": "t-20260101-000000", "a task, such as worker:3": "worker:0", "a SHA-256": "0" * 64}
OF_FORM |= {"a version": "3.11.2", "a processor": "x86_64", "a C library": "glibc-2.36"}


ASKED = Asked("/c", "/c/gen-000001")
"""What the orders have named that `valid` answers."""


def valid(type_: Any, asked: Asked = ASKED) -> Any:
    """Return a value that fits, with everything that may be left out, and one entry in whatever holds others."""
    base, bounds = _opened(type_)
    if is_typeddict(base):
        return {name: valid(hint, asked) for name, hint in fields(base).items()}
    if Json in bounds or Raw in bounds:
        return {"any": ["thing"]}
    origin, arguments = get_origin(base), get_args(base)
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [valid(arguments[0], asked)]
    if origin is dict:
        return {valid(arguments[0], asked): valid(arguments[1], asked)}
    if origin is tuple:
        return [valid(argument, asked) for argument in arguments]
    if base is RelativePath:
        return "a directory/file"
    if base is str and Inside in bounds:
        return getattr(asked, bounds[Inside].what)
    if base is str:
        return OF_FORM[bounds[Form].words] if Form in bounds else "text"
    if base is bool:
        return True
    if base in (int, float):
        limits = bounds.get(Range, Range(-1, 1))
        return base(min(max(1, limits.low), limits.high))
    raise TypeError(f"no value is known of {type_!r}")


def wrong(type_: Any) -> Iterator[tuple[str, Any]]:
    """Yield (the way to what is wrong, a value that fits but for that), of every field and in every way."""
    base, bounds = _opened(type_)
    if Json in bounds:
        yield "", float("inf")
        return
    if not is_nullable(type_):
        yield "", None
    for value in _not_of(base, bounds):
        yield "", value
    if is_typeddict(base):
        fit = valid(base)
        for name, hint in fields(base).items():
            if name in base.__required_keys__:
                yield f".{name}", {key: value for key, value in fit.items() if key != name}
            for way, value in wrong(hint):
                yield f".{name}{way}", {**fit, name: value}
    origin, arguments = get_origin(base), get_args(base)
    if origin is list:
        for way, value in wrong(arguments[0]):
            yield f"[1]{way}", [*valid(base), value]
    if origin is dict and Raw not in bounds:
        key = valid(arguments[0])
        for way, value in wrong(arguments[1]):
            yield f".{key}{way}", {key: value}
    if origin is tuple:
        for at, argument in enumerate(arguments):
            for way, value in wrong(argument):
                made = valid(base)
                made[at] = value
                yield f"[{at}]{way}", made


def fields(type_: Any) -> dict[str, Any]:
    """Return the types of a TypedDict's fields, those that may be left out among them."""
    return _fields(type_)


@cache
def _fields(type_: Any) -> dict[str, Any]:
    return {name: _bare(hint) for name, hint in get_type_hints(type_, include_extras=True).items()}


def _bare(hint: Any) -> Any:
    """Return the type of a field, without what says that it may be missing, or how people see it."""
    if get_origin(hint) is NotRequired:
        (hint,) = get_args(hint)
    is_seen = get_origin(hint) is Annotated and is_nullable(get_args(hint)[0])
    return get_args(hint)[0] if is_seen else hint


def is_nullable(type_: Any) -> bool:
    return get_origin(type_) in (Union, UnionType) and NoneType in get_args(type_)


def _opened(type_: Any) -> tuple[Any, dict[type, Any]]:
    """Return the type behind null and bounds, and the bounds by their type."""
    if is_nullable(type_):
        (type_,) = [argument for argument in get_args(type_) if argument is not NoneType]
    if get_origin(type_) is Annotated:
        base, *bounds = get_args(type_)
        return base, {type(bound): bound for bound in bounds}
    return type_, {}


def _not_of(base: Any, bounds: dict[type, Any]) -> Iterator[Any]:
    """Values of other types, and of this one beyond its bounds."""
    origin = get_origin(base)
    if base is RelativePath:
        yield from (
            5,
            None,
            ["text"],
            "x/" * 2048 + "x",
            "x" * 256,
            "a\x1b[31m",
            "a\u202eb",
            "a/\ud800",
            "a\0",
        )
        yield from (
            "",
            "/",
            "/etc/passwd",
            ".",
            "..",
            "../x",
            "a/../x",
            "a/..",
            "a//x",
            "a/",
            "./a",
            "a/./x",
            "//a",
        )
    elif base is str and Inside in bounds:
        yield from (
            "",
            "gen-000001",
            "/",
            "/cc",
            "/c/..",
            "/c/../x",
            "/c/a/../../x",
            "/c//x",
            "/c/./x",
            "/etc/passwd",
        )
        yield from ("/c/\0", "/x/c", "../c", "~/c")
        if bounds[Inside].itself:
            yield from ("/c/gen-000001/x", "/c/gen-000001/")
        if bounds[Inside].what == "generation":
            yield from ("/c", "/c/gen-000002", "/c/gen-0000011", "/c/gen-000001/../gen-000002")
    elif base is str:
        yield from (5, True, ["text"], {"text": 1})
        yield "x" * ((bounds[Length].max if Length in bounds else 1 << 20) + 1)
        if Form in bounds:
            yield from ("", "../x", ".x", "\0", "W" * 300)
        if Exact in bounds:
            yield from ("a\x1b[31m", "a\u202eb", "\ud800")
    elif base is bool:
        yield from (0, 1, "true")
    elif base is int:
        limits = bounds.get(Range, Range(-(1 << 63), (1 << 63) - 1))
        yield from ("x", "5", True, 1.5, [1], int(limits.low) - 1, int(limits.high) + 1, 10**400)
    elif base is float:
        limits = bounds.get(Range, Range(-1e308, 1e308))
        yield from ("x", "1.0", True, [1.0], float("inf"), float("-inf"), float("nan"), 10**400)
        yield from (value for value in (limits.low * 2 - 1, limits.high * 2) if abs(value) < 1e308)
    elif origin is Literal:
        yield from ("other", 5, ["starting"])
    elif origin is list:
        yield from ("x", {}, 5)
        if Length in bounds and bounds[Length].max < 5000:
            yield valid(base) * (bounds[Length].max + 1)
    elif origin is tuple:
        yield from ([], "x", {}, [*valid(base), 1])
    else:
        yield from ([], "x", 5)
        if Length in bounds and bounds[Length].max < 100:
            entry = valid(get_args(base)[1])
            yield {f"{number}": entry for number in range(bounds[Length].max + 1)}

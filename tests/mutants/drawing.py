"""Plausible mistakes: one operator, branch, argument, default, call or constant of a function other than it is."""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "orchestrator"

RISKY = re.compile(
    r"sync|unlink|replace|rename|rmtree|remove|kill|signal|chmod|umask|secret|token|verif|digest|crc|lock|truncat"
    r"|generation|epoch|step"
)
"""In a line whose mistake loses something, or lets somebody in."""
RISK = 3.0
"""So many times more often such a line is drawn."""

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
AT_THE_BORDER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}

EITHER_WAY = frozenset({"isinstance", "issubclass", "getattr", "setattr", "hasattr", "max", "min", "cast"})
"""Functions whose two arguments nobody swaps, or to which it is the same."""

Way = tuple[tuple[str, int | None], ...]
"""The way from a module's tree to a node: names of fields, with the index where the field is a list."""


@dataclass(frozen=True)
class Mistake:
    """What is wrong in one function of one file, and how its tree is made wrong."""

    file: str
    """Of the package."""
    line: int
    function: str
    kind: str
    was: str
    nth: int
    """Among those of this kind and text in the function."""
    way: Way = field(repr=False)
    made: ast.AST = field(repr=False, compare=False)
    """The node as it is made wrong."""

    @property
    def room(self) -> str:
        return self.file.partition("/")[0]

    @property
    def becomes(self) -> str:
        """The first line that is read in the place of what was."""
        return ast.unparse(ast.fix_missing_locations(self.made)).partition("\n")[0]

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line} ({self.function}): {self.kind}: `{self.was}` becomes `{self.becomes}`"
        )

    def rank(self, seed: str) -> float:
        """Return its place in the draw, which changes elsewhere in the sources leave as it is."""
        name = f"{seed} {self.file} {self.function} {self.kind} {self.was} {self.nth}"
        drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2.0**56
        return 1.0 - float(drawn ** (1 / (RISK if RISKY.search(self.was) else 1.0)))

    def tree(self) -> ast.Module:
        """Return the tree of its file with the mistake in it."""
        tree = ast.parse((PRODUCT / self.file).read_text(encoding="utf-8"))
        parent: ast.AST = tree
        for name, index in self.way[:-1]:
            parent = getattr(parent, name) if index is None else getattr(parent, name)[index]
        name, index = self.way[-1]
        made = copy.deepcopy(self.made)
        if index is None:
            ast.copy_location(made, getattr(parent, name))
            setattr(parent, name, made)
        else:
            ast.copy_location(made, getattr(parent, name)[index])
            getattr(parent, name)[index] = made
        return ast.fix_missing_locations(tree)


def drawn(mistakes: Iterable[Mistake], seed: str) -> list[Mistake]:
    """Return them in the order of the draw."""
    return sorted(mistakes, key=lambda mistake: mistake.rank(seed))


def mistakes_of(path: Path) -> list[Mistake]:
    """Return every mistake that can be made in the functions of that file of the package."""
    return mistakes_in(path.relative_to(PRODUCT).as_posix(), path.read_text(encoding="utf-8"))


def mistakes_in(file: str, source: str) -> list[Mistake]:
    """Return the same of a source."""
    return list(_Finder(file, source).of(ast.parse(source), ()))


class _Finder:
    def __init__(self, file: str, source: str) -> None:
        self.file = file
        self.lines = source.encode().split(b"\n")
        self.names: list[str] = []
        self.functions = 0
        self.seen: Counter[tuple[str, str, str]] = Counter()

    def of(self, node: ast.AST, way: Way) -> Iterator[Mistake]:
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in self._text(node)
        ):
            return
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if named:
            self.names.append(node.name)  # type: ignore[attr-defined]
        if function:
            yield from self._defaults(node, way)  # type: ignore[arg-type]
            self.functions += 1
        elif self.functions:
            for kind, made in _wrong(node):
                yield self._mistake(kind, node, self._text(node), way, made)
        for name, value in ast.iter_fields(node):
            # What is only read by people or by the type checker is no mistake of the product.
            if name in {"annotation", "returns", "decorator_list", "type_params"} or (
                function and name == "args"
            ):
                continue
            if isinstance(value, ast.AST):
                yield from self.of(value, (*way, (name, None)))
            elif isinstance(value, list):
                for index, each in enumerate(value):
                    if isinstance(each, ast.AST):
                        yield from self.of(each, (*way, (name, index)))
        if named:
            self.names.pop()
        if function:
            self.functions -= 1

    def _text(self, node: ast.AST) -> str:
        """Return the first line of a node's text."""
        first, start, end = node.lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        line: bytes = self.lines[first - 1]
        return (line[start:end] if node.end_lineno == first else line[start:]).decode()  # type: ignore[attr-defined]

    def _mistake(self, kind: str, node: ast.AST, was: str, way: Way, made: ast.AST) -> Mistake:
        function = ".".join(self.names)
        self.seen[function, kind, was] += 1
        nth = self.seen[function, kind, was]
        return Mistake(self.file, node.lineno, function, kind, was, nth, way, made)  # type: ignore[attr-defined]

    def _defaults(self, node: ast.FunctionDef, way: Way) -> Iterator[Mistake]:
        positional = [*node.args.posonlyargs, *node.args.args]
        pairs: list[tuple[ast.arg, ast.expr | None, str, int]] = []
        first = len(positional) - len(node.args.defaults)
        for index, each in enumerate(node.args.defaults):
            pairs.append((positional[first + index], each, "defaults", index))
        for index, kw_default in enumerate(node.args.kw_defaults):
            pairs.append((node.args.kwonlyargs[index], kw_default, "kw_defaults", index))
        for argument, default, where, index in pairs:
            if isinstance(default, ast.Constant) and (wrong := _constant(default)) is not None:
                to = (*way, ("args", None), (where, index))
                yield self._mistake(
                    "default changed", argument, f"{argument.arg}={default.value!r}", to, wrong
                )


def _constant(node: ast.Constant) -> ast.Constant | None:
    if isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node.value, int):
        return ast.Constant(node.value + 1)
    return ast.Constant(node.value * 2 + 1) if isinstance(node.value, float) else None


def _wrong(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kinds of mistakes that can be made of a node, each with the node that is wrong."""
    match node:
        case ast.Compare(left, [operator], [right]):
            for table in (OPPOSITE, AT_THE_BORDER):
                if type(operator) in table:
                    yield "comparison", ast.Compare(left, [table[type(operator)]()], [right])
        case ast.UnaryOp(ast.Not(), operand):
            yield "negation", operand
        case ast.BoolOp(operator, values):
            for index in range(len(values)):
                rest = [each for n, each in enumerate(values) if n != index]
                yield "branch left out", ast.BoolOp(operator, rest) if len(rest) > 1 else rest[0]
            yield "negation", ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.If(test=test):
            yield "branch left out", ast.If(ast.Constant(False), node.body, node.orelse)
            if not isinstance(test, (ast.Compare, ast.BoolOp)) and not _is_not(test):
                yield "negation", ast.If(_not(test), node.body, node.orelse)
        case ast.IfExp(test, body, orelse):
            yield "branch left out", orelse
            if not _is_not(test):
                yield "negation", ast.IfExp(_not(test), body, orelse)
        case ast.Expr(ast.Call()):
            yield "call left out", ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()], _) | ast.AugAssign():
            yield "statement left out", ast.Pass()
        case ast.Raise() if node.exc is not None:
            yield "branch left out", ast.Pass()
        case ast.Call(called, [first, second, *others], keywords) if _is_swapped(called, first, second):
            yield "argument swapped", ast.Call(called, [second, first, *others], keywords)
        case ast.Constant() if (wrong := _constant(node)) is not None:
            yield "constant changed", wrong
        case ast.BinOp(left, (ast.Add() | ast.Sub()) as operator, right):
            if not _is_text(left) and not _is_text(right):
                other = ast.Sub() if isinstance(operator, ast.Add) else ast.Add()
                yield "constant changed", ast.BinOp(left, other, right)


def _is_swapped(called: ast.expr, first: ast.expr, second: ast.expr) -> bool:
    """Return whether somebody could confuse two arguments without being told so at once."""
    if isinstance(called, ast.Name) and called.id in EITHER_WAY:
        return False
    return (
        not isinstance(first, ast.Starred)
        and not isinstance(second, ast.Starred)
        and ast.dump(first) != ast.dump(second)
    )


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_not(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )

"""Parses YAML into a tree that knows the position of every value. It deliberately accepts less than YAML allows.

- It reads the parser's events one by one and never composes a document. So depth and size are bounded before anything
  is built, and nothing is expanded or constructed.
- It accepts one document without tags, anchors and aliases. A key is plain text, and occurs once.
- `yes`, `no`, `on` and `off` without quotes become true and false, as in YAML 1.1. The tree remembers the text, so a
  diagnostic can explain why Norway's `no` became false.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.core.plan import TASK_TYPES
from orchestrator.spec.diagnostics import Diagnostic, Loc, shown_key, where

DEPTH_MAX = 16
NODES_MAX = 20_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE, _FALSE, _NULL = {"true", "yes", "on"}, {"false", "no", "off"}, {"", "~", "null"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]"
)


@dataclass(slots=True)
class Node:
    """A value, and its position in the file."""

    line: int
    column: int
    value: Any
    """A dict or a list of nodes, or the value of a scalar: str, int, float, bool, None."""
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The line and column of each key of a mapping."""
    bare: str | None = None
    """The text of a scalar without quotes that YAML reads as something other than text."""
    broken: bool = False
    """Whether there is a diagnostic about it already."""
    file: str = ""
    """The inventory that it was taken from."""

    def data(self) -> Any:
        """Return the plain value, without positions."""
        if isinstance(self.value, dict):
            return {key: node.data() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.data() for node in self.value]
        return self.value

    def child(self, step: str | int) -> Node | None:
        """Return the value under a key or at a list position; None if there is none."""
        if isinstance(self.value, dict) and isinstance(step, str):
            return self.value.get(step)
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            child: Node = self.value[step]
            return child
        return None

    def find(self, loc: Loc) -> Node | None:
        """Return the value at a place; None if there is none."""
        node: Node | None = self
        for step in loc:
            node = node.child(step) if node else None
        return node

    def place(self, loc: Loc, *, of_key: bool = False) -> tuple[int, int]:
        """Return the line and column to show for a place.

        For a scalar that is its value. For a mapping, a list, or a missing value, it is the closest key above.
        """
        node, at = self, (self.line, self.column)
        for step in loc:
            child = node.child(step)
            if child is None:
                return node.keys.get(str(step), at)
            over = node.keys.get(str(step), (child.line, child.column))
            node, at = child, over
        if of_key or isinstance(node.value, (dict, list)) or node.value is None:
            return at
        return node.line, node.column


class _Stop(Exception):
    """The rest of the document cannot be read."""


PLAIN_KEYS = frozenset({("run", "notify", "on"), *(("run", "tasks", type_, "on") for type_ in TASK_TYPES)})
"""Places of keys that YAML reads as true or false, and that mean what they say here."""


def parse(text: str, *, plain_keys: Collection[Loc] = PLAIN_KEYS) -> tuple[Node | None, list[Diagnostic]]:
    """Return the tree, and what is wrong with it as YAML. There is no tree if the text cannot be read to its end."""
    if forbidden := list(_forbidden_characters(text)):
        return None, forbidden
    builder = _Builder(text, plain_keys)
    try:
        return builder.document(), builder.diagnostics
    except _Stop:
        return None, builder.diagnostics
    except yaml.MarkedYAMLError as error:
        return None, [*builder.diagnostics, _syntax(error, text)]


def _forbidden_characters(text: str) -> Iterator[Diagnostic]:
    for match in _FORBIDDEN.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        yield Diagnostic(line, column, "yaml", f"the character U+{ord(match[0]):04X} must not be here")
        return  # otherwise a binary file would give a diagnostic per byte


class _Builder:
    """Builds nodes from the parser's events, and collects diagnostics."""

    def __init__(self, text: str, plain_keys: Collection[Loc]) -> None:
        self.diagnostics: list[Diagnostic] = []
        self._text = text
        self._plain_keys = plain_keys
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._nodes = 0

    def document(self) -> Node | None:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                break
        else:
            self.diagnostics.append(
                Diagnostic(1, 1, "yaml", "the file is empty; it needs at least hosts and run")
            )
            return None
        root = self._node(next(self._events), ())
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._complain(event, "yaml", "a second document starts here; a file holds one cluster")
                break
        return root

    def _complain(self, event: Any, at: str, sentence: str) -> None:
        mark = event.start_mark
        self.diagnostics.append(Diagnostic(mark.line + 1, mark.column + 1, at, sentence))

    def _node(self, event: Any, loc: Loc) -> Node:
        self._nodes += 1
        if len(loc) > DEPTH_MAX or self._nodes > NODES_MAX:
            limit = f"{DEPTH_MAX} levels" if len(loc) > DEPTH_MAX else f"{NODES_MAX} values"
            self._complain(event, "yaml", f"more than {limit}; a cluster spec is never that large")
            raise _Stop
        node = Node(event.start_mark.line + 1, event.start_mark.column + 1, None)
        if isinstance(event, yaml.AliasEvent):
            self._complain(event, where(loc), "aliases (*name) are not read here; write the value out")
            node.broken = True
            return node
        self._refuse_properties(event, loc, node)
        if isinstance(event, yaml.MappingStartEvent):
            self._mapping(node, loc)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._sequence(node, loc)
        else:
            self._scalar(event, node, loc)
        return node

    def _refuse_properties(self, event: Any, loc: Loc, node: Node) -> None:
        if event.anchor is not None:
            self._complain(event, where(loc), "anchors (&name) are not read here; write the value out")
        if event.tag is not None:
            self._complain(event, where(loc), "tags (!name) are not read here; leave it out")
            node.broken = True

    def _sequence(self, node: Node, loc: Loc) -> None:
        node.value = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            node.value.append(self._node(event, (*loc, len(node.value))))

    def _mapping(self, node: Node, loc: Loc) -> None:
        node.value = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                return
            key = self._key(event, loc)
            value = self._node(next(self._events), (*loc, key or "?"))
            if key is None:
                continue
            if key in node.value:
                first = node.keys[key][0]
                self._complain(event, where((*loc, key)), f"given twice; the first is in line {first}")
                continue
            node.value[key] = value
            node.keys[key] = (event.start_mark.line + 1, event.start_mark.column + 1)

    def _key(self, event: Any, loc: Loc) -> str | None:
        if not isinstance(event, yaml.ScalarEvent):
            self._complain(event, where(loc), "a key must be plain text")
            if not isinstance(event, yaml.AliasEvent):
                self._node(event, (*loc, "?"))
            return None
        self._refuse_properties(event, loc, Node(0, 0, None))
        key = str(event.value)
        if event.implicit[0] and key.lower() in _TRUE | _FALSE and (*loc, key) not in self._plain_keys:
            reads = "true" if key.lower() in _TRUE else "false"
            sentence = f'without quotes, YAML reads the key {key} as {reads}; write "{key}"'
            self._complain(event, where((*loc, key)), sentence)
        return key

    def _scalar(self, event: Any, node: Node, loc: Loc) -> None:
        node.value = event.value
        if not event.implicit[0]:
            return
        node.value = _resolve(event.value)
        if not isinstance(node.value, str):
            node.bare = event.value
        elif re.fullmatch(r"[-+]?0[0-9]+", event.value):
            sentence = (
                "a number with a leading zero is read as octal by some; drop the zero, or put it in quotes"
            )
            self._complain(event, where(loc), sentence)
            node.broken = True
        elif event.start_mark.line != event.end_mark.line:
            self._refuse_tab(event, loc)

    def _refuse_tab(self, event: Any, loc: Loc) -> None:
        """Report a tab in the indentation: it silently makes the next line part of this value."""
        lines = self._text.splitlines()
        for number in range(event.start_mark.line + 1, event.end_mark.line + 1):
            if number < len(lines) and (column := _tab_in_indentation(lines[number])):
                self.diagnostics.append(Diagnostic(number + 1, column, where(loc), _TAB))
                return


def _resolve(text: str) -> Any:
    """Return the value of a scalar without quotes."""
    if text.lower() in _NULL:
        return None
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.match(r"[-+]?0[0-9]", text):
        return float(text)
    return text


_TAB = "a tab; YAML is indented with spaces"

_SYNTAX = (
    (
        "mapping values are not allowed",
        "a `: ` where none can be; check the indentation, or put the value in quotes",
    ),
    (
        "could not find expected ':'",
        "this line is neither `key: value` nor a list item; check the indentation",
    ),
    ("did not find expected key", "the indentation differs from that of the lines above"),
    ("expected <block end>", "the indentation differs from that of the lines above"),
    ("did not find expected '-' indicator", "the list's items must stand in one column"),
    ("did not find expected ',' or ']'", "the list [ ] is not closed, or a comma is missing"),
    ("expected ',' or ']'", "the list [ ] is not closed, or a comma is missing"),
    ("did not find expected ',' or '}'", "the mapping { } is not closed, or a comma is missing"),
    ("expected ',' or '}'", "the mapping { } is not closed, or a comma is missing"),
    ("block sequence entries are not allowed", "a list item (`- `) cannot be here; check the indentation"),
    ("exceeded max depth", f"more than {DEPTH_MAX} levels; a cluster spec is never that large"),
)


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Diagnostic:
    """Translate the parser's error, and place it where the mistake is, not where the parser noticed it."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    problem = error.problem or "not YAML"
    lines = text.splitlines()
    for near in (line, line - 1):
        if 0 <= near < len(lines) and (tab := _tab_in_indentation(lines[near])):
            return Diagnostic(near + 1, tab, "yaml", _TAB)
    if (
        "scanning a quoted scalar" in (error.context or "")
        and error.context_mark
        and "end of stream" in problem
    ):
        start = error.context_mark
        return Diagnostic(start.line + 1, start.column + 1, "yaml", "these quotes are never closed")
    if "could not find expected ':'" in problem and error.context_mark:
        # The parser notices it only at the start of the next line.
        line, column = (error.context_mark.line, error.context_mark.column)
    if "cannot start any token" in problem:
        here = lines[line][column : column + 1] if line < len(lines) else ""
        return Diagnostic(
            line + 1, column + 1, "yaml", f"a value cannot start with {shown_key(here)}; put it in quotes"
        )
    sentence = next((sentence for start, sentence in _SYNTAX if start in problem), problem)
    return Diagnostic(line + 1, column + 1, "yaml", sentence)


def _tab_in_indentation(line: str) -> int:
    """Return the column of a tab before the first character of a line; 0 if there is none."""
    indentation = line[: len(line) - len(line.lstrip())]
    return indentation.find("\t") + 1 if line.strip() else 0

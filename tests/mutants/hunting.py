"""A pytest that, in the place of its tests, makes mistakes: each in a fork of it, in which the tests of its lines run.

A mutant that is started from outside takes seconds until it has imported what it tests; a fork of a pytest that has
collected takes milliseconds. The code of the live functions is replaced, so what other processes run stays right.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import inspect
import json
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.drawing import PRODUCT
from tests.patience import patient

FORK_S = 30.0
"""What has not ended by then on a quiet machine hangs."""
CRASHES = 5
"""After so many tests that crashed no other is tried."""
FOUND = ("AssertionError", "assert ", "Failed: DID NOT RAISE")
"""The beginnings of what a test says whose assertion failed; whatever else ends it is a crash."""


JUDGED = frozenset({"found", "survives"})


@dataclass(frozen=True)
class Mutant:
    """A mistake, with the tests that may find it in the order in which they are tried."""

    name: str
    file: str
    tree: Callable[[], ast.Module]
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    end: str
    """`found`, `survives`, `crashes`, `hangs` or `cannot be made`."""
    by: str = ""
    """The test that found it, or that crashed first."""
    took_s: float = 0.0


class Hunt:
    """The plugin. Its verdicts are told as they come."""

    def __init__(
        self, mutants: Iterator[Mutant], tell: Callable[[Verdict], None], *, seconds: float = float("inf")
    ) -> None:
        self._mutants = mutants
        self._tell = tell
        self._seconds = seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Hunt, instead of running what was collected."""
        items = _by_name(session.items)
        live = live_functions()
        gc.freeze()  # what forks share stays shared
        until = time.monotonic() + self._seconds
        waiting, running = self._mutants, selectors.DefaultSelector()
        for _ in range(os.cpu_count() or 1):
            self._begin(next(waiting, None), items, live, running)
        while running.get_map():
            for key, _ in running.select():
                running.unregister(key.fd)
                self._tell(key.data.end())
                if time.monotonic() < until:
                    self._begin(next(waiting, None), items, live, running)
        return True

    def _begin(
        self,
        mutant: Mutant | None,
        items: dict[str, list[pytest.Item]],
        live: _Live,
        running: selectors.BaseSelector,
    ) -> None:
        if mutant is not None:
            fork = _Fork(mutant, [item for test in mutant.tests for item in items.get(test, ())], live)
            running.register(fork.process, selectors.EVENT_READ, fork)


def _by_name(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Return what runs by the name of a file of tests, of a test, and of one of its cases."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        whole = item.nodeid.partition("[")[0]
        for name in {item.nodeid, whole, whole.partition("::")[0]}:
            found.setdefault(name, []).append(item)
    return found


_Live = dict[tuple[str, str, int], list[FunctionType]]


def live_functions() -> _Live:
    """Return the functions of the product by file, name and line."""
    found: _Live = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(str(PRODUCT)):
            code = each.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(each)
    return found


class _Fork:
    def __init__(self, mutant: Mutant, items: list[pytest.Item], live: _Live) -> None:
        self.mutant = mutant
        self._began = time.monotonic()
        self._scratch = tempfile.mkdtemp(prefix="orch-mutant-")
        self._pipe, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setsid()  # with what its tests start
                os.chdir(self._scratch)  # where a file goes whose path and content a mistake has swapped
                signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.alarm(int(patient(FORK_S)))
                os.close(self._pipe)
                os.set_inheritable(told, False)
                end, by = _judged(mutant, items, live, Path(self._scratch))
                os.write(told, json.dumps([end, by]).encode())
            except BaseException as e:
                os.write(told, json.dumps(["crashes", repr(e)[:300]]).encode())
            finally:
                os._exit(0)
        os.close(told)
        self.process = os.pidfd_open(self._pid)
        """Its end, and not that of the pipe, which a process of its tests may hold in a session of its own."""

    def end(self) -> Verdict:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._scratch, ignore_errors=True)
        took_s = time.monotonic() - self._began
        os.set_blocking(self._pipe, False)
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._pipe, 1 << 16)
        os.close(self._pipe)
        os.close(self.process)
        if not said:
            return Verdict(self.mutant, "hangs" if took_s > FORK_S - 1 else "crashes", "", took_s)
        end, by = json.loads(said)
        return Verdict(self.mutant, end, by, took_s)


def _judged(mutant: Mutant, items: list[pytest.Item], live: _Live, scratch: Path) -> tuple[str, str]:
    if not items or not make(mutant, live):
        return "cannot be made", ""
    if items:
        items[0].config._tmp_path_factory._basetemp = scratch  # type: ignore[attr-defined]
    crashed: list[str] = []
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else None
        for report in runtestprotocol(item, log=False, nextitem=following):
            if report.failed:
                said = _said(report)
                if said.startswith(FOUND):
                    return "found", item.nodeid
                crashed.append(f"{item.nodeid}: {said[:200]}")
        if len(crashed) == CRASHES:
            break
    return ("crashes", crashed[0]) if crashed else ("survives", "")


def _said(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)


def make(mutant: Mutant, live: _Live) -> bool:
    """Put the wrong code into the live functions; return False where none of them has it."""
    path = PRODUCT / mutant.file
    if not any(file == str(path) for file, _, _ in live):  # its users import it when they need it
        importlib.import_module(".".join(("orchestrator", *Path(mutant.file).with_suffix("").parts)))
        live = live_functions()
    right = compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
    tree = mutant.tree()
    wrong = compile(tree, str(path), "exec", dont_inherit=True)
    made = 0
    for was, becomes in _differing(right, wrong):
        for function in live.get((str(path), was.co_qualname, was.co_firstlineno), ()):
            if len(becomes.co_freevars) == len(was.co_freevars):
                function.__code__ = becomes
                made += 1
    return bool(made + _change_defaults(path, right, tree, live))


def _differing(right: CodeType, wrong: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the functions, also those of classes and functions, whose code is not the same."""
    others = {(code.co_name, code.co_firstlineno): code for code in _codes(wrong)}
    for was in _codes(right):
        becomes = others.get((was.co_name, was.co_firstlineno))
        if becomes is not None and was != becomes:
            if was.co_flags & inspect.CO_NEWLOCALS:
                yield was, becomes
            yield from _differing(was, becomes)


def _codes(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _change_defaults(path: Path, right: CodeType, tree: ast.Module, live: _Live) -> int:
    """Change the defaults of arguments that differ, which are not in the function's code."""
    was = {
        (n.name, n.lineno): n
        for n in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(n, ast.FunctionDef)
    }
    changed = 0
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        before = was.get((node.name, node.lineno))
        if before is None or ast.dump(before.args) == ast.dump(node.args):
            continue
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        for function in (
            f for (file, _, line), all_ in live.items() if file == str(path) and line == first for f in all_
        ):
            if function.__code__.co_name != node.name:
                continue
            for index, default in enumerate(node.args.defaults):
                if function.__defaults__ and isinstance(default, ast.Constant):
                    new = list(function.__defaults__)
                    new[index] = default.value
                    function.__defaults__ = tuple(new)
            for argument, kw_default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
                if function.__kwdefaults__ and isinstance(kw_default, ast.Constant):
                    function.__kwdefaults__[argument.arg] = kw_default.value
            changed += 1
    return changed

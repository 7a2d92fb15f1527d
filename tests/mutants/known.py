"""`python -m tests.mutants.known [NAME …]`: mistakes that were once made, or nearly; the tests must find each.

The simulator hunts them; what it has no part of is hunted by the tests that a mistake names. Unit tests find theirs in
forks of one pytest, and the simulator in forks of this process; all others, and those that start processes or read
sources, in a copy of the tree. That the mutant
only crashes is no catch: a rule must be broken, a transcript read otherwise, or an assertion fail. Exit 1 with the
names of those that survive, or whose old text is not there any more.
"""

from __future__ import annotations

import ast
import logging
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import tomllib

from tests.mutants import hunting
from tests.mutants.drawing import PRODUCT, ROOT
from tests.sim import __main__ as simulator
from tests.sim.__main__ import BROKEN

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Known:
    """One mistake: in that file of the package, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    imports: str = ""
    """A line that `new` needs."""
    kind: str = "chaos"
    """The kind of scenario to try."""
    seeds: int = 60
    first: int = 0
    """The first seed to try: few before the one that is known to find it, which may take minutes to come to."""
    tests: str = ""
    """A file of tests, or one of them by `FILE::NAME`, which must find it, in the place of the simulator."""

    def made_in(self, text: str) -> str | None:
        """Return the file's text with the mistake in it; None where the old text is not there, or not once."""
        if text.count(self.old) != 1:
            return None
        made = text.replace(self.old, self.new)
        first = "from orchestrator"
        return made.replace(first, f"{self.imports}\n{first}", 1) if self.imports else made


def load() -> list[Known]:
    """Return all mistakes."""
    document = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))
    return [Known(**entry) for entry in document["mistake"]]


@dataclass(frozen=True)
class Verdict:
    """The result for a mutant. `by` is empty where it survives, or was not caught within TIMEOUT_S."""

    mutant: Known
    by: str
    why: str
    """Of one that survives."""
    took_s: float


def hunt(mutant: Known) -> Verdict:
    """Make the mistake in a copy, and run seeds or tests until one finds it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="orch-mutant-") as copy:
        for name in ("orchestrator", "tests"):
            shutil.copytree(ROOT / name, Path(copy, name), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = Path(copy, "orchestrator", mutant.file)
        made = mutant.made_in(path.read_text(encoding="utf-8"))
        if made is None:
            return Verdict(mutant, "", "its old text is not there", 0.0)
        path.write_text(made, encoding="utf-8")
        by, why = _tested(copy, mutant) if mutant.tests else _played(copy, mutant)
    return Verdict(mutant, by, why, time.monotonic() - began)


def _played(copy: str, mutant: Known) -> tuple[str, str]:
    seeds = (str(mutant.seeds), "--first", str(mutant.first))
    ran = _run(copy, "tests.sim", *seeds, "--kind", mutant.kind, "--until-broken")
    return found_by_seed(ran) if ran is not None else ("", TOO_SLOW)


def _tested(copy: str, mutant: Known) -> tuple[str, str]:
    ran = _run(copy, "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", mutant.tests)
    return found_by_test(ran) if ran is not None else ("", TOO_SLOW)


TOO_SLOW = f"it could not be judged in {TIMEOUT_S:.0f} s"


def _run(copy: str, *command: str) -> subprocess.CompletedProcess[str] | None:
    # A line of pytest's summary is cut off at the width of the terminal, with the reason at its end.
    env = {**os.environ, "PYTHONPATH": copy, "COLUMNS": "500"}
    try:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=copy,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def found_by_seed(ran: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Return the seed and its broken rule, or nothing and why."""
    if ran.returncode == BROKEN:
        line = next(line for line in ran.stdout.splitlines() if line.startswith("broken: "))
        return line.removeprefix("broken: "), ""
    if ran.returncode == 0:
        return "", "no seed breaks a rule"
    return "", f"it only crashes: {(ran.stdout + ran.stderr)[-200:].strip()}"


_FAILED = re.compile(
    r"^FAILED (\S+?)(?:\[.*)? - (?:AssertionError|assert |Failed: DID NOT RAISE)", re.MULTILINE
)


def found_by_test(ran: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """Return the first test of which an assertion failed, or nothing and why."""
    found = _FAILED.search(ran.stdout)
    if found is not None:
        return found[1].rpartition("/")[2], ""
    if ran.returncode == 0:
        return "", "no test fails"
    return "", f"it only crashes: {(ran.stdout + ran.stderr)[-200:].strip()}"


def in_forks(mutants: list[Known]) -> Iterator[Verdict]:
    """Hunt those whose tests are unit tests, of a function's code, and yield those that are found.

    What survives here may be found in a copy: a test may read the source, or start a process that runs it.
    """
    here = {}
    for mutant in mutants:
        made = mutant.made_in((PRODUCT / mutant.file).read_text(encoding="utf-8"))
        # A line that is imported would move all functions below it.
        if made is not None and mutant.tests.startswith("tests/unit/") and not mutant.imports:
            tree = partial(ast.parse, made)
            here[mutant.name] = hunting.Mutant(mutant.name, mutant.file, tree, (mutant.tests,))
    if not here:
        return
    told: list[hunting.Verdict] = []
    files = sorted({mutant.tests[0].partition("::")[0] for mutant in here.values()})
    quiet = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--no-summary", "--no-header"]
    pytest.main([*quiet, *files], plugins=[hunting.Hunt(iter(here.values()), told.append)])
    of = {mutant.name: mutant for mutant in mutants}
    for verdict in told:
        if verdict.end == "found":
            yield Verdict(of[verdict.mutant.name], verdict.by, "", verdict.took_s)


def played(mutants: list[Known]) -> Iterator[Verdict]:
    """Hunt those that the simulator must find, each in a fork of this process, and yield those that can be made so."""
    here = [mutant for mutant in mutants if not mutant.tests and not mutant.imports]
    logging.disable(logging.CRITICAL)
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        for mutant, found in zip(here, pool.imap(_played_here, here, chunksize=1), strict=True):
            if found is not None:
                yield Verdict(mutant, *found)
    logging.disable(logging.NOTSET)


def _played_here(mutant: Known) -> tuple[str, str, float] | None:
    """Return the seed and its broken rule, or nothing and why, and the time; None where it cannot be made here."""
    made = mutant.made_in((PRODUCT / mutant.file).read_text(encoding="utf-8"))
    if made is None:
        return None
    tree = partial(ast.parse, made)
    if not hunting.make(hunting.Mutant(mutant.name, mutant.file, tree, ()), hunting.live_functions()):
        return None
    began, crashed = time.monotonic(), ""
    signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, TIMEOUT_S)  # of this fork's CPU, however many want a core
    for seed in range(mutant.first, mutant.first + mutant.seeds):
        result = simulator.play(seed, kind=mutant.kind)
        if result.check not in (None, simulator.CRASH):
            return f"{seed} ({result.check})", "", time.monotonic() - began
        crashed = crashed or (result.sentence if result.check else "")
        if time.process_time() > TIMEOUT_S:
            return "", TOO_SLOW, time.monotonic() - began
    return (
        "",
        f"it only crashes: {crashed}" if crashed else "no seed breaks a rule",
        time.monotonic() - began,
    )


def _too_slow(*_: object) -> None:
    raise TimeoutError(TOO_SLOW)


def main(names: list[str]) -> int:
    """Hunt all, or those whose name begins with one of these."""
    chosen = [m for m in load() if not names or any(m.name.startswith(name) for name in names)]
    survivors: list[str] = []

    def tell(verdict: Verdict) -> None:
        told = verdict.by or f"SURVIVES: {verdict.why}"
        print(f"{verdict.took_s:6.1f} s  {verdict.mutant.name}: {told}", flush=True)
        if not verdict.by:
            survivors.append(verdict.mutant.name)

    done = set()
    for verdict in chain(in_forks(chosen), played(chosen)):
        tell(verdict)
        done.add(verdict.mutant.name)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        others = [pool.submit(hunt, mutant) for mutant in chosen if mutant.name not in done]
        for hunted in as_completed(others):
            tell(hunted.result())
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    if survivors:
        print("survive, or are not there any more:", *survivors, sep="\n  ")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

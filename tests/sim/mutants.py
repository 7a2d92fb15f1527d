"""`python -m tests.sim.mutants [NAME …]`: plausible mistakes, each made in a copy; the tests must find each.

The simulator hunts them; what it has no part of is hunted by the tests that a mistake names. That the mutant only
crashes is no catch: a rule must be broken, a transcript read otherwise, or an assertion fail. Exit 1 with the names of
those that survive, or whose old text is not there any more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import tomllib

from tests.sim.__main__ import BROKEN

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Mutant:
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


def load() -> list[Mutant]:
    """Return all mistakes."""
    document = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text(encoding="utf-8"))
    return [Mutant(**entry) for entry in document["mistake"]]


@dataclass(frozen=True)
class Verdict:
    """The result for a mutant. `by` is empty where it survives, or was not caught within TIMEOUT_S."""

    mutant: Mutant
    by: str
    why: str
    """Of one that survives."""
    took_s: float


def hunt(mutant: Mutant) -> Verdict:
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


def _played(copy: str, mutant: Mutant) -> tuple[str, str]:
    seeds = (str(mutant.seeds), "--first", str(mutant.first))
    ran = _run(copy, "tests.sim", *seeds, "--kind", mutant.kind, "--until-broken")
    return found_by_seed(ran) if ran is not None else ("", TOO_SLOW)


def _tested(copy: str, mutant: Mutant) -> tuple[str, str]:
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


def main(names: list[str]) -> int:
    """Hunt all, or those whose name begins with one of these."""
    chosen = [m for m in load() if not names or any(m.name.startswith(name) for name in names)]
    survivors = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for hunted in as_completed([pool.submit(hunt, mutant) for mutant in chosen]):
            verdict = hunted.result()
            told = verdict.by or f"SURVIVES: {verdict.why}"
            print(f"{verdict.took_s:6.1f} s  {verdict.mutant.name}: {told}", flush=True)
            if not verdict.by:
                survivors.append(verdict.mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    if survivors:
        print("survive, or are not there any more:", *survivors, sep="\n  ")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

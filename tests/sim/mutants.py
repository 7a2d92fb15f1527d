"""`python -m tests.sim.mutants [NAME …]` makes plausible mistakes, each in a copy; the simulator must find each.

It exits with 1 and the names of those that survive, or whose old text no longer exists.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Mutant:
    """A mistake: in that file, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    kind: str = "chaos"
    """The kind of scenario to try."""
    seeds: int = 60


MUTANTS = (
    Mutant(
        "budget counted by time: every restart finds the old checkpoint to be progress",
        "core/phases/restart.py",
        "verified_step is not None and (budget.step is None or verified_step > budget.step)",
        "verified_step is not None",
    ),
    Mutant(
        "budget never spent",
        "core/phases/restart.py",
        "used, nth = budget.without_progress + blamed, budget.in_a_row + 1",
        "used, nth = blamed + 0, 1",
    ),
    Mutant(
        "adoption without identity: the boot id is ignored",
        "adapters/host/process.py",
        "return (self.boot_id, self.pid, self.start_time)",
        'return ("", self.pid, self.start_time)',
    ),
    Mutant(
        "seed read wrongly: the step is lost, and nobody sees what the generation begins with",
        "daemon/connection/wire.py",
        'global_step=ok["global_step"],\n        source=ok["source"],',
        'global_step=None,\n        source=ok["source"],',
    ),
    Mutant(
        "no readable checkpoint, and the run starts at step 0 silently",
        "core/decide.py",
        "    if problem.code in SEED_REFUSALS:\n        turn.set(problem=problem)",
        '    if problem.code == "no-readable-checkpoint":\n'
        "        from orchestrator.core.model import Seed\n\n"
        "        turn.set(seed=Seed(turn.run.generation))\n        return\n"
        "    if problem.code in SEED_REFUSALS:\n        turn.set(problem=problem)",
        seeds=200,
    ),
    Mutant(
        "released before the checkpoint is there",
        "core/phases/starting.py",
        "elif is_seeded(run) and all(t.phase is TaskPhase.READY",
        "elif all(t.phase is TaskPhase.READY",
    ),
    Mutant(
        "released before all have joined",
        "core/phases/starting.py",
        "all(t.phase is TaskPhase.READY and t.port is not None for t in run.tasks)",
        "any(t.phase is TaskPhase.READY and t.port is not None for t in run.tasks)",
    ),
    Mutant(
        "generation number reused after a restart",
        "core/phases/starting.py",
        "return max(run.generation_last, *highest) + 1",
        "return max(run.generation, 1)",
    ),
    Mutant(
        "alone task keeps its generation",
        "core/phases/individual.py",
        "generation = run.generation_last + 1",
        "generation = task.generation",
        kind="alone",
    ),
    Mutant(
        "a worker of parameter servers takes the run with it",
        "core/restart_scope.py",
        "return task.id.type in STRATEGIES[run.plan.strategy].alone",
        "return False",
        kind="alone",
    ),
    Mutant(
        "lost host without waiting",
        "core/hosts/silence.py",
        "return max(words) + run.plan.timing.lost_after_s",
        "return words[0]",
        kind="harmless",
    ),
    Mutant(
        "unreachable taken for dead: peers that train prove nothing",
        "core/hosts/silence.py",
        "return max(words) + run.plan.timing.lost_after_s",
        "return words[0] + run.plan.timing.lost_after_s",
        kind="harmless",
        seeds=150,
    ),
    Mutant(
        "cut-off rule removed",
        "core/hosts/host_state.py",
        "return 2 * sum(host.link is Link.UNREACHABLE for host in judging) > len(judging)",
        "return False",
        kind="harmless",
        seeds=150,
    ),
    Mutant(
        "restart while an old task may live",
        "core/phases/stopping.py",
        "    if any(task.phase.may_live for task in turn.run.tasks):\n        return\n    _settle_intent(turn)",
        "    _settle_intent(turn)",
    ),
    Mutant(
        "kill not remembered: it restarts as after any other end",
        "core/decide.py",
        'stop_all(turn, Intent.KILL, "killed by the user")',
        'stop_all(turn, Intent.RESTART, "killed by the user")',
    ),
    Mutant(
        "sweep skipped: KILLED without a look",
        "core/phases/stopping.py",
        "        turn.set_phase(proof={})\n"
        "        turn.do(*(SweepHost(host=name, generation=run.generation_last) "
        "for name in to_prove(turn.run)))",
        "        turn.set_phase(proof={name: Swept() for name in to_prove(turn.run)})",
        seeds=200,
    ),
    Mutant(
        "what was asked is not asked again after a reconnection",
        "core/hosts/lifecycle.py",
        "    turn.do(*outstanding(turn.run, event.host))",
        "    turn.do(*outstanding(turn.run, event.host)[:0])",
        kind="calm",
    ),
    Mutant(
        "the chief's exit 0 does not decide",
        "core/phases/running.py",
        "    if chief.exit is not None and chief.exit.cause is Cause.FINISHED:\n"
        "        _reap(turn, chief)\n        return\n",
        "",
    ),
    Mutant(
        "port reused by the next generation",
        "core/launch.py",
        "turn = zlib.crc32(run_id.encode()) + generation * most + neighbours.index(task)",
        "turn = zlib.crc32(run_id.encode()) + neighbours.index(task)",
    ),
    Mutant(
        "time without a coordinator counts",
        "daemon/coordinator/loop.py",
        "rebased(k.run, now - k.written_at)",
        "k.run",
        seeds=200,
    ),
    Mutant(
        "done before it is written",
        "daemon/coordinator/loop.py",
        "        if not is_worth_keeping(before, after, event, actions):\n",
        "        for action in actions:\n            if not isinstance(action, Note):\n"
        "                self._execute(after, action)\n"
        "        if not is_worth_keeping(before, after, event, actions):\n",
    ),
    Mutant(
        "a decision is not worth keeping",
        "core/decision.py",
        "    if actions or not isinstance(event, HostReported):\n        return True\n",
        "    if isinstance(event, KillRequested):\n        return False\n"
        "    if actions or not isinstance(event, HostReported):\n        return True\n",
        seeds=200,
    ),
    Mutant(
        "epoch check removed on the hosts",
        "adapters/host/hostdir.py",
        "    if epoch < seen:\n",
        "    if epoch < 0:\n",
        seeds=200,
    ),
    Mutant(
        "drained host is given tasks again",
        "core/hosts/slots.py",
        "host is None or host.state is not HostState.OPEN or",
        "host is None or host.state is HostState.LOST or",
        seeds=120,
    ),
    Mutant(
        "rollback stops nothing: the gang goes on with what was set aside",
        "core/phases/checkpoints.py",
        "    if run.phase in (Phase.RENDEZVOUS, Phase.RUNNING):\n"
        "        turn.set(first_cause=FirstCause(None, run.generation, Cause.ROLLED_BACK, what))",
        "    if False:\n"
        "        turn.set(first_cause=FirstCause(None, run.generation, Cause.ROLLED_BACK, what))",
        seeds=200,
    ),
    Mutant(
        "shim ends at the first look, whatever lives",
        "daemon/shim/state.py",
        "done = state.ended is not None and not event.left",
        "done = True",
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The result for a mutant. `by` is empty where it survives, or was not caught within TIMEOUT_S."""

    mutant: Mutant
    by: str
    took_s: float


def hunt(mutant: Mutant) -> Verdict:
    """Make the mistake in a copy, and run seeds until one breaks."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="orch-mutant-") as copy:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "orchestrator", Path(copy, "orchestrator"), ignore=ignored)
        shutil.copytree(ROOT / "tests" / "sim", Path(copy, "tests", "sim"), ignore=ignored)
        path = Path(copy, "orchestrator", mutant.file)
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return Verdict(mutant, "", 0.0)
        path.write_text(_with_imports(text.replace(mutant.old, mutant.new), mutant), encoding="utf-8")
        by = _play(copy, mutant)
    return Verdict(mutant, by, time.monotonic() - began)


def _with_imports(text: str, mutant: Mutant) -> str:
    wanted = {"Swept()": "model", "KillRequested)": "events"}
    for name, module in wanted.items():
        if name in mutant.new:
            line = f"from orchestrator.core.{module} import {name.rstrip('()')}\n"
            text = text.replace("from orchestrator.core", line + "from orchestrator.core", 1)
    return text


def _play(copy: str, mutant: Mutant) -> str:
    command = [sys.executable, "-m", "tests.sim", str(mutant.seeds), "--kind", mutant.kind, "--until-broken"]
    env = {**os.environ, "PYTHONPATH": copy}
    try:
        ran = subprocess.run(
            command, cwd=copy, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ""  # a timeout does not count as caught
    if ran.returncode == 0:
        return ""
    found = [line for line in ran.stdout.splitlines() if line.startswith("broken: ")]
    return found[0].removeprefix("broken: ") if found else f"exit code {ran.returncode}: {ran.stderr[-200:]}"


def main(names: list[str]) -> int:
    """Try all mutants, or those whose name begins with one of `names`. Return the exit code."""
    chosen = [m for m in MUTANTS if not names or any(m.name.startswith(name) for name in names)]
    survivors = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for hunted in as_completed([pool.submit(hunt, mutant) for mutant in chosen]):
            verdict = hunted.result()
            mutant = verdict.mutant
            print(f"{verdict.took_s:6.1f} s  {mutant.name}: {verdict.by or 'SURVIVES'}", flush=True)
            if not verdict.by:
                survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    if survivors:
        print("survive, or are not there any more:", *survivors, sep="\n  ")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

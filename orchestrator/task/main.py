"""`python <bundle> run script.py args…` runs the user's script under the runtime; `run -m pkg.train` a module.

It compiles the script, imports TensorFlow early if the script names it, reports ready, waits for the release (which
brings TF_CONFIG), and runs the script. Without a shim (no ORCH_FD), the script is run at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from orchestrator.both.script import FRAMEWORKS, Imports, Script
from orchestrator.task import collector, fence, options, this_task
from orchestrator.task.keras import hooks
from orchestrator.task.link import Link
from orchestrator.task.progress import Progress
from orchestrator.task.shim_orders import STOPPED, Orders, Stopped, end
from orchestrator.task.stages import Stages
from orchestrator.task.standby import Restraints
from orchestrator.task.strategies import part
from orchestrator.task.tracebacks import last_line, print_as_python_would

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from orchestrator.task.trials.proving import Proving


ERROR_WAIT_S = 1.0
"""How long to wait for the shim to take the error of a failing script."""

WITHOUT_A_LINE = (
    "a dead worker would cost no step with `orchestrator.keras.Checkpoint()` in its `fit`, or "
    "`runtime.rescue(manager, step)` in a loop of its own"
)


def main(argv: list[str]) -> int:
    """Run what `python ARGV…` would run, a script or `-m` with a module, and return the exit code that it would give.

    SystemExit passes through, as under `python`.
    """
    if not argv:
        print("orch: run needs a script", file=sys.stderr)
        return 2
    link = Link.from_environment()
    orders = Orders(link)
    if link.attached:
        orders.start()
    try:
        script, arguments = Script.parse(argv)
    except (OSError, SyntaxError, ValueError) as e:
        kind = "syntax" if isinstance(e, (SyntaxError, ValueError)) else "exception"
        e.__traceback__ = None  # it holds only our own frames
        return _failed(link, kind, e, argv[0])
    # As under `python`, the script's folder comes first, or that of `-m`. It takes the place of our own entry, which
    # moves to the end so that `from orchestrator import runtime` works where orch is not installed.
    sys.path.append(sys.path[0])
    sys.path[0] = script.folder
    try:
        return _prepare_and_run(script, arguments, link, orders)
    except Stopped:
        # Run Python's exit functions and exit without the C++ teardown. The script's `finally` blocks have
        # run.
        import atexit

        try:
            atexit._run_exitfuncs()
        finally:
            end(STOPPED)
    return STOPPED


def _prepare_and_run(script: Script, arguments: list[str], link: Link, orders: Orders) -> int:
    progress = Progress(link)
    restraints = Restraints.from_environment()
    stages = this_task.stages = Stages(link, progress)
    wanted = options.read()
    proving = _measurement(wanted, progress)
    this_task.link, this_task.options = link, wanted
    options.choose_keras(wanted)
    own = part.chosen(wanted)
    frameworks: Sequence[str] = wanted.get("frameworks", FRAMEWORKS)
    if link.attached:
        imports = own.imports(wanted) or script.imports(frameworks)
        error = restraints.imports(lambda: _warm_up(imports, frameworks), imports.named)
        if error is not None:
            return _failed(link, "import", error, script.path)
        _wait_at_gate(link, orders, progress, frameworks)
        restraints.released()
        begin(stages, progress)
        fence.begin()
    else:
        hooks.install(link, progress)
    if wanted.get("children", True):
        hooks.reach_children()
    try:
        if wanted:
            from orchestrator.task.strategies import devices

            hooks.when_imported(devices.patches(wanted, link) | own.patches(wanted, link))
            own.begin(wanted, link)
        if wanted.get("transparent"):
            from orchestrator.task.transparent import main as transparent

            transparent.run(script, arguments, link, wanted)
        else:
            from orchestrator.task import own_files

            hooks.when_imported(own_files.patches())
            if proving is not None:
                proving.seed(script)
            script.run(arguments)
    except Stopped:
        raise
    except SystemExit:
        progress.flush()
        raise
    except BaseException as e:
        if this_task.rescue is not None:
            this_task.rescue.failed(e)  # between two fits, or in a loop of the script's own
        orders.raise_if_stopping()
        progress.flush()
        missing = (e.name or "").partition(".")[0] if isinstance(e, ImportError) else ""
        needed = missing in wanted.get("packages", FRAMEWORKS)
        kind = "import" if needed else getattr(e, "orch_kind", "exception")
        return _failed(link, kind, e, script.path)
    progress.flush()
    return 0


def _wait_at_gate(link: Link, orders: Orders, progress: Progress, frameworks: Sequence[str]) -> None:
    """Report ready, wait for the release, and set the environment variables that come with it."""
    hooks.install(link, progress)
    this_task.progress = progress
    versions: dict[str, str | None] = {"python": sys.version.split()[0]}
    for name in frameworks:
        module = sys.modules.get(name)
        versions[name] = getattr(module, "__version__", None)
    link.send({"ready": {"versions": versions}}, wait_s=ERROR_WAIT_S)
    os.environ.update(orders.wait_for_release())


def _measurement(wanted: Mapping[str, Any], progress: Progress) -> Proving | None:
    """Start to measure for `orch scale`, or to record for `orch prove`. Return the recorder, which seeds the script."""
    if wanted.get("dies_after"):
        from orchestrator.task.trials.dying import dying

        progress.dying = dying(wanted["dies_after"])
    if wanted.get("measure"):
        from orchestrator.task.trials.measured import Measuring

        this_task.measuring = Measuring(wanted["measure"], progress)
    if not wanted.get("prove"):
        return None
    from orchestrator.task.trials.proving import Proving

    proving = this_task.measuring = Proving(wanted["prove"], batch=wanted.get("batch") or "global")
    return proving


def _warm_up(imports: Imports, frameworks: Sequence[str]) -> BaseException | None:
    """Import the frameworks that the script will import. Return the error that the script would also meet, or None."""
    if imports.environment_unclear:
        return None
    os.environ.update(imports.environment)
    for name in frameworks:
        if name not in imports.named:
            continue
        try:
            with collector.paused(freeze=True):
                __import__(name)
        except Stopped:
            raise
        except BaseException as e:
            if name in imports.sure:
                return e
    return None


def _failed(link: Link, kind: str, error: BaseException, path: str) -> int:
    message = getattr(error, "orch_message", None) or last_line(error)
    if getattr(error, "orch_says_all", False):
        message = str(error)
        print(f"orch: {message}", file=sys.stderr)
    else:
        print_as_python_would(error)
    if kind == "import":
        message = f"{os.path.basename(path)} cannot import what it needs: {message}"
    link.send({"error": {"kind": kind, "message": message}}, wait_s=ERROR_WAIT_S)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


# The runtime's heartbeat to the shim, once per second, with the stage of the process. TensorFlow notices a
# peer that died, but never one that is frozen. A task that trains shows its progress. A task that only serves
# has no progress, so the heartbeat takes its place. It is sent by a thread of its own, because a script that
# is inside TensorFlow's C++ (`server.join()`, a long step) is alive.

INTERVAL_S = 1.0


def begin(stages: Stages, progress: Progress) -> None:
    """Start the thread. Call it after the release; before it, the deadline for the start applies."""
    threading.Thread(target=_send, args=(stages, progress), name="orch-heartbeat", daemon=True).start()


def _send(stages: Stages, progress: Progress) -> None:
    is_said = not this_task.options.get("rescue")
    while True:
        progress.catch_up()
        stages.send()
        if not is_said and progress.has_stepped:
            is_said = True
            with contextlib.suppress(Exception):  # of a TF_CONFIG of the script's own: the heartbeat goes on
                say_what_is_not_rescued()
                if this_task.rescue is not None:
                    threading.Thread(target=_rehearse, args=(progress,), daemon=True).start()
        time.sleep(INTERVAL_S)


def _rehearse(progress: Progress) -> None:
    progress.rescue = this_task.rescue.rehearse()


def say_what_is_not_rescued() -> None:
    """Say in the chief, where several train, why a survivor of a dead worker could hand over nothing."""
    from orchestrator.task import loops

    why = this_task.rescue.refusal() if this_task.rescue is not None else ""
    costs = f"a dead worker costs the steps since the last checkpoint: {why}" if why else WITHOUT_A_LINE
    if why is not None and this_task.link is not None and loops.is_chief() and loops.processes() > 1:
        this_task.link.say("no-rescue", costs)

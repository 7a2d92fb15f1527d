"""The rules between the values of a spec, and between the spec and the files beside it.

Each check yields places and sentences. It ignores only values that are invalid themselves, so a wrong port of one
host does not hide that two others have the same name.
"""

from __future__ import annotations

import os

from pydantic import BaseModel

from orchestrator.both.distribution import distribution
from orchestrator.both.script import module_file
from orchestrator.core.strategy import STRATEGIES
from orchestrator.spec import own_paths, setup
from orchestrator.spec.diagnostics import Diagnostics, Loc
from orchestrator.spec.durations import as_written
from orchestrator.spec.forms import ARGUMENT_BYTES_MAX, SPLIT, RecipientFile, env_name_diagnostic
from orchestrator.spec.models import Run, TimingSpec
from orchestrator.spec.parts import LOCAL_ADDRESS, Parts, absolute, tasks_of
from orchestrator.spec.sbatch import why_not
from orchestrator.spec.secrets import file_refusal, is_secret, looks_secret, read_secret
from orchestrator.spec.task_relations import task_relations

_SSH_KEYS = ("address", "user", "port", "identity_file", "known_hosts", "proxy_jump")


def relations(parts: Parts) -> Diagnostics:
    """Yield everything that is wrong between values."""
    for check in (
        _machines_somewhere,
        _names,
        _machines,
        _local_hosts,
        task_relations,
        _timing,
        _restart,
        _files,
        _setup,
        _checkpoint,
        _activate,
        _env,
        _args,
        _notify,
    ):
        yield from check(parts)


def _machines_somewhere(parts: Parts) -> Diagnostics:
    """Check that there are either hosts or a request to an engine, and not both."""
    slurm, pods = parts.slurm, parts.kubernetes
    if parts.is_empty:
        return
    counted_by = [
        (engine, key)
        for engine, key, part, count in (
            ("slurm", "nodes", slurm, slurm and slurm.value.nodes),
            ("kubernetes", "pods", pods, pods and pods.value.pods),
        )
        if part is not None and count is not None and part.good(key)
    ]
    if parts.has_hosts:
        for place in counted_by:
            yield place, f"as many {place[1]} are taken as there are hosts; leave one of the two out"
    elif len(counted_by) > 1:
        yield counted_by[1], "stands in place of hosts, as slurm.nodes does; leave one of the two out"
    elif not counted_by and slurm is None and pods is None:
        yield ("hosts",), "is missing: the machines; or `inventory`, a file of them"
    elif not counted_by and slurm is not None and slurm.good("nodes"):
        yield ("slurm", "nodes"), "is missing: how many nodes hold tasks, since there are no hosts"
    elif not counted_by and slurm is None and pods is not None and pods.good("pods"):
        yield ("kubernetes", "pods"), "is missing: how many pods hold tasks, since there are no hosts"
    if pods is not None and pods.good("pod"):
        from orchestrator.spec.kubernetes.objects import refused

        for loc, words in refused(pods.value.pod or {}):
            yield ("kubernetes", "pod", *loc), words
    if slurm is not None and slurm.good("options"):
        for i, option in enumerate(slurm.value.options):
            if (reason := why_not(option)) is not None:
                yield ("slurm", "options", i), reason


def _names(parts: Parts) -> Diagnostics:
    first: dict[str, int] = {}
    for i, host in enumerate(parts.hosts):
        if host.good("name") and first.setdefault(host.value.name, i) != i:
            yield ("hosts", i, "name"), f"hosts[{first[host.value.name]}] has this name already"


def _machines(parts: Parts) -> Diagnostics:
    """Check that no machine is listed twice: tasks would be placed on GPUs that are not free."""
    first: dict[tuple[str, int], tuple[int, str]] = {}
    for i, part in enumerate(parts.hosts):
        host = part.value
        if not part.good("name", "address", "port", "transport"):
            continue
        local = host.transport == "local"
        address = LOCAL_ADDRESS if local else (host.address or host.name)
        port = 0 if local else host.port or parts.ssh.value.port or 22
        before, name = first.setdefault((address.lower(), port), (i, host.name))
        if before != i and not (name == host.name and host.address is None):
            again = "this machine" if local else f"address {address}, port {port}"
            key = "transport" if local else "address"
            yield (
                ("hosts", i, key),
                f"the same machine as hosts[{before}]: {again}; give one host more `slots`",
            )


def _local_hosts(parts: Parts) -> Diagnostics:
    remote = any(host.good("transport") and host.value.transport == "ssh" for host in parts.hosts)
    for i, part in enumerate(parts.hosts):
        host = part.value
        if not part.good("transport") or host.transport != "local":
            continue
        for key in _SSH_KEYS:
            if getattr(host, key) is not None:
                yield ("hosts", i, key), "a local host is used without SSH; leave it out"
        if remote and part.good("data_address") and host.data_address is None:
            problem = f"the other hosts cannot reach {LOCAL_ADDRESS}; add data_address: this machine's address for them"
            yield ("hosts", i, "transport"), problem


def _timing(parts: Parts) -> Diagnostics:
    timing, good = parts.timing.value, parts.timing.good
    if good("heartbeat", "unreachable_after") and timing.unreachable_after < 3 * timing.heartbeat:
        yield (
            ("run", "timing", _written(timing, "unreachable_after", "heartbeat")),
            f"unreachable_after ({_duration(timing, 'unreachable_after')}) must be at least three times heartbeat "
            f"({_duration(timing, 'heartbeat')}): two heartbeats may be lost on the way",
        )
    if good("unreachable_after", "lost_after") and timing.lost_after <= timing.unreachable_after:
        yield (
            ("run", "timing", _written(timing, "lost_after", "unreachable_after")),
            f"lost_after ({_duration(timing, 'lost_after')}) must be more than unreachable_after "
            f"({_duration(timing, 'unreachable_after')}): SSH trouble alone is not a lost host",
        )


def _written(timing: TimingSpec, *keys: str) -> str:
    """Return the first of these keys that is set in the file, else the first."""
    return next((key for key in keys if key in timing.model_fields_set), keys[0])


def _duration(part: BaseModel, key: str) -> str:
    default = "" if key in part.model_fields_set else ", the default"
    return as_written(getattr(part, key)) + default


def _restart(parts: Parts) -> Diagnostics:
    restart = parts.restart.value
    if parts.restart.good("backoff", "backoff_max") and restart.backoff > restart.backoff_max:
        backoff, most = _duration(restart, "backoff"), _duration(restart, "backoff_max")
        key = "backoff" if "backoff" in restart.model_fields_set else "backoff_max"
        yield ("run", "restart", key), f"backoff ({backoff}) must not be above backoff_max ({most})"


def _files(parts: Parts) -> Diagnostics:
    run = parts.run.value
    if run.script and run.module:
        yield ("run", "module"), "stands beside `script`; leave one of the two out"
    elif parts.run.good("script", "module") and not (run.script or run.module):
        yield (
            ("run", "script"),
            "is missing: the training script, relative to workdir; or `module`, as pkg.train",
        )
    if not parts.run.good("workdir"):
        return
    workdir = absolute(run.workdir, parts.base_dir)
    if not os.path.isdir(workdir):
        yield ("run", "workdir"), f"no such directory: {workdir}"
    elif parts.run.good("script", "module") and (run.script or run.module):
        script = module_file(workdir, run.module) if run.module else os.path.join(workdir, run.script or "")
        named = os.path.relpath(script, workdir)
        what = _unfit_script(run, workdir, script, named) or _copies(parts, workdir, script, named)
        if what is not None:
            yield ("run", "module" if run.module else "script"), what


def _unfit_script(run: Run, workdir: str, path: str, script: str) -> str | None:
    """Return why this file cannot be what trains; None if it may."""
    top = os.path.realpath(workdir)
    if os.path.commonpath([top, os.path.realpath(path)]) != top:
        return f"{script} is a symlink that leaves workdir ({workdir}); it would not be pushed"
    if not os.path.isfile(path):
        if run.module:
            return own_paths.no_module(workdir, run.module)
        is_module = run.script and os.path.isfile(module_file(workdir, run.script))
        way = f"; `module: {run.script}` runs a module" if is_module else ""
        return f"no such file in workdir ({workdir}): {script}{way}"
    if (what := own_paths.why_not_python(path, runtime=run.runtime)) is not None:
        return f"{script} {what}"
    if not run.module and (what := own_paths.needs_package(path, workdir)) is not None:
        return f"{script}{what}"
    theirs = _shadowed(workdir if run.module else os.path.dirname(path)) if run.runtime else None
    if theirs is not None:
        return (
            f"{theirs} lies beside {script}, and no script finds it: in every task, `import orchestrator` is "
            "orch's own; rename it, or say `runtime: off`"
        )
    return None


def _copies(parts: Parts, workdir: str, path: str, script: str) -> str | None:
    """Return that each worker would train for itself, and the way out; None if the script may share the training."""
    run: Run = parts.run.value
    if not parts.run.good("strategy", "tasks", "transparent") or run.transparent:
        return None
    row = STRATEGIES[run.strategy]
    tasks_by_type = tasks_of(run)
    together = [tasks for type_, tasks in tasks_by_type.items() if type_ in row.needed | row.served]
    workers = sum(tasks.replicas for tasks in together)
    if any(tasks.gpus == SPLIT for tasks in together):
        workers = max(workers, len(parts.hosts))
    if workers < 2:
        return None
    found = distribution(path, workdir if run.module else "")
    if found.own_peers and row.tf_class:
        return (
            f"{found.own_peers} sets TF_CONFIG, and so other peers than the hosts of this file: remove that line; "
            "each task is given its own"
        )
    if not found.is_plain:
        return None
    way = "`transparent: true`"
    if not row.transparent:
        able = next(row.name for row in STRATEGIES.values() if row.transparent and not row.one_task)
        way = f"`strategy: {able}` with `transparent: true`"
    said = found.copies(script, row.name, row.tf_class, workers)
    if row.served:
        said = f"{said.partition(': ')[0]}: its chief would train alone"
    return f"{said}; {found.way_out(row.tf_class, way)}"


def _checkpoint(parts: Parts) -> Diagnostics:
    run: Run = parts.run.value
    if (
        run.checkpoint is None
        and run.on_nonfinite == "rollback"
        and parts.run.good("checkpoint", "on_nonfinite")
    ):
        yield ("run", "on_nonfinite"), "rollback needs a `checkpoint` to go back to"
    if run.checkpoint is None or not parts.run.good("checkpoint"):
        return
    loc: Loc = ("run", "checkpoint", "dir")
    if not run.runtime and "every" in run.checkpoint.model_fields_set:
        yield (
            ("run", "checkpoint", "every"),
            "needs the runtime, which is off: the script itself decides when to save",
        )
    if not run.checkpoint.shared and "evaluator" in (run.tasks or {}):
        yield (
            ("run", "checkpoint", "shared"),
            "false: an evaluator reads what the chief saves, and would not see it on another host",
        )
    if not parts.all_local:
        if not os.path.isabs(run.checkpoint.dir):
            yield loc, "must be an absolute path: it is a directory of the hosts, the same on each"
    elif parts.run.good("workdir"):
        top = os.path.realpath(absolute(run.workdir, parts.base_dir))
        directory = os.path.realpath(absolute(run.checkpoint.dir, parts.base_dir))
        if os.path.commonpath([top, directory]) == top:
            yield loc, "lies inside workdir, and would be pushed with the code; choose a directory outside it"


def _env(parts: Parts) -> Diagnostics:
    row = STRATEGIES.get(parts.run.value.strategy) if parts.run.good("strategy") else None
    # What a strategy gives at the release would go over what the spec says, without a word.
    given = row.gives() if row is not None else frozenset()

    def diagnostic(name: str) -> str | None:
        if (problem := env_name_diagnostic(name)) is None and row is not None and name in given:
            return f"{name} is set by orch for each task of `strategy: {row.name}`, and cannot be set here"
        return problem

    for name, value in parts.env.items():
        if problem := diagnostic(name):
            yield ("run", "env", name), problem
        elif isinstance(value, str) and 0 <= ARGUMENT_BYTES_MAX - len(os.fsencode(value)) <= len(name) + 1:
            yield (
                ("run", "env", name),
                f"with its name it has {ARGUMENT_BYTES_MAX} bytes or more, which Linux refuses",
            )
    for name, written in parts.secrets.items():
        if problem := diagnostic(name):
            yield ("run", "secrets", name), problem
        elif name in parts.env:
            yield ("run", "secrets", name), f"{name} stands in env too; keep one"
        if isinstance(written, str):
            try:
                read_secret(written, parts.base_dir)
            except ValueError as error:
                yield ("run", "secrets", name), str(error)


def _activate(parts: Parts) -> Diagnostics:
    run = parts.run
    if run.good("activate") and run.value.activate is not None and looks_secret("", run.value.activate):
        yield (
            ("run", "activate"),
            "seems to hold a secret; write that under `secrets`, whose files only you read",
        )


def _args(parts: Parts) -> Diagnostics:
    """Refuse a password in an argument: whoever is on a host reads it in `ps`."""
    if not parts.run.good("args"):
        return
    for number, text in enumerate(parts.run.value.args):
        if is_secret(text):
            yield (
                ("run", "args", number),
                "a password, a key or a token (also within a URL): everybody on a host reads a command line; put it "
                "into `secrets`, whose variable the script reads",
            )


def _shadowed(folder: str) -> str | None:
    """Return a file or folder of the user with the name of orch's package, which would hide it from scripts."""
    module, package = "orchestrator.py", os.path.join("orchestrator", "__init__.py")
    ours = os.path.isfile(os.path.join(folder, "orchestrator", "bundle_main.py"))
    return next((n for n in (module, package) if not ours and os.path.isfile(os.path.join(folder, n))), None)


def _setup(parts: Parts) -> Diagnostics:
    """Check the requirements, and that there are hosts to set up."""
    if parts.setup is None:
        return
    asked = parts.setup.value
    if not parts.has_hosts and not parts.is_empty:
        yield (
            ("setup",),
            "is for hosts of the file; what an engine lends has its packages in an image or a module",
        )
    elif parts.setup.good("requirements", "offline"):
        try:
            setup.read(absolute(asked.requirements, parts.base_dir), offline=asked.offline)
        except ValueError as e:
            yield ("setup", "requirements"), str(e)


def _notify(parts: Parts) -> Diagnostics:
    """Check the files that hold a recipient's URL."""
    notify = parts.run.value.notify
    if notify is None or not parts.run.good("notify"):
        return
    for number, to in enumerate(notify.to):
        if isinstance(to, RecipientFile) and (problem := file_refusal(to, parts.base_dir)):
            yield ("run", "notify", "to", number), problem

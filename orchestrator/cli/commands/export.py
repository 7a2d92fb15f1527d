"""`orch export`: write a cluster spec as what another engine reads."""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import Group, json_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import SpecError, UsageError

if TYPE_CHECKING:
    from orchestrator.core.plan import Plan
    from orchestrator.spec.kubernetes.wishes import Wishes

_QUANTITY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


class _Form(click.ParamType[str]):
    """A parameter whose whole text must match a pattern."""

    def __init__(self, name: str, pattern: re.Pattern[str], example: str) -> None:
        self.name = name
        self._pattern = pattern
        self._example = example

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text. Fail with an example where it does not match."""
        if not self._pattern.fullmatch(value):
            self.fail(f"{value!r} is no {self.name}, such as {self._example}", param, ctx)
        return value


_SIZE = _Form("quantity", _QUANTITY, "2Gi")
_NAME = _Form("name of RFC 1123", _LABEL, "mnist-data")


@click.group(
    "export",
    cls=Group,
    examples=[
        ("orch export k8s cluster.yaml --image tensorflow/tensorflow:2.19.0 > mnist.yaml", "As a JobSet"),
        ("orch export slurm cluster.yaml", "As a batch script of Slurm"),
    ],
)
def command() -> None:
    """Write FILE in the format of another engine. Nothing is contacted and nothing is started."""


@command.subcommand(
    "slurm",
    examples=[
        ("orch export slurm cluster.yaml", "Print the batch script of a run"),
        ("orch export slurm cluster.yaml --json", "As a document, for scripts"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@json_option("Print a document with the script.")
def slurm(session: Session, file: str) -> None:
    """Print the script that `orch up --on slurm FILE` submits. Nothing is written or submitted."""
    from orchestrator.client.on_slurm import script_of

    script = script_of(file, session)
    session.answer({"schema": 1, "script": script}, script.rstrip())


@command.subcommand(
    "k8s",
    examples=[
        ("orch export k8s cluster.yaml --image tensorflow/tensorflow:2.19.0 > mnist.yaml", "As a JobSet"),
        (
            "orch export k8s cluster.yaml --image mine:1 --claim-only > claim.yaml",
            "Its claim, to create once",
        ),
        ("orch export k8s cluster.yaml --image mine:1 --code /app", "The image has the code"),
        ("orch export k8s cluster.yaml --image mine:1 --claim shared-nfs --json", "On a claim that is there"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option(
    "--image",
    required=True,
    type=_Form("image", _IMAGE, "mine:1"),
    help="The image that has Python and TensorFlow.",
)
@click.option(
    "--kind",
    type=click.Choice(["jobset", "job"]),
    default="jobset",
    hidden=True,
)
@click.option(
    "--code", "code_dir", help="The directory of the image that has the code. Default: a ConfigMap."
)
@click.option("--python", help="The image's Python. Default: `run.python` of the spec, else python3.")
@click.option("--claim", type=_NAME, help="An existing PersistentVolumeClaim, for the checkpoints.")
@click.option(
    "--claim-only",
    is_flag=True,
    help="Print the claim of the checkpoints alone. It is created once, and outlives what else is printed.",
)
@click.option("--storage", type=_SIZE, default="20Gi", show_default=True, help="The size of a new claim.")
@click.option("--shm", type=_SIZE, default="2Gi", show_default=True, help="The size of /dev/shm.")
@click.option("--cpu", type=_SIZE, help="The CPUs of each pod, as request and limit.")
@click.option("--memory", type=_SIZE, help="The memory of each pod, as request and limit.")
@click.option("--namespace", type=_NAME, help="The namespace. Default: kubectl's own.")
@click.option(
    "--restarts",
    type=click.IntRange(0, 10000),
    default=100,
    show_default=True,
    help="How many restarts after failures; without progress, the pods give up sooner.",
)
@click.option(
    "--save-wait",
    "save_wait_s",
    type=click.IntRange(0, 86400),
    default=120,
    show_default=True,
    help="How many seconds a pod that must end may go on, to save one more checkpoint.",
)
@json_option("Print a List as JSON.")
def kubernetes(session: Session, /, file: str, kind: str, claim_only: bool, **options: Any) -> None:
    """Print FILE as a JobSet of Kubernetes.

    Each pod runs orch's entry point. It verifies the checkpoint, fences the generation, watches for stalls, and ends
    with an exit code by which Kubernetes starts the pod again, or does not. `hosts:` of FILE is not used.
    """
    from orchestrator.head.code import bundle
    from orchestrator.spec.kubernetes.manifests import as_list, as_yaml, claims, manifests
    from orchestrator.spec.kubernetes.wishes import Wishes, notes
    from orchestrator.spec.load import load_spec
    from orchestrator.spec.plan import load_plan

    if kind == "job":
        raise UsageError(
            "a plain Job is not written any more: it counts one lost pod as several failures, ends when a pod is "
            "deleted, and does not replace the pods of a dead node",
            hint="leave out --kind: a JobSet does all three right; install its controller (jobset.sigs.k8s.io)",
        )
    plan, _ = load_plan(file)
    spec = load_spec(file)
    options["python"] = options["python"] or spec.run.python or "python3"
    options["save_wait_s"] = float(options["save_wait_s"])
    wishes = Wishes(**options, pod=spec.kubernetes.pod if spec.kubernetes else None)
    _check(file, plan, wishes)
    if claim_only:
        objects, remarks = claims(plan, wishes), notes(plan, wishes)[:1]
        if not objects:
            raise UsageError(
                "there is no claim to make",
                hint="leave out --claim"
                if wishes.claim
                else "`checkpoint: {dir: …}` in the file asks for one",
            )
    else:
        objects = manifests(plan, wishes, bundle.packed(), None if wishes.code_dir else _code(file, plan))
        remarks = notes(plan, wishes)
    session.put((as_list(objects) if session.wants_json else as_yaml(objects, remarks)).rstrip("\n"))
    for remark in remarks[1:]:
        session.say(f"note: {remark}")


def _check(file: str, plan: Plan, wishes: Wishes) -> None:
    from orchestrator.spec.kubernetes.wishes import refusals
    from orchestrator.spec.load import located

    if wishes.code_dir is not None and not os.path.isabs(wishes.code_dir):
        raise UsageError(
            f"--code {wishes.code_dir} is no absolute path", hint="name the directory in the image"
        )
    refused = [located(file, loc, words) for loc, words in refusals(plan)]
    if refused:
        raise SpecError("\n".join(refused))


def _code(file: str, plan: Plan) -> bytes:
    """Return what would be pushed to hosts, as a zip archive that fits into a ConfigMap."""
    from orchestrator.both.tree_digest import DIRECTORY
    from orchestrator.head.code.snapshots import Snapshots
    from orchestrator.spec.kubernetes.wishes import CONFIG_MAP_BYTES_MAX
    from orchestrator.spec.load import located

    buffer = io.BytesIO()
    with (
        tempfile.TemporaryDirectory() as directory,
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
    ):
        snapshot = Snapshots(directory).take(plan)
        for entry in snapshot.files:
            info = zipfile.ZipInfo(entry.path, _ZIP_TIME)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = entry.mode << 16
            archive.writestr(info, b"" if entry.mode == DIRECTORY else snapshot.content(entry))
    data = buffer.getvalue()
    room = CONFIG_MAP_BYTES_MAX - len("code.zip")
    if len(data) > room:
        words = f"the code has {len(data):,} bytes as a zip archive, and a ConfigMap holds {room:,}"
        raise SpecError(
            located(file, ("run", "workdir"), words),
            hint="put the code into the image and name its directory with --code, or name data in .orchignore",
        )
    return data

"""Interprets names of files and directories: whether the save was finished, its step, and its set of files."""

from __future__ import annotations

import os

_UNFINISHED_ENDINGS = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".new", ".swp", "~")
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"

_STEP_WORDS = ("step", "steps", "globalstep", "iter", "iters", "iteration", "iterations", "it")
_SAVE_WORDS = ("", "checkpoint", "ckpt", "chkpt", "cp", "model", "weights", "state", "params", "save")
_FOLDER_WORDS = (*_STEP_WORDS, *_SAVE_WORDS, "epoch", "ep", "snapshot")
_PART_WORDS = ("optimizer", "optim", "opt", "scheduler")
_RANK_WORDS = (
    "rank",
    "shard",
    "part",
    "worker",
    "process",
    "proc",
    "host",
    "node",
    "gpu",
    "device",
    "mp",
    "tp",
    "pp",
)

_STAMPS = ("commit_success", "committed", "complete", "completed", "done", "finished", "success")
_RANDOM = "rng"
"""The state of a random generator is numbered by its rank: `rng_state_0.pth`."""

_DIGITS_MAX = 9
"""A longer number is a time, and no step."""

_DISTRIBUTED_STAMP = ".metadata"
"""torch.distributed.checkpoint writes it last, beside its `.distcp` files."""

_ENDINGS = (
    *(".weights.h5", ".h5", ".hdf5", ".keras", ".npz", ".pt", ".pth", ".ckpt", ".safetensors"),
    *(".index.json", ".index", ".bin", ".pkl", ".pickle", ".msgpack", ".npy", ".json"),
)


def is_temporary(name: str) -> bool:
    """Whether it is the name of something that is still being written, or was never finished.

    >>> [is_temporary(name) for name in ("a.npz.tmp", "tmp-checkpoint-5", "7.orbax-checkpoint-tmp-1", "state.npz")]
    [True, True, True, False]
    """
    lower = name.lower()
    if lower.endswith(_UNFINISHED_ENDINGS) or lower.startswith("tmp") or _ORBAX_TEMPORARY in lower:
        return True
    return "tmp" in _runs(lower)


def step_in(name: str) -> int | None:
    """Return the global step that a name tells: the number after a word for steps, or for what is saved.

    A number after any other word is no step: it may be a size, a score or a version. For an epoch there is no step.

    >>> [step_in(name) for name in ("step_000120", "model-120.npz", "epoch=3-step=100.ckpt", "120", "weights.07.h5")]
    [120, 120, 100, 120, 7]
    >>> [step_in(name) for name in ("resnet50.pt", "epoch_3.pt", "val-0.98.pt", "model-00001-of-00003.safetensors")]
    [None, None, None, None]
    """
    lower = whole_set(name).lower()
    numbers = [] if _RANDOM in _runs(lower) else _numbers(lower)
    for words in (_STEP_WORDS, _SAVE_WORDS):
        for word, number in reversed(numbers):
            if word in words:
                return number
    return None


def place_in_series(name: str, *, has_siblings: bool) -> int | None:
    """Return the number by which a script counts what it saves: the step, or the epoch, or any other.

    Args:
        name: of the file.
        has_siblings: there are others whose names differ in numbers only; else a number may be a part of the name.

    >>> [place_in_series(name, has_siblings=True) for name in ("epoch_3.pt", "generator-7.pt", "model-rank1.pt")]
    [3, 7, None]
    >>> [place_in_series(name, has_siblings=False) for name in ("epoch_3.pt", "resnet50.pt")]
    [3, None]
    """
    step = step_in(name)
    lower = whole_set(name).lower()
    if step is not None or _RANDOM in _runs(lower):
        return step
    numbers = [(word, number) for word, number in _numbers(lower) if word not in _RANK_WORDS]
    likely = [
        number for word, number in numbers if has_siblings or word in _FOLDER_WORDS or word in _PART_WORDS
    ]
    return likely[-1] if likely else None


def is_step_folder(name: str) -> bool:
    """Whether a directory holds what was saved at one step: `step_120`, `checkpoint-500`, `epoch=3`, `120`.

    >>> [is_step_folder(name) for name in ("checkpoint-500", "global_step100", "120", "run-3", "checkpoints")]
    [True, True, True, False, False]
    """
    return any(word in _FOLDER_WORDS for word, _ in _numbers(name.lower()))


def family(name: str) -> str:
    """Take the numbers out of a name: what is left is equal for all that one script saves at different steps.

    >>> family("model-120.npz") == family("model-20.npz") != family("optimizer-20.npz")
    True
    """
    return "".join("#" if run.isdecimal() else run for run in _runs(name.removesuffix(".bkp")))


def series(path: str) -> tuple[str, str]:
    """Return folder and name without the numbers by which a script counts: where the name has none, those of folders.

    >>> series("fit-0/epoch-3/all.h5") == series("fit-0/epoch-4/all.h5") != series("fit-1/epoch-4/all.h5")
    True
    >>> series("model-1/ckpt-3") == series("model-1/ckpt-4") != series("model-2/ckpt-4")
    True
    """
    folder, name = os.path.split(path)
    if not _numbers(name.removesuffix(".bkp").lower()):
        folder = os.sep.join(family(each) if is_step_folder(each) else each for each in folder.split(os.sep))
    return folder, family(name)


def whole_set(name: str) -> str:
    """Return the name of the set that a shard is one of.

    >>> whole_set("model-00001-of-00003.safetensors")
    'model.safetensors'
    """
    import re

    return re.sub(r"-\d+-of-\d+", "", name)


def is_stamp(name: str) -> bool:
    """Whether a file by that name says that what it lies beside was written whole: `DONE`, `_SUCCESS`.

    >>> [is_stamp(name) for name in ("DONE", "_SUCCESS", "commit_success.txt", ".metadata", "model.bin")]
    [True, True, True, True, False]
    """
    return name == _DISTRIBUTED_STAMP or name.strip("._").partition(".")[0].lower() in _STAMPS


def is_log(name: str) -> bool:
    """Whether it is what a training writes for people: TensorBoard's events, logs, and hidden files."""
    return name.startswith((".", "events.out.tfevents")) or name.endswith(".log")


def _numbers(name: str) -> list[tuple[str, int]]:
    """(word, number) of every whole number in a name, with the word right before it.

    A number that is the whole name has the word "". One that no word comes before, and a fraction, are left out.
    """
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    runs = _runs(name)
    numbers = []
    word: str | None = "" if len(runs) == 1 else None
    for at, run in enumerate(runs):
        if run.isalpha():
            word = run
        elif run.isdecimal() and word is not None:
            is_fraction = runs[at + 1 : at + 2] == ["."] and "".join(runs[at + 2 : at + 3]).isdecimal()
            if not is_fraction and len(run) <= _DIGITS_MAX:
                numbers.append((word, int(run)))
            word = None
    return numbers


def _runs(name: str) -> list[str]:
    """Cut a name into runs of letters, runs of digits, and what stands between them, in order."""
    runs: list[str] = []
    for letter in name:
        kind = (letter.isalpha(), letter.isdecimal())
        if runs and any(kind) and (runs[-1][-1].isalpha(), runs[-1][-1].isdecimal()) == kind:
            runs[-1] += letter
        else:
            runs.append(letter)
    return runs

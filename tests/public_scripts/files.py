"""The files that public scripts read, small and made up: in ~/.keras of a HOME of their own, and beside the script."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

_WORDS = [
    "the",
    "cat",
    "sees",
    "a",
    "red",
    "house",
    "and",
    "then",
    "some",
    "old",
    "dog",
    "runs",
    "over",
    "it",
    "while",
    "we",
    "sing",
]


def _sentence(random: np.random.Generator, most: int = 8) -> str:
    return " ".join(random.choice(_WORDS, random.integers(3, most)))


def write_home(home: Path) -> None:
    """Write what `keras.utils.get_file` finds, below this HOME."""
    random = np.random.default_rng(3)
    sets = home / ".keras" / "datasets"
    sets.mkdir(parents=True)
    (sets / "nietzsche.txt").write_text(". ".join(_sentence(random) for _ in range(26)))
    pairs = [(_sentence(random, 5), _sentence(random, 5)) for _ in range(200)]
    (sets / "fra.txt").write_text("".join(f"{a}\t{b}\tno one\n" for a, b in pairs))
    (sets / "spa-eng").mkdir()
    (sets / "spa-eng" / "spa.txt").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    for name in ("fra-eng.zip", "spa-eng.zip"):
        with zipfile.ZipFile(sets / name, "w") as archive:
            archive.write(sets / "fra.txt", "fra.txt")
            archive.write(sets / "spa-eng" / "spa.txt", "spa-eng/spa.txt")
    np.save(sets / "moving_mnist.npy", random.integers(0, 255, (6, 64, 16, 16), dtype="uint8"))
    _reviews(sets / "aclImdb", random)
    (sets / "aclImdb_v1.tar.gz").write_bytes(b"")
    _images(home / ".keras", random)


def write_beside(work: Path) -> None:
    """Write what scripts read from their working directory."""
    random = np.random.default_rng(4)
    _reviews(work / "aclImdb", random)
    for name in ("FordA_TRAIN.tsv", "FordA_TEST.tsv"):
        rows = random.normal(size=(120 if "TRAIN" in name else 40, 64))
        signs = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)
        np.savetxt(work / name, np.hstack([signs[:, None], rows + signs[:, None]]), delimiter="\t")
    cards = np.hstack([random.normal(size=(400, 30)), (random.random((400, 1)) < 0.1)])
    header = ",".join(f'"V{number}"' for number in range(31))
    lines = [",".join([*(f"{v:.5f}" for v in row[:-1]), f'"{int(row[-1])}"']) for row in cards]
    (work / "creditcard.csv").write_text("\n".join([header, *lines]) + "\n")
    _pictures(work, random)


def _reviews(directory: Path, random: np.random.Generator) -> None:
    for part in ("train", "test"):
        for kind in ("pos", "neg", "unsup"):
            place = directory / part / kind
            place.mkdir(parents=True)
            for number in range(40):
                (place / f"{number}_7.txt").write_text(_sentence(random, 30))


def _picture(
    path: Path, random: np.random.Generator, shape: tuple[int, ...], values: tuple[int, int] = (0, 256)
) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random.integers(*values, shape, dtype="uint8")).save(path)


def _images(directory: Path, random: np.random.Generator) -> None:
    for side in ("left", "right"):
        for number in range(64):
            _picture(directory / side / f"{number:05d}.jpg", random, (64, 64, 3))


def _pictures(work: Path, random: np.random.Generator) -> None:
    for number in range(96):
        _picture(work / "celeba_gan" / f"{number:03d}.jpg", random, (64, 64, 3))
        name = "".join(random.choice(list("2345678bcdefg"), 5))
        _picture(work / "captcha_images_v2" / f"{name}.png", random, (50, 200))
        _picture(work / "images" / f"pet_{number:03d}.jpg", random, (40, 40, 3))
        trimap = work / "annotations" / "trimaps" / f"pet_{number:03d}.png"
        _picture(trimap, random, (40, 40), values=(1, 4))
    with zipfile.ZipFile(work / "celeba_gan" / "data.zip", "w"):
        pass

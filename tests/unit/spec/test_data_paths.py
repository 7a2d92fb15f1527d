"""Which data a script reads by a path."""

from __future__ import annotations

from pathlib import Path

from orchestrator.spec.data_paths import data_paths

SCRIPT = """
import os
D = "/mnt/data"
open("/data/a.txt"); open("/data/out.txt", "w"); open("beside.txt"); open("/dev/null")
tf.data.TFRecordDataset([D + "/a.tfrecord", os.path.join(D, "b")])
tf.data.Dataset.list_files("/mnt/set/*/x.jpg")
parser.add_argument("--data", default="~/data/mnist")
pd.read_csv("https://example.org/b.csv")
keras.utils.image_dataset_from_directory(directory=f"{D}/train/{i}")
np.load(given)
"""


def test_paths_that_are_spelled_out_and_read_are_found_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(SCRIPT)
    assert data_paths(str(tmp_path / "t.py")) == {
        "/data/a.txt": "t.py:4",
        "/mnt/data/a.tfrecord": "t.py:5",
        "/mnt/data/b": "t.py:5",
        "/mnt/set": "t.py:6",
        "~/data/mnist": "t.py:7",
    }


def test_what_cannot_be_parsed_reads_nothing_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("open('/data/a'\n")
    assert data_paths(str(tmp_path / "t.py")) == {}


def test_the_places_in_a_module_are_told_from_where_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "train.py").write_text("import shared\nopen('/data/a')\n")
    (tmp_path / "shared.py").write_text("open('/data/b')\n")
    found = data_paths(str(tmp_path / "lab" / "train.py"), str(tmp_path))
    assert found == {"/data/a": "lab/train.py:2", "/data/b": "shared.py:1"}

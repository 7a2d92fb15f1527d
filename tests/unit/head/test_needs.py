"""Which modules a script needs on its hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.both.script import module_file, surely_imported
from orchestrator.head.code import needs


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import yaml\nimport os.path, json as j\n", {"yaml": "t.py:1", "os": "t.py:2", "json": "t.py:2"}),
        ("\nfrom pandas.io import json\n", {"pandas": "t.py:2"}),
        ("with open('x'):\n    import yaml\n", {"yaml": "t.py:2"}),
        ("try:\n    import yaml\nexcept ImportError:\n    yaml = None\n", {}),
        ("if x:\n    import yaml\ndef f():\n    import yaml\n", {}),
        ("from . import helper\nimport tensorflow as tf\nfrom keras import layers\n", {}),
        ("import sys\nsys.path.append('/opt/lib')\nimport yaml\n", {}),
        ("import yaml\nfrom lib.deep import x\n", {"yaml": "t.py:1", "tomli": "lib/deep.py:1"}),
        ("import lib.data\n", {}),
        ("import beside\n", {"attrs": "beside.py:2"}),
        ("import (\n", {}),
    ],
)
def test_what_a_script_imports_in_any_case(tmp_path: Path, source: str, found: dict[str, str]) -> None:
    (tmp_path / "t.py").write_text(source)
    (tmp_path / "beside.py").write_text("# a circle is followed once\nimport attrs\nimport t\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/deep.py").write_text("import tomli\n")
    shown = needs.modules(str(tmp_path / "t.py"))
    shown.pop("sys", None)
    assert {name: place for name, place in shown.items() if place != "t.py:1" or name in found} == found


def test_a_module_needs_what_its_packages_and_their_other_modules_import(tmp_path: Path) -> None:
    (tmp_path / "pkg/sub").mkdir(parents=True)
    for name, source in {
        "__init__": "import yaml\n",
        "sub/__init__": "",
        "sub/train": "from ..model import build\nfrom . import data\nfrom ... import beyond\nimport beside\n",
        "sub/data": "\nimport pandas\n",
        "model": "import tensorflow\nimport attrs\n",
        "../beside": "import tomli\n",
    }.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(source)
    train = module_file(str(tmp_path), "pkg.sub.train")
    assert train == str(tmp_path / "pkg/sub/train.py")
    assert needs.modules(train, str(tmp_path)) == {
        "yaml": "pkg/__init__.py:1",
        "pandas": "pkg/sub/data.py:2",
        "attrs": "pkg/model.py:2",
        "tomli": "beside.py:1",
    }
    assert surely_imported(train, str(tmp_path)) == {"tensorflow"}
    assert surely_imported(train) == set(), "as a script it would not come so far"


def test_a_script_is_sent_as_text_or_not_at_all(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_bytes(b"x = 1\n")
    assert needs.source(str(script)) == "x = 1\n"
    script.write_bytes(b"\xff\xfe")
    assert needs.source(str(script)) is None
    script.write_text("#" * (needs.SOURCE_BYTES_MAX + 1))
    assert needs.source(str(script)) is None
    assert needs.source(str(tmp_path / "missing.py")) is None


USES = "import tensorflow as tf, pandas as pd\nfrom keras.callbacks import TensorBoard\nfrom keras import utils\n"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("model.fit(x, callbacks=[TensorBoard('logs')])\n", {"tensorboard": "t.py:4, by TensorBoard"}),
        ("tf.keras.callbacks.TensorBoard('logs')\n", {"tensorboard": "t.py:4, by TensorBoard"}),
        (
            "def main():\n    shown()\ndef shown():\n    utils.plot_model(m)\nif __name__ == '__main__':\n    main()\n",
            {"pydot": "t.py:7, by plot_model"},
        ),
        ("pd.read_parquet('x')\n", {"pyarrow": "t.py:4, by read_parquet"}),
        ("def never():\n    TensorBoard('logs')\n", {}),
        ("try:\n    TensorBoard('logs')\nexcept ImportError:\n    pass\n", {}),
        ("if wanted:\n    utils.plot_model(m)\n", {}),
        ("def plot_model(m): ...\nplot_model(m)\nwandb.keras.TensorBoard()\n", {}),
    ],
)
def test_what_a_call_implies_is_needed_where_it_is_surely_made(
    tmp_path: Path, lines: str, found: dict[str, str]
) -> None:
    (tmp_path / "t.py").write_text(USES + lines)
    shown = needs.modules(str(tmp_path / "t.py"))
    assert {name: place for name, place in shown.items() if name != "pandas"} == found

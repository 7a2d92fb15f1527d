"""The plot of `orch scale`: what it draws is what was measured, and where it cannot be drawn nothing is trained."""

from __future__ import annotations

import ast
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

import orchestrator
from orchestrator.cli.show.scale_plot import draw, figure
from orchestrator.reporting.scaling import Measured, table, verdict
from tests.contract.fake_api import FakeApi
from tests.unit.cli.desk import Desk

ONE = Measured(1, 0.10, 0.09, 0.11, batch=64, input_free_s=0.08)
TWO = Measured(2, 0.08, 0.07, 0.09, batch=64, input_free_s=0.07)


def drawn(*sizes: Measured) -> tuple[Axes, Axes]:
    rows = table(sizes)
    speedups, steps = figure(rows, "mnist.yaml", verdict(rows)).axes
    return speedups, steps


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_speedups_and_the_parts_of_a_step_are_drawn_to_scale() -> None:
    speedups, steps = drawn(ONE, TWO)
    ideal, real = speedups.lines
    assert np.asarray(real.get_xydata()).tolist() == [[1.0, 1.0], [2.0, pytest.approx(1.25)]]
    assert np.asarray(ideal.get_xydata()).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    heights = [bar.get_height() for bar in steps.patches if isinstance(bar, Rectangle)]
    assert sum(heights) == pytest.approx(100 + 80), "the steps of both sizes, in milliseconds"
    assert heights[2:4] == pytest.approx([20, 10]), "input"
    assert labels(steps) == ["computation", "input", "communication"]
    assert {"100", "80"} <= {text.get_text() for text in steps.texts}


def test_what_was_not_measured_is_in_no_legend() -> None:
    assert labels(drawn(Measured(3, 0.1, 0.1, 0.1))[1]) == ["computation"]


def test_an_svg_is_whole_with_its_text_and_a_png_is_one(tmp_path: Path) -> None:
    rows = table([ONE, TWO])
    for name in ("a.svg", "again.svg", "a.png"):
        draw(str(tmp_path / name), rows, "a<b>&$x$.yaml", verdict(rows))
    texts = [
        "".join(text.itertext())
        for text in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {"a<b>&$x$.yaml", "1.25x", "ms a step"} <= set(texts)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("out.gif", "it draws .svg and .png"),
        ("none/out.svg", "there is no directory"),
        ("taken.png", "it cannot be written"),
    ],
)
def test_a_plot_that_could_not_be_written_is_refused_before_anything_is_trained(
    orch: Desk, api: FakeApi, tmp_path: Path, spec: str, path: str, problem: str
) -> None:
    (tmp_path / "taken.png").mkdir()
    assert orch("scale", spec, "--replicas", "1,2", "--plot", str(tmp_path / path)) == 2
    assert problem in orch.said
    assert api.posted == []


def test_without_matplotlib_nothing_is_trained_and_the_way_out_is_named(
    orch: Desk, api: FakeApi, tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "orchestrator.cli.show.scale_plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert orch("scale", spec, "--replicas", "1,2", "--plot", str(tmp_path / "out.png")) == 1
    assert orch.said.startswith("error: --plot needs matplotlib, which cannot be imported here: ")
    assert "hint: `pip install 'orch-tf[plot]'` installs it" in orch.said
    assert api.posted == []
    assert not (tmp_path / "out.png").exists()


def test_only_the_plot_imports_matplotlib_and_only_its_command_the_plot() -> None:
    package = Path(orchestrator.__file__).parent
    found: dict[str, set[str]] = {"matplotlib": set(), "orchestrator.cli.show.scale_plot": set()}
    for path in package.rglob("*.py"):
        text = path.read_text()
        if not any(name.rpartition(".")[2] in text for name in found):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                for wanted, users in found.items():
                    if f"{name}.".startswith(f"{wanted}."):
                        users.add(str(path.relative_to(package)))
    assert found == {
        "matplotlib": {"cli/show/scale_plot.py"},
        "orchestrator.cli.show.scale_plot": {"cli/commands/scale.py"},
    }

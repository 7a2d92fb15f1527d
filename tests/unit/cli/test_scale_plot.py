"""The plot of `orch scale`: well-formed, and what it draws is what was measured."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from orchestrator.cli.commands.scale import _check_plot
from orchestrator.cli.scale_plot import svg
from orchestrator.core.errors import UsageError
from orchestrator.core.scaling import Measured, table, verdict

_SVG = "{http://www.w3.org/2000/svg}"


def drawn(*sizes: Measured, name: str = "mnist.yaml") -> ET.Element:
    rows = table(sizes)
    return ET.fromstring(svg(rows, name, verdict(rows)))


def texts(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{_SVG}text")]


ONE = Measured(1, 0.10, 0.09, 0.11, batch=64, input_free_s=0.08)
TWO = Measured(2, 0.08, 0.07, 0.09, batch=64, input_free_s=0.07)


def test_speedups_and_the_parts_of_a_step_are_drawn_to_scale() -> None:
    root = drawn(ONE, TWO)
    assert {"1.00x", "1.25x", "100", "80", "input", "communication"} <= set(texts(root))
    high: dict[str, list[float]] = {}
    for bar in root.iter(f"{_SVG}rect"):
        if float(bar.get("height", "0")) > 10 and bar.get("fill") != "white":
            high.setdefault(bar.get("fill", ""), []).append(float(bar.get("height", "0")))
    assert sum(map(sum, high.values())) == pytest.approx(250 * 1.8, abs=2), (
        "both steps, of which one is the highest"
    )
    assert high["#c99a1e"] == pytest.approx([250 * 0.2, 250 * 0.1], abs=1), "input"


def test_one_size_and_names_with_markup_are_drawn_too() -> None:
    root = drawn(Measured(3, 0.1, 0.1, 0.1), name="a<b>&.yaml")
    assert "a<b>&.yaml" in texts(root)
    assert "input" not in texts(root), "what was not measured is in no legend"


def test_a_plot_that_could_not_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--plot writes SVG"):
        _check_plot("out.png")
    with pytest.raises(UsageError, match="there is no directory"):
        _check_plot(str(tmp_path / "none" / "out.svg"))
    _check_plot(str(tmp_path / "out.svg"))

"""The Python of a host that has one distribution and what it requires."""

from __future__ import annotations

import subprocess

import pytest

from tests.lean import python_with

FOUND = """
import importlib.util, json, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name)))
"""


def found_by(python: str, *names: str) -> list[str]:
    return subprocess.run(
        [python, "-c", FOUND, *names], capture_output=True, text=True, check=True
    ).stdout.split()


def test_it_has_what_was_asked_for_with_its_requirements_and_nothing_else() -> None:
    pytest.importorskip("paramiko")
    # fabric requires paramiko and invoke; pytest is ours alone.
    assert found_by(python_with("fabric"), "fabric", "paramiko", "invoke", "pytest") == [
        "fabric",
        "paramiko",
        "invoke",
    ]


def test_what_is_not_installed_is_left_out() -> None:
    assert found_by(python_with("no-such-distribution", "invoke"), "invoke", "fabric") == ["invoke"]


def test_the_same_distributions_are_the_same_interpreter() -> None:
    python_with.cache_clear()
    first = python_with("invoke")
    python_with.cache_clear()
    assert python_with("invoke") == first

"""The table of CONTRIBUTING.md: what a newcomer is sent to is there, and rows are where it says that they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.concerns import CONCERNS
from orchestrator.reporting.findings import CATALOGUE
from tests.unit.test_imports import PACKAGE

ROOT = PACKAGE.parent
NAME = re.compile(r"[A-Za-z_]+")


def rows() -> dict[str, str]:
    """Return by what is added: its row of the table."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page[page.index("  | To add") :].partition("\n\n")[0].splitlines()[2:]
    return {line.split("|")[1].strip(): line for line in table}


ROWS = rows()
KINDS = ("strategy", "command", "cause", "concern", "finding", "spec field", "order", "number, text or flag")


def defined(file: Path) -> set[str]:
    """Return the names that a module defines."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names |= {target.id} if isinstance(target, ast.Name) else set()
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_a_row_for_it(kind: str) -> None:
    assert [added for added in ROWS if added.startswith((f"a {kind}", f"an {kind}"))]


@pytest.mark.parametrize("added", ROWS)
def test_what_its_row_names_is_there(added: str) -> None:
    module = None
    for named in re.findall(r"`([^`]+)`", ROWS[added]):
        path, _, name = named.partition(":")
        if "/" in path and " " not in path:
            (found,) = [file for file in (PACKAGE / path, ROOT / path) if file.exists()]
            assert found.is_dir() == path.endswith("/"), named
            module = found
        elif NAME.fullmatch(named) and named[0].isupper() and named != "CONCERN":
            name = named  # of the file that was named before it
        if name:
            assert module is not None
            assert name in defined(module), named


def test_a_module_with_the_record_of_a_concern_is_in_the_order() -> None:
    files = [file for file in (PACKAGE / "core").rglob("*.py") if "CONCERN" in defined(file)]
    assert len(files) > 15
    order = (PACKAGE / "core/concerns.py").read_text()
    assert [file.stem for file in files if f"    {file.stem}.CONCERN,\n" not in order] == []
    assert len({concern.name for concern in CONCERNS}) == len(CONCERNS)


def test_a_finding_is_found_where_the_table_says() -> None:
    finding = [*(PACKAGE / "head/hosts").glob("*.py"), PACKAGE / "cli/commands/doctor.py"]
    judged = "".join(file.read_text() for file in finding)
    of_causes = {cause.row.finding for cause in Cause}
    lost = [row.id for row in CATALOGUE if not row.codes and row.id not in of_causes and row.id not in judged]
    assert lost == []


def test_a_cause_is_found_somewhere() -> None:
    sources = "".join(file.read_text() for file in PACKAGE.rglob("*.py") if file.name != "causes.py")
    assert [
        cause.name for cause in Cause if f"Cause.{cause.name}" not in sources and not cause.row.reported_as
    ] == []

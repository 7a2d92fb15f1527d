"""The catalogue of findings: ids are unique, and what a start is refused for has one."""

from __future__ import annotations

import re

from orchestrator.core.causes import Cause
from orchestrator.core.state.run import Problem
from orchestrator.reporting import findings
from orchestrator.reporting.findings import CATALOGUE, finding, problem_finding, worst_first
from tests import findings_page


def test_the_page_is_fresh() -> None:
    assert findings_page.PAGE.read_text(encoding="utf-8") == findings_page.page(), "`make docs` writes it"


def test_an_id_and_a_code_belong_to_one_row() -> None:
    for all_ in (
        [row.id for row in CATALOGUE],
        [code for row in CATALOGUE for code in row.codes],
    ):
        assert len(all_) == len(set(all_))
    assert all(re.fullmatch(r"[a-z]+\.[a-z-]+", row.id) for row in CATALOGUE)


def test_a_problem_of_a_start_keeps_its_words_and_gets_an_id() -> None:
    one = problem_finding(Problem("gpu-missing", "a: the run is to have GPU 3", "correct `gpus`"), "a")
    assert (one.id, one.level, one.host, one.hint) == ("gpu.missing", "error", "a", "correct `gpus`")
    assert problem_finding(Problem("never-heard-of", "x", None), "a").id == "host.unfit"
    assert findings.id_of(Cause.NETWORK.row.name) == findings.id_of("not connected") == "net.blocked"
    assert findings.id_of(Cause.DISK.row.name) == "storage.space"
    assert findings.id_of("never-heard-of") is None


def test_the_worst_comes_first() -> None:
    fine, warning, error = finding("net.proxy", "p"), finding("host.clock", "c"), finding("net.blocked", "b")
    assert worst_first([fine, warning, error]) == [error, warning, fine]

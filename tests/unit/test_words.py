"""What people read: the glossary is complete, words that are no longer used stay away, commands and links are right."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.test_help import called, parse

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
SOURCES = sorted((ROOT / "orchestrator").rglob("*.py"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "cluster_specs/README.md"])

TERMS = """
    host, head node, task, replicas, group, run, rendezvous, heartbeat, generation, epoch, training epoch, lost,
    failed, unreachable, stalled, stop, kill, fence, restart, retry, global_step, slot, assignee, replacement, spare,
    host state, restart scope, individually restarted, reschedule, final verification, failure signature, first cause,
    follower, diagnostic, connection pool, lease, transfer, chunk, executor, orphan, agent, shim, runtime, coordinator,
    plan, cluster spec, state, event, action, seed, verified checkpoint, scratch, sweep, proof, lost_after,
    unreachable_after, budget, quarantine, drain
"""

BANNED = {
    "seat": "slot",
    "holder of a seat": "assignee",
    "stand-in": "replacement",
    "standing": "host state",
    "regroup": "reschedule",
    "last look": "final verification",
    "signs": "failure signatures",
    "complaints": "diagnostics",
    "switchboard": "connection pool",
    "lending": "lease",
    "carrying": "transfer",
    "piece": "chunk",
    "obey": "accept",
    "beat": "heartbeat",
    "mend": "patch",
    "performer": "executor",
    "leftovers": "orphans",
}
"""Words that were used for one thing beside another word, and the one that is left."""

ALLOWED = {
    ("docs/protocol.md", "piece"): "`piece_bytes` is a key of manifests that lie on disks",
    (
        "orchestrator/protocol/orders/checkpoints.py",
        "piece",
    ): "`piece_bytes` is a key of manifests that lie on disks",
    ("docs/faults.md", "obey"): "made by `make faults` from the rows and the names of the tests",
    ("docs/faults.md", "mend"): "made by `make faults` from the rows and the names of the tests",
}
"""Where a banned word may stand, and why."""


def forms(word: str) -> re.Pattern[str]:
    """Match the word with its endings, in prose (`stand-in`) and in identifiers (`stand_ins`)."""
    return re.compile(
        rf"(?<![a-z]){word.replace('-', '[-_]?').replace(' ', '[ _]')}(s|ed|ing|er|ers)?(?![a-z])"
    )


def banned_in(text: str) -> set[str]:
    """Return the banned words of a text or an identifier."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    return {word for word in BANNED if forms(word).search(words)}


def identifiers(file: Path) -> Iterator[str]:
    """Yield the names of a module."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.NAME:
            yield token.string


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("StandIn", {"stand-in"}),
        ("_seats", {"seat"}),
        ("it is mended", {"mend"}),
        ("heartbeat, recommended, peer_gone, sent, signature, understanding", set()),
        ("the last look", {"last look"}),
    ],
)
def test_banned_words_are_found_in_all_their_forms(text: str, found: set[str]) -> None:
    assert banned_in(text) == found


def test_no_identifier_has_a_banned_word() -> None:
    places: dict[str, set[str]] = {}
    for file in SOURCES:
        for name in set(identifiers(file)):
            places.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    assert [
        f"{place}: {name}: say {BANNED[word]}"
        for name in places
        for word in banned_in(name)
        for place in places[name]
        if (place, word) not in ALLOWED
    ] == []


def test_no_page_has_a_banned_word() -> None:
    assert [
        f"{name}: {word}: say {BANNED[word]}"
        for page in PAGES
        for name in [str(page.relative_to(ROOT))]
        for word in banned_in(page.read_text())
        if (name, word) not in ALLOWED
    ] == []


def test_the_glossary_has_each_term_once_in_one_sentence() -> None:
    entries = re.findall(r"^- \*\*(.+?)\*\*: (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    terms = [term for term, _ in entries]
    assert len(terms) == len(set(terms))
    assert {term.strip() for term in TERMS.split(",")} - set(terms) == set()
    assert [
        term for term, meaning in entries if not re.fullmatch(r"[A-Z][^.]*(?:\.\w[^.]*)*\.", meaning)
    ] == []


def commands(page: Path) -> list[str]:
    """Return the `orch …` lines of the shell blocks of a page, without their comments."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", page.read_text(), re.DOTALL)
    shell = [text for language, text in blocks if language in ("", "sh")]
    lines = (line.strip().removeprefix("$ ") for text in shell for line in text.splitlines())
    return [re.split(r"\s+#\s", line)[0] for line in lines if line.startswith("orch ")]


def test_every_command_of_the_readme_can_be_parsed() -> None:
    found = commands(ROOT / "README.md")
    assert len(found) >= 10
    for line in found:
        parse(called(line)[0])


COURSE = sorted((ROOT / "docs/course").rglob("*.md"))
RUN_ELSEWHERE = {"local", "parameter_server", "curves", "save_and_load"}
"""Specs of the course that other tests than tests/cluster/test_examples.py run; its docstring names them."""


@pytest.mark.parametrize("page", COURSE, ids=lambda file: file.name)
def test_every_spec_that_the_course_starts_is_run_by_a_test(page: Path) -> None:
    tested = (ROOT / "tests/cluster/test_examples.py").read_text()
    for line in commands(page):
        parse(called(line)[0])
        for spec in re.findall(r"cluster_specs/(\w+)\.yaml", line):
            assert (ROOT / f"cluster_specs/{spec}.yaml").exists()
            assert f'("{spec}"' in tested or (spec in RUN_ELSEWHERE and spec in tested)


def test_every_link_leads_to_a_file() -> None:
    links = [(page, to) for page in PAGES for to in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    # docs/faults.md is of the run that it names, and the tests of that run may be gone since.
    checked = [each for each in links if (each[0].name, each[1][:9]) != ("faults.md", "../tests/")]
    assert [f"{page}: {to}" for page, to in checked if not (page.parent / to).exists()] == []

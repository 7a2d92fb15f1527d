"""Pages of logs: every line once, in order, filtered, and what follows a place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.head.records import log_pages
from orchestrator.head.records.runlogs import RunLogs

RUN = "t-20260101-000000"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunLogs:
    monkeypatch.setattr(log_pages, "_BLOCK_BYTES", 37)  # every block ends within a line
    logs = RunLogs(str(tmp_path))
    for task in ("worker:0", "worker:1"):
        logs.append(RUN, task, 1, 0, _lines(task, 0, 50))
    return logs


def _lines(task: str, begin: int, end: int) -> bytes:
    return b"".join(b"%d.000000 o %s line %d\n" % (1000 + i, task.encode(), i) for i in range(begin, end))


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_pages_backwards_hold_every_line_once_and_in_the_order_of_time(logs: RunLogs, limit: int) -> None:
    got: list[str] = []
    before = ""
    while before is not None:
        page = log_pages.document(logs, RUN, {"limit": str(limit), "before": before})
        got = [line["text"] for line in page["lines"]] + got
        before = page["before"]
    numbers = [int(text.split()[-1]) for text in got]
    assert numbers == sorted(numbers)
    assert sorted(got) == sorted(f"{task} line {i}" for i in range(50) for task in ("worker:0", "worker:1"))


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("wanted", ["", "line 4"])
def test_pages_forwards_hold_every_line_once_and_in_the_order_of_time(
    logs: RunLogs, limit: int, wanted: str
) -> None:
    place, is_end = "worker:0/1/0,worker:1/1/0", False
    got: list[str] = []
    while not is_end:
        page = log_pages.document(logs, RUN, {"limit": str(limit), "next": place, "q": wanted})
        got += [line["text"] for line in page["lines"]]
        place, is_end = page["after"], page["is_end"]
    numbers = [int(text.split()[-1]) for text in got]
    assert numbers == sorted(numbers)
    said = [f"{task} line {i}" for i in range(50) for task in ("worker:0", "worker:1")]
    assert sorted(got) == sorted(text for text in said if wanted in text)


def test_a_page_at_a_line_ends_with_its_time_in_all_logs(logs: RunLogs) -> None:
    line = log_pages.document(logs, RUN, {"task": "worker:1", "until": "1020"})["lines"][-1]
    page = log_pages.document(logs, RUN, {"at": line["id"], "limit": "2"})
    assert sorted(each["text"] for each in page["lines"]) == ["worker:0 line 20", "worker:1 line 20"]
    assert page["after"] == log_pages.document(logs, RUN, {"until": "1020"})["after"]


def test_what_follows_a_place_is_what_is_new(logs: RunLogs) -> None:
    page = log_pages.document(logs, RUN, {"limit": "2"})
    size = len(_lines("worker:0", 0, 50))
    logs.append(RUN, "worker:0", 1, size, _lines("worker:0", 50, 55) + b"1060.000000 o half a li")
    new = log_pages.document(logs, RUN, {"after": page["after"], "limit": "3"})
    assert [line["text"] for line in new["lines"]] == [f"worker:0 line {i}" for i in (52, 53, 54)]
    assert new["skipped"] == 2
    assert log_pages.document(logs, RUN, {"after": new["after"]})["lines"] == []


def test_a_filter_looks_at_all_that_the_budget_allows_and_says_how_far(
    logs: RunLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = log_pages.document(logs, RUN, {"q": "LINE 3", "task": "worker:1"})
    assert [line["text"].split()[-1] for line in found["lines"]] == ["3", *map(str, range(30, 40))]
    assert found["before"] is None
    monkeypatch.setattr(log_pages, "BYTES_MAX", 100)
    # Blocks are passed over only where no level is asked for: to tell one, every line is read.
    cut = log_pages.document(logs, RUN, {"q": "line 3", "task": "worker:1", "level": "info"})
    assert cut["lines"] == []
    assert cut["before"] is not None
    assert 1000 < cut["searched_to"] < 1050


def test_a_traceback_is_an_error_in_all_its_lines_wherever_a_page_begins(logs: RunLogs) -> None:
    parts = (
        b"1 e Traceback (most recent call last):\n2 e   File one\n",
        b"3 e     call()\n4 e ValueError: no\n5 o no error here\n6 o   indented\n",
    )
    logs.append(RUN, "worker:3", 1, 0, parts[0])
    told = {"task": "worker:3", "level": "error"}
    first = log_pages.document(logs, RUN, told)
    assert [line["text"] for line in first["lines"]] == ["Traceback (most recent call last):", "  File one"]
    logs.append(RUN, "worker:3", 1, len(parts[0]), parts[1])
    new = log_pages.document(logs, RUN, {**told, "after": first["after"]})
    assert [line["text"] for line in new["lines"]] == ["    call()", "ValueError: no"]
    one_by_one, before = [], ""
    while before is not None:
        page = log_pages.document(logs, RUN, {**told, "limit": "1", "before": before})
        one_by_one += [line["text"] for line in page["lines"]]
        before = page["before"]
    assert one_by_one == ["ValueError: no", "    call()", "  File one", "Traceback (most recent call last):"]


def test_a_page_that_must_read_far_to_tell_a_level_still_leads_to_the_next(
    logs: RunLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.append(RUN, "worker:3", 1, 0, b"1 o begin\n" + b"2 o   indented\n" * 50)
    monkeypatch.setattr(log_pages, "BYTES_MAX", 0)
    texts, before = [], ""
    while before is not None:
        page = log_pages.document(logs, RUN, {"task": "worker:3", "before": before})
        texts += [line["text"] for line in page["lines"]]
        before = page["before"]
    assert len(texts) == 51


def test_the_level_is_told_by_the_words(logs: RunLogs) -> None:
    logs.append(RUN, "worker:2", 2, 0, b"1 e WARNING: old\n2 e ValueError: the data ends\n3 e fine\n")
    page = log_pages.document(logs, RUN, {"task": "worker:2", "level": "warning"})
    assert [(line["level"], line["id"]) for line in page["lines"]] == [
        ("warning", "worker:2/2/0"),
        ("error", "worker:2/2/17"),
    ]


@pytest.mark.parametrize(
    "query", [{"limit": "many"}, {"before": "nonsense"}, {"generation": "x"}, {"level": "x"}]
)
def test_a_query_that_is_no_query_is_refused(logs: RunLogs, query: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        log_pages.document(logs, RUN, query)


def test_only_what_differs_are_lines_that_few_tasks_have(logs: RunLogs) -> None:
    for index in range(6):
        odd = b"2003.000000 o I am the slow one\n" if index == 2 else b""
        same = b"".join(b"%d.%d00000 o step %d of 9\n" % (2000 + i, index, i) for i in range(3))
        logs.append(RUN, f"worker:{index}", 7, 0, same + odd)
    page = log_pages.document(logs, RUN, {"differs": "yes", "generation": "7"})
    assert [line["text"] for line in page["lines"]] == ["I am the slow one"]
    assert page["before"] is None
    alone = log_pages.document(logs, RUN, {"differs": "yes", "generation": "7", "task": "worker:1"})
    assert len(alone["lines"]) == 3, "one task alone differs from nobody"
    lines, before = [], ""
    while before is not None:
        page = log_pages.document(logs, RUN, {"differs": "yes", "limit": "1", "before": before})
        lines += page["lines"]
        before = page["before"]
    assert "I am the slow one" in [line["text"] for line in lines]
    assert len({line["id"] for line in lines}) == len(lines)


@pytest.mark.parametrize("until", [999.5, 1000.0, 1000.5, 1024.0, 1049.0, 2000.0])
def test_a_page_up_to_a_time_ends_with_the_last_line_that_is_not_later(logs: RunLogs, until: float) -> None:
    page = log_pages.document(logs, RUN, {"until": str(until), "limit": "1000"})
    wanted = [1000.0 + i for i in range(50) if 1000 + i <= until for _ in range(2)]
    assert [line["time"] for line in page["lines"]] == wanted


def test_a_line_that_was_cut_by_a_rotation_has_no_time_and_does_not_end_the_search(logs: RunLogs) -> None:
    logs.append(RUN, "worker:4", 1, 0, b"10.5 o a\nut off\nut off too\n12.5 o b\n13.5 o c\n")
    page = log_pages.document(logs, RUN, {"until": "12.5", "task": "worker:4"})
    assert [line["text"] for line in page["lines"]] == ["a", "ut off", "ut off too", "b"]


def test_a_whole_log_is_every_line_with_its_time(logs: RunLogs) -> None:
    text = "".join(log_pages.whole(logs, RUN, {"task": "worker:1"}))
    assert len(text.splitlines()) == 50
    assert text.startswith("1970-01-01T00:16:40.000000Z worker:1/1 worker:1 line 0\n")
    both = "".join(log_pages.whole(logs, RUN, {"generation": "1"})).splitlines()
    assert len(both) == 100
    assert both == sorted(both, key=lambda line: line.split(" ")[0])
    assert list(log_pages.whole(logs, RUN, {"generation": "2"})) == []


def test_a_search_passes_over_blocks_and_finds_what_reading_every_line_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = RunLogs(str(tmp_path))
    said = [f"step {i} {'Überlauf NaN' if i % 701 == 0 else 'loss'} of 0.{i}" for i in range(20_000)]
    coloured = [line.replace("NaN", "\x1b[31mNa\x1b[0mN") for line in said]
    for task in ("worker:0", "worker:1"):
        text = "".join(f"{1_760_000_000 + i}.000000 o {line}\n" for i, line in enumerate(coloured))
        logs.append(RUN, task, 1, 0, text.encode())
    monkeypatch.setattr(log_pages, "BYTES_MAX", 1 << 14)
    for query in (
        {"q": "nan"},
        {"q": "überlauf"},
        {"q": r"n[a]n of 0\.\d+", "regex": "yes"},
        {"q": "(überlauf|nothing) nan", "regex": "yes"},
        {"q": "^step 7", "regex": "yes"},
        {"q": r"^(step 1402|nobody).*nan of .*\d$", "regex": "yes"},
        {"q": r"(?<=step )701 |(?<!step )nobody", "regex": "yes"},
    ):
        found: list[str] = []
        before, pages = "", 0
        while before is not None:
            page = log_pages.document(logs, RUN, {**query, "before": before, "limit": "50"})
            found, before, pages = [line["text"] for line in page["lines"]] + found, page["before"], pages + 1
            found = [line.replace("\x1b[31m", "").replace("\x1b[0m", "") for line in found]
        pattern = re.compile(query["q"] if "regex" in query else re.escape(query["q"]), re.IGNORECASE)
        wanted = [line for line in said for _ in range(2) if pattern.search(line)]
        assert found == wanted, query
        assert pages < 400
    for query in (
        {"q": "no(thing|body)", "regex": "yes"},
        {"q": "^(nothing|loss)", "regex": "yes"},
        {"q": "nobody"},
    ):
        page = log_pages.document(logs, RUN, {**query, "limit": "50"})
        assert (page["lines"], page["before"]) == ([], None), "no line is read one by one, coloured or not"
    refused = {"q": "(", "regex": "yes"}
    with pytest.raises(ValueError, match="is no regular expression"):
        log_pages.document(logs, RUN, refused)


def test_a_hit_has_a_next_and_a_previous_one_in_all_logs(logs: RunLogs) -> None:
    here = log_pages.document(logs, RUN, {"q": "worker:1 line 20"})["lines"][0]
    seen = []
    for hit in ("next", "next", "previous", "previous", "previous"):
        (here,) = log_pages.document(
            logs, RUN, {"q": "line .?[05]$", "regex": "1", "at": here["id"], "hit": hit}
        )["lines"]
        seen.append(here["text"])
    assert seen == [
        f"worker:{task} line {line}" for task, line in ((0, 20), (1, 25), (0, 20), (1, 20), (0, 15))
    ]
    last = log_pages.document(logs, RUN, {"q": "worker:0 line 49"})["lines"][0]
    assert log_pages.document(logs, RUN, {"q": "line 3", "at": last["id"], "hit": "next"})["lines"] == []


def test_a_line_that_is_too_long_says_how_much_is_left_out(logs: RunLogs) -> None:
    text = b"x" * 9000
    logs.append(RUN, "worker:2", 1, 0, b"2000.000000 o " + text + b"\n")
    (line,) = log_pages.document(logs, RUN, {"task": "worker:2"})["lines"]
    assert (len(line["text"]), line["cut"]) == (log_pages.TEXT_CHARS_MAX, 9000 - log_pages.TEXT_CHARS_MAX)
    assert "cut" not in log_pages.document(logs, RUN, {"task": "worker:1"})["lines"][0]

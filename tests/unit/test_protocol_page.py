"""docs/protocol.md is what the table and the types make of it."""

from __future__ import annotations

import re

from tests import protocol_page
from tests.protocol_orders import TABLE


def test_the_page_is_fresh() -> None:
    assert protocol_page.PAGE.read_text(encoding="utf-8") == protocol_page.page(), "`make docs` writes it"


def test_it_says_all_of_an_order_and_of_its_fields() -> None:
    page = protocol_page.page()
    for row in TABLE:
        assert page.count(f"\n### {row.name}\n\n{protocol_page._about(row)}\n") == 1
    assert (
        "| `port`? | whole number from 1 to 65535, or null | The port that the shim reserves for it. |"
        in page
    )
    assert (
        "| `ago_s` | number from 0 to 1e+12, or null | Time since it ended, by the host's monotonic clock"
        in page
    )


def test_its_links_lead_somewhere() -> None:
    page = protocol_page.page()
    places = {title.lower() for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
    wanted = set(re.findall(r"\(#([^)]*)\)", page))
    assert len(wanted) > 40
    assert wanted <= places
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert len({title.lower() for title in titles}) == len(titles), (
        "of two places of one name, links find the first"
    )

"""TensorBoard as the page starts it: one for each run, which serves once its address is told."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator

import pytest

from orchestrator.core.errors import Refused
from orchestrator.head.node.tensorboards import Started, TensorBoards, address

SERVES = """
import http.server, sys
run_id, _, port = sys.argv[1:]
sys.stderr.write("x" * 200_000)
http.server.HTTPServer(("127.0.0.1", int(port)), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
ENDS = "import sys; sys.exit(f'error: {sys.argv[1]} has no such files')"


@pytest.fixture
def boards() -> Iterator[TensorBoards]:
    made = TensorBoards(("-c", SERVES))
    yield made
    for started in made._started.values():
        started.server.kill()
        started.server.wait()


def test_a_run_has_one_that_serves_once_its_address_is_told(boards: TensorBoards) -> None:
    first = address(boards.start("a"))
    with urllib.request.urlopen(first, timeout=10) as answer:
        assert answer.status == 200
    assert address(boards.start("a")) == first
    assert address(boards.start("b")) != first


def test_one_that_has_ended_says_why_and_is_started_again() -> None:
    boards = TensorBoards(("-c", ENDS))
    first = boards.start("a")
    with pytest.raises(Refused, match="error: a has no such files"):
        address(first)
    assert boards.start("a").server.pid != first.server.pid


def test_it_ends_with_the_thread_that_has_started_it(boards: TensorBoards) -> None:
    made: list[Started] = []
    thread = threading.Thread(target=lambda: made.append(boards.start("a")))
    thread.start()
    thread.join()
    assert made[0].server.wait(timeout=30) != 0

"""A task's log keeps whole lines, stays within its bound, and never tells a secret, whatever comes."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.host.system import hostlog
from orchestrator.host.system.hostlog import LINE_BYTES_MAX, LogWriter, read, tail


def writer(path: Path, bytes_max: int = 1 << 20, secrets: tuple[str, ...] = ()) -> LogWriter:
    return LogWriter(str(path), bytes_max, secrets, now=lambda: 1700000000.25)


def lines(path: Path) -> list[bytes]:
    _, data, _ = read(str(path), 0, 1 << 24)
    return [line.split(b" ", 1)[1] for line in data.splitlines()]


def test_a_line_has_its_time_and_its_stream(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.feed("o", b"one\ntw")
    log.feed("e", b"oops\n")
    log.feed("o", b"o\n\nlast")
    log.finish()
    assert (tmp_path / "log").read_bytes() == (
        b"1700000000.250000 o one\n1700000000.250000 e oops\n1700000000.250000 o two\n"
        b"1700000000.250000 o \n1700000000.250000 o last\n"
    )
    assert log.end == (tmp_path / "log").stat().st_size
    assert log.last_lines() == ["one", "oops", "two", "", "last"] == tail(str(tmp_path))


def test_the_last_lines_have_no_colours_and_keep_other_escapes(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path), 1 << 20)
    log.feed("o", b"\x1b[1m32/32\x1b[0m \x1b[38;5;2mloss\x1b[m: 0.5\n\x1b[2Jcleared\n")
    log.finish()
    assert log.last_lines() == ["32/32 loss: 0.5", "\x1b[2Jcleared"] == tail(str(tmp_path))
    assert b"\x1b[1m32/32" in (tmp_path / "log").read_bytes(), "the log is as the task wrote it"


def test_of_a_progress_bar_the_last_state_is_kept(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.feed("o", b"1/3\r2/3\r3/3\nwindows\r\n")
    for step in range(10_000):
        log.feed("o", b"\rstep %d" % step)
    log.feed("o", b"\r\nsplit\r")
    log.feed("o", b"\ncut at\r")
    log.finish()
    assert lines(tmp_path) == [b"o 3/3", b"o windows", b"o step 9999", b"o split", b"o cut at"]


def test_a_bar_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    log = writer(tmp_path)
    for step in range(1000):
        log.feed("o", b"%d " % step + b"x" * 1000 + b"\r")
    assert len(log._partial["o"]) < 2000


def test_a_long_line_comes_in_pieces_of_which_none_is_lost(tmp_path: Path) -> None:
    log = writer(tmp_path)
    long = bytes(range(97, 123)) * 3000
    for at in range(0, len(long), 999):
        log.feed("o", long[at : at + 999])
    log.feed("o", b"\n")
    log.finish()
    assert b"".join(line[2:] for line in lines(tmp_path)) == long
    assert all(len(line) <= LINE_BYTES_MAX + 2 for line in lines(tmp_path))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 300))
def test_a_secret_never_shows_wherever_the_output_is_cut(sizes: list[int], padding: int) -> None:
    import tempfile

    secret = b"correct horse battery staple " * 4
    output = (b"x" * padding + secret + b"y" * (LINE_BYTES_MAX - padding)) * 4 + b"\n" + secret
    with tempfile.TemporaryDirectory() as directory:
        log = writer(Path(directory), secrets=(secret.decode(),))
        at = 0
        for size in sizes:
            log.feed("o", output[at : at + size])
            at += size
        log.feed("o", output[at:])
        log.finish()
        written = b"".join(line[2:] for line in lines(Path(directory)))
    assert written == output.replace(secret, b"***").replace(b"\n", b"")


def test_of_a_secret_of_many_lines_none_shows(tmp_path: Path) -> None:
    key = "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----\n"
    log = writer(tmp_path, secrets=(key, "", "***"))
    log.feed("e", key.encode())
    log.finish()
    assert lines(tmp_path) == [b"e ***"] * 4
    assert log.redact("it says abcdefghijkl") == "it says ***"


def test_the_password_of_a_url_is_not_told_alone_either(tmp_path: Path) -> None:
    log = writer(tmp_path, secrets=("redis://me:hunter%402@db:1/0",))
    assert log.redact("no hunter%402, no hunter@2 for me at db") == "no ***, no *** for me at db"


@pytest.mark.parametrize("secrets", [("abcdef", "abcdef-012345"), ("abcdef-012345", "abcdef")])
def test_of_two_secrets_that_begin_alike_no_half_is_told(tmp_path: Path, secrets: tuple[str, ...]) -> None:
    log = writer(tmp_path, secrets=secrets)
    assert log.redact("it is abcdef-012345, or abcdef") == "it is ***, or ***"
    log.feed("o", b"it is abcdef-012345, or abcdef\n")
    assert lines(tmp_path) == [b"o it is ***, or ***"]


def test_it_stays_within_its_bound_and_offsets_go_on(tmp_path: Path) -> None:
    bound = 4 * (LINE_BYTES_MAX + 64)
    log = writer(tmp_path, bound)
    everything = b""
    seen = b""
    offset = 0
    for number in range(3000):
        log.feed("o", b"line %d %s\n" % (number, b"." * (number % 97)))
        everything += b"1700000000.250000 o line %d %s\n" % (number, b"." * (number % 97))
        if number % 50 == 0:
            start, data, end = read(str(tmp_path), offset, 1 << 16)
            assert start == offset
            seen += data
            offset = start + len(data)
            assert end == len(everything) == log.end
        assert sum(path.stat().st_size for path in tmp_path.glob("log*") if path.suffix != ".head") <= bound
    assert seen == everything[: len(seen)]
    start, data, end = read(str(tmp_path), 0, 1 << 24)
    assert start > 0, "the start was rotated away"
    assert everything[start:end] == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3", "log.head"]
    assert read(str(tmp_path), end + 1000, 100) == (end, b"", end)


def test_a_reader_in_another_process_misses_nothing_while_it_rotates(tmp_path: Path) -> None:
    count = 20_000
    log = writer(tmp_path, 1 << 20)
    child = os.fork()
    if child == 0:
        for number in range(count):
            log.feed("o", b"line %d %s\n" % (number, b"." * (number % 97)))
        log.finish()
        os._exit(0)
    offset, data, ended = 0, b"", False
    while True:
        start, chunk, _ = read(str(tmp_path), offset, 1 << 16)
        if start != offset:
            data = b""  # we were too slow, and the start is gone: from there on nothing may be missing
        data += chunk
        offset = start + len(chunk)
        if not chunk and ended:
            break
        ended = ended or os.waitpid(child, os.WNOHANG)[0] == child
    numbers = [int(line.split(b" ")[3]) for line in data.splitlines()]
    assert numbers == list(range(numbers[0], count))


def test_no_log_reads_as_an_empty_one(tmp_path: Path) -> None:
    assert read(str(tmp_path), 7, 100) == (7, b"", 7)
    assert tail(str(tmp_path)) == []


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.fault(35)
def test_where_the_disk_takes_no_more_it_is_counted_and_goes_on_later(tmp_path: Path) -> None:
    def work() -> None:
        log = writer(tmp_path, 1 << 20)
        log.feed("o", b"before\n")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
        log.feed("o", b"this line does not fit any more\n" * 3)
        log.feed("e", b"nor does this\n")
        lost = log.dropped_bytes
        assert lost == 3 * (20 + 32) + 20 + 14
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.feed("o", b"after\n")
        log.finish()
        assert log.dropped_bytes == lost
        assert log.end == (tmp_path / "log").stat().st_size

    assert in_child(work) == 0
    assert lines(tmp_path) == [
        b"o before",
        b"e [orch: 190 bytes were dropped here: the log's disk was full]",
        b"o after",
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="A FULL DISK CAN ONLY BE MOUNTED BY ROOT: not tested here")
@pytest.mark.fault(35)
def test_a_really_full_disk_never_raises_and_keeps_whole_lines(tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], check=True)
    try:
        log = writer(disk, 1 << 20)
        for number in range(5000):
            log.feed("o", b"line %d %s\n" % (number, b"." * 100))
        assert log.dropped_bytes > 100_000
        assert len(lines(disk)) > 500
        log.give_room()
        kept = len(lines(disk))
        (disk / "log").write_bytes(b"")  # somebody tidies up
        log.feed("o", b"after\n")
        log.finish()
        assert kept > 0
        assert (disk / "log").read_bytes().endswith(b"o after\n")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_directory_that_is_gone_is_only_counted(tmp_path: Path) -> None:
    log = LogWriter(str(tmp_path / "missing"), 1 << 20)
    log.feed("o", b"lost\n")
    assert log.dropped_bytes == 25
    (tmp_path / "missing").mkdir()
    log.feed("o", b"kept\n")
    log.finish()
    assert lines(tmp_path / "missing")[-1] == b"o kept"
    assert hostlog.LAST_LINES == 20


def test_what_grpc_repeats_does_not_push_the_error_out_of_the_last_lines(tmp_path: Path) -> None:
    log = writer(tmp_path)
    noise = (
        b"Additional GRPC error information from remote target /job:worker/replica:0/task:%d while calling:\n"
    )
    log.feed("e", b"ValueError: the cause\n" + b"".join(noise % n for n in range(100)))
    assert log.last_lines() == ["ValueError: the cause", (noise % 99).decode().strip()]
    log.finish()

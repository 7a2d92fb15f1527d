"""Frames survive any cut of the stream, and what is no frame is refused before memory is spent on it."""

from __future__ import annotations

import itertools
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.channel import BLOB_BYTES_MAX, JSON_BYTES_MAX, Decoder, FrameError, encode

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
messages = st.dictionaries(st.text(), json_values, max_size=5)


def test_large_and_small_pieces_of_a_frame_come_out_in_their_order() -> None:
    blob = bytes(range(251)) * 1000
    stream, decoder = encode({"a": 1}, blob) * 2, Decoder()
    got, at = [], 0
    for size in itertools.cycle((3, 9000, 40_000, 8191, 8192, 1)):
        got += decoder.feed(stream[at : at + size])
        at += size
        if at >= len(stream):
            break
    assert got == [({"a": 1}, blob)] * 2


@given(st.lists(st.tuples(messages, st.binary(max_size=300)), max_size=5), st.integers(1, 40))
def test_frames_come_out_as_they_went_in_whatever_the_pieces(
    frames: list[tuple[dict[str, object], bytes]], chunk: int
) -> None:
    stream = b"".join(encode(message, blob) for message, blob in frames)
    decoder = Decoder()
    got = []
    for at in range(0, len(stream), chunk):
        got += decoder.feed(stream[at : at + chunk])
    assert got == frames


def test_a_cut_off_frame_waits_for_its_rest() -> None:
    decoder = Decoder()
    assert decoder.feed(encode({"a": 1}, b"xyz")[:-1]) == []
    assert decoder.feed(b"z") == [({"a": 1}, b"xyz")]


@pytest.mark.parametrize("body", [b"[1]", b"7", b"{", b"\xff\xfe", b"", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError):
        Decoder().feed(struct.pack(">II", len(body), 0) + body)


@pytest.mark.parametrize("lengths", [(JSON_BYTES_MAX + 1, 0), (2, BLOB_BYTES_MAX + 1)])
def test_a_length_over_the_limit_is_refused_from_its_header_alone(lengths: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match="limits"):
        Decoder().feed(struct.pack(">II", *lengths))


def test_a_banner_on_the_channel_is_named_as_such() -> None:
    with pytest.raises(FrameError, match="something else write"):
        Decoder().feed(b"Last login: Mon Jan  5\n")


def test_what_is_too_long_is_not_sent() -> None:
    longest = {"a": "x" * (JSON_BYTES_MAX - len('{"a":""}'))}
    assert Decoder().feed(encode(longest)) == [(longest, b"")]
    with pytest.raises(FrameError):
        encode({"a": "x" * JSON_BYTES_MAX})
    with pytest.raises(FrameError):
        encode({}, b"x" * (BLOB_BYTES_MAX + 1))
    assert Decoder().feed(encode({}, b"x" * BLOB_BYTES_MAX)) == [({}, b"x" * BLOB_BYTES_MAX)]


def test_a_diverged_loss_travels_as_null() -> None:
    frame = encode({"metrics": {"loss": float("nan"), "up": float("inf"), "ok": 1.5}, "l": [float("-inf")]})
    ((message, _),) = Decoder().feed(frame)
    assert message == {"metrics": {"loss": None, "up": None, "ok": 1.5}, "l": [None]}
    with pytest.raises(FrameError, match="cannot be written"):
        encode({"loss": float("nan"), "a": {1, 2}})


def test_bytes_that_are_no_utf8_do_not_stop_a_message() -> None:
    ((message, _),) = Decoder().feed(encode({"line": b"\xff".decode("utf-8", "surrogateescape")}))
    assert message == {"line": "?"}


def test_what_json_has_no_word_for_is_our_fault_and_says_so() -> None:
    with pytest.raises(FrameError, match="cannot be written"):
        encode({"a": {1, 2}})
    assert json.loads(encode({"a": "ö"})[8:])["a"] == "ö"

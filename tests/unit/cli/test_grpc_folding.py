"""What gRPC repeats is folded, and nothing else; excerpts begin where a task says something."""

from __future__ import annotations

from orchestrator.both.repetition import excerpt
from orchestrator.cli.show.log_folding import GrpcFolder
from orchestrator.head.records.log_file import LogLine

ASKED = (
    "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling "
    "/tensorflow.eager.EagerService/Enqueue:"
)
STATUS = ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}'
REMOVED = (
    "E0000 00:00:1795357120.106841    3752 context.cc:999] Failed to remove function remotely due to failed to "
    "connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:20752: Failed to connect to remote host"
)


def line(at: float, text: str, task: str = "chief:0") -> LogLine:
    return LogLine(at, task, 1, "e", text)


def folded(*lines: LogLine) -> list[str]:
    out: list[str] = []
    folder = GrpcFolder(lambda one: out.append(f"{one.task} {one.stream} {one.text[:40]}"))
    for one in lines:
        folder.add(one)
    folder.flush()
    return out


def test_the_first_of_each_kind_is_shown_and_the_others_are_counted() -> None:
    burst = [line(1.0 + n / 100, text) for n in range(100) for text in (ASKED, STATUS, REMOVED)]
    out = folded(*burst, line(2.5, "orch: worker:0 is back", "orch"), line(3.0, "step 120, loss 0.1"))
    assert out[:3] == [f"chief:0 e {text[:40]}" for text in (ASKED, STATUS, REMOVED)]
    assert out[3:5] == ["orch e orch: worker:0 is back", "chief:0 e step 120, loss 0.1"]
    assert out[5:] == ["chief:0 g [orch: 297 more lines of gRPC like those"]


def test_a_burst_ends_with_silence_and_the_next_is_shown_anew() -> None:
    out = folded(line(1.0, ASKED), line(2.0, ASKED), line(13.0, "step 7"), line(14.0, ASKED))
    assert [text.split()[1] for text in out] == ["e", "g", "e", "e"]
    assert "1 more line of gRPC" in out[1]


def test_other_lines_and_other_tasks_are_never_folded() -> None:
    lines = [line(1.0, "step 1"), line(1.1, "step 1"), line(1.2, ASKED), line(1.3, ASKED, "chief:1")]
    assert len(folded(*lines)) == 4


def test_an_excerpt_begins_after_the_banners_and_has_each_repeated_line_once() -> None:
    banner = "I0000 00:00:1795357073.106841    3752 port.cc:153] oneDNN custom operations are on. You may see"
    absl = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
    lines = [absl, banner, "loading", *[ASKED, STATUS] * 5, "ValueError: no"]
    assert excerpt(lines) == ["loading", ASKED, STATUS, "ValueError: no"]
    assert excerpt([absl, banner]) == [absl, banner]

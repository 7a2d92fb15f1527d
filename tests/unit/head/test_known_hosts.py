"""known_hosts: every kind of line that is found in the wild, and the project's own file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import threading
from pathlib import Path

import pytest

from orchestrator.head.reach.ssh.known_hosts import (
    HostKey,
    KnownHosts,
    RevokedUnreadable,
    append,
    known_name,
    replace,
)


def make_key(seed: str, type: str = "ssh-ed25519") -> HostKey:
    name = type.encode()
    return HostKey(type, struct.pack(">I", len(name)) + name + hashlib.sha256(seed.encode()).digest())


GOOD, OTHER = make_key("good"), make_key("other")


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), "sha1").digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def read(tmp_path: Path, *lines: str) -> KnownHosts:
    path = tmp_path / "known_hosts"
    path.write_text("\n".join(lines) + "\n")
    return KnownHosts.read([path])


def line(names: str, key: HostKey = GOOD) -> str:
    return f"{names} {key.type} {key.base64}"


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        ("gpu-a", "gpu-a"),
        ("GPU-A", "gpu-a"),
        ("gpu-a,10.0.0.1", "10.0.0.1"),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222"),
        ("10.0.0.1", "[10.0.0.1]:2222"),
        ("[fe80::1]:2222", "[fe80::1]:2222"),
        ("*.example.com", "gpu-a.example.com"),
        ("gpu-?", "gpu-a"),
        ("[*.example.com]:2222", "[a.example.com]:2222"),
        ("*,!gpu-b", "gpu-a"),
        (hashed("gpu-a"), "gpu-a"),
        (hashed("[gpu-a]:2222"), "[gpu-a]:2222"),
    ],
)
def test_a_name_that_matches_is_known(tmp_path: Path, names: str, asked: str) -> None:
    judged = read(tmp_path, line(names)).judge(asked, GOOD)
    assert judged.verdict == "known"


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        ("gpu-a", "gpu-ab"),
        ("*,!gpu-b", "gpu-b"),
        ("!gpu-b,*", "gpu-b"),
        ("[10.0.0.1]:2222", "10.0.0.1"),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2223"),
        ("[ab]", "a"),
        (hashed("gpu-a"), "gpu-b"),
        ("|1|nonsense", "gpu-a"),
        ("|1|a|b", "gpu-a"),
    ],
)
def test_a_name_that_does_not_match_is_unknown(tmp_path: Path, names: str, asked: str) -> None:
    assert read(tmp_path, line(names)).judge(asked, GOOD).verdict == "unknown"


@pytest.mark.fault(46)
def test_another_key_is_a_changed_key_and_the_line_is_named(tmp_path: Path) -> None:
    judged = read(tmp_path, "# by hand", line("gpu-a", OTHER)).judge("gpu-a", GOOD)
    assert judged.verdict == "changed"
    assert judged.entry is not None
    assert judged.entry.key.fingerprint == OTHER.fingerprint
    assert judged.entry.where.endswith("known_hosts:2")


def judged_by(tmp_path: Path, **files: str) -> KnownHosts:
    """Read these files, in this order."""
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    return KnownHosts.read([tmp_path / name for name in files])


@pytest.mark.fault(61)
@pytest.mark.parametrize("order", [("users", "ours"), ("ours", "users")])
def test_no_file_overrules_another(tmp_path: Path, order: tuple[str, str]) -> None:
    texts = {"users": line("gpu-a", OTHER), "ours": line("gpu-a", GOOD)}
    judged = judged_by(tmp_path, **{name: texts[name] for name in order}).judge("gpu-a", GOOD)
    assert judged.verdict == "changed"
    assert [entry.where for entry in judged.against] == [f"{tmp_path}/users:1"]


def test_a_file_that_knows_another_type_of_key_contradicts_nothing(tmp_path: Path) -> None:
    rsa = make_key("good", "ssh-rsa")
    known = judged_by(tmp_path, users=line("gpu-a", rsa), ours=line("gpu-a", GOOD))
    assert known.judge("gpu-a", GOOD).verdict == "known"
    assert known.judge("gpu-a", rsa).verdict == "known"
    assert known.judge("gpu-a", make_key("new", "ecdsa-sha2-nistp256")).verdict == "changed"


def test_another_key_on_another_port_is_no_change(tmp_path: Path) -> None:
    known = read(tmp_path, line("10.0.0.1", OTHER))
    assert known.judge("[10.0.0.1]:2222", GOOD).verdict == "unknown"
    revoked = read(tmp_path, "@revoked " + line("10.0.0.1", GOOD))
    assert revoked.judge("[10.0.0.1]:2222", GOOD).verdict == "revoked"


@pytest.mark.parametrize("second", ["ssh-ed25519", "ssh-ed25519 AAAA!", "stolen", "ssh-rsa {key}"])
def test_a_list_of_revoked_keys_that_cannot_be_read_whole_refuses_all(tmp_path: Path, second: str) -> None:
    path = tmp_path / "revoked"
    path.write_text(f"# stolen\n\n{GOOD.type} {GOOD.base64} of gpu-a\n")
    known = KnownHosts.read([], [path])
    assert (known.judge("any", GOOD).verdict, known.judge("any", OTHER).verdict) == ("revoked", "unknown")
    path.write_text(path.read_text() + second.format(key=GOOD.base64))
    with pytest.raises(RevokedUnreadable, match=f"^{path}:4: not: key type, key$"):
        KnownHosts.read([], [path])
    path.write_bytes(b"SSHKRL\n\0\0\0\0\1")
    with pytest.raises(RevokedUnreadable, match="binary form"):
        KnownHosts.read([], [path])
    path.unlink()
    with pytest.raises(RevokedUnreadable, match="No such file"):
        KnownHosts.read([], [path])


@pytest.mark.parametrize(
    ("lines", "states"),
    [
        ([], ["new", "new"]),
        ([("gpu-a", GOOD)], ["known", "not needed"]),
        ([("gpu-a", OTHER)], ["changed", "changed"]),
        ([("gpu-a", make_key("old", "ecdsa-sha2-nistp256"))], ["changed", "changed"]),
        ([("gpu-a", GOOD), ("gpu-a", make_key("old", "ecdsa-sha2-nistp256"))], ["known", "changed"]),
    ],
)
def test_states_of_keys_that_a_host_shows(
    tmp_path: Path, lines: list[tuple[str, HostKey]], states: list[str]
) -> None:
    known = read(tmp_path, *(line(names, key) for names, key in lines))
    shown = [GOOD, make_key("new", "ecdsa-sha2-nistp256")]
    assert [state for state, _ in known.states("gpu-a", shown)] == states


def test_of_several_lines_the_one_of_the_same_type_is_what_changed(tmp_path: Path) -> None:
    rsa = make_key("good", "ssh-rsa")
    judged = read(tmp_path, line("gpu-a", rsa), line("gpu-a", OTHER)).judge("gpu-a", GOOD)
    assert judged.entry is not None
    assert judged.entry.key == OTHER


def test_any_of_several_keys_is_good(tmp_path: Path) -> None:
    known = read(tmp_path, line("gpu-a", OTHER), line("gpu-*", GOOD))
    assert known.judge("gpu-a", GOOD).verdict == "known"


def test_a_revoked_key_is_refused_although_it_also_stands_as_good(tmp_path: Path) -> None:
    known = read(tmp_path, line("gpu-a"), "@revoked " + line("*"))
    assert known.judge("gpu-a", GOOD).verdict == "revoked"
    assert known.judge("gpu-a", OTHER).verdict == "changed"


def test_an_authority_trusts_nobody_and_is_mentioned(tmp_path: Path) -> None:
    judged = read(tmp_path, "@cert-authority " + line("*.example.com")).judge("a.example.com", GOOD)
    assert judged.verdict == "unknown"
    assert judged.authority is not None


def test_odd_lines_cost_only_themselves(tmp_path: Path) -> None:
    known = read(
        tmp_path,
        "gpu-a ssh-ed25519 !!!not-base64",
        "gpu-a ssh-ed25519 AAAA",
        f"gpu-a ssh-rsa {GOOD.base64}",
        "gpu-a",
        "@sponsored " + line("gpu-a"),
        "gpu-b 2048 65537 1234567890",
        "",
        "   # indented",
        line("gpu-a") + " a comment, with more words",
    )
    assert known.judge("gpu-a", GOOD).verdict == "known"
    numbers = [warning.split(":")[1] for warning in known.warnings]
    assert numbers == ["1", "2", "3", "4", "5", "6"]


def test_bytes_that_are_no_text_and_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(b"\xff\xfe\x00\n" + line("gpu-a").encode() + b"\n")
    known = KnownHosts.read([path, tmp_path / "absent", tmp_path])
    assert known.judge("gpu-a", GOOD).verdict == "known"
    assert any("Is a directory" in warning for warning in known.warnings)


def test_types_that_a_host_is_known_by(tmp_path: Path) -> None:
    rsa = make_key("good", "ssh-rsa")
    known = read(tmp_path, line("gpu-a", rsa), "@revoked " + line("gpu-a"), line("gpu-b"))
    assert known.types("gpu-a") == ("ssh-rsa",)


def test_the_fingerprint_is_what_ssh_keygen_shows() -> None:
    # Checked with `ssh-keygen -lf` against this very key.
    key = HostKey.parse("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIK1B8DXmmxXnX+ydSkyhVk89aCYKEq1GYvOscO9DkUY6")
    assert key.fingerprint == "SHA256:K6DRXXHEz1ZL6BmFw+C0QuyUHUf4xYx1m+TfcFa30v0"


@pytest.mark.parametrize(
    ("address", "port", "name"),
    [("GPU-a", 22, "gpu-a"), ("10.0.0.1", 2222, "[10.0.0.1]:2222"), ("::1", 2222, "[::1]:2222")],
)
def test_known_name(address: str, port: int, name: str) -> None:
    assert known_name(address, port) == name


def test_append_makes_a_private_file_that_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "state/known_hosts"
    assert append(path, "10.0.0.1", 2222, GOOD)
    assert append(path, "10.0.0.2", 22, OTHER)
    assert not append(path, "10.0.0.1", 2222, GOOD), "it stands there already"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_text().count("\n") == 2
    known = KnownHosts.read([path])
    assert known.judge("[10.0.0.1]:2222", GOOD).verdict == "known"
    assert known.judge("10.0.0.2", OTHER).verdict == "known"


def test_append_mends_a_last_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("gpu-a"))
    append(path, "gpu-b", 22, OTHER)
    assert KnownHosts.read([path]).judge("gpu-a", GOOD).verdict == "known"


def test_replace_leaves_other_hosts_and_marks_alone(tmp_path: Path) -> None:
    path, new, other_type = tmp_path / "known_hosts", make_key("new"), make_key("new", "ssh-rsa")
    revoked = "@revoked " + line("gpu-a", make_key("stolen"))
    path.write_text(
        "\n".join(
            [
                "# by hand",
                line("gpu-a"),
                line("GPU-A,gpu-b", OTHER),
                line(hashed("gpu-a"), OTHER),
                line("gpu-a", other_type),
                line("[gpu-a]:2222"),
                revoked,
                "no key at all",
            ]
        )
    )
    assert replace(path, "gpu-a", 22, [new, other_type]) == 1
    assert path.read_text().splitlines() == [
        "# by hand",
        line("gpu-b", OTHER),
        line("gpu-a", other_type),
        line("[gpu-a]:2222"),
        revoked,
        "no key at all",
        line("gpu-a", new),
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    assert replace(path, "gpu-a", 22, [new]) == 0


def test_replace_does_not_touch_a_pattern_that_speaks_of_other_hosts_too(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(line("gpu-*"))
    with pytest.raises(ValueError, match="by a pattern"):
        replace(path, "gpu-a", 22, [OTHER])
    assert path.read_text() == line("gpu-*")


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    threads = [
        threading.Thread(target=append, args=(path, f"gpu-{i}", 22, make_key(str(i)))) for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = KnownHosts.read([path])
    assert all(known.judge(f"gpu-{i}", make_key(str(i))).verdict == "known" for i in range(12))


@pytest.mark.parametrize("name", ["a b", "a\nb ssh-rsa x", "*", "a,b", "!a", "|1|x|y", "#a", "@revoked"])
def test_append_takes_no_name_that_would_be_read_as_something_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a host's name"):
        append(tmp_path / "known_hosts", name, 22, GOOD)


def test_lines_by_name_by_pattern_and_by_hash_count_in_their_order(tmp_path: Path) -> None:
    types = ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384")
    names = ("*.lab", "a.lab,b.lab", hashed("a.lab"), "?.lab,!b.lab")
    known = read(
        tmp_path, *(line(name, make_key("k", kind)) for name, kind in zip(names, types, strict=True))
    )
    for _ in range(2):  # the second time from memory
        assert known.types("A.lab") == types
        assert known.types("b.lab") == types[:2]

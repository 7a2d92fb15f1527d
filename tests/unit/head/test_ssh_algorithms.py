"""What ssh_config says of algorithms is honoured, or refused with a sentence; never ignored."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.head.reach.ssh.algorithms import CERTIFICATE, Transport, algorithms, for_host, permits


def test_a_post_quantum_exchange_first_then_the_cheap_ones() -> None:
    kex = algorithms({}).kex
    groups = [name.startswith("diffie-hellman") for name in kex]
    assert groups == sorted(groups), "Diffie-Hellman groups cost nine times as much as everything else"
    quantum_safe = [name.startswith(("mlkem", "sntrup")) for name in kex]
    assert quantum_safe == sorted(quantum_safe, reverse=True)
    assert next(name for name in kex if not name.startswith("mlkem")).startswith("curve25519")


def test_what_ssh_itself_no_longer_offers_is_not_offered() -> None:
    found = algorithms({})
    offered = (*found.ciphers, *found.macs)
    assert not [name for name in offered if name.endswith(("-cbc", "-96")) or "md5" in name]
    assert found.ciphers[0].endswith("gcm@openssh.com")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aes256-ctr", ("aes256-ctr",)),
        ("aes256-ctr,aes128-ctr", ("aes256-ctr", "aes128-ctr")),
        ("chacha20-poly1305@openssh.com,aes256-ctr", ("aes256-ctr",)),
        ("aes*-gcm@openssh.com", ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")),
        (
            "-aes128-*,aes192-ctr",
            ("aes256-gcm@openssh.com", "aes256-ctr"),
        ),
        (
            "^aes256-ctr",
            (
                "aes256-ctr",
                "aes128-gcm@openssh.com",
                "aes256-gcm@openssh.com",
                "aes128-ctr",
                "aes192-ctr",
            ),
        ),
        (
            "+aes256-cbc",
            (
                "aes128-gcm@openssh.com",
                "aes256-gcm@openssh.com",
                "aes128-ctr",
                "aes192-ctr",
                "aes256-ctr",
                "aes256-cbc",
            ),
        ),
    ],
)
def test_lists_mean_what_they_mean_to_ssh(text: str, expected: tuple[str, ...]) -> None:
    assert algorithms({"ciphers": text}).ciphers == expected


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"kexalgorithms": "curve25519-sha256"}, ("curve25519-sha256@libssh.org",)),
        ({"macs": "hmac-sha2-512-etm@openssh.com,umac-64@openssh.com"}, ("hmac-sha2-512-etm@openssh.com",)),
        ({"hostkeyalgorithms": "rsa-sha2-512,ssh-ed25519"}, ("rsa-sha2-512", "ssh-ed25519")),
    ],
)
def test_every_list_counts(settings: Mapping[str, str], field: tuple[str, ...]) -> None:
    found = algorithms(settings)
    assert field in (found.kex, found.macs, found.host_keys)


@pytest.mark.parametrize("keyword", ["kexalgorithms", "ciphers", "macs", "hostkeyalgorithms"])
def test_a_list_of_which_we_can_do_nothing_is_refused(keyword: str) -> None:
    with pytest.raises(ValueError, match=r"nobody-knows-this.* it has .*,"):
        algorithms({keyword: "nobody-knows-this"})


def test_a_known_type_is_asked_for_first_within_what_is_allowed() -> None:
    found = algorithms({"hostkeyalgorithms": "-ssh-ed25519"})
    names = for_host(found, types=("ssh-rsa", "ssh-ed25519"), certified=False).host_keys
    assert names[:2] == ("rsa-sha2-512", "rsa-sha2-256")
    assert "ssh-ed25519" not in names
    assert not any(name.endswith(CERTIFICATE) for name in names), "none that nobody could judge"


def test_certificates_come_first_where_an_authority_is_known() -> None:
    names = for_host(algorithms({}), types=("ssh-ed25519",), certified=True).host_keys
    assert names[0] == "ssh-ed25519" + CERTIFICATE
    certificates = [name.endswith(CERTIFICATE) for name in names]
    assert certificates == sorted(certificates, reverse=True)


@pytest.mark.parametrize(
    ("text", "name", "allowed"),
    [
        ("", "ssh-ed25519", True),
        ("ssh-ed25519", "ssh-ed25519", True),
        ("rsa-sha2-512", "ssh-ed25519", False),
        ("ssh-ed25519*", "ssh-ed25519" + CERTIFICATE, True),
        ("-ssh-ed25519", "ssh-ed25519", False),
        ("-ssh-ed25519", "rsa-sha2-512", True),
        ("+ssh-rsa", "ssh-ed25519", True),
        ("^rsa-sha2-512", "ssh-ed25519", True),
    ],
)
def test_keys_of_ours_that_may_be_offered(text: str, name: str, allowed: bool) -> None:
    settings = {"pubkeyacceptedalgorithms": text} if text else {}
    assert permits(settings, "pubkeyacceptedalgorithms", name) is allowed


@pytest.mark.parametrize(
    ("text", "name", "allowed"),
    [
        ("", "ssh-ed25519", True),
        ("", "ssh-rsa", False),
        ("+ssh-rsa", "ssh-rsa", True),
        ("-rsa-sha2-256", "rsa-sha2-256", False),
        ("-rsa-sha2-256", "ssh-rsa", False),
        ("ecdsa-sha2-nistp256", "ssh-ed25519", False),
    ],
)
def test_signatures_of_authorities(text: str, name: str, allowed: bool) -> None:
    settings = {"casignaturealgorithms": text} if text else {}
    assert permits(settings, "casignaturealgorithms", name) is allowed


class OfABastion:
    """The channel of a bastion that has gone: it ends, and refuses once to be closed."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def close(self) -> None:
        if self._end.fileno() >= 0:
            self._end.close()
            raise EOFError


def test_who_waits_for_a_connection_by_a_bastion_that_goes_is_woken() -> None:
    here, there = socket.socketpair()
    connection, ended = Transport(OfABastion(here), algorithms({})), threading.Event()
    connection.start_client(ended)
    there.close()
    assert ended.wait(20.0)
    connection.join(20.0)
    assert not connection.is_alive()

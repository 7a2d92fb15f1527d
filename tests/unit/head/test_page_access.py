"""Who may see the page: tokens that work once, shares that end, and which pages are served now."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.head.node.page_access import (
    FILE,
    SHARE_LASTS_S,
    SHARES_MAX,
    TOKEN_LASTS_S,
    TOKENS_MAX,
    PageAccess,
    same,
    served,
    served_at,
)
from tests.patience import comes

SECRET_CHARS = 43
"""So long is a secret of 32 bytes as text."""


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def is_waited_for(file: int) -> bool:
    """Return whether somebody waits for a lock of this file: the kernel lists them behind the one who holds it."""
    return any("->" in line and f":{os.fstat(file).st_ino} " in line for line in open("/proc/locks"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(tmp_path: Path, clock: Clock) -> PageAccess:
    return PageAccess(str(tmp_path / "state"), now=clock, clock=clock)


def test_a_share_is_named_by_a_short_id_and_opened_by_a_long_secret(access: PageAccess, clock: Clock) -> None:
    made = access.share("Anna")
    assert (len(made.id), len(made.token), made.note) == (8, SECRET_CHARS, "Anna")
    assert made.until == clock.at + SHARE_LASTS_S
    assert access.redeem(made.id) is None, "all who list the shares see it"
    viewer = access.redeem(made.token)
    assert viewer is not None
    assert not viewer.is_owner
    assert access.viewers() == [viewer], "no owner has come yet"
    assert access.redeem(made.token) == viewer, "as often as one likes"
    clock.at = made.until
    assert (access.redeem(made.token), access.viewers(), access.shares()) == (None, [], [])


def test_no_more_shares_are_made_than_are_allowed_until_one_ends(access: PageAccess, clock: Clock) -> None:
    first = access.share("0", lasts_s=60.0)
    shares = [first, *(access.share(str(number + 1)) for number in range(SHARES_MAX - 1))]
    assert access.shares() == shares
    with pytest.raises(UsageError, match=f"there are {SHARES_MAX} shares"):
        access.share("one more")
    assert access.revoke(shares[5].id) == shares[5]
    with pytest.raises(UsageError, match="there is no share"):
        access.revoke(shares[5].id)
    added = access.share("in its place")
    clock.at += 60.0
    assert access.shares() == [*shares[1:5], *shares[6:], added]
    access.share("in the place of the one that has ended")


def test_a_token_lets_one_browser_of_the_owner_in_and_soon(access: PageAccess, clock: Clock) -> None:
    tokens = [access.new_token() for _ in range(3)]
    assert {len(token) for token in tokens} == {SECRET_CHARS}
    owner = access.redeem(tokens[0])
    assert owner is not None
    assert owner.is_owner
    assert len(owner.secret) == SECRET_CHARS
    assert access.redeem(tokens[0]) is None
    assert access.redeem("") is None
    clock.at += TOKEN_LASTS_S - 1
    assert access.redeem(tokens[1]) == owner, "the same owner in each browser"
    clock.at += 1
    assert access.redeem(tokens[2]) is None
    again = access.redeem(access.new_token())
    assert access.viewers() == [again] == [owner], "a new address shuts nobody out"
    assert owner.derived("cookie") != owner.derived("key")
    access.revoke_all()
    assert access.viewers() == []
    other = access.redeem(access.new_token())
    assert other is not None
    assert other.secret != owner.secret


def test_of_many_tokens_the_newest_work_and_none_outlives_a_boot(access: PageAccess, tmp_path: Path) -> None:
    tokens = [access.new_token() for _ in range(TOKENS_MAX + 1)]
    assert access.redeem(tokens[0]) is None
    assert access.redeem(tokens[1]) is not None
    file = tmp_path / "state" / FILE
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot": "another"}))
    assert access.redeem(tokens[2]) is None


def test_of_two_commands_that_change_it_one_waits_for_the_other(access: PageAccess, tmp_path: Path) -> None:
    first = access.share("Anna")
    with (tmp_path / "state" / f"{FILE}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        second = threading.Thread(target=access.share, args=("Ben",))
        second.start()
        assert comes(lambda: is_waited_for(other.fileno()), 20.0)
        assert access.shares() == [first]
    second.join(20.0)
    assert [share.note for share in access.shares()] == ["Anna", "Ben"]


def test_a_secret_that_is_not_there_is_nobodys() -> None:
    assert same("a", "a")
    assert not same("a", "b")
    assert not same("", "")
    assert not same("ä", "a")


def test_a_page_is_served_for_as_long_as_its_process_holds_its_file(tmp_path: Path) -> None:
    assert served_at(str(tmp_path / "nowhere")) == []
    for port in (7, 9):
        (tmp_path / f"served-{port}").write_text("of a process that was killed")
    with (tmp_path / "coordinator.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with served(str(tmp_path), 8080, "http://127.0.0.1:8080/"), served(str(tmp_path), 9, "a"):
            assert (tmp_path / "served-8080").stat().st_mode & 0o777 == 0o600
            assert served_at(str(tmp_path)) == ["http://127.0.0.1:8080/", "a"]
        assert served_at(str(tmp_path)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["coordinator.lock", "served-7"]

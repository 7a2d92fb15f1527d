"""A second user of a checkpoint directory puts links, pipes and directories in the way, at each of our steps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import second_user
from tests.second_user import DEEDS, KINDS, TARGETS, SecondUser

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")

MOMENTS = (0, 1, 2, 3, 5, 8, 12, 17, 23, 30, 40, 55, 75, 100, 130)
"""Before which of our steps he acts. `make fuzz` draws others."""


@pytest.fixture(scope="module")
def user() -> Iterator[SecondUser]:
    with SecondUser() as user:
        yield user


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.fault(100)
def test_row_100_what_he_has_planted_leads_nowhere(user: SecondUser, deed: str) -> None:
    acted = [second_user.attack(user, deed, target, "link", None) for target in TARGETS]
    acted += [
        second_user.attack(user, deed, target, KINDS[1 + number % 2], None)
        for number, target in enumerate(TARGETS)
    ]
    assert acted.count(True) > len(TARGETS)


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.fault(100)
def test_row_100_what_he_swaps_between_two_steps_leads_nowhere(user: SecondUser, deed: str) -> None:
    acted = [
        second_user.attack(user, deed, target, KINDS[turn % 2], at)
        for number, target in enumerate(TARGETS)
        for turn, at in enumerate(MOMENTS)
        if (number + turn) % 5 == 0
    ]
    assert acted.count(True) > len(TARGETS)

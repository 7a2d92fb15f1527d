"""What a host's own name says of where a library would listen."""

from __future__ import annotations

import pytest

from orchestrator.daemon.agent.probe import own_name


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_address_of_a_name_is_one_that_can_be_listened_on(address: str) -> None:
    assert own_name(address) == {"name": address, "address": address, "why": None}


def test_an_address_of_another_machine_is_none() -> None:
    found = own_name("192.0.2.77")
    assert found["address"] is None
    assert (found["why"] or "").startswith("it resolves to 192.0.2.77: ")

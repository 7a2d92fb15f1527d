"""The metrics of a status document, where they could be of somebody else."""

from __future__ import annotations

from orchestrator import __version__
from orchestrator.client.exposition import families
from tests.contract.fake_api import run_document


def test_the_version_is_the_coordinators_and_ours_only_where_it_tells_none() -> None:
    """After an update the coordinator is still the old one, until somebody starts it again."""

    def versions(coordinator: dict[str, str] | None) -> list[str]:
        document = {"runs": [run_document()], "coordinator": coordinator}
        return [
            sample.labels["version"]
            for family in families(document)
            for sample in family.samples
            if sample.name == "orch_coordinator_info"
        ]

    assert versions({"version": "0.0.1"}) == ["0.0.1"]
    assert versions({}) == versions(None) == [__version__]

from __future__ import annotations

import pytest

from orchestrator.both.keras_versions import asks_for_legacy, numbers, patched, unsupported

MWMS = "MultiWorkerMirroredStrategy"


@pytest.mark.parametrize(
    ("text", "expected"), [("3.15.1", (3, 15, 1)), ("3.13.0rc1", (3, 13, 0)), ("", ()), ("2.16", (2, 16))]
)
def test_numbers_of_a_version(text: str, expected: tuple[int, ...]) -> None:
    assert numbers(text) == expected


@pytest.mark.parametrize("version", ["3.12.0", "3.13.2", "3.14.1", "3.15.1", "3.15.9"])
def test_versions_that_were_tried_are_mended(version: str) -> None:
    assert patched(version)
    assert unsupported(MWMS, {"tensorflow": "2.21.0", "keras": version}, legacy_keras=False) is None


@pytest.mark.parametrize("version", ["3.5.0", "3.11.3", "3.16.0", "4.0.0"])
def test_other_versions_of_keras_3_are_refused_with_both_ways_out(version: str) -> None:
    sentence = unsupported(MWMS, {"tensorflow": "2.19.1", "keras": version}, legacy_keras=False)
    assert sentence is not None
    assert version in sentence
    assert 'pip install "keras>=3.12,<3.16"' in sentence
    assert "`keras: 2` under `run:`" in sentence
    assert 'pip install "tf_keras~=2.19.0"' in sentence


@pytest.mark.parametrize(
    ("strategy", "versions", "legacy"),
    [
        ("MirroredStrategy", {"tensorflow": "2.21.0", "keras": "3.5.0"}, False),
        (MWMS, {"tensorflow": "2.15.1", "keras": "2.15.0"}, False),
        (MWMS, {"tensorflow": "2.15.1", "keras": "2.15.0"}, True),
        (MWMS, {"tensorflow": "2.21.0", "keras": "3.5.0", "tf_keras": "2.21.0"}, True),
        (MWMS, {"tensorflow": "2.21.0", "keras": None}, False),
        (MWMS, {}, False),
    ],
)
def test_what_works_needs_no_word(strategy: str, versions: dict[str, str | None], legacy: bool) -> None:
    assert unsupported(strategy, versions, legacy) is None


@pytest.mark.parametrize("tf_keras", [None, "2.20.1"])
def test_legacy_keras_must_have_tensorflows_minor_version(tf_keras: str | None) -> None:
    sentence = unsupported(MWMS, {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": tf_keras}, True)
    assert sentence is not None
    assert 'pip install "tf_keras~=2.21.0"' in sentence


@pytest.mark.parametrize("strategy", ["", "MirroredStrategy", "ParameterServerStrategy"])
def test_tf_keras_is_looked_for_under_every_strategy(strategy: str) -> None:
    assert unsupported(strategy, {"tensorflow": "2.21.0", "tf_keras": "2.21.0"}, legacy_keras=True) is None
    sentence = unsupported(strategy, {"tensorflow": "2.21.0", "keras": "3.15.1"}, legacy_keras=True)
    assert sentence is not None
    assert "tf_keras is not installed" in sentence


def test_no_keras_3_fits_under_a_parameter_server() -> None:
    for version in ("3.15.1", "3.5.0"):
        sentence = unsupported("ParameterServerStrategy", {"tensorflow": "2.21.0", "keras": version}, False)
        assert sentence is not None
        assert "ClusterCoordinator" in sentence
    assert unsupported("ParameterServerStrategy", {"tensorflow": "2.15.1", "keras": "2.15.0"}, False) is None


def test_central_storage_needs_a_keras_that_was_mended() -> None:
    assert unsupported("CentralStorageStrategy", {"tensorflow": "2.21.0", "keras": "3.15.1"}, False) is None
    sentence = unsupported("CentralStorageStrategy", {"tensorflow": "2.19.0", "keras": "3.8.0"}, False)
    assert sentence is not None
    assert "BatchNormalization" in sentence


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("os.environ['TF_USE_LEGACY_KERAS'] = '1'", True),
        ("import tf_keras as keras", True),
        ("from tf_keras.layers import Dense", True),
        ("import tensorflow.keras", False),
    ],
)
def test_a_script_that_chooses_keras_2_itself(source: str, expected: bool) -> None:
    assert asks_for_legacy(source) is expected
